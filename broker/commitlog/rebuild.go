package commitlog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-io/sluice/internal/record"
)

// rebuildIndexes makes a segment's indexes anew after a reader found one of
// them wrong. It waits for appends; readers of this segment may meanwhile have
// to scan more of it, but read nothing wrong.
func (l *Log) rebuildIndexes(s *segment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	l.log.Warn("indexes rebuilt", "segment", s.file.path())
	return l.refillIndexes(s)
}

// refillIndexes fills a segment's indexes from its batches' headers. The caller
// holds mu, or is Open, and has the segment's file reserved.
func (l *Log) refillIndexes(s *segment) error {
	r := &refill{segment: s, interval: l.cfg.Load().IndexIntervalBytes, maxTimestamp: record.NoTimestamp, maxOffset: noOffset}
	if err := l.walkFrom(s, 0, s.size, r.take); err != nil {
		return fmt.Errorf("rebuild indexes of segment %d: %w", s.base, err)
	}
	if err := r.install(&l.state); err != nil {
		return fmt.Errorf("rebuild indexes of segment %d: %w", s.base, err)
	}
	return nil
}

// refill collects a segment's index entries.
type refill struct {
	segment      *segment
	interval     int64
	sinceIndex   int64
	maxTimestamp int64
	maxOffset    int64
	offsets      []indexEntry
	times        []indexEntry
}

func (r *refill) take(w *walker) (more bool, err error) {
	last := w.header.LastOffset()
	if ts := largestTimestamp(w.header); ts > r.maxTimestamp {
		r.maxTimestamp, r.maxOffset = ts, last
	}
	if r.sinceIndex > r.interval {
		r.offsets = append(r.offsets, indexEntry{last - r.segment.base, int32(w.pos)})
		r.addTime()
		r.sinceIndex = 0
	}
	r.sinceIndex += w.size
	return true, nil
}

func (r *refill) addTime() {
	if n := len(r.times); r.maxTimestamp >= 0 && (n == 0 || r.maxTimestamp > r.times[n-1].key) {
		r.times = append(r.times, indexEntry{r.maxTimestamp, int32(r.maxOffset - r.segment.base)})
	}
}

// install puts the entries into the indexes and writes them out.
func (r *refill) install(state *sync.RWMutex) error {
	r.addTime()
	s := r.segment
	if err := s.times.replace(r.times); err != nil {
		return err
	}
	if err := s.index.replace(r.offsets); err != nil {
		return err
	}
	state.Lock()
	defer state.Unlock()
	s.sinceIndex = r.sinceIndex
	s.maxTimestamp, s.maxOffset, s.maxKnown = r.maxTimestamp, r.maxOffset, true
	return nil
}

// replace gives the index other entries.
func (x *index) replace(entries []indexEntry) error {
	x.loadMu.Lock()
	defer x.loadMu.Unlock()
	x.mu.Lock()
	x.loaded, x.written, x.samples = true, 0, nil
	x.tail = entries
	x.last, x.lastKnown = indexEntry{}, true
	if n := len(entries); n > 0 {
		x.last = entries[n-1]
	}
	x.mu.Unlock()
	if err := x.truncateFile(0); err != nil {
		return err
	}
	return x.writeOut()
}

// loadMaxTimestamp reads a closed segment's largest timestamp from its time
// index, once. mend is rebuildIndexes, or refillIndexes for who holds mu.
func (l *Log) loadMaxTimestamp(s *segment, mend func(*segment) error) error {
	l.state.RLock()
	known := s.maxKnown
	l.state.RUnlock()
	if known {
		return nil
	}
	last, ok, err := s.times.lastEntry()
	if errors.Is(err, errIndex) || err == nil && !ok && s.size > 0 {
		s.file.reserve()
		defer s.file.release()
		return mend(s)
	}
	if err != nil {
		return err
	}
	l.state.Lock()
	defer l.state.Unlock()
	s.maxKnown = true
	if ok {
		s.maxTimestamp, s.maxOffset = last.key, s.base+int64(last.val)
	}
	return nil
}
