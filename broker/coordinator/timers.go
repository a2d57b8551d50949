package coordinator

import (
	"container/heap"
	"time"
)

// Timers are a machine's deadlines, earliest first. Not safe for concurrent use.
type Timers struct {
	heap timerHeap
}

// Timer is one deadline; its zero value is not set. It belongs to the Timers it is first set in.
type Timer struct {
	at    time.Time
	index int // 1-based place in the heap; 0: not set
	fire  func(now time.Time, out *Actions)
}

// Set makes t fire at the given time, instead of when it would have before.
func (ts *Timers) Set(t *Timer, at time.Time, fire func(now time.Time, out *Actions)) {
	t.at, t.fire = at, fire
	if t.index > 0 {
		heap.Fix(&ts.heap, t.index-1)
		return
	}
	heap.Push(&ts.heap, t)
}

// Stop unsets t. It may not be set.
func (ts *Timers) Stop(t *Timer) {
	if t.index > 0 {
		heap.Remove(&ts.heap, t.index-1)
	}
}

// IsSet says whether t is going to fire.
func (t *Timer) IsSet() bool { return t.index > 0 }

// Deadline returns the earliest time; zero when nothing is set.
func (ts *Timers) Deadline() time.Time {
	if len(ts.heap) == 0 {
		return time.Time{}
	}
	return ts.heap[0].at
}

// Expire fires, and unsets, every timer due at now, earliest first. Timers that are set while it
// runs fire too if they are due.
func (ts *Timers) Expire(now time.Time, out *Actions) {
	for ts.ExpireNext(now, out) {
	}
}

// ExpireNext fires, and unsets, the earliest timer if it is due at now, and says whether it was.
func (ts *Timers) ExpireNext(now time.Time, out *Actions) bool {
	if len(ts.heap) == 0 || ts.heap[0].at.After(now) {
		return false
	}
	heap.Pop(&ts.heap).(*Timer).fire(now, out)
	return true
}

type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h *timerHeap) Push(x any) {
	t := x.(*Timer)
	*h = append(*h, t)
	t.index = len(*h)
}

func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = 0
	return t
}
