package agent

import (
	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/producer"
)

// storeWorld is a journal in memory and a store that takes all: schedules in it are about files.
type storeWorld struct {
	schedule *schedule
	store    *store
	journal  []entry // survives a crash
	runner   *files
}

// entry is what the journal holds of a bundle. Its sequence is its place and one.
type entry struct{ ranges []journal.Range }

func newStoreWorld(s *schedule) *storeWorld {
	w := &storeWorld{schedule: s, store: &store{}}
	w.store.sent, w.store.written = s.meanwhile, w.log
	return w
}

// log is the journal's part of sending.
func (w *storeWorld) log(b *producer.Bundle) {
	w.journal = append(w.journal, entry{rangesOf(b)})
	b.Written(uint64(len(w.journal)))
}

// start takes over what the journal holds: ranges move positions, and what was not acknowledged is settled.
func (w *storeWorld) start(r *files, from uint64) {
	var moves []journal.Range
	for _, e := range w.journal[min(int(max(from, 1)-1), len(w.journal)):] {
		moves = append(moves, e.ranges...)
	}
	r.replay(moves)
	r.journalled = uint64(len(w.journal)) + 1
	w.store.keepUnanswered()
	w.store.held, w.store.owner = false, r.owner()
	r.dest, w.runner = w.store, r
}

func (w *storeWorld) stop()               {}
func (w *storeWorld) handOver()           {}
func (w *storeWorld) turn(bool) bool      { return false }
func (w *storeWorld) killed() bool        { return false }
func (w *storeWorld) checkpointed(uint64) { w.runner.kept.stored.Store(true) }
func (w *storeWorld) hold()               { w.store.hold() }
func (w *storeWorld) letGo()              { w.store.letGo() }
func (w *storeWorld) stored() []stored    { return w.store.all() }
func (w *storeWorld) ops() []scheduleOp   { return nil }
