package coordinator

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// Limits of a shard.
const (
	// loadBytesMax is how much one read of a load asks for (Kafka's offsets.load.buffer.size).
	loadBytesMax = 5 << 20
	// refusalLogInterval is how often it is said at most that writes are refused: every
	// commit is while too few replicas are in sync.
	refusalLogInterval = 10 * time.Second
	// batchBytesMaxDefault is the largest batch a shard writes (Kafka's max.message.bytes).
	batchBytesMaxDefault = 1048588
)

// Config sets the limits of a Shard. Its zero value is Kafka's defaults.
type Config struct {
	// BatchBytesMax is the size, in bytes, of the largest batch that is written; 0 means 1048588.
	BatchBytesMax int
}

// State says what a Shard can answer.
type State int8

// The states of a Shard.
const (
	// Resigned: this broker does not lead the partition.
	Resigned State = iota
	// Loading: the log is being replayed.
	Loading
	// Active: inputs are taken.
	Active
	// Failed: the load failed; stays so until the next election.
	Failed
)

// Shard drives one Machine over one partition. It is safe for concurrent use.
type Shard[M Machine] struct {
	log        *slog.Logger
	clock      Clock
	newMachine func() M
	cfg        Config

	mu      sync.Mutex // guards everything below
	state   State
	epoch   int32 // leader epoch of the present or last leadership
	term    int64 // raised by every Elect and Resign; callbacks of an older term are void
	machine M
	part    Log
	pending []pendingWrite                           // appended, not yet committed; in log order
	waiting []func(m M, now time.Time, out *Actions) // inputs for when the load is done
	builder record.Builder
	wake    time.Time // when the clock timer fires; zero: not armed
	stop    func()    // stops the clock timer
	// refused counts the writes that were refused since that was logged, at refusalAt.
	refused   int
	refusalAt time.Time
}

// pendingWrite is a write in the log below which the high watermark has not yet passed.
type pendingWrite struct {
	last  int64
	write Write
}

// NewShard returns a resigned shard. newMachine makes an empty machine for each leadership.
func NewShard[M Machine](log *slog.Logger, clock Clock, newMachine func() M, cfg Config) *Shard[M] {
	if cfg.BatchBytesMax <= 0 {
		cfg.BatchBytesMax = batchBytesMaxDefault
	}
	return &Shard[M]{log: log, clock: clock, newMachine: newMachine, cfg: cfg, epoch: -1}
}

// round is what is left to do of one pass under the mutex, once the mutex is free.
type round struct {
	actions Actions
	awaits  []int64 // last offsets of batches appended in this pass
	log     Log
	term    int64
}

// State returns what the shard can answer, and in which leader epoch.
func (s *Shard[M]) State() (State, int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.epoch
}

// Do runs one input. It answers ErrNotLeader, ErrLoading or ErrUnavailable, without having called
// f, when the shard is not active.
func (s *Shard[M]) Do(f func(m M, now time.Time, out *Actions)) error {
	s.mu.Lock()
	if err := s.refusal(); err != nil {
		s.mu.Unlock()
		return err
	}
	var r round
	f(s.machine, s.clock.Now(), &r.actions)
	s.settle(&r)
	s.mu.Unlock()
	s.finish(&r)
	return nil
}

