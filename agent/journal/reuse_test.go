package journal

import (
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func names(t *testing.T, fs *memFS) []string {
	t.Helper()
	list, err := fs.List("/journal")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return slices.DeleteFunc(list, func(name string) bool { return name == reserveName })
}

// bundleOf is a bundle of one batch, and one range that ends at `to`.
func bundleOf(t *testing.T, producer, to int64) (Entry, *Batch) {
	t.Helper()
	b := batch(t, 0, producer, int32(to), 1)
	return Entry{Bundle: &Bundle{Ranges: []Range{piece("a", to-1, to)}, Batches: []*Batch{b}}}, b
}

// settledSegments makes a journal whose bundles, each in a segment of its own, are all acknowledged, and lets go of what it can.
func settledSegments(t *testing.T, fs *memFS, bundles int64) *Journal {
	t.Helper()
	j, _ := mustOpen(t, fs, Config{SegmentBytes: 1})
	for to := range bundles {
		e, b := bundleOf(t, 7, to+1)
		mustAppend(t, j, e)
		mustAppend(t, j, Entry{Ack: &Ack{TopicID: TopicID{1}, IDs: []ID{b.ID}, NextOffset: to + 1}})
	}
	if err := j.Release(j.Next()); err != nil {
		t.Fatal(err)
	}
	return j
}

func TestFilesOfSegmentsAreUsedAgain(t *testing.T) {
	fs := newMemFS()
	j := settledSegments(t, fs, 10)
	before := names(t, fs)
	if len(before) != sparesMax+1 || len(j.spares) != sparesMax {
		t.Fatalf("%d files, %d spares, want %d kept and the one that is written to", len(before), len(j.spares), sparesMax)
	}
	e, b := bundleOf(t, 7, 11)
	mustAppend(t, j, e)
	after := names(t, fs)
	if len(after) != len(before) || slices.Contains(after, before[0]) || j.segments[len(j.segments)-1].old == 0 {
		t.Errorf("files %v, before %v: want the oldest under a new name", after, before)
	}
	// What follows its entries in the file is of an earlier segment, and neither an entry nor torn.
	snapshot := b.ID.Entry
	_, loaded := mustOpen(t, fs, Config{From: snapshot})
	if len(loaded.Unsettled) != 1 || loaded.TornBytes != 0 || loaded.LostSegments != 0 {
		t.Errorf("%d batches, %d bytes torn, %d segments lost; want 1, 0, 0", len(loaded.Unsettled), loaded.TornBytes, loaded.LostSegments)
	}
}

// Spares that nobody wants go, one with each call, and none of an earlier process is taken.
func TestSparesGo(t *testing.T) {
	fs := newMemFS()
	j := settledSegments(t, fs, 10)
	for want := sparesMax; want >= 0; want-- {
		if len(j.spares) != want {
			t.Fatalf("%d spares, want %d", len(j.spares), want)
		}
		if err := j.Release(j.Next()); err != nil {
			t.Fatal(err)
		}
		if want == 0 {
			break
		}
		if got := len(names(t, fs)); got != want {
			t.Fatalf("%d files with %d spares", got, want-1)
		}
	}
	j = settledSegments(t, fs, 10)
	_ = j.Close()
	j, _ = mustOpen(t, fs, Config{From: j.Next()})
	if err := j.Release(j.Next()); err != nil || len(j.spares) != 0 || len(names(t, fs)) != 1 {
		t.Errorf("%d spares, files %v, %v: those of another process are to be removed", len(j.spares), names(t, fs), err)
	}
}

// A segment's file under another's number holds nothing: its rename was undone by a power cut.
func TestSegmentUnderAnotherNumber(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{})
	e, _ := bundleOf(t, 7, 1)
	mustAppend(t, j, e)
	_ = j.Close()
	if err := fs.mem.Rename("/journal/"+segmentName(1), "/journal/"+segmentName(3)); err != nil {
		t.Fatal(err)
	}
	j, loaded := mustOpen(t, fs, Config{})
	if len(loaded.Unsettled) != 0 || j.number <= 3 {
		t.Errorf("%d batches, the next number is %d", len(loaded.Unsettled), j.number)
	}
}

// An entry of an earlier segment whose sequence happens to be due is not taken for the present one's.
func TestOldEntryOfTheDueSequence(t *testing.T) {
	fs := newMemFS()
	j, _ := mustOpen(t, fs, Config{})
	first, _ := bundleOf(t, 7, 1)
	second, _ := bundleOf(t, 7, 2)
	mustAppend(t, j, first)
	mustAppend(t, j, second)
	_ = j.Close()
	// The same entries are written again to the same file as another segment, which is killed after the first of them.
	f, err := fs.Reuse("/journal/"+segmentName(1), "/journal/"+segmentName(2))
	if err != nil {
		t.Fatal(err)
	}
	seg := &segment{name: segmentName(2), number: 2, first: 1, file: f, old: j.segments[0].disk}
	j.segments = []*segment{seg}
	if err := j.put(seg, segmentHeader(seg)); err != nil {
		t.Fatal(err)
	}
	if err := j.writeEntry(seg, 1, &first); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if _, loaded := mustOpen(t, fs, Config{}); len(loaded.Unsettled) != 1 {
		t.Errorf("%d batches, want the one that the segment holds", len(loaded.Unsettled))
	}
}

