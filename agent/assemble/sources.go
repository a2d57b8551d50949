package assemble

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Held is the record of one source that may go on. First is what the caller keeps of its first line.
type Held[T any] struct {
	First T
	Text  []byte // lines joined by newlines
	Lines int
	Bytes int64 // that they took in the input
	// Split says that a limit ended the record: what follows belongs to it.
	Split bool

	order     uint64 // of the first line among all
	latest    time.Time
	assembler *Assembler
}

// Sources joins the lines of many sources, which lie across each other, each by itself. It holds lines until their record is whole, for who
// cannot read them again. It reads no clock. Not safe for concurrent use.
type Sources[K comparable, T any] struct {
	cfg  Config
	max  int // open records
	held map[K]*Held[T]
	next uint64
}

// NewSources returns one that holds nothing. Of more than openMax open records the oldest is ended.
func NewSources[K comparable, T any](cfg Config, openMax int) *Sources[K, T] {
	return &Sources[K, T]{cfg: cfg, max: openMax, held: map[K]*Held[T]{}}
}

// Open is how many records may go on.
func (s *Sources[K, T]) Open() int { return len(s.held) }

// Add takes a line of a source, which took some bytes in the input, and hands over the records that are whole by it. first is kept of the
// record that it begins, if it begins one. The line is copied; what is handed over is good until the next call.
func (s *Sources[K, T]) Add(key K, line []byte, bytes int64, first func() T, now time.Time, take func(*Held[T])) {
	h := s.held[key]
	if h == nil {
		h = &Held[T]{assembler: New(s.cfg)}
	}
	verdict := h.assembler.Line(line)
	if verdict&Opens != 0 && h.Lines > 0 {
		h.Split = verdict&Split != 0
		take(h)
		h = &Held[T]{assembler: h.assembler}
	}
	if h.Lines == 0 {
		h.First, h.order = first(), s.next
		s.next++
	} else {
		h.Text = append(h.Text, '\n')
	}
	h.Text = append(h.Text, line...)
	h.Lines++
	h.Bytes += bytes
	h.latest = now
	if verdict&Closes != 0 {
		delete(s.held, key)
		take(h)
		return
	}
	s.held[key] = h
	if len(s.held) > s.max {
		s.end(s.ordered()[0], true, take)
	}
}

// EndOf ends the open record of a source, if it has one.
func (s *Sources[K, T]) EndOf(key K, take func(*Held[T])) {
	if s.held[key] != nil {
		s.end(key, false, take)
	}
}

// End ends open records, in order of their first lines.
func (s *Sources[K, T]) End(which func(*Held[T]) bool, split bool, take func(*Held[T])) {
	for _, key := range s.ordered() {
		if which(s.held[key]) {
			s.end(key, split, take)
		}
	}
}

func (s *Sources[K, T]) end(key K, split bool, take func(*Held[T])) {
	h := s.held[key]
	delete(s.held, key)
	h.Split = split
	take(h)
}

// Quiet says that nothing was added to a record since a time.
func (h *Held[T]) Quiet(since time.Time) bool { return !h.latest.After(since) }

// Each calls f with what is kept of the open records, in order of their first lines.
func (s *Sources[K, T]) Each(f func(T)) {
	for _, key := range s.ordered() {
		f(s.held[key].First)
	}
}

// ordered are the sources with open records, in order of their first lines.
func (s *Sources[K, T]) ordered() []K {
	return slices.SortedFunc(maps.Keys(s.held), func(a, b K) int { return cmp.Compare(s.held[a].order, s.held[b].order) })
}
