package commitlog

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOffsetCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), RecoveryPointFile)
	got, err := ReadOffsetCheckpoint(OSFS{}, path)
	if err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
	want := map[TopicPartition]int64{{"b-c", 1}: 7, {"a", 10}: 0, {"a", 2}: 9223372036854775807}
	if err := WriteOffsetCheckpoint(OSFS{}, path, want); err != nil {
		t.Fatal(err)
	}
	const golden = "0\n3\na 2 9223372036854775807\na 10 0\nb-c 1 7\n"
	if text, _ := os.ReadFile(path); string(text) != golden {
		t.Errorf("%q", text)
	}
	if got, err = ReadOffsetCheckpoint(OSFS{}, path); err != nil || !cmp.Equal(got, want) {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "1\n0\n", "0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na 0 x\n", "0\nx\n"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		var corrupt *CorruptionError
		if _, err := ReadOffsetCheckpoint(OSFS{}, path); !errors.As(err, &corrupt) || corrupt.Path != path {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPartitionMetadata(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "t-0")
	if _, ok, err := ReadTopicID(OSFS{}, dir); ok || err != nil {
		t.Fatal(ok, err)
	}
	id := [16]byte{0xfb, 0xff, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	if err := WriteTopicID(OSFS{}, dir, id); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, MetadataFile)); string(text) != "version: 0\ntopic_id: -_8DBAUGBwgJCgsMDQ4PEA" {
		t.Errorf("%q", text)
	}
	if got, ok, err := ReadTopicID(OSFS{}, dir); got != id || !ok || err != nil {
		t.Error(got, ok, err)
	}
	if err := os.WriteFile(filepath.Join(dir, MetadataFile), []byte("version: 0\ntopic_id: x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadTopicID(OSFS{}, dir); err == nil {
		t.Error("a bad id was read")
	}
}

func TestProperties(t *testing.T) {
	dir := t.TempDir()
	if _, ok, err := ReadProperties(OSFS{}, dir); ok || err != nil {
		t.Fatal(ok, err)
	}
	want := Properties{ClusterID: "MkU3OEVBNTcwNTJENDM2Qg", DirectoryID: "AAAAAAAAAAAAAAAAAAAAAA", NodeID: 3}
	if err := WriteProperties(OSFS{}, dir, want); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := ReadProperties(OSFS{}, dir); got != want || !ok || err != nil {
		t.Error(got, ok, err)
	}
	if err := os.WriteFile(filepath.Join(dir, PropertiesFile), []byte("node.id=3\nversion=9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadProperties(OSFS{}, dir); err == nil {
		t.Error("version 9 was read")
	}
}

func TestCleanShutdown(t *testing.T) {
	dir := t.TempDir()
	if clean, _, err := TakeCleanShutdown(OSFS{}, dir); clean || err != nil {
		t.Fatal(clean, err)
	}
	if err := WriteCleanShutdown(OSFS{}, dir, 12); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, CleanShutdownFile)); string(text) != `{"version":0,"brokerEpoch":12}` {
		t.Errorf("%q", text)
	}
	if clean, epoch, err := TakeCleanShutdown(OSFS{}, dir); !clean || epoch != 12 || err != nil {
		t.Fatal(clean, epoch, err)
	}
	if clean, _, err := TakeCleanShutdown(OSFS{}, dir); clean || err != nil {
		t.Fatal("taken twice", err)
	}
}

func TestDirNames(t *testing.T) {
	for name, want := range map[string]TopicPartition{"t-0": {"t", 0}, "a-b-12": {"a-b", 12}, "-t-0": {"-t", 0}} {
		topic, partition, ok := ParseDirName(name)
		if !ok || topic != want.Topic || partition != want.Partition || DirName(topic, partition) != name {
			t.Errorf("%s: %s %d %v", name, topic, partition, ok)
		}
	}
	for _, name := range []string{"t", "-0", "t-", "t-x", "t-+1", "t--1", "t-0.00000000000000000000000000000000-delete", "cluster"} {
		if topic, partition, ok := ParseDirName(name); ok && DirName(topic, partition) != name {
			t.Errorf("%s: %s %d", name, topic, partition)
		}
	}
}

func TestRemoveDeletedDirs(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, "t-0.00000000000000000000000000000001-delete")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, fileName(0, logSuffix)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "to-delete-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	removed, err := RemoveDeletedDirs(OSFS{}, dir)
	if err != nil || !cmp.Equal(removed, []string{filepath.Base(half)}) {
		t.Error(removed, err)
	}
}

// TestSnapshotGolden pins the layout of Kafka's ProducerSnapshot, version 1.
func TestSnapshotGolden(t *testing.T) {
	p := &producer{id: 1000, epoch: 2, count: 1}
	p.batches[0] = producerBatch{firstSequence: 10, lastSequence: 14, firstOffset: 100, lastOffset: 104, timestamp: 1_700_000_000_000}
	table := producerTable{1000: p}
	const want = "0001" + "45b91e44" + "00000001" +
		"00000000000003e8" + "0002" + "0000000e" + "0000000000000068" + "00000004" + "0000018bcfe56800" + "ffffffff" + "ffffffffffffffff"
	data := encodeSnapshot(table)
	if got := hex.EncodeToString(data); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	loaded, err := decodeSnapshot(data, 0)
	if err != nil || !cmp.Equal(loaded, table, cmp.AllowUnexported(producer{}, producerBatch{})) {
		t.Error(loaded, err)
	}
}
