package commitlog

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/sluice-io/sluice/internal/quickio"
)

// A group of segments is replaced in the steps of Apache Kafka's cleaner, each
// durable before the next:
//
//  1. the new segment's files are whole, their names end in .cleaned
//  2. they are renamed to .swap, the data last
//  3. the old segments' files are renamed to .deleted
//  4. the new files get their own names, the data last
//
// A start that finds a .cleaned file undoes the swap: it removes that file and
// the .swap files of its offset and above, for the old segments are all there.
// Otherwise a .swap file of data is whole: the start finishes the swap with
// steps 3 and 4. Old segments behind the new one's last batch can stay then; they
// hold nothing but older records of their keys.

// swapIn puts a segment in the place of a group.
func (l *Log) swapIn(j *cleanJob, s *segment, group []cleanSegment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, err := l.findGroup(j, group)
	if err == nil {
		if err = l.renameAll(s, cleanedSuffix, swapSuffix); err != nil && !quickio.NoRoom(err) {
			// Whether the new names are durable is not known, and no second
			// sync would tell. The next start finishes or undoes the swap.
			return l.fail(fmt.Errorf("replace segment %d: %w", s.base, err))
		}
	}
	if err != nil {
		s.file.release()
		// As long as nothing old is gone the rewrite can be thrown away.
		if removeErr := errors.Join(l.removeFiles(s), SyncDir(l.fs, l.dir)); removeErr != nil {
			return l.fail(fmt.Errorf("undo a compaction that failed with %q: %w", err, removeErr))
		}
		return j.refused(err)
	}
	old := l.segments[at : at+len(group) : at+len(group)]
	l.replaceGroup(at, old, s, j)
	s.file.release()
	if err := l.settleSwap(s, old); err != nil {
		return l.fail(fmt.Errorf("replace segment %d: %w", s.base, err))
	}
	return nil
}

// findGroup is the place of a group among the segments, if it is still there as
// it was read. Called with mu held.
func (l *Log) findGroup(j *cleanJob, group []cleanSegment) (int, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	at := l.segmentOf(group[0].base)
	if j.truncations != l.truncations || l.stopCleaning.Load() || at < 0 || at+len(group) >= len(l.segments) {
		return 0, ErrCleaningStopped
	}
	for i, s := range group {
		if l.segments[at+i] != s.segment {
			return 0, ErrCleaningStopped
		}
	}
	return at, nil
}

// renameAll changes the suffix of a segment's files, the data last, durably.
func (l *Log) renameAll(s *segment, from, to string) error {
	for _, f := range []*cachedFile{s.index.file, s.times.file, s.file} {
		if err := f.rename(strings.TrimSuffix(f.path(), from) + to); err != nil {
			return err
		}
	}
	return SyncDir(l.fs, l.dir)
}

// replaceGroup shows readers the new segment. Called with mu held.
func (l *Log) replaceGroup(at int, old []*segment, s *segment, j *cleanJob) {
	l.state.Lock()
	defer l.state.Unlock()
	segments := append([]*segment(nil), l.segments[:at]...)
	segments = append(segments, s)
	l.segments = append(segments, l.segments[at+len(old):]...)
	l.bytes += s.size
	for _, o := range old {
		l.bytes -= o.size
		l.deleted = append(l.deleted, deletedSegment{o, j.now})
	}
	l.forgetUnsynced(old)
}

// settleSwap does steps 3 and 4. Called with mu held.
func (l *Log) settleSwap(s *segment, old []*segment) error {
	for _, o := range old {
		if err := o.markDeleted(l.deletedName(o)); err != nil {
			return err
		}
	}
	if err := SyncDir(l.fs, l.dir); err != nil {
		return err
	}
	if err := l.renameAll(s, swapSuffix, ""); err != nil {
		return err
	}
	for _, o := range old[1:] {
		// A producer snapshot belongs to the start of a segment.
		if err := l.fs.Remove(l.snapshotPath(o.base)); err != nil && !isNotExist(err) {
			return err
		}
	}
	return nil
}

// settleSwaps finishes or undoes what a compaction left half done, and lists what
// the directory then has.
func (o *opening) settleSwaps() ([]Entry, error) {
	entries, err := o.log.fs.List(o.log.dir)
	if err != nil {
		return nil, err
	}
	dir := readSwaps(entries)
	if len(dir.swaps) == 0 && len(dir.cleaned) == 0 {
		return entries, nil
	}
	undoFrom := int64(math.MaxInt64)
	for name, base := range dir.cleaned {
		undoFrom = min(undoFrom, base)
		if err := o.removeLeftOver(name); err != nil {
			return nil, err
		}
	}
	for name, base := range dir.swaps {
		if base < undoFrom {
			continue
		}
		delete(dir.swaps, name)
		if err := o.removeLeftOver(name); err != nil {
			return nil, err
		}
	}
	if err := dir.finish(o); err != nil {
		return nil, err
	}
	if err := SyncDir(o.log.fs, o.log.dir); err != nil {
		return nil, err
	}
	return o.log.fs.List(o.log.dir)
}

