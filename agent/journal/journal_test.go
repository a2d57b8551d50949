package journal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sluice-io/sluice/internal/record"
)

// memFS is pebble's crashable file system as an FS. It can run out of space, and stop working at a moment.
type memFS struct {
	mem *vfs.MemFS

	mu    sync.Mutex
	space int // bytes that may still be written; -1: any number
	calls int
	last  int // the call after which nothing works; 0: none
}

func newMemFS() *memFS { return &memFS{mem: vfs.NewCrashableMem(), space: -1} }

// powerCut is what is left: what was synced, and some of what was not.
func (m *memFS) powerCut(percent int, rng *rand.Rand) *memFS {
	return &memFS{mem: m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), space: -1}
}

var errStopped = errors.New("the process is gone")

func (m *memFS) call() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.last > 0 && m.calls > m.last {
		return errStopped
	}
	return nil
}

func (m *memFS) MkdirAll(dir string) error { return m.mem.MkdirAll(dir, 0o700) }

func (m *memFS) Create(name string) (File, error) {
	if err := m.call(); err != nil {
		return nil, err
	}
	if _, err := m.mem.Stat(name); err == nil {
		return nil, os.ErrExist
	}
	f, err := m.mem.Create(name, vfs.WriteCategoryUnspecified)
	return &memFile{File: f, fs: m, name: name}, err
}

func (m *memFS) Open(name string) (File, error) {
	info, err := m.mem.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		d, err := m.mem.OpenDir(name)
		return &memFile{File: d, fs: m, name: name}, err
	}
	f, err := m.mem.Open(name)
	return &memFile{File: f, fs: m, name: name}, err
}

func (m *memFS) Remove(name string) error {
	if err := m.call(); err != nil {
		return err
	}
	return m.mem.Remove(name)
}

// Truncate writes the file again, shorter.
func (m *memFS) Truncate(name string, size int64) error {
	f, err := m.mem.Open(name)
	if err != nil {
		return err
	}
	data := make([]byte, size)
	_, err = f.ReadAt(data, 0)
	if err := errors.Join(err, f.Close()); err != nil && size > 0 {
		return err
	}
	g, err := m.mem.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = g.Write(data)
	return errors.Join(err, g.Close())
}

func (m *memFS) Reuse(name, as string) (File, error) {
	if err := m.call(); err != nil {
		return nil, err
	}
	f, err := m.mem.ReuseForWrite(name, as, vfs.WriteCategoryUnspecified)
	return &memFile{File: f, fs: m, name: as}, err
}

func (m *memFS) List(dir string) ([]string, error) { return m.mem.List(dir) }

type memFile struct {
	vfs.File
	fs   *memFS
	name string
}

