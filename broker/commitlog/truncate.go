package commitlog

import (
	"fmt"
	"time"
)

// TruncateTo removes the batches that hold offsets at or above offset, as a
// follower must whose leader has other ones (KIP-101). A batch is removed whole,
// so the log can end below offset. An offset at or above the end changes nothing,
// one below the log's start empties the log and starts it there.
// Regions of what is removed are cut short. RecoveryPoint may fall: a stored one
// must have fallen too before more is appended, or recovery would trust that.
func (l *Log) TruncateTo(offset int64, now time.Time) error {
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	if offset >= l.end {
		return nil
	}
	var err error
	if offset < l.start {
		err = l.replaceAll(offset, now)
	} else {
		err = l.truncateWithin(offset, now)
	}
	if err != nil {
		return l.fail(fmt.Errorf("truncate to %d: %w", offset, err))
	}
	return nil
}

// TruncateFullyAt empties the log and starts it at offset, as a follower must
// that has fallen behind its leader's start. RecoveryPoint may fall as with
// TruncateTo.
func (l *Log) TruncateFullyAt(offset int64, now time.Time) error {
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.replaceAll(offset, now); err != nil {
		return l.fail(fmt.Errorf("truncate fully at %d: %w", offset, err))
	}
	return nil
}

// truncateWithin cuts the log off inside. Called with flushMu and mu held.
func (l *Log) truncateWithin(offset int64, now time.Time) error {
	i := l.segmentOf(offset)
	s := l.segments[i]
	s.file.reserve() // becomes the active segment's; given back below when it was already
	pos, err := l.positionHeld(s, offset, s.size)
	if err != nil {
		s.file.release()
		return err
	}
	end, err := l.endAt(s, pos)
	if err != nil {
		s.file.release()
		return err
	}
	gone := append([]*segment(nil), l.segments[i+1:]...)
	l.shrink(i, pos, end)
	if err := l.cutSegment(s, pos); err != nil {
		return err
	}
	return l.settleTruncation(s, gone, now)
}

// endAt is the offset after the last batch that ends at or before a position.
func (l *Log) endAt(s *segment, pos int64) (int64, error) {
	end := s.base
	from, _, err := s.index.floorVal(pos - 1)
	if err != nil {
		return 0, err
	}
	err = l.walkFrom(s, int64(from.val), pos, func(w *walker) (bool, error) {
		end = w.header.LastOffset() + 1
		return true, nil
	})
	return end, err
}

// shrink hides what is to be removed from readers before it goes.
func (l *Log) shrink(i int, size, end int64) {
	s := l.segments[i]
	l.state.Lock()
	defer l.state.Unlock()
	wasActive := l.active()
	for _, g := range l.segments[i+1:] {
		l.bytes -= g.size
	}
	l.bytes -= s.size - size
	l.forgetUnsynced(l.segments[i:])
	l.segments = append([]*segment(nil), l.segments[:i+1]...)
	s.size, l.end = size, end
	l.start, l.synced = min(l.start, end), min(l.synced, end)
	wasActive.file.release()
}

// cutSegment removes a segment's data and index entries from a position on.
func (l *Log) cutSegment(s *segment, size int64) error {
	if err := s.file.with(0, func(f File) error { return f.Truncate(size) }); err != nil {
		return err
	}
	if err := l.refillIndexes(s); err != nil {
		return err
	}
	s.firstKnown = s.firstKnown && size > 0
	return nil
}

// settleTruncation removes segments that are gone and brings epochs and
// producers to the new end.
func (l *Log) settleTruncation(s *segment, gone []*segment, now time.Time) error {
	for _, g := range gone {
		if err := l.removeFiles(g); err != nil {
			return err
		}
	}
	if err := l.setEpochs(l.epochs.truncateEnd(l.end)); err != nil {
		return err
	}
	l.recoveryPoint = min(l.recoveryPoint, l.end)
	l.truncated()
	if err := l.limitHoles(); err != nil {
		return err
	}
	if err := l.loadProducers(millis(now)); err != nil {
		return err
	}
	// What was removed must not come back with a power cut.
	if err := s.sync(); err != nil {
		return err
	}
	return SyncDir(l.fs, l.dir)
}

// truncated notes for compaction what went. Called with mu held, or by Open.
func (l *Log) truncated() {
	l.truncations++
	l.cleanedTo = min(l.cleanedTo, l.end)
}

// replaceAll puts one empty segment at an offset in the place of all. Called
// with flushMu and mu held, or by Open.
func (l *Log) replaceAll(offset int64, now time.Time) error {
	old := l.segments
	for _, s := range old {
		if s.base == offset {
			if err := s.file.rename(s.file.path() + deletedSuffix); err != nil {
				return err
			}
		}
	}
	s, err := l.createSegment(offset, now)
	if err != nil {
		return err
	}
	l.producers = make(producerTable)
	l.state.Lock()
	wasActive := l.active()
	l.segments = []*segment{s}
	l.start, l.end, l.synced, l.bytes = offset, offset, offset, 0
	l.unsynced, l.unsyncedFiles, l.dirDirty = nil, nil, true
	l.state.Unlock()
	wasActive.file.release()
	l.recoveryPoint = min(l.recoveryPoint, offset)
	l.truncated()
	return l.settleReplaceAll(old)
}

func (l *Log) settleReplaceAll(old []*segment) error {
	for _, s := range old {
		if s.base == l.end {
			// Its index files have the new segment's names, which has none yet.
			s.index.file.drop()
			s.times.file.drop()
		}
		if err := l.removeFiles(s); err != nil {
			return err
		}
	}
	if err := l.setEpochs(nil); err != nil {
		return err
	}
	if err := l.forgetHoles(); err != nil {
		return err
	}
	if err := l.loadProducers(0); err != nil {
		return err
	}
	return SyncDir(l.fs, l.dir)
}