func (o *opening) removeLeftOver(name string) error {
	if err := o.log.fs.Remove(filepath.Join(o.log.dir, name)); err != nil && !isNotExist(err) {
		return err
	}
	o.report.Removed = append(o.report.Removed, name)
	return nil
}

// swapDir are the files of a directory that swaps are about: names with their
// offsets, and of the segments their data alone.
type swapDir struct {
	cleaned, swaps map[string]int64
	segments       map[int64]bool
	sizes          map[string]int64
}

func readSwaps(entries []Entry) *swapDir {
	d := &swapDir{cleaned: map[string]int64{}, swaps: map[string]int64{}, segments: map[int64]bool{}, sizes: map[string]int64{}}
	for _, e := range entries {
		if base, ok := segmentFileBase(e.Name, cleanedSuffix); ok {
			d.cleaned[e.Name] = base
		}
		if base, ok := segmentFileBase(e.Name, swapSuffix); ok {
			d.swaps[e.Name] = base
			d.sizes[e.Name] = e.Size
		}
		if base, ok := parseFileName(e.Name, logSuffix); ok {
			d.segments[base] = true
		}
	}
	return d
}

// segmentFileBase is the offset in the name of a segment's file with one more suffix.
func segmentFileBase(name, suffix string) (int64, bool) {
	for _, kind := range []string{logSuffix, indexSuffix, timesSuffix, ".txnindex"} {
		if base, ok := parseFileName(name, kind+suffix); ok {
			return base, true
		}
	}
	return 0, false
}

// finish gives the finished rewrites their place.
func (d *swapDir) finish(o *opening) error {
	for name, base := range d.swaps {
		if !strings.HasSuffix(name, logSuffix+swapSuffix) {
			continue
		}
		end, err := o.readSwapEnd(name, base, d.sizes[name])
		if err != nil {
			return err
		}
		if end < 0 && d.segments[base] {
			delete(d.swaps, name) // no rewrite of ours or Kafka's; the segment is there
			if err := o.removeLeftOver(name); err != nil {
				return err
			}
			continue
		}
		if err := d.takePlace(o, name, base, end); err != nil {
			return err
		}
	}
	for name, base := range d.swaps { // of swaps whose data has its place already
		if !d.segments[base] {
			continue
		}
		if err := o.renameInto(name, strings.TrimSuffix(name, swapSuffix)); err != nil {
			return err
		}
	}
	return nil
}

// readSwapEnd is the offset after a rewrite's last batch; noOffset when it is
// not made of batches.
func (o *opening) readSwapEnd(name string, base, size int64) (end int64, err error) {
	l := o.log
	path := filepath.Join(l.dir, name)
	f, err := l.fs.OpenFile(path, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w := newWalker()
	w.start(f, path, 0, size)
	for end = base; ; end = w.header.LastOffset() + 1 {
		ok, err := w.next()
		var corrupt *CorruptionError
		if errors.As(err, &corrupt) || err == nil && ok && w.header.BaseOffset() < end {
			l.log.Warn("unfinished compaction ignored", "path", path, "error", err)
			return noOffset, nil
		}
		if err != nil || !ok {
			return end, err
		}
	}
}

// takePlace removes the segments that a rewrite replaces and renames its files.
// An index that is missing is rebuilt later.
func (d *swapDir) takePlace(o *opening, name string, base, end int64) error {
	dir := o.log.dir
	for other := range d.segments {
		if other != base && (other < base || other >= end) {
			continue
		}
		if err := o.log.fs.Remove(filepath.Join(dir, fileName(other, logSuffix))); err != nil && !isNotExist(err) {
			return err
		}
	}
	// Were the new segment there after a power cut and one of these too, they
	// would overlap.
	if err := SyncDir(o.log.fs, dir); err != nil {
		return err
	}
	for _, kind := range []string{indexSuffix, timesSuffix} {
		index := fileName(base, kind)
		if _, ok := d.swaps[index+swapSuffix]; !ok {
			if err := o.log.fs.Remove(filepath.Join(dir, index)); err != nil && !isNotExist(err) {
				return err
			}
			continue
		}
		if err := o.renameInto(index+swapSuffix, index); err != nil {
			return err
		}
		delete(d.swaps, index+swapSuffix)
	}
	delete(d.swaps, name)
	return o.renameInto(name, fileName(base, logSuffix))
}

func (o *opening) renameInto(from, to string) error {
	o.log.log.Info("compaction finished that a crash had interrupted", "file", to)
	return o.log.fs.Rename(filepath.Join(o.log.dir, from), filepath.Join(o.log.dir, to))
}