func (f *memFile) Write(p []byte) (int, error) {
	if err := f.fs.call(); err != nil {
		return 0, err
	}
	f.fs.mu.Lock()
	n := len(p)
	if f.fs.space >= 0 {
		n = min(n, f.fs.space)
		f.fs.space -= n
	}
	f.fs.mu.Unlock()
	if n < len(p) {
		_, _ = f.File.Write(p[:n])
		return n, &os.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	return f.File.Write(p)
}

// ReadAt reads through a new handle: the one that writes cannot.
func (f *memFile) ReadAt(p []byte, at int64) (int, error) {
	r, err := f.fs.mem.Open(f.name)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return r.ReadAt(p, at)
}

func (f *memFile) Sync() error {
	if err := f.fs.call(); err != nil {
		return err
	}
	return f.File.Sync()
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func batch(t testing.TB, partition int32, producer int64, sequence int32, n int) *Batch {
	t.Helper()
	var b record.Builder
	for i := range n {
		b.Append(1000, nil, fmt.Appendf(nil, "record %d of %d", i, sequence), nil)
	}
	data, err := b.Build(record.BuildOptions{Idempotent: true, ProducerID: producer, BaseSequence: sequence}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Batch{Cluster: "c", TopicID: TopicID{1}, Topic: "topic", Partition: partition, Lines: int64(n), SourceBytes: int64(20 * n), Data: data}
}

func piece(path string, from, to int64) Range {
	return Range{Input: "file", Path: path, Dev: 1, Ino: 2, Born: 3, From: from, To: to, Head: Sum{4, 5}, Tail: Sum{6, 7}, Seen: 8}
}

func mustOpen(t testing.TB, fs FS, cfg Config) (*Journal, *Loaded) {
	t.Helper()
	cfg.FS = fs
	j, loaded, err := Open(quiet(), "/journal", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j, loaded
}

func mustAppend(t testing.TB, j *Journal, entries ...Entry) uint64 {
	t.Helper()
	seq, err := j.Append(entries...)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func describe(l *Loaded) string {
	var b strings.Builder
	for _, x := range l.Unsettled {
		fmt.Fprintf(&b, "batch %d.%d %s-%d producer %d sequence %d records %d; ", x.ID.Entry, x.ID.Index, x.Topic, x.Partition, x.Producer, x.BaseSequence, x.Records)
	}
	for _, m := range l.Moves {
		fmt.Fprintf(&b, "%s %d-%d; ", m.Path, m.From, m.To)
	}
	for _, f := range l.Floors {
		fmt.Fprintf(&b, "floor %d of %d; ", f.Offset, f.Partition)
	}
	return b.String()
}

func TestWhatIsWrittenIsFoundAgain(t *testing.T) {
	fs := newMemFS()
	j, loaded := mustOpen(t, fs, Config{})
	if got := describe(loaded); got != "" {
		t.Errorf("an empty journal: %s", got)
	}
	mustAppend(t, j, Entry{Floors: []Floor{{TopicID{1}, 0, 17}, {TopicID{1}, 1, 4}}})
	first, second, third := batch(t, 0, 7, 0, 3), batch(t, 1, 7, 0, 2), batch(t, 0, 7, 3, 5)
	mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", 0, 100)}, Batches: []*Batch{first, second}}})
	mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", 100, 150)}, Batches: []*Batch{third}}})
	mustAppend(t, j, Entry{Ack: &Ack{TopicID: TopicID{1}, Producer: 7, LastSequence: 2, BaseOffset: 17, NextOffset: 20, IDs: []ID{first.ID}}})
	data := slices.Clone(third.Data)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j, loaded = mustOpen(t, fs, Config{})
	want := "batch 2.1 topic-1 producer 7 sequence 0 records 2; batch 3.0 topic-0 producer 7 sequence 3 records 5; a 0-100; a 100-150; "
	if got := describe(loaded); !strings.HasPrefix(got, want) || !strings.Contains(got, "floor 20 of 0;") || !strings.Contains(got, "floor 4 of 1;") {
		t.Errorf("found %s\nwant %s", got, want)
	}
	got, err := j.Read(loaded.Unsettled[1].ID, nil)
	if err != nil || !slices.Equal(got, data) {
		t.Errorf("other bytes: %v", err)
	}
	// What replaces a batch settles it; the floors go on to the next segment, the ranges do not count beyond the snapshot.
	next := batch(t, 1, 8, 0, 2)
	mustAppend(t, j, Entry{Bundle: &Bundle{Replaces: []ID{{2, 1}}, Batches: []*Batch{next}}})
	mustAppend(t, j, Entry{Settled: &Settled{Outcome: Dropped, IDs: []ID{{3, 0}}}})
	_ = j.Close()
	_, loaded = mustOpen(t, fs, Config{From: next.ID.Entry})
	if got := describe(loaded); got != fmt.Sprintf("batch %d.0 topic-1 producer 8 sequence 0 records 2; floor 4 of 1; ", next.ID.Entry) {
		t.Errorf("found %s", got)
	}
}

// A journal that ends within an entry, at any byte, holds all entries before that one.
func TestTornAtEveryByte(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{})
	ends := []int64{j.segments[0].size}
	for i := range 4 {
		mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", int64(i), int64(i+1))}, Batches: []*Batch{batch(t, 0, 7, int32(i*2), 2)}}})
		ends = append(ends, j.segments[0].size)
	}
	whole, err := j.slurp(segmentName(1), -1)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		fs := newMemFS()
		if err := fs.MkdirAll("/journal"); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create("/journal/" + segmentName(1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(whole[:cut]); err != nil {
			t.Fatal(err)
		}
		j, loaded := mustOpen(t, fs, Config{})
		want := 0
		for want+1 < len(ends) && ends[want+1] <= int64(cut) {
			want++
		}
		if len(loaded.Unsettled) != want || len(loaded.Moves) != want {
			t.Fatalf("cut at %d: %d batches, want %d", cut, len(loaded.Unsettled), want)
		}
		// It goes on from there.
		mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", int64(want), 100)}}})
		_ = j.Close()
		if _, loaded = mustOpen(t, fs, Config{}); len(loaded.Moves) != want+1 {
			t.Fatalf("cut at %d, after one more: %d moves", cut, len(loaded.Moves))
		}
	}
}

func TestDamagedByteEndsTheJournal(t *testing.T) {
	dir := t.TempDir()
	j, _, err := Open(quiet(), dir, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", int64(i), int64(i+1))}, Batches: []*Batch{batch(t, 0, 7, int32(i), 1)}}})
	}
	_ = j.Close()
	name := filepath.Join(dir, segmentName(1))
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	size := (len(data) - segmentHeaderBytes) / 3
	data[segmentHeaderBytes+size+40] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, loaded, err := Open(quiet(), dir, Config{})
	if err != nil || len(loaded.Unsettled) != 1 || loaded.TornBytes != int64(2*size) {
		t.Errorf("%d batches, %d bytes torn, %v", len(loaded.Unsettled), loaded.TornBytes, err)
	}
}

// A full disk refuses an entry half way; the next attempt succeeds and nothing of the first counts.
func TestDiskFull(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{})
	mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", 0, 1)}, Batches: []*Batch{batch(t, 0, 7, 0, 1)}}})
	fs.space = 150
	big := Entry{Bundle: &Bundle{Ranges: []Range{piece("a", 1, 2)}, Batches: []*Batch{batch(t, 0, 7, 1, 100)}}}
	for range 3 {
		if _, err := j.Append(big); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("error %v", err)
		}
	}
	fs.space = -1
	if got := mustAppend(t, j, big); got != 2 {
		t.Errorf("sequence %d", got)
	}
	_ = j.Close()
	_, loaded := mustOpen(t, fs, Config{})
	if got := describe(loaded); got != "batch 1.0 topic-0 producer 7 sequence 0 records 1; batch 2.0 topic-0 producer 7 sequence 1 records 100; a 0-1; a 1-2; " {
		t.Errorf("found %s", got)
	}
}

func TestLimitRefusesBundlesOnly(t *testing.T) {
	j, _ := mustOpen(t, newMemFS(), Config{BytesMax: 2000})
	var ids []ID
	for i := 0; ; i++ {
		b := batch(t, 0, 7, int32(i), 1)
		if _, err := j.Append(Entry{Bundle: &Bundle{Batches: []*Batch{b}}}); err != nil {
			if !errors.Is(err, ErrFull) || !j.Full() {
				t.Fatal(err)
			}
			break
		}
		ids = append(ids, b.ID)
	}
	mustAppend(t, j, Entry{Ack: &Ack{TopicID: TopicID{1}, NextOffset: 10, IDs: ids}})
	j.cfg.SegmentBytes = 1 // the next entry begins a segment
	mustAppend(t, j, Entry{Floors: []Floor{{TopicID{1}, 0, 10}}})
	if err := j.Release(j.Next()); err != nil {
		t.Fatal(err)
	}
	if j.Full() {
		t.Error("still full")
	}
	mustAppend(t, j, Entry{Bundle: &Bundle{Batches: []*Batch{batch(t, 0, 7, 100, 1)}}})
}

// Segments go when the snapshots are past them and nothing in them waits.
func TestRelease(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{SegmentBytes: 1})
	var batches []*Batch
	for i := range 5 {
		batches = append(batches, batch(t, 0, 7, int32(i), 1))
		mustAppend(t, j, Entry{Bundle: &Bundle{Batches: batches[i:]}})
	}
	files := func() int { return len(j.segments) }
	before := files() - 1 // the first has no entry
	if err := j.Release(j.Next()); err != nil || files() != before {
		t.Errorf("%d of %d files, %v: all of them have unsettled batches", files(), before, err)
	}
	mustAppend(t, j, Entry{Ack: &Ack{IDs: []ID{batches[0].ID, batches[1].ID}, NextOffset: -1}})
	if err := j.Release(2); err != nil || files() != before {
		t.Errorf("%d files, want %d, %v", files(), before, err)
	}
	if err := j.Release(3); err != nil || files() != before-1 {
		t.Errorf("%d files, want %d, %v", files(), before-1, err)
	}
}

// A power cut at any moment, with any part of what was not synced lost: what is found is a beginning of what was written, and the journal
// goes on. With Sync it is all of it.
func TestPowerCuts(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for seed := range uint64(100) {
			powerCuts(t, seed, sync)
		}
	}
}

func powerCuts(t *testing.T, seed uint64, sync bool) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	fs := newMemFS()
	cfg := Config{Sync: sync, SegmentBytes: 500}
	var written []int64 // ends of ranges in the journal, one for each bundle
	at, pending := int64(0), int64(0)
	for range 4 {
		j, loaded := mustOpen(t, fs, cfg)
		if n := len(written); len(loaded.Moves) == n+1 && loaded.Moves[n].To == pending {
			written = append(written, pending) // it was killed between the write and its return
		}
		for i, m := range loaded.Moves {
			if i >= len(written) || m.To != written[i] {
				t.Fatalf("seed %d, sync %v: move %d is to %d; written %v", seed, sync, i, m.To, written)
			}
		}
		if sync && len(loaded.Moves) != len(written) {
			t.Fatalf("seed %d: %d of %d bundles are found, all were synced", seed, len(loaded.Moves), len(written))
		}
		written = written[:len(loaded.Moves)] // what is lost is read from its source again
		at = 0
		if n := len(written); n > 0 {
			at = written[n-1]
		}
		if rng.IntN(3) == 0 {
			fs.last = fs.calls + 1 + rng.IntN(20) // killed in the middle
		}
		for range rng.IntN(12) {
			b := batch(t, 0, int64(seed), int32(at), 1+rng.IntN(4))
			pending = at + 1
			if _, err := j.Append(Entry{Bundle: &Bundle{Ranges: []Range{piece("a", at, at+1)}, Batches: []*Batch{b}}}); err != nil {
				break
			}
			at++
			written = append(written, at)
			if rng.IntN(2) == 0 {
				if _, err := j.Append(Entry{Ack: &Ack{TopicID: TopicID{1}, IDs: []ID{b.ID}, NextOffset: at}}); err != nil {
					break
				}
			}
		}
		if fs.last == 0 && rng.IntN(2) == 0 {
			fs = fs.powerCut(rng.IntN(101), rng)
			continue
		}
		fs = &memFS{mem: fs.mem, space: -1} // a kill: the page cache stays
	}
}