// What format 2 wrote is read.
func TestFormat2IsRead(t *testing.T) {
	fs := newMemFS()
	if err := fs.MkdirAll("/journal"); err != nil {
		t.Fatal(err)
	}
	h := segmentHeader(&segment{first: 1, number: 1})[:headerStartBytes-4]
	be.PutUint16(h[len(segmentMagic):], 2)
	data := be.AppendUint32(h, crc32.Checksum(h, castagnoli))
	e, b := bundleOf(t, 7, 1)
	if err := b.readHeader(); err != nil {
		t.Fatal(err)
	}
	body := append(e.appendMeta(nil, 1), b.Data...)
	data = be.AppendUint32(data, uint32(len(body)))
	data = be.AppendUint32(data, crc32.Checksum(body, castagnoli))
	f, err := fs.Create("/journal/" + segmentName(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(append(data, body...)); err != nil {
		t.Fatal(err)
	}
	j, loaded := mustOpen(t, fs, Config{})
	if len(loaded.Unsettled) != 1 || loaded.TornBytes != 0 {
		t.Fatalf("%d batches, %d bytes torn", len(loaded.Unsettled), loaded.TornBytes)
	}
	if got, err := j.Read(loaded.Unsettled[0].ID, nil); err != nil || !slices.Equal(got, b.Data) {
		t.Errorf("other bytes: %v", err)
	}
}

// Power cuts and kills at any moment over segments that are let go and used again. What is found is always a beginning of what was written since the
// snapshot, never anything else; with Sync it is all of it, and after a kill too; a batch that was not acknowledged is among the unsettled.
func TestCutsWhileFilesAreUsedAgain(t *testing.T) {
	reused := 0
	for seed := range uint64(150) {
		r := &reuseRun{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), fs: newMemFS()}
		r.cfg = Config{Sync: seed%2 == 0, SegmentBytes: 200 + int64(r.rng.IntN(600))}
		for range 5 {
			r.run()
			reused += r.reused
		}
	}
	if reused < 250 {
		t.Errorf("files were used again %d times only: the test shows nothing", reused)
	}
}

type reuseRun struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	fs     *memFS
	cfg    Config
	reused int

	at       int64        // end of the last range
	entries  map[int64]ID // of the bundles that are not acknowledged, by the end of their ranges
	snapshot [2]uint64    // the newest and the one before
	covered  int64        // end of the ranges that the newest covers
	cut      bool         // by power, without Sync
}

// run opens what is left, checks it and goes on until the next cut.
func (r *reuseRun) run() {
	r.cfg.From = r.snapshot[0]
	j, loaded := mustOpen(r.t, r.fs, r.cfg)
	r.check(loaded)
	r.reused = 0
	if r.rng.IntN(2) == 0 {
		r.fs.last = r.fs.calls + 1 + r.rng.IntN(150)
	}
	for range 10 + r.rng.IntN(60) {
		if !r.step(j) {
			break
		}
	}
	if r.fs.last == 0 && r.rng.IntN(2) == 0 {
		r.fs, r.cut = r.fs.powerCut(r.rng.IntN(101), r.rng), !r.cfg.Sync
		return
	}
	r.fs, r.cut = &memFS{mem: r.fs.mem, space: -1}, false
}

func (r *reuseRun) step(j *Journal) bool {
	before := j.number
	defer func() {
		if last := j.segments[len(j.segments)-1]; j.number > before && last.old > 0 {
			r.reused++
		}
	}()
	e, b := bundleOf(r.t, int64(r.seed), r.at+1)
	r.at++ // it may be found, whether Append says so or not
	if _, err := j.Append(e); err != nil {
		return false
	}
	r.entries[r.at] = b.ID
	if r.rng.IntN(4) > 0 {
		for to, id := range r.entries {
			if _, err := j.Append(Entry{Ack: &Ack{TopicID: TopicID{1}, IDs: []ID{id}, NextOffset: to}}); err != nil {
				return false
			}
			delete(r.entries, to)
		}
	}
	if len(r.entries) == 0 && r.rng.IntN(3) == 0 {
		keep := r.snapshot[0]
		r.snapshot = [2]uint64{j.Next(), keep}
		r.covered = r.at
		return j.Release(keep) == nil
	}
	return true
}

func (r *reuseRun) check(loaded *Loaded) {
	r.t.Helper()
	at := r.covered
	for _, m := range loaded.Moves {
		if m.From != at || m.To != at+1 {
			r.t.Fatalf("seed %d: a range %d-%d is found after %d", r.seed, m.From, m.To, at)
		}
		at = m.To
	}
	// The last one may have been in the middle of its writing.
	if at > r.at || !r.cut && at < r.at-1 {
		r.t.Fatalf("seed %d, sync %v, cut %v: what is found ends at %d; %d was written", r.seed, r.cfg.Sync, r.cut, at, r.at)
	}
	found := map[ID]bool{}
	for _, b := range loaded.Unsettled {
		found[b.ID] = true
	}
	for to, id := range r.entries {
		if to <= at && !found[id] {
			r.t.Fatalf("seed %d: the batch of %d is not acknowledged and not found: %s", r.seed, to, describe(loaded))
		}
	}
	r.at = at
	r.entries = map[int64]ID{}
	for _, b := range loaded.Unsettled {
		r.entries[int64(b.BaseSequence)] = b.ID
	}
	for to := range r.entries {
		if to <= r.covered {
			r.t.Fatalf("seed %d: the batch of %d is before the snapshot, and unsettled: %s", r.seed, to, strings.TrimSpace(describe(loaded)))
		}
	}
}
