package coordinator

import (
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// Machine is the state of a shard. Its methods run one at a time, do no I/O and take the time as an
// argument.
type Machine interface {
	// Replay applies one record of the log, at its offset. Records of control batches do not come
	// here. An error stops the load: the shard stays unavailable in this leadership.
	Replay(r *record.Record) error
	// Loaded is called once, after the last Replay and before the first input.
	Loaded(now time.Time, out *Actions)
	// Expire fires timers that are due, one or more of them. It is called until none is, and what
	// each call asks to be written is in the log before the next one.
	Expire(now time.Time, out *Actions)
	// Deadline returns the time of the next timer; zero when there is none.
	Deadline() time.Time
	// Unload answers everyone who waits, with err. The machine is not used again.
	Unload(err error, out *Actions)
}

// Record is a key and a value to be written. A nil Value is a tombstone.
type Record struct {
	Key, Value []byte
}

// Write is one batch to be appended, all or nothing.
type Write struct {
	Records []Record
	// Appended is called when the batch is in the log and not yet committed. May be nil.
	Appended func()
	// Done is called once: with nil when the high watermark has passed the batch; with an error
	// when the append was refused, in which case nothing was written; with ErrNotLeader when the
	// leadership ends first, in which case nobody knows and the Machine is about to be unloaded.
	// May be nil.
	Done func(err error, now time.Time, out *Actions)
}

// Actions collects what a Machine wants done.
type Actions struct {
	writes  []Write
	replies []func()
}

// Write asks for a batch to be appended.
func (a *Actions) Write(w Write) { a.writes = append(a.writes, w) }

// Reply asks for f to be called when the shard's mutex is free.
func (a *Actions) Reply(f func()) { a.replies = append(a.replies, f) }

// Committed calls f when every write that was asked for up to now is committed, or with the error
// of the last one; at once when none was asked for.
func (a *Actions) Committed(f func(err error)) {
	if len(a.writes) == 0 {
		a.Reply(func() { f(nil) })
		return
	}
	last := &a.writes[len(a.writes)-1]
	done := last.Done
	last.Done = func(err error, now time.Time, out *Actions) {
		if done != nil {
			done(err, now, out)
		}
		out.Reply(func() { f(err) })
	}
}