// The journal was lost and the snapshot was not: sequences go on after what the snapshot names.
func TestJournalLostAndSnapshotKept(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{From: 500})
	if got := mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", 0, 1)}}}); got != 500 {
		t.Errorf("sequence %d", got)
	}
	_ = j.Close()
	_, loaded := mustOpen(t, fs, Config{From: 500})
	if len(loaded.Moves) != 1 {
		t.Errorf("%d moves", len(loaded.Moves))
	}
}

func TestNewerVersionIsRefused(t *testing.T) {
	dir := t.TempDir()
	h := segmentHeader(&segment{first: 1, number: 1})
	h[9] = formatVersion + 1
	h = h[:headerStartBytes-4]
	h = be.AppendUint32(h, crc32.Checksum(h, castagnoli))
	if err := os.WriteFile(filepath.Join(dir, segmentName(1)), h, 0o600); err != nil {
		t.Fatal(err)
	}
	var newer *VersionError
	if _, _, err := Open(quiet(), dir, Config{}); !errors.As(err, &newer) {
		t.Errorf("error %v", err)
	}
}

func FuzzEntry(f *testing.F) {
	e := Entry{Bundle: &Bundle{Ranges: []Range{piece("a", 0, 100)}, Replaces: []ID{{1, 2}}, Batches: []*Batch{batch(f, 0, 7, 0, 3)}}}
	f.Add(append(e.appendMeta(nil, 1), e.Bundle.Batches[0].Data...))
	for _, e := range []Entry{{Ack: &Ack{IDs: []ID{{1, 2}}}}, {Settled: &Settled{Outcome: Unknown, IDs: []ID{{1, 2}}}}, {Floors: []Floor{{TopicID{1}, 2, 3}}}} {
		f.Add(e.appendMeta(nil, 9))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		seq, e, err := decodeBody(body)
		if err != nil {
			return
		}
		again := e.appendMeta(nil, seq)
		if e.Bundle != nil {
			for _, b := range e.Bundle.Batches {
				again = append(again, b.Data...)
			}
		}
		if len(again) != len(body) {
			t.Errorf("%d bytes decode to what is written as %d", len(body), len(again))
		}
	})
}