// DoWhenActive runs an input now, or once the load that is going on has ended. It is dropped when
// this broker does not lead the partition, or no longer when the load has ended.
func (s *Shard[M]) DoWhenActive(f func(m M, now time.Time, out *Actions)) {
	s.mu.Lock()
	if s.state == Loading {
		s.waiting = append(s.waiting, f)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	_ = s.Do(f) // refused: there is nothing here that it could act on
}

// refusal says why inputs are not taken; nil when they are.
func (s *Shard[M]) refusal() error {
	switch s.state {
	case Active:
		return nil
	case Loading:
		return ErrLoading
	case Failed:
		return ErrUnavailable
	default:
		return ErrNotLeader
	}
}

// settle appends the writes of a pass, runs what follows from refused ones, and arms the clock
// timer. It holds the mutex.
func (s *Shard[M]) settle(r *round) {
	s.appendAll(r)
	if s.state == Active {
		s.arm()
	}
}

// appendAll appends the writes of a pass, and those that follow from refused ones.
func (s *Shard[M]) appendAll(r *round) {
	r.log, r.term = s.part, s.term
	for len(r.actions.writes) > 0 {
		w := r.actions.writes[0]
		r.actions.writes = r.actions.writes[1:]
		s.append(w, r)
	}
}

// append writes one batch. A refused one is told to its Done, which may ask for more.
func (s *Shard[M]) append(w Write, r *round) {
	now := s.clock.Now()
	last, err := s.appendBatch(w.Records, now)
	if err != nil {
		s.logRefusal(err, now)
		if w.Done != nil {
			w.Done(err, now, &r.actions)
		}
		return
	}
	if w.Appended != nil {
		w.Appended()
	}
	s.pending = append(s.pending, pendingWrite{last: last, write: w})
	r.awaits = append(r.awaits, last)
}

func (s *Shard[M]) logRefusal(err error, now time.Time) {
	s.refused++
	if !s.refusalAt.IsZero() && now.Sub(s.refusalAt) < refusalLogInterval {
		return
	}
	s.log.Warn("coordinator writes are refused", "writes", s.refused, "epoch", s.epoch, "error", err)
	s.refused, s.refusalAt = 0, now
}

func (s *Shard[M]) appendBatch(records []Record, now time.Time) (last int64, err error) {
	s.builder.Reset()
	ms := now.UnixMilli()
	for _, rec := range records {
		s.builder.Append(ms, rec.Key, rec.Value, nil)
	}
	b, err := s.builder.Build(record.BuildOptions{}, nil)
	if err != nil {
		return 0, fmt.Errorf("build coordinator batch: %w", err)
	}
	if len(b) > s.cfg.BatchBytesMax {
		return 0, fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(b), s.cfg.BatchBytesMax)
	}
	last, err = s.part.Append(b)
	if err != nil {
		return 0, fmt.Errorf("append coordinator batch: %w", err)
	}
	return last, nil
}

// finish does what needs the mutex to be free.
func (s *Shard[M]) finish(r *round) {
	for _, reply := range r.actions.replies {
		reply()
	}
	for _, last := range r.awaits {
		r.log.Await(last, func(err error) { s.committed(r.term, last, err) })
	}
}

// committed runs the Dones of every write up to offset. The calls of Await may come in any order
// and from any goroutine; the high watermark passes everything below at once.
func (s *Shard[M]) committed(term, offset int64, err error) {
	var r round
	s.mu.Lock()
	switch {
	case term != s.term || s.state != Active:
	case err != nil:
		s.unload(Resigned, fmt.Errorf("%w: %w", ErrNotLeader, err), &r)
	default:
		now := s.clock.Now()
		for len(s.pending) > 0 && s.pending[0].last <= offset {
			w := s.pending[0].write
			s.pending = s.pending[1:]
			if w.Done != nil {
				w.Done(nil, now, &r.actions)
			}
		}
		s.settle(&r)
	}
	s.mu.Unlock()
	s.finish(&r)
}

// arm sets the clock timer to the machine's next deadline, if that is earlier than what is armed. A
// timer that fires too early does no harm, so later deadlines leave it.
func (s *Shard[M]) arm() {
	at := s.machine.Deadline()
	if at.IsZero() || (!s.wake.IsZero() && !at.Before(s.wake)) {
		return
	}
	s.disarm()
	s.wake = at
	term := s.term
	s.stop = s.clock.AfterFunc(max(at.Sub(s.clock.Now()), 0), func() { s.expire(term, at) })
}

func (s *Shard[M]) disarm() {
	if s.stop != nil {
		s.stop()
	}
	s.stop, s.wake = nil, time.Time{}
}

