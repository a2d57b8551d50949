package sinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// State is what a partition of a worker is doing.
type State string

// The states.
const (
	StateIdle      State = "idle"      // everything that arrived is stored
	StateFilling   State = "filling"   // a batch gathers
	StateReplaying State = "replaying" // the range of a predecessor's claim is fetched again
	StateClaiming  State = "claiming"  // the claim is being committed
	StateQueued    State = "queued"    // a batch waits for one of the parallel writes, or for the limit on parts
	StateWriting   State = "writing"   // the destination has a batch
	StateRetrying  State = "retrying"  // the last write failed: the circuit is open until the next one is sent
	StatePaused    State = "paused"    // not fetched: memory is short
	StateAsking    State = "asking"    // the destination is asked whose its rows are
	StateStopped   State = "stopped"   // needs an operator
	StateLeaving   State = "leaving"   // the group has given the partition away
)

// states are all of them, for the metrics.
var states = []State{StateIdle, StateFilling, StateReplaying, StateClaiming, StateQueued, StateWriting, StateRetrying, StatePaused, StateAsking, StateStopped, StateLeaving}

// PartitionStatus says what a worker does with a partition, since when, and why.
type PartitionStatus struct {
	Partition int32     `json:"partition"`
	State     State     `json:"state"`
	Since     time.Time `json:"since"`
	Why       string    `json:"why,omitempty"`
	Mend      string    `json:"mend,omitempty"` // what to do about it; "" when it goes on by itself
	Stored    int64     `json:"stored"`         // everything below is stored
	Committed int64     `json:"committed"`      // of the group, -1 when there is none
	ClaimLo   int64     `json:"claim_lo"`       // of the batch in hand, -1 when there is none
	ClaimHi   int64     `json:"claim_hi"`
	Attempts  int       `json:"attempts,omitempty"` // writes of it that failed
	Retry     time.Time `json:"retry,omitzero"`     // when it is tried again
	Held      int64     `json:"held_bytes"`         // memory of its records
	BatchRows int       `json:"batch_rows"`         // how large batches are made now
	Full      bool      `json:"full_size"`          // which is their limit
}

// Status is what a worker does.
type Status struct {
	Pipeline   string            `json:"pipeline"`
	Sink       string            `json:"sink,omitempty"`
	Group      string            `json:"group"`
	Instance   string            `json:"instance_id,omitempty"`
	Waiting    string            `json:"waiting,omitempty"` // what keeps the worker from being ready
	Server     string            `json:"server,omitempty"`
	Guarantee  string            `json:"guarantee,omitempty"`
	Partitions []PartitionStatus `json:"partitions"`
}

// Status asks the worker what its partitions do. It fails only with ctx.
func (w *Worker) Status(ctx context.Context) (Status, error) {
	st := Status{Pipeline: w.pipe.Name, Sink: w.spec.Name, Group: w.spec.Group(), Instance: w.cfg.InstanceID, Partitions: []PartitionStatus{}}
	if err := w.Ready(); err != nil {
		st.Waiting = err.Error()
	}
	if d := w.destination.Load(); d != nil {
		st.Server, st.Guarantee = d.Server, d.Guarantee
	}
	s := w.session.Load()
	if s == nil {
		return st, ctx.Err()
	}
	got := make(chan []PartitionStatus, 1)
	select {
	case s.calls <- func() { got <- s.statuses() }:
		st.Partitions = <-got
	case <-s.ended:
	case <-ctx.Done():
		return st, ctx.Err()
	}
	return st, nil
}

// statuses runs in the loop.
func (s *session) statuses() []PartitionStatus {
	out := make([]PartitionStatus, 0, len(s.parts))
	for _, p := range s.parts {
		out = append(out, p.status())
	}
	slices.SortFunc(out, func(a, b PartitionStatus) int { return cmp.Compare(a.Partition, b.Partition) })
	return out
}

