package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/sluice-io/sluice/sinks"
)

// successFile says that a time partition is complete.
const successFile = "_SUCCESS"

// A time partition is complete when no row can be added to it any more that is not late. What is known of that lies in the ledgers, so it outlives workers and goes with
// the partitions: each has its watermark, up to which the partition's records are stored, and the time partitions that rows of it went to. An entry whose files
// are not all in their places does not count. The owner of partition 0 reads all ledgers now and then and writes the markers; that two of them do at once
// changes nothing.

// markers remembers which time partitions have their marker. Safe for concurrent use.
type markers struct {
	mu    sync.Mutex // guards there
	there map[string]bool
}

// markersMax bounds what is remembered; forgotten ones are looked up again.
const markersMax = 10_000

// has says that a time partition has its marker. An error counts as no.
func (m *markers) has(dir FS, part string) bool {
	m.mu.Lock()
	there := m.there[part]
	m.mu.Unlock()
	if there {
		return true
	}
	f, err := dir.Open(path.Join(part, successFile))
	if err != nil {
		return false
	}
	f.Close()
	m.note(part)
	return true
}

func (m *markers) note(part string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.there == nil || len(m.there) >= markersMax {
		m.there = map[string]bool{}
	}
	m.there[part] = true
}

// without is known and added, without those that have their marker. Only those that ended before a time are looked up, for no other can have one.
func (m *markers) without(dir FS, known, added []timePartition, before int64) []timePartition {
	ends := map[string]int64{}
	for _, p := range slices.Concat(known, added) {
		ends[p.Dir] = max(ends[p.Dir], p.End)
	}
	var out []timePartition
	for _, part := range slices.Sorted(maps.Keys(ends)) {
		if ends[part] >= before || !m.has(dir, part) {
			out = append(out, timePartition{part, ends[part]})
		}
	}
	return out
}

// Passed takes note that all records which the log of a partition held at a time are stored, so that partitions without traffic do not keep the others' hours open. The
// owner of partition 0 then marks what is complete.
func (s *Sink) Passed(_ context.Context, p sinks.Position) error {
	if s.files.Partition == nil || !s.files.Partition.Success {
		return nil
	}
	dir, _ := s.state()
	if err := s.passed(dir, p); err != nil {
		return err
	}
	if p.Partition != 0 {
		return nil
	}
	return s.mark(dir, p)
}

func (s *Sink) passed(dir FS, p sinks.Position) error {
	l := s.ledger(p.Topic, p.Partition, p.TopicID)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		if err := l.takeOver(dir); err != nil {
			return err
		}
	}
	at := p.At.UnixMilli()
	if l.seq > 0 && !s.endsWithin(l.entry.Watermark, at) {
		return nil // nothing would become complete by it
	}
	next := l.entry
	next.Files, next.Watermark = nil, max(next.Watermark, at)
	next.Unmarked = s.marked.without(dir, next.Unmarked, nil, l.entry.Watermark-s.lateness())
	return l.append(dir, next)
}

// endsWithin says that a time partition and its lateness end after one time and before another.
func (s *Sink) endsWithin(from, to int64) bool {
	cfg := s.files.Partition
	_, end := cfg.Path.Unit.Span(time.UnixMilli(from-s.lateness()), cfg.Zone)
	return end.UnixMilli()+s.lateness() < to
}

// mark writes the markers of the time partitions that are complete.
func (s *Sink) mark(dir FS, p sinks.Position) error {
	ends := map[string]int64{}
	passed := p.At.UnixMilli()
	for partition := range p.Partitions {
		at := ledgerDir(p.Topic, int32(partition), p.TopicID)
		entry, seq, names, err := newestEntry(dir, at)
		if err != nil {
			return err
		}
		if seq == 0 || entry.unmoved(names) {
			return nil // its turn comes
		}
		passed = min(passed, entry.Watermark)
		for _, u := range entry.Unmarked {
			ends[u.Dir] = max(ends[u.Dir], u.End)
		}
	}
	for _, part := range slices.Sorted(maps.Keys(ends)) {
		if ends[part]+s.lateness() >= passed || s.marked.has(dir, part) {
			continue
		}
		if err := s.markOne(dir, part); err != nil {
			return err
		}
	}
	return nil
}

// unmoved says that files of the entry are not yet where they belong.
func (e *ledgerEntry) unmoved(names []Entry) bool {
	return slices.ContainsFunc(e.Files, func(m move) bool {
		return slices.ContainsFunc(names, func(n Entry) bool { return n.Name == m.From })
	})
}

func (s *Sink) markOne(dir FS, part string) error {
	name := path.Join(part, successFile)
	err := writeWhole(dir, name, nil)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write %s: %w", name, err)
	}
	s.marked.note(part)
	if err == nil {
		s.log.Info("a time partition is complete", "marker", name)
	}
	return nil
}
