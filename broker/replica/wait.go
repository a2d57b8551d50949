package replica

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

	// The following are guarded by the partition's mu.

	armed      bool
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

// passed takes out the waits that offset satisfies.
func (l *waitList) passed(offset int64) (fired *Wait) {
	for w := l.head; w != nil; {
		next := w.next
		if w.Offset <= offset {
			l.remove(w)
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

// fire calls the waiters. No lock is held.
func fire(fired *Wait, err error) {
	for w := fired; w != nil; {
		// The wait may be gone once its waiter has been told.
		next := w.fired
		w.fired = nil
		w.Waiter.Fire(w, err)
		w = next
	}
}

// Await arms w. It returns false, and does not arm it, when the mark is there
// already or the partition does not serve: the caller goes on without waiting.
func (p *Partition) Await(w *Wait) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The role changes before the waits of the old one are taken, so what is
	// seen here is either still to be told or refused.
	if p.role.Load().serves() != nil || p.offset(w.Mark) >= w.Offset {
		return false
	}
	p.waits[w.Mark].add(w)
	return true
}

// Forget disarms w. A call of Fire that is under way is not waited for.
func (p *Partition) Forget(w *Wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.armed {
		p.waits[w.Mark].remove(w)
	}
}
