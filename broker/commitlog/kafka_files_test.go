package commitlog

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

var updateKafkaFiles = flag.Bool("update-kafka-files", false, "have a real Kafka write testdata/kafka-4.4.0 anew")

// kafkaFiles has what a real Kafka left in its data directory when it stopped:
// the files of the directory itself, and those of two partitions. It is made by
// `go test ./broker/commitlog -run TestKafkaFiles -args -update-kafka-files`,
// which runs writeKafkaFiles.
const kafkaFiles = "testdata/kafka-4.4.0"

// What writeKafkaFiles does to the topics.
const (
	eventsRecords   = 30 // to each of two partitions, in two leader epochs
	eventsDeleted   = 7  // of partition 0
	compactedRounds = 4
)

// TestKafkaFiles reads the checkpoint and metadata files of a real Kafka and
// writes them again: byte for byte the same, but for what the formats leave open,
// which is the order of a checkpoint's lines (Kafka's is that of a hash table,
// ours is sorted) and the time in the comment of meta.properties.
func TestKafkaFiles(t *testing.T) {
	if *updateKafkaFiles {
		writeKafkaFiles(t)
	}
	dir := t.TempDir()
	for file, want := range map[string]map[TopicPartition]int64{
		RecoveryPointFile: {{"events", 0}: eventsRecords, {"events", 1}: eventsRecords, {"compacted", 0}: compactedRounds},
		HighWatermarkFile: {{"events", 0}: eventsRecords, {"events", 1}: eventsRecords, {"compacted", 0}: compactedRounds},
		LogStartFile:      {{"events", 0}: eventsDeleted},
		CleanerFile:       {{"compacted", 0}: compactedRounds - 1},
	} {
		got, err := ReadOffsetCheckpoint(OSFS{}, filepath.Join(kafkaFiles, file))
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", file, got, err, want)
		}
		if err := WriteOffsetCheckpoint(OSFS{}, filepath.Join(dir, file), want); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, filepath.Join(dir, file), filepath.Join(kafkaFiles, file), sortEntries)
	}
	for partition, want := range map[string]epochHistory{
		"events-0":    {{0, eventsDeleted}, {2, eventsRecords / 2}}, // the first begins where the log does
		"events-1":    {{0, 0}, {2, eventsRecords / 2}},             // epoch 1 ended before its first record
		"compacted-0": {{0, 0}, {2, compactedRounds}},
	} {
		file := filepath.Join(kafkaFiles, partition, LeaderEpochFile)
		got, err := readEpochs(OSFS{}, file)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", file, got, err, want)
		}
		if err := writeEpochs(OSFS{}, filepath.Join(dir, LeaderEpochFile), want); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, filepath.Join(dir, LeaderEpochFile), file, nil)

		id, ok, err := ReadTopicID(OSFS{}, filepath.Join(kafkaFiles, partition))
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := WriteTopicID(OSFS{}, dir, id); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, filepath.Join(dir, MetadataFile), filepath.Join(kafkaFiles, partition, MetadataFile), nil)
	}
	p, ok, err := ReadProperties(OSFS{}, kafkaFiles)
	if err != nil || !ok || p.NodeID != 1 || p.ClusterID == "" || p.DirectoryID == "" {
		t.Fatal(p, ok, err)
	}
	if err := WriteProperties(OSFS{}, dir, p); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, filepath.Join(dir, PropertiesFile), filepath.Join(kafkaFiles, PropertiesFile), withoutDate)

	// Taking the mark removes it.
	copyFile(t, filepath.Join(kafkaFiles, CleanShutdownFile), filepath.Join(dir, CleanShutdownFile))
	clean, epoch, err := TakeCleanShutdown(OSFS{}, dir)
	if err != nil || !clean || epoch < 0 {
		t.Fatal(clean, epoch, err)
	}
	if err := WriteCleanShutdown(OSFS{}, dir, epoch); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, filepath.Join(dir, CleanShutdownFile), filepath.Join(kafkaFiles, CleanShutdownFile), nil)
}