// expire fires the machine's timers. A call whose timer was replaced in the meantime is void.
func (s *Shard[M]) expire(term int64, at time.Time) {
	var r round
	s.mu.Lock()
	if term == s.term && s.state == Active && s.wake.Equal(at) {
		s.wake, s.stop = time.Time{}, nil
		for now := s.clock.Now(); s.due(now); {
			s.machine.Expire(now, &r.actions)
			s.appendAll(&r)
		}
		s.arm()
	}
	s.mu.Unlock()
	s.finish(&r)
}

// due says whether a timer of the machine is.
func (s *Shard[M]) due(now time.Time) bool {
	at := s.machine.Deadline()
	return s.state == Active && !at.IsZero() && !at.After(now)
}

// unload throws the machine away and answers who waits. It holds the mutex.
func (s *Shard[M]) unload(to State, why error, r *round) {
	if s.state == Active {
		now := s.clock.Now()
		for _, p := range s.pending {
			if p.write.Done != nil {
				p.write.Done(why, now, &r.actions)
			}
		}
		s.machine.Unload(why, &r.actions)
		r.actions.writes = nil // of a machine that is no more
	}
	s.disarm()
	var none M
	s.machine, s.part, s.pending, s.waiting = none, nil, nil, nil
	s.state = to
	s.term++
}

// Resign ends the leadership: everyone who waits is answered with ErrNotLeader. A leader epoch
// below the present one is ignored. -1 says that the partition is gone: epochs begin anew if it
// comes back.
func (s *Shard[M]) Resign(epoch int32) {
	var r round
	s.mu.Lock()
	if epoch < 0 || epoch >= s.epoch {
		s.epoch = epoch
		s.unload(Resigned, ErrNotLeader, &r)
	}
	s.mu.Unlock()
	s.finish(&r)
}

// Elect begins a leadership: inputs are refused with ErrLoading from now on, and the caller must
// call load once, on a goroutine of its own, which replays the log and makes the shard active. load
// is nil if the epoch is old, or is the one the shard is active or loading in.
func (s *Shard[M]) Elect(epoch int32, part Log) (load func()) {
	var r round
	s.mu.Lock()
	defer s.finish(&r)
	defer s.mu.Unlock()
	if epoch < s.epoch || epoch == s.epoch && (s.state == Loading || s.state == Active) {
		return nil
	}
	s.unload(Loading, ErrNotLeader, &r)
	s.epoch, s.part = epoch, part
	term := s.term
	return func() { s.load(term, part) }
}

// load replays the log without the mutex, waits until the high watermark has passed what was
// replayed, and puts the machine in place.
func (s *Shard[M]) load(term int64, part Log) {
	m := s.newMachine()
	start := s.clock.Now()
	end, err := s.replay(term, part, m)
	if err != nil {
		s.loaded(term, m, err)
		return
	}
	s.log.Debug("coordinator log replayed", "end", end, "took", s.clock.Now().Sub(start))
	if end == 0 {
		s.loaded(term, m, nil)
		return
	}
	part.Await(end-1, func(err error) { s.loaded(term, m, err) })
}

func (s *Shard[M]) loaded(term int64, m M, err error) {
	var r round
	s.mu.Lock()
	switch {
	case term != s.term:
	case errors.Is(err, ErrNotLeader):
		s.unload(Resigned, err, &r)
	case err != nil:
		s.log.Error("coordinator load failed", "epoch", s.epoch, "error", err)
		s.unload(Failed, err, &r)
	default:
		s.machine, s.state = m, Active
		m.Loaded(s.clock.Now(), &r.actions)
		for _, f := range s.waiting {
			s.appendAll(&r) // each decides on what the one before it has written
			f(m, s.clock.Now(), &r.actions)
		}
		s.waiting = nil
		s.settle(&r)
	}
	s.mu.Unlock()
	s.finish(&r)
}
