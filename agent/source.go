package agent

import (
	"container/heap"
	"time"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
)

// source is one followed file. It belongs to the runner's loop, but for what
// track holds.
type source struct {
	origin // named after the path it was first found under; its identity is the value of file_id
	file   *tail.File
	track  *track
	path   string // the name it has now, as far as known
	real   string // where path leads to when it is a symbolic link

	meta []producer.Header // of its container
	pod  sourcePod         // what is known of the container's pod

	tooOld   bool // when it was first seen (ignore_older)
	damaged  bool // a compressed file that could not be read to its end
	queued   bool
	once     bool      // read to its end since the start
	detached bool      // no name leads to it any more
	gone     time.Time // since when
	left     bool      // it is followed no more; it may stand in the queue still
	failed   bool      // it could not be opened or read when it was its turn: the next scan that finds it queues it again
	fresh    time.Time // when it last had bytes, or was detached
	looked   time.Time // when it was last read, whether it had bytes or not

	partialSize  int64 // size of the file when the unterminated line was first seen
	partialSince time.Time
	due          time.Time // its place in the timeline; zero: none
}

// quieter says that a source had bytes longer ago than another.
func (s *source) quieter(than *source) bool {
	if s.fresh.Equal(than.fresh) {
		return compareIDs(s.file.ID(), than.file.ID()) < 0
	}
	return s.fresh.Before(than.fresh)
}

// timeline orders sources by the time they are to be looked at. A source is
// in it once; entries it has left behind are passed over.
type timeline struct {
	entries dueHeap
}

type dueEntry struct {
	at time.Time
	s  *source
}

// set moves a source in the timeline.
func (t *timeline) set(s *source, at time.Time) {
	if s.due.Equal(at) {
		return
	}
	s.due = at
	heap.Push(&t.entries, dueEntry{at: at, s: s})
}

// clear takes a source out.
func (t *timeline) clear(s *source) { s.due = time.Time{} }

func (t *timeline) first() (time.Time, bool) {
	t.prune()
	if len(t.entries) == 0 {
		return time.Time{}, false
	}
	return t.entries[0].at, true
}

// pop returns a source that is due and takes it out; nil when there is none.
func (t *timeline) pop(now time.Time) *source {
	t.prune()
	if len(t.entries) == 0 || t.entries[0].at.After(now) {
		return nil
	}
	s := heap.Pop(&t.entries).(dueEntry).s
	t.clear(s)
	return s
}

func (t *timeline) prune() {
	for len(t.entries) > 0 && !t.entries[0].s.due.Equal(t.entries[0].at) {
		heap.Pop(&t.entries)
	}
}

// dueHeap is the heap of a timeline.
type dueHeap []dueEntry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueEntry)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
