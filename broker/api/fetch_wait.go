package api

import (
	"sync"

	"github.com/sluice-io/sluice/broker/replica"
)

// fetchWaits are the fetches that wait for records. It is safe for concurrent
// use; its lock is a leaf.
type fetchWaits struct {
	mu  sync.Mutex
	set map[*fetch]struct{}
}

func (ws *fetchWaits) add(f *fetch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.set == nil {
		ws.set = map[*fetch]struct{}{}
	}
	ws.set[f] = struct{}{}
}

func (ws *fetchWaits) remove(f *fetch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.set, f)
}

// expireAll ends all waits as if their time were over.
func (ws *fetchWaits) expireAll() {
	ws.mu.Lock()
	list := make([]*fetch, 0, len(ws.set))
	for f := range ws.set {
		list = append(list, f)
	}
	ws.mu.Unlock()
	for _, f := range list {
		go f.expire()
	}
}

// wait answers f when need more bytes have become readable in any of its
// partitions, when one of them no longer serves, or after the longest wait.
func (f *fetch) wait(need int64) {
	f.a.fetches.add(f)
	f.mu.Lock()
	f.need = need
	f.waits = make([]*replica.Wait, len(f.parts))
	f.stop = f.a.AfterFunc(f.maxWait, f.expire)
	f.mu.Unlock()
	for i := range f.parts {
		if f.parts[i].partition != nil {
			f.await(i, f.parts[i].reached)
		}
	}
	if f.a.draining.Load() {
		go f.expire()
	}
	f.r.OnGone(f.gone)
}

// await waits for one partition's mark, of which the request reads what lies
// below, to pass end.
func (f *fetch) await(i int, end int64) {
	p := f.parts[i].partition
	w := &replica.Wait{Waiter: f, Mark: f.mark(), Offset: end + 1}
	f.mu.Lock()
	if f.done {
		f.mu.Unlock()
		return
	}
	f.waits[i] = w
	f.mu.Unlock()
	if !p.Await(w) {
		f.Fire(w, p.CheckRead(replica.NoEpoch))
		return
	}
	if f.isDone() {
		p.Forget(w) // it was armed after all others had been forgotten
	}
}

func (f *fetch) isDone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done
}

// Fire implements replica.Waiter. It is called by producers, and leaves the
// reading and sending to a goroutine of its own.
func (f *fetch) Fire(w *replica.Wait, err error) {
	if err == nil && !f.enough() {
		f.awaitMore(w)
		return
	}
	if f.end() {
		go f.answer()
	}
}

// enough tells whether what has become readable since the partitions were read
// is what was missing.
func (f *fetch) enough() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		return false // parts belong to who answers
	}
	var more int64
	for i := range f.parts {
		if p := f.parts[i].partition; p != nil {
			more += f.come(p) - f.parts[i].seen
		}
	}
	return more >= f.need
}

// awaitMore waits again in the partition of w.
func (f *fetch) awaitMore(w *replica.Wait) {
	f.mu.Lock()
	at := -1
	for i := range f.waits {
		if f.waits[i] == w {
			at = i
		}
	}
	f.mu.Unlock()
	if at >= 0 {
		f.await(at, f.reached(f.parts[at].partition))
	}
}

// end makes the caller the one who answers, or who gives up. What f has read
// and knows is the caller's from then on.
func (f *fetch) end() bool {
	f.mu.Lock()
	if f.done {
		f.mu.Unlock()
		return false
	}
	f.done = true
	f.mu.Unlock()
	f.stop()
	for i := range f.waits {
		if f.waits[i] != nil {
			f.parts[i].partition.Forget(f.waits[i])
		}
	}
	f.a.fetches.remove(f)
	return true
}

// answer reads again and responds; it may block on the client.
func (f *fetch) answer() {
	f.read()
	f.r.RespondBlocking(f.response())
}

func (f *fetch) expire() {
	if f.end() {
		f.answer()
	}
}

func (f *fetch) gone() {
	if f.end() {
		f.r.NoResponse()
	}
}
