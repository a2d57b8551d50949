package replica

import (
	"cmp"
	"fmt"
)

// Mark is an offset of a partition that one can wait for.
type Mark int8

const (
	// HighWatermark is passed when everything below an offset is committed.
	HighWatermark Mark = iota
	// LogEnd is passed when everything below an offset is appended.
	LogEnd
	marks
)

// Waiter owns one or more waits: one waiter a request, one wait for each of its
// partitions.
type Waiter interface {
	// Fire tells that the mark has reached the wait's offset, or with an error
	// that it will not because the partition no longer serves. It is called at
	// most once for a wait, by the goroutine that moved the mark, which must
	// not be held up. It may come even after Forget.
	Fire(w *Wait, err error)
}

// Wait is one waiter's interest in one mark of one partition. It is used once:
// a request that waits again takes a new one.
type Wait struct {
	Waiter Waiter
	Mark   Mark
	// Offset is what the mark must reach.
	Offset int64
	// MinISR is how many replicas must be in sync when it does, or the wait ends
	// with ErrNotEnoughReplicasAfterAppend.
	MinISR int

	// The following are guarded by the partition's mu.

	armed      bool
	failed     error // tells more than that the mark has been reached
	prev, next *Wait // in the partition's list
	fired      *Wait // in the list of those to be fired
}

// waitList is a doubly linked list. The partition's mu guards it.
type waitList struct{ head *Wait }

func (l *waitList) add(w *Wait) {
	w.armed, w.next = true, l.head
	if l.head != nil {
		l.head.prev = w
	}
	l.head = w
}

func (l *waitList) remove(w *Wait) {
	w.armed = false
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
}

// passed takes out the waits that offset satisfies while so many are in sync, and
// puts them before fired.
func (l *waitList) passed(offset int64, inSync int, fired *Wait) *Wait {
	for w := l.head; w != nil; {
		next := w.next
		if w.Offset <= offset {
			l.remove(w)
			w.failed = w.enough(inSync)
			w.fired, fired = fired, w
		}
		w = next
	}
	return fired
}

// all takes out all waits and puts them before fired.
func (l *waitList) all(fired *Wait) *Wait {
	for l.head != nil {
		w := l.head
		l.remove(w)
		w.fired, fired = fired, w
	}
	return fired
}

func (w *Wait) enough(inSync int) error {
	if inSync < w.MinISR {
		return fmt.Errorf("%w: %d of the %d that min.insync.replicas asks for", ErrNotEnoughReplicasAfterAppend, inSync, w.MinISR)
	}
	return nil
}

// fire calls the waiters. No lock is held.
func fire(fired *Wait, err error) {
	for w := fired; w != nil; {
		// The wait may be gone once its waiter has been told.
		next := w.fired
		w.fired = nil
		w.Waiter.Fire(w, cmp.Or(err, w.failed))
		w = next
	}
}

// Await arms w. It returns false, and does not arm it, when the mark is there
// already or the partition serves neither as leader nor as a follower: the caller
// goes on without waiting.
func (p *Partition) Await(w *Wait) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The role changes before the waits of the old one are taken, so what is
	// seen here is either still to be told or refused.
	if p.role.Load().reads() != nil || p.offset(w.Mark) >= w.Offset {
		return false
	}
	p.waits[w.Mark].add(w)
	return true
}

// AwaitCommit arms w for the high watermark to pass what was appended under a
// leader epoch. It returns false, and does not arm it, when that is decided
// already: err is nil if it is committed, or what Fire would have told. A leader of another
// epoch, this node included, may have put other records in the place.
func (p *Partition) AwaitCommit(w *Wait, epoch int32) (armed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r := p.role.Load(); {
	case r.err != nil:
		return false, r.err
	case !r.leader || r.epoch != epoch:
		return false, ErrNotLeader
	case p.hw.Load() >= w.Offset:
		return false, w.enough(len(r.isr))
	}
	p.waits[HighWatermark].add(w)
	return true, nil
}

// Committed says, without a lock, that what was appended up to an offset under a
// leader epoch is committed with so many in sync. If it says no, AwaitCommit tells more.
func (p *Partition) Committed(last int64, epoch int32, minISR int) bool {
	r := p.role.Load()
	return r.leader && r.epoch == epoch && len(r.isr) >= minISR && p.hw.Load() > last && p.role.Load() == r
}

// Forget disarms w. A call of Fire that is under way is not waited for.
func (p *Partition) Forget(w *Wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.armed {
		p.waits[w.Mark].remove(w)
	}
}