func (p *slot) status() PartitionStatus {
	st := PartitionStatus{
		Partition: p.base.Partition, State: p.state, Since: p.since, Stored: p.stored, Committed: p.committed, ClaimLo: -1, ClaimHi: -1,
		Held: p.held(), BatchRows: p.size.rows, Full: p.size.rows == p.limits.rows && p.size.bytes == p.limits.bytes,
	}
	if p.hand != nil {
		st.ClaimLo, st.ClaimHi, st.Attempts = p.hand.claim.Lo, p.hand.claim.Hi, p.hand.attempts
	}
	st.Why, st.Mend = p.explain()
	if st.State == StateRetrying || st.State == StateStopped && p.failed == nil {
		st.Retry = p.retryAt
	}
	return st
}

// note keeps since when the partition is in its state.
func (p *slot) note(now time.Time) {
	if state := p.stateNow(); state != p.state {
		p.state, p.since = state, now
	}
}

func (p *slot) stateNow() State {
	switch {
	case p.fenced:
		return StateLeaving
	case p.stopped() != nil || errors.Is(p.trouble, errTooManyLetters):
		return StateStopped
	case p.hand != nil:
		return p.stateOfHand()
	case p.origin != originTrusted && p.filling.n > 0:
		return StateAsking
	case p.crowded || p.rewinding:
		return StatePaused
	case p.replay != nil:
		return StateReplaying
	case p.turnless:
		return StateQueued
	case p.filling.n > 0:
		return StateFilling
	}
	return StateIdle
}

func (p *slot) stateOfHand() State {
	switch {
	case p.phase == phaseWriting:
		return StateWriting
	case p.phase == phaseClaimed:
		return StateQueued
	case p.hand.attempts > 0:
		return StateRetrying
	}
	return StateClaiming
}

// explain says why the partition is in its state, and what to do about it.
func (p *slot) explain() (why, mend string) {
	switch p.state {
	case StateStopped:
		if p.barred != nil {
			return p.barred.Error(), "do what the reason says; the partition then goes on by itself"
		}
		if p.failed != nil {
			return p.failed.Error(), "mend the reason, or pass the position by `sluice groups reset`, and start the worker again"
		}
		return p.trouble.Error(), "mend the mapping or the table and start the worker again (`sluice dlq show` has examples), or raise errors.dead_letter_share"
	case StateRetrying, StateAsking:
		if p.trouble != nil {
			return p.trouble.Error(), mendOf(p.trouble)
		}
	case StatePaused:
		return "the worker's memory is short and this partition holds more than its share, or waits for a predecessor's claim", ""
	case StateQueued:
		if p.turnless {
			return "the limit on parts per second is reached: the batch grows meanwhile", ""
		}
		return "all parallel writes are taken", ""
	case StateReplaying:
		return fmt.Sprintf("a predecessor left the claim up to offset %d open", p.replay.hi), ""
	case StateLeaving:
		return "the group has given the partition away", ""
	}
	return "", ""
}

// mendOf is what to do about a batch that the destination does not take.
func mendOf(trouble error) string {
	switch {
	case errors.Is(trouble, ErrTooOften):
		return "the destination has more to do than it can: the batch waits; give it room, or make fewer and larger batches"
	case errors.Is(trouble, ErrTooMuch):
		return "the batch is too large for the destination: smaller ones are made until they pass; raise its limit, or lower `batch`"
	}
	return "mend the destination; the batch is tried again until it is taken"
}

// countStates has the metrics say how many partitions are in which state, and whether the destination's circuit is open.
func (s *session) countStates() {
	count := map[State]int{}
	open := 0.0
	for _, p := range s.parts {
		count[p.state]++
		if p.trouble != nil {
			open = 1
		}
	}
	for i, state := range states {
		s.w.metrics.states[i].Set(float64(count[state]))
	}
	s.w.metrics.circuit.Set(open)
}