// BenchmarkAppend writes bundles of one batch of 256 KiB.
func BenchmarkAppend(b *testing.B) {
	j, _, err := Open(quiet(), b.TempDir(), Config{BytesMax: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	var build record.Builder
	build.Append(0, nil, make([]byte, 256<<10), nil)
	data, err := build.Build(record.BuildOptions{Idempotent: true, ProducerID: 1}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		x := &Batch{Topic: "t", Data: data}
		mustAppend(b, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", 0, 1)}, Batches: []*Batch{x}}})
		mustAppend(b, j, Entry{Ack: &Ack{IDs: []ID{x.ID}, NextOffset: -1}})
		if err := j.Release(j.Next()); err != nil {
			b.Fatal(err)
		}
	}
}

// A power cut takes acknowledgements that were not synced, and a snapshot that was taken after them stays: it says that their batches are
// settled.
func TestAcknowledgementsLostAndSnapshotKept(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{Sync: true})
	var batches []*Batch
	for i := range int64(3) {
		b := batch(t, 0, 7, int32(i), 1)
		mustAppend(t, j, Entry{Bundle: &Bundle{Ranges: []Range{piece("a", i, i+1)}, Batches: []*Batch{b}}})
		batches = append(batches, b)
	}
	mustAppend(t, j, Entry{Ack: &Ack{TopicID: TopicID{1}, IDs: []ID{batches[0].ID, batches[1].ID, batches[2].ID}, NextOffset: 3}})
	for _, tc := range []struct {
		from      uint64
		unsettled int
	}{{3, 1}, {5, 0}} { // the snapshot may be past the end of what is left
		_, loaded := mustOpen(t, fs.powerCut(0, rand.New(rand.NewPCG(1, 1))), Config{Sync: true, From: tc.from})
		if len(loaded.Unsettled) != tc.unsettled {
			t.Errorf("from %d: %d batches are unsettled, want %d", tc.from, len(loaded.Unsettled), tc.unsettled)
		}
	}
}
