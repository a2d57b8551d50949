package commitlog

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/sluice-io/sluice/internal/record"
)

// check reads the segments from the recovery point on and cuts the log off at
// the first bad batch. Below that point, to find it, it reads headers only, from
// the index entry before.
func (o *opening) check(found []segmentFiles) error {
	l := o.log
	o.report.Clean = false
	v := &verifier{epochs: l.epochs, epoch: -1, holesBelow: l.holesBelow, durable: o.opt.RecoveryPoint}
	last := len(found) - 1
	next := l.segments[0].base
	for i, s := range l.segments {
		if i < last && l.segments[i+1].base <= o.opt.RecoveryPoint {
			if err := o.mendIndexes(s, found[i]); err != nil {
				return err
			}
			next = l.segments[i+1].base
			continue
		}
		if o.checked < 0 {
			o.checked, next = i, s.base
		}
		v.base, v.next = s.base, math.MaxInt64
		if i < last {
			v.next = l.segments[i+1].base
		}
		end, whole, err := o.checkSegment(s, found[i], v, next)
		if err != nil {
			return err
		}
		next = end
		if !whole {
			if err := o.dropAfter(i); err != nil {
				return err
			}
			break
		}
		if i < last {
			if err := s.seal(); err != nil {
				return err
			}
		}
	}
	l.end = next
	l.synced = min(o.opt.RecoveryPoint, l.end)
	return nil
}

// checkSegment checks a segment whose first batch must have the given offset
// and cuts off what is bad; whole is false when something was.
func (o *opening) checkSegment(s *segment, files segmentFiles, v *verifier, due int64) (end int64, whole bool, err error) {
	l := o.log
	s.file.reserve()
	defer s.file.release()
	file, err := s.file.get(0)
	if err != nil {
		return 0, false, err
	}
	v.file, v.path, v.limit, v.bufSize = file, s.file.path(), s.size, 0
	if s.base <= l.holesBelow {
		due = max(due, s.base)
	}
	if s.base != due {
		return due, false, o.cut(s, file, &CorruptionError{Path: v.path, Offset: due, Reason: fmt.Sprintf("the segment starts at offset %d where %d is due", s.base, due)})
	}
	pos, next, err := o.checkStart(s, v, files)
	if err != nil {
		return 0, false, err
	}
	interval := l.cfg.Load().IndexIntervalBytes
	checked := false
	for pos < s.size {
		header, size, err := v.batch(pos, next)
		var corrupt *CorruptionError
		cut := errors.As(err, &corrupt)
		if err != nil && !cut {
			return 0, false, err
		}
		if !checked && (cut || !v.trusts(header)) {
			checked = true
			o.report.SegmentsChecked++
		}
		if cut {
			return next, false, o.cut(s, file, corrupt)
		}
		s.takeChecked(header, pos, size, interval)
		if !v.trusts(header) {
			o.report.BatchesChecked++
			o.report.BytesChecked += size
		}
		pos, next = pos+size, header.LastOffset()+1
	}
	return next, true, nil
}

// takeChecked puts a batch that was found good into the segment's indexes.
func (s *segment) takeChecked(h record.Batch, pos, size, interval int64) {
	if s.sinceIndex > interval {
		s.addIndexEntry(pos, plannedEntry{h.LastOffset(), pos, largestTimestamp(h), h.LastOffset()})
		s.sinceIndex = 0
	}
	s.sinceIndex += size
	s.noteTimestamp(largestTimestamp(h), h.LastOffset())
}

// checkStart is where the check of a segment starts: at the last index entry
// below the recovery point, where data and indexes are durable, or at the
// segment's start. The indexes keep what lies before and lose the rest.
func (o *opening) checkStart(s *segment, v *verifier, files segmentFiles) (pos, next int64, err error) {
	before := v.epoch
	entry, ok, err := o.trustedEntry(s)
	if err != nil {
		return 0, 0, err
	}
	if ok {
		v.epoch = -1
		header, _, err := v.batch(int64(entry.val), v.baseAt(int64(entry.val)))
		if err == nil && header.LastOffset() == s.base+entry.key {
			return int64(entry.val), header.BaseOffset(), nil
		}
		o.report.IndexesRebuilt++
	} else if files.indexesBroken() && !(files.index < 0 && s == o.log.active()) {
		o.report.IndexesRebuilt++ // the active segment's need not be written yet
	}
	v.epoch = before
	return 0, s.base, s.resetIndexes()
}

// trustedEntry is the last entry of the offset index that ends below the recovery
// point; none when there is none or the indexes are not good up to there. It
// drops the entries behind it.
func (o *opening) trustedEntry(s *segment) (e indexEntry, ok bool, err error) {
	if o.opt.RecoveryPoint <= s.base {
		return e, false, nil
	}
	for _, x := range []*index{s.index, s.times} {
		if err := x.loadGood(); err != nil {
			return e, false, err
		}
	}
	e, ok, err = s.index.floor(o.opt.RecoveryPoint - s.base - 1)
	if err != nil || !ok || e.outside(s.size) {
		return e, false, err
	}
	if err := s.index.keepWhile(func(x indexEntry) bool { return x.key <= e.key }); err != nil {
		return e, false, err
	}
	if err := s.times.keepWhile(func(x indexEntry) bool { return int64(x.val) <= e.key }); err != nil {
		return e, false, err
	}
	last, ok, err := s.times.lastEntry()
	if err != nil || !ok {
		return e, false, err
	}
	s.maxTimestamp, s.maxOffset, s.maxKnown = last.key, s.base+int64(last.val), true
	return e, true, nil
}

// cut removes a segment's bytes from a bad batch on and reports it.
func (o *opening) cut(s *segment, file File, bad *CorruptionError) error {
	o.log.log.Warn("log cut off", "path", bad.Path, "from_byte", bad.Pos, "from_offset", bad.Offset,
		"bytes", s.size-bad.Pos, "reason", bad.Reason)
	if err := file.Truncate(bad.Pos); err != nil {
		return fmt.Errorf("cut %s: %w", bad.Path, err)
	}
	o.report.CutBytes += s.size - bad.Pos
	o.report.CutOffset, o.report.CutReason = bad.Offset, bad.Reason
	s.size = bad.Pos
	return nil
}

// dropAfter removes the segments behind one that was cut, and that one too when
// nothing of it is left and another can take its place: one that ends where it
// begins, which compaction may have made untrue. The next start would take the end of
// what is left for the log's, and offsets would be given out a second time.
func (o *opening) dropAfter(i int) error {
	l := o.log
	keep := i + 1
	if i > 0 && l.segments[i].size == 0 && l.segments[i].base > l.holesBelow {
		keep = i
	}
	for _, s := range l.segments[keep:] {
		if s != l.segments[i] {
			o.report.CutBytes += s.size
		}
		o.report.SegmentsDropped++
		for _, f := range s.allFiles() {
			f.drop()
			if err := l.fs.Remove(f.path()); err != nil && !isNotExist(err) {
				return err
			}
		}
	}
	if keep < len(l.segments) {
		l.active().file.release()
		l.segments = l.segments[:keep]
		l.active().file.reserve()
	}
	return nil
}

// removeStraySnapshots removes, of the producer snapshots at some offsets, those that are neither at the
// start of a segment nor the newest.
func (l *Log) removeStraySnapshots(offsets []int64) error {
	for _, offset := range offsets {
		if offset == l.snapshotAt || l.isSegmentBase(offset) {
			continue
		}
		path := l.snapshotPath(offset)
		if err := l.fs.Remove(path); err != nil && !isNotExist(err) {
			return fmt.Errorf("remove %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}