// sameBytes compares two files, after a change to both if there is one.
func sameBytes(t *testing.T, ours, kafkas string, change func([]byte) []byte) {
	t.Helper()
	got, err := os.ReadFile(ours)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(kafkas)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		got, want = change(got), change(want)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is written as\n%q\nand by Kafka as\n%q", filepath.Base(ours), got, want)
	}
}

// sortEntries puts a checkpoint's entries, which come after two lines, into order.
func sortEntries(b []byte) []byte {
	lines := strings.SplitAfter(string(b), "\n")
	slices.Sort(lines[2:])
	return []byte(strings.Join(lines, ""))
}

var propertiesDate = regexp.MustCompile(`(?m)^#\w{3} \w{3} .*\n`)

// withoutDate takes the second line, the time of the writing, out of meta.properties.
func withoutDate(b []byte) []byte { return propertiesDate.ReplaceAll(b, nil) }

// writeKafkaFiles has a real Kafka write the files of kafkaFiles.
func writeKafkaFiles(t *testing.T) {
	kafka := testenv.StartKafka(t, testenv.KafkaConfig{Properties: map[string]string{
		"log.cleaner.backoff.ms": "100", "log.flush.offset.checkpoint.interval.ms": "500", "log.retention.check.interval.ms": "500",
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := func() *kgo.Client {
		cl, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	send := func(cl *kgo.Client, topic string, partition int32) {
		r := &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k"), Value: []byte("v")}
		if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	stop := func() { _ = kafka.Stop() } // Java says 143 after SIGTERM
	cl := client()
	adm := kadm.NewClient(cl)
	_, err := adm.CreateTopic(ctx, 2, 1, nil, "events")
	must(err)
	value := func(s string) *string { return &s }
	_, err = adm.CreateTopic(ctx, 1, 1, map[string]*string{
		"cleanup.policy": value("compact"), "segment.ms": value("50"), "min.cleanable.dirty.ratio": value("0"),
	}, "compacted")
	must(err)
	for i := range eventsRecords {
		if i == eventsRecords/2 { // a second leader epoch
			for range compactedRounds {
				send(cl, "compacted", 0)
				waitFor(ctx, t, 100*time.Millisecond, nil) // a segment each
			}
			waitFor(ctx, t, 0, func() bool {
				b, _ := os.ReadFile(filepath.Join(kafka.LogDir(), CleanerFile))
				return strings.Contains(string(b), fmt.Sprintf("compacted 0 %d\n", compactedRounds-1))
			})
			cl.Close()
			stop()
			kafka.Restart(t)
			cl = client()
		}
		send(cl, "events", 0)
		send(cl, "events", 1)
	}
	var to kadm.Offsets
	to.Add(kadm.Offset{Topic: "events", Partition: 0, At: eventsDeleted})
	_, err = kadm.NewClient(cl).DeleteRecords(ctx, to)
	must(err)
	cl.Close()
	stop()
	must(os.RemoveAll(kafkaFiles))
	files := map[string][]string{
		".":           {RecoveryPointFile, HighWatermarkFile, LogStartFile, CleanerFile, PropertiesFile, CleanShutdownFile},
		"events-0":    {LeaderEpochFile, MetadataFile},
		"events-1":    {LeaderEpochFile, MetadataFile},
		"compacted-0": {LeaderEpochFile, MetadataFile},
	}
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		must(os.MkdirAll(filepath.Join(kafkaFiles, dir), 0o755))
		for _, name := range files[dir] {
			copyFile(t, filepath.Join(kafka.LogDir(), dir, name), filepath.Join(kafkaFiles, dir, name))
		}
	}
}

// waitFor waits until a condition on another process's files holds, or just so long.
func waitFor(ctx context.Context, t *testing.T, long time.Duration, ok func() bool) {
	t.Helper()
	for {
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(max(long, 50*time.Millisecond)):
		}
		if ok == nil || ok() {
			return
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
