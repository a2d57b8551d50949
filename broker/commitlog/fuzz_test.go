package commitlog

import (
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

// FuzzFiles reads bytes as each of the files that lie in a data directory: the
// first argument says which.
func FuzzFiles(f *testing.F) {
	const (
		segmentWithIndexes = iota
		segmentWithEpochs
		segmentWithSnapshot
		snapshotAlone
		textFile
		kinds
	)
	torn := makeTornLog(f)
	p := &producer{id: 1, count: 2}
	p.batches[1] = producerBatch{firstSequence: 1, lastSequence: 3, firstOffset: 5, lastOffset: 7}
	snapshot := encodeSnapshot(producerTable{1: p})
	for name, data := range torn.files {
		if filepath.Ext(name) == logSuffix {
			f.Add(uint8(segmentWithIndexes), data, data[:min(len(data), 16)])
			f.Add(uint8(segmentWithEpochs), data, []byte("0\n1\n2\n"))
			f.Add(uint8(segmentWithEpochs), data, []byte("0\n2\n0 0\n3 2\n"))
			f.Add(uint8(segmentWithSnapshot), data, snapshot)
		}
	}
	f.Add(uint8(snapshotAlone), snapshot, []byte(nil))
	f.Add(uint8(snapshotAlone), encodeSnapshot(nil), []byte(nil))
	for _, text := range []string{
		"0\n2\na 0 1\nb-c 12 9223372036854775807\n",
		"0\n2\n0 0\n7 100\n",
		"version: 0\ntopic_id: -_8DBAUGBwgJCgsMDQ4PEA",
		"#\n#Mon Nov 30 12:00:00 UTC 2026\ncluster.id=c\ndirectory.id=d\nnode.id=1\nversion=1\n",
		`{"version":0,"brokerEpoch":7}`,
	} {
		f.Add(uint8(textFile), []byte(text), []byte(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, data, second []byte) {
		switch kind % kinds {
		case segmentWithIndexes:
			fuzzOpen(t, data, map[string][]byte{fileName(0, indexSuffix): second, fileName(0, timesSuffix): second})
		case segmentWithEpochs:
			fuzzOpen(t, data, map[string][]byte{LeaderEpochFile: second, CompactionFile: second})
		case segmentWithSnapshot:
			fuzzOpen(t, data, map[string][]byte{fileName(0, snapshotSuffix): second, fileName(2, snapshotSuffix): second})
		case snapshotAlone:
			fuzzSnapshot(t, data)
		case textFile:
			fuzzTexts(t, data)
		}
	})
}

// fuzzOpen opens a log of one segment beside other files, after a clean stop and after a crash.
func fuzzOpen(t *testing.T, data []byte, others map[string][]byte) {
	fs := newMemFS(vfs.NewMem())
	if err := fs.MkdirAll(scriptDir); err != nil {
		t.Fatal(err)
	}
	others[fileName(0, logSuffix)] = data
	for name, content := range others {
		if err := writeUnsynced(fs, filepath.Join(scriptDir, name), content); err != nil {
			t.Fatal(err)
		}
	}
	for _, opt := range []OpenOptions{{Clean: true, RecoveryPoint: 3}, {}} {
		l, _, err := Open(fs, scriptDir, Config{}, opt)
		if err != nil {
			continue // headers below the recovery point may be anything
		}
		if r, err := l.Read(l.StartOffset(), 1<<20, l.EndOffset(), true); err == nil {
			if r.Len > len(data) {
				t.Fatal("region beyond the file")
			}
			r.Release()
		}
		l.Abort()
	}
}

// fuzzSnapshot writes what is a good producer snapshot again as it was read.
func fuzzSnapshot(t *testing.T, data []byte) {
	table, err := decodeSnapshot(data, 0)
	if err != nil {
		return
	}
	again, err := decodeSnapshot(encodeSnapshot(table), 0)
	if err != nil || !cmp.Equal(table, again, cmp.AllowUnexported(producer{}, producerBatch{})) {
		t.Fatal(err)
	}
}

// fuzzTexts reads the same bytes as each of the text files; what is good is
// written again and read as it was.
func fuzzTexts(t *testing.T, data []byte) {
	fs := newMemFS(vfs.NewMem())
	if err := fs.MkdirAll(scriptDir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{RecoveryPointFile, LeaderEpochFile, MetadataFile, PropertiesFile, CleanShutdownFile} {
		if err := writeUnsynced(fs, filepath.Join(scriptDir, name), data); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(scriptDir, RecoveryPointFile)
	if offsets, err := ReadOffsetCheckpoint(fs, path); err == nil {
		again, err := offsets, WriteOffsetCheckpoint(fs, path, offsets)
		if err == nil {
			again, err = ReadOffsetCheckpoint(fs, path)
		}
		if err != nil || !cmp.Equal(offsets, again) {
			t.Errorf("offsets %v, again %v: %v", offsets, again, err)
		}
	}
	path = filepath.Join(scriptDir, LeaderEpochFile)
	if epochs, err := readEpochs(fs, path); err == nil {
		again, err := epochs, writeEpochs(fs, path, epochs)
		if err == nil {
			again, err = readEpochs(fs, path)
		}
		if err != nil || len(again) != len(epochs) {
			t.Errorf("epochs %v, again %v: %v", epochs, again, err)
		}
	}
	if id, ok, err := ReadTopicID(fs, scriptDir); ok && err == nil {
		err := WriteTopicID(fs, scriptDir, id)
		if again, _, _ := ReadTopicID(fs, scriptDir); err != nil || again != id {
			t.Errorf("topic id %v, again %v: %v", id, again, err)
		}
	}
	_, _, _ = ReadProperties(fs, scriptDir)
	_, _, _ = TakeCleanShutdown(fs, scriptDir)
}
