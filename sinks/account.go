package sinks

import "maps"

// Account is what became of the records of this worker's batches since it started. A batch is counted when it is stored, so
//
//	Consumed = Stored + Found + the sum of Dropped + the sum of DeadLettered
type Account struct {
	Pipeline string
	Sink     string // "" for `sink:`

	Consumed int64
	Stored   int64
	Found    int64 // were at the destination already, from an earlier worker's write

	Dropped      map[string]int64 // by stage: dropped on purpose
	DeadLettered map[string]int64 // by reason: went to the dead-letter topic
	Lost         int64            // removed from the log before they were read; not in Consumed
}

func newAccount(pipeline, sink string) Account {
	return Account{Pipeline: pipeline, Sink: sink, Dropped: map[string]int64{}, DeadLettered: map[string]int64{}}
}

// add counts a stored batch.
func (a *Account) add(t tally) {
	a.Consumed += t.consumed
	a.Stored += t.stored
	a.Found += t.found
	for stage, n := range t.dropped {
		a.Dropped[stage] += n
	}
	for reason, n := range t.rejected {
		a.DeadLettered[reason] += n
	}
}

// Add counts what another worker of the same sink did.
func (a *Account) Add(b Account) {
	a.add(tally{consumed: b.Consumed, stored: b.Stored, found: b.Found, dropped: b.Dropped, rejected: b.DeadLettered})
	a.Lost += b.Lost
}

// Account returns a copy of the account so far.
func (w *Worker) Account() Account {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.account
	a.Dropped, a.DeadLettered = maps.Clone(a.Dropped), maps.Clone(a.DeadLettered)
	return a
}
