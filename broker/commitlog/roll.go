package commitlog

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// rollFor opens a new segment when the plan's batches do not belong into the
// active one. Called with mu held.
func (l *Log) rollFor(p *appendPlan, batches []byte, now time.Time) error {
	due, err := l.rollDue(p, int64(len(batches)), now)
	if err != nil || !due {
		return err
	}
	if err := l.roll(now); err != nil {
		return err
	}
	p.out.Rolled = true
	// The batches are the first of their segment now: no entry for the first
	// of them, and the distances between entries count from it.
	p.reindex(batches, l.cfg.Load().IndexIntervalBytes)
	return nil
}

// rollDue follows Kafka's LogSegment.shouldRoll: by size, by the records' own
// time, by the indexes' size and by the reach of relative offsets.
func (l *Log) rollDue(p *appendPlan, bytes int64, now time.Time) (bool, error) {
	s, cfg := l.active(), l.cfg.Load()
	if s.size == 0 {
		return p.out.Last-s.base > relativeOffsetMax, nil
	}
	if s.size+bytes > cfg.SegmentBytes ||
		p.out.Last-s.base > relativeOffsetMax ||
		s.index.bytes()+int64(len(p.entries))*offsetEntryBytes > cfg.IndexBytes ||
		s.times.bytes()+int64(len(p.entries)+1)*timeEntryBytes > cfg.IndexBytes {
		return true, nil
	}
	first, err := l.firstTimestamp(s)
	if err != nil {
		return false, err
	}
	if first >= 0 && p.maxTimestamp >= 0 {
		return p.maxTimestamp-first > cfg.rollAge(s.lot()).Milliseconds(), nil
	}
	return now.Sub(s.created) > cfg.rollAge(s.lot()), nil
}

// lot is a number that differs from segment to segment as if drawn, and stays
// the same over a restart.
func (s *segment) lot() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.file.path())) // never fails
	return h.Sum64()
}

// firstTimestamp is the max timestamp of the first batch of a segment that is
// not empty. It is read once, after a start. Called with mu held.
func (l *Log) firstTimestamp(s *segment) (int64, error) {
	if s.firstKnown {
		return s.firstTimestamp, nil
	}
	s.file.reserve()
	defer s.file.release()
	err := l.walkFrom(s, 0, s.size, func(w *walker) (bool, error) {
		s.firstTimestamp, s.firstKnown = w.header.MaxTimestamp(), true
		return false, nil
	})
	return s.firstTimestamp, err
}

// roll closes the active segment and opens a new one at the log's end. When it
// fails the active segment is still in use. Called with mu held.
func (l *Log) roll(now time.Time) error { return l.rollAt(l.end, now) }

// rollAt is roll for a log that goes on at an offset, at its end or, when what is
// between was compacted away, after it.
func (l *Log) rollAt(base int64, now time.Time) error {
	old := l.active()
	if err := old.seal(); err != nil {
		return fmt.Errorf("roll segment %d: %w", old.base, err)
	}
	snapshot, err := l.writeSnapshot(base)
	if err != nil {
		return fmt.Errorf("roll segment %d: %w", old.base, err)
	}
	s, err := l.createSegment(base, now)
	if err != nil {
		return fmt.Errorf("roll segment %d: %w", old.base, err)
	}
	l.state.Lock()
	l.segments = append(l.segments, s)
	l.unsynced = append(l.unsynced, old)
	l.unsyncedFiles = append(l.unsyncedFiles, snapshot)
	l.dirDirty = true
	l.end = base
	l.state.Unlock()
	old.file.release()
	l.snapshotAt, l.appendedAtSnapshot = s.base, l.appended
	return nil
}

// RollIfDue closes the active segment when it was opened Config.SegmentAge ago,
// or CompactionLagMax when that is less, and is not empty, so that retention and
// compaction can reach records that nobody appends after.
func (l *Log) RollIfDue(now time.Time) (rolled bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return false, err
	}
	s := l.active()
	if s.size == 0 || now.Sub(s.created) <= l.cfg.Load().rollAge(s.lot()) {
		return false, nil
	}
	if err := l.roll(now); err != nil {
		return false, l.appendError(err)
	}
	return true, nil
}

// reindex plans the index entries again for batches that start a segment.
func (p *appendPlan) reindex(batches []byte, interval int64) {
	p.entries, p.sinceIndex = p.entries[:0], 0
	p.out.Last = p.out.First - 1
	p.maxTimestamp, p.maxOffset = record.NoTimestamp, noOffset
	for rest := batches; len(rest) > 0; {
		b, after, err := record.Next(rest)
		if err != nil {
			return
		}
		p.add(b, int64(len(batches)-len(rest)), interval)
		rest = after
	}
}
