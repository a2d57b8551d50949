package replica_test

import (
	"container/heap"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Times of the simulated cluster, all virtual.
const (
	simSession     = 3 * time.Second // of the store
	simLagMax      = time.Second
	simFetchWait   = 200 * time.Millisecond
	simFetchExpiry = time.Second
	simFlushMax    = 20 * time.Millisecond
	simISRTick     = 200 * time.Millisecond
	simPushExpiry  = 400 * time.Millisecond
	// simRecovery bounds how long after the last fault every partition that can
	// have a leader has one, and simSettled how long until all is as if nothing
	// had happened.
	simRecovery = simSession + 3*time.Second
	simSettled  = 40 * time.Second
)

// world is one run of the simulation: virtual time, and a queue of what is going
// to happen. It is single-threaded and does only what the seed says.
type world struct {
	seed    uint64
	rng     *rand.Rand
	now     time.Time
	start   time.Time
	queue   eventQueue
	serial  uint64
	nodes   []*node
	store   *store
	clients []*client
	check   *checker
	broken  broken
	faults  faults
	menu    []fault // what may go wrong
	mood    mood
	// calm is when the last fault ended.
	calm time.Time
	// quiet: nothing goes wrong before.
	quiet time.Time
	// trace gets what happens, for a seed that is looked into.
	trace io.Writer
	log   *slog.Logger
	err   error
}

// event is something that happens at a time, on a node unless that is nil: then it
// does not if the node has died since.
type event struct {
	at     time.Time
	serial uint64
	node   *node
	life   int
	run    func()
}

type eventQueue []*event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].serial < q[j].serial
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(*event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return e
}

// after has something happen after a while.
func (w *world) after(d time.Duration, n *node, run func()) {
	w.at(w.now.Add(d), n, run)
}

func (w *world) at(t time.Time, n *node, run func()) {
	w.serial++
	e := &event{at: t, serial: w.serial, node: n, run: run}
	if n != nil {
		e.life = n.life
	}
	heap.Push(&w.queue, e)
}

// step does what is next, up to a time, and checks what it has done.
func (w *world) step(until time.Time) {
	if len(w.queue) == 0 || w.queue[0].at.After(until) {
		w.now = until
		return
	}
	e := heap.Pop(&w.queue).(*event)
	w.now = e.at
	if n := e.node; n != nil {
		if !n.up || n.life != e.life {
			return
		}
		if w.now.Before(n.frozen) {
			e.at = n.frozen
			heap.Push(&w.queue, e)
			return
		}
	}
	e.run()
	w.check.step(e.node)
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("at %v: %s", w.now.Sub(w.start), fmt.Sprintf(format, args...))
	}
}

func (w *world) tracef(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%9v "+format+"\n", append([]any{w.now.Sub(w.start)}, args...)...)
	}
}

// between is a random duration.
func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rng.Int64N(int64(to-from)+1))
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func pick[T any](w *world, of []T) T { return of[w.rng.IntN(len(of))] }

// send has a message arrive at a node, unless it is lost on the way. A nil
// node is a client, to and from whom the way is open. Messages overtake each other, and
// while the network is bad they are lost, late, or come twice.
func (w *world) send(from, to *node, arrive func()) {
	copies := 1
	if w.faults.lossy {
		switch w.rng.IntN(20) {
		case 0, 1:
			return
		case 2:
			copies = 2
		}
	}
	for range copies {
		d := w.between(200*time.Microsecond, 3*time.Millisecond)
		if w.faults.lossy && w.chance(5) {
			d = w.between(0, 2*time.Second)
		}
		// The way must be open when the message leaves and when it arrives.
		if w.cut(from, to) {
			return
		}
		w.after(d, to, func() {
			if !w.cut(from, to) {
				arrive()
			}
		})
	}
}

// cut says whether nothing gets from one node to another.
func (w *world) cut(from, to *node) bool {
	return from != nil && to != nil && from != to && w.faults.cuts[[2]int32{from.id, to.id}]
}

// call sends a request to a node and its answer back, or tells that it took too
// long. done is called exactly once. serve gets a function that answers, now or later.
func (w *world) call(from, to *node, expiry time.Duration, serve func(answer func(reply func())), expired func()) {
	open := true
	w.send(from, to, func() {
		serve(func(reply func()) {
			w.send(to, from, func() {
				if open {
					open = false
					reply()
				}
			})
		})
	})
	w.after(expiry, from, func() {
		if open {
			open = false
			expired()
		}
	})
}
