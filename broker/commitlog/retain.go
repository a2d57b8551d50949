package commitlog

import (
	"fmt"
	"time"
)

// deletedSegment is a segment whose files wait for RemoveDeleted.
type deletedSegment struct {
	segment *segment
	since   time.Time
}

// Retain removes whole segments from the oldest on: those below the start
// offset, those whose largest timestamp is older than Config.RetentionAge, and
// those without which the log is still as large as Config.RetentionBytes. Only
// segments below upTo, the high watermark, go. The active one is closed first when
// its time has come. The files stay, renamed, until RemoveDeleted.
func (l *Log) Retain(now time.Time, upTo int64) (removed []SegmentInfo, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return nil, err
	}
	n, err := l.countExpired(now, upTo)
	if err != nil || n == 0 {
		return nil, err
	}
	if n == len(l.segments) {
		if err := l.roll(now); err != nil {
			return nil, l.appendError(err)
		}
	}
	return l.removeFirst(n, now)
}

// Expired describes the segments that Retain would remove.
func (l *Log) Expired(now time.Time, upTo int64) ([]SegmentInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return nil, err
	}
	n, err := l.countExpired(now, upTo)
	return l.Segments()[:n], err
}

// countExpired is how many of the oldest segments may go.
func (l *Log) countExpired(now time.Time, upTo int64) (int, error) {
	rest := l.bytes
	for i, s := range l.segments {
		if l.segmentEnd(i) > upTo || i == len(l.segments)-1 && s.size == 0 {
			return i, nil
		}
		expired, err := l.expired(s, l.segmentEnd(i), rest, now)
		if err != nil || !expired {
			return i, err
		}
		rest -= s.size
	}
	return len(l.segments), nil
}

// expired says whether the oldest segment may go from a log of size bytes.
func (l *Log) expired(s *segment, end, size int64, now time.Time) (bool, error) {
	cfg := l.cfg.Load()
	if end <= l.start {
		return true, nil
	}
	if cfg.RetentionBytes > 0 && size-s.size >= cfg.RetentionBytes {
		return true, nil
	}
	if cfg.RetentionAge <= 0 {
		return false, nil
	}
	if err := l.loadMaxTimestamp(s, l.refillIndexes); err != nil {
		return false, fmt.Errorf("retain: %w", err)
	}
	newest := s.maxTimestamp
	if newest < 0 {
		newest = millis(s.modified)
	}
	return millis(now)-newest > cfg.RetentionAge.Milliseconds(), nil
}

// removeFirst takes the first n segments out of the log.
func (l *Log) removeFirst(n int, now time.Time) ([]SegmentInfo, error) {
	gone := l.segments[:n:n]
	infos := l.Segments()[:n]
	start := max(l.start, l.segments[n].base)
	if err := l.setEpochs(l.epochs.truncateStart(start)); err != nil {
		return nil, l.appendError(err)
	}
	// What is known of producers from the batches that go must be safe first.
	if err := l.secureSnapshot(l.segments[n].base, millis(now)); err != nil {
		return nil, l.appendError(fmt.Errorf("retain: %w", err))
	}
	l.state.Lock()
	l.segments = append([]*segment(nil), l.segments[n:]...)
	l.moveStart(start)
	for _, s := range gone {
		l.bytes -= s.size
		l.deleted = append(l.deleted, deletedSegment{s, now})
	}
	l.forgetUnsynced(gone)
	l.state.Unlock()
	for _, s := range gone {
		if err := l.hideSegment(s); err != nil {
			return infos, l.fail(fmt.Errorf("remove segment %d: %w", s.base, err))
		}
	}
	return infos, nil
}

// hideSegment renames a removed segment's files and makes that durable before
// the next one's turn: were a younger segment gone after a power cut and an older
// one still there, recovery would take the rest of the log for misplaced.
func (l *Log) hideSegment(s *segment) error {
	if err := s.markDeleted(l.deletedName(s)); err != nil {
		return err
	}
	if err := l.fs.Remove(l.snapshotPath(s.base)); err != nil && !isNotExist(err) {
		return err
	}
	return SyncDir(l.fs, l.dir)
}

// deletedName is what to add to the names of a removed segment's files: its
// place may have been another's whose files are still there. Called with mu held.
func (l *Log) deletedName(s *segment) string {
	name := s.file.path() + deletedSuffix
	for _, d := range l.deleted {
		if d.segment != s && d.segment.file.path() == name {
			l.deletedSerial++
			return fmt.Sprintf(".%d%s", l.deletedSerial, deletedSuffix)
		}
	}
	return deletedSuffix
}

// forgetUnsynced drops segments that are gone from what a Flush has to sync.
// Called with the state lock held.
func (l *Log) forgetUnsynced(gone []*segment) {
	kept := l.unsynced[:0:0]
	for _, s := range l.unsynced {
		if !containsSegment(gone, s) {
			kept = append(kept, s)
		}
	}
	l.unsynced = kept
}

func containsSegment(segments []*segment, s *segment) bool {
	for _, other := range segments {
		if other == s {
			return true
		}
	}
	return false
}

// RemoveDeleted removes the files of segments that were removed
// Config.DeleteDelay ago and that no region holds any more, and returns how
// many segments that were. What fails to go is tried again by the next call.
func (l *Log) RemoveDeleted(now time.Time) (segments int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return 0, err
	}
	delay := l.cfg.Load().DeleteDelay
	var kept []deletedSegment
	for _, d := range l.deleted {
		if now.Sub(d.since) < delay || d.segment.inUse() {
			kept = append(kept, d)
			continue
		}
		if removeErr := l.removeFiles(d.segment); removeErr != nil {
			err = removeErr
			kept = append(kept, d)
			continue
		}
		segments++
	}
	l.state.Lock()
	l.deleted = kept
	l.state.Unlock()
	return segments, err
}

// removeFiles removes a segment's files for good.
func (l *Log) removeFiles(s *segment) error {
	for _, f := range s.allFiles() {
		f.drop()
		if err := l.fs.Remove(f.path()); err != nil && !isNotExist(err) {
			return fmt.Errorf("remove segment %d: %w", s.base, err)
		}
	}
	return nil
}

// SetStartOffset moves the log's start up, as DeleteRecords does (KIP-107); an
// offset at or below the present start changes nothing. Whole segments below it
// go with the next Retain. The start is durable once the caller has stored it in
// the log start checkpoint. ErrOffsetOutOfRange above the log's end.
func (l *Log) SetStartOffset(offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	if offset > l.end {
		return fmt.Errorf("start %s at %d beyond its end %d: %w", l.dir, offset, l.end, ErrOffsetOutOfRange)
	}
	if offset <= l.start {
		return nil
	}
	if err := l.setEpochs(l.epochs.truncateStart(offset)); err != nil {
		return l.appendError(err)
	}
	l.state.Lock()
	defer l.state.Unlock()
	l.moveStart(offset)
	return nil
}

// moveStart sets the start. Below the first segment nothing needs a sync any more;
// within it recovery reads what lies below the start too. Called with the state
// lock held.
func (l *Log) moveStart(offset int64) {
	l.start = offset
	l.synced = max(l.synced, l.segments[0].base)
}
