package broker

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

// countingFS counts what is opened, read and synced of the files of logs.
type countingFS struct {
	commitlog.OSFS
	mu                   sync.Mutex
	opened, read, synced map[string]int
}

func (f *countingFS) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened, f.read, f.synced = map[string]int{}, map[string]int{}, map[string]int{}
}

func (f *countingFS) count(in map[string]int, name string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in[name] += n
}

// logs are the counts of segments.
func logs(counts map[string]int) map[string]int {
	out := maps.Clone(counts)
	maps.DeleteFunc(out, func(name string, _ int) bool {
		return filepath.Ext(name) != ".log" || strings.HasPrefix(filepath.Base(filepath.Dir(name)), "__")
	})
	return out
}

func (f *countingFS) OpenFile(name string, flag int) (commitlog.File, error) {
	f.count(f.opened, name, 1)
	file, err := f.OSFS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return &countingFile{file, name, f}, nil
}

type countingFile struct {
	commitlog.File
	name string
	fs   *countingFS
}

func (f *countingFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.fs.count(f.fs.read, f.name, n)
	return n, err
}

func (f *countingFile) Sync() error {
	f.fs.count(f.fs.synced, f.name, 1)
	return f.File.Sync()
}

// What makes a start fast: after a clean stop nothing is checked, and only the
// ends of the last segments are looked at; after a kill that is so for every log
// that was flushed and checkpointed, and of the others what was not is checked.
func TestStartReadsOnlyWhatIsNotKnown(t *testing.T) {
	const topics, partitions, segments, unflushed = 3, 4, 3, 2
	fs := &countingFS{}
	fs.reset()
	cfg := testConfig(t)
	cfg.FS, cfg.NoGroupFsync = fs, true
	n := startNode(t, cfg)
	for i := range topics {
		n.createTopic(t, fmt.Sprintf("t%d", i), partitions, nil)
	}
	for range segments {
		appendTo(t, n, 20<<10, n.partitions.All()...)
		rollAll(t, n)
	}
	appendTo(t, n, 20<<10, n.partitions.All()...)
	n.stop(t)

	start := func() *node {
		t.Helper()
		fs.reset()
		return startNode(t, cfg)
	}
	n = start()
	wantChecked(t, n, 0, 0)
	wantLittleRead(t, fs, topics*partitions)

	n.abort() // all is as the clean stop left it
	n = start()
	wantChecked(t, n, 0, 0)
	wantLittleRead(t, fs, topics*partitions)
	if synced := logs(fs.synced); len(synced) > 0 {
		t.Errorf("synced at a start that found all flushed: %v", synced)
	}

	bytes := appendTo(t, n, 50<<10, n.partitions.All()[:unflushed]...)
	n.abort()
	n = start()
	wantChecked(t, n, unflushed, bytes)
	if synced := logs(fs.synced); len(synced) != unflushed {
		t.Errorf("synced at a start that found %d unflushed logs: %v", unflushed, synced)
	}
	n.forAll("flush", func(p *replica.Partition) error { return p.Flush() })
	n.checkpointStep()
	n.abort()
	wantChecked(t, start(), 0, 0)
}

func wantChecked(t *testing.T, n *node, segments int64, bytes int64) {
	t.Helper()
	if s, b := n.recovered.segments.Load(), n.recovered.checkedBytes.Load(); s != segments || b != bytes {
		t.Errorf("%d segments and %d bytes were checked, want %d and %d", s, b, segments, bytes)
	}
}

// wantLittleRead says that of the segments only the last ones were opened, and
// little of them read: what lies behind the last entry of the index.
func wantLittleRead(t *testing.T, fs *countingFS, partitions int) {
	t.Helper()
	if opened := logs(fs.opened); len(opened) > partitions {
		t.Errorf("%d segments of %d partitions were opened: %v", len(opened), partitions, opened)
	}
	for name, n := range logs(fs.read) {
		if n > 16<<10 {
			t.Errorf("%d bytes of %s were read", n, name)
		}
	}
}

// appendTo appends batches of a KiB to partitions, so many bytes to each.
func appendTo(t *testing.T, n *node, bytes int, to ...*replica.Partition) (appended int64) {
	t.Helper()
	batch := batchOf(t, 1024, -1)
	for _, p := range to {
		for sent := 0; sent < bytes; sent += len(batch) {
			done, err := p.Append(batch, 0, n.cfg.Now())
			if err != nil {
				t.Fatal(err)
			}
			appended += int64(done.Bytes)
		}
	}
	return appended
}

func rollAll(t *testing.T, n *node) {
	t.Helper()
	for _, p := range n.partitions.All() {
		if _, err := p.Log().RollIfDue(n.cfg.Now().Add(30 * 24 * time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
}
