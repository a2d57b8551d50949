package producer

import (
	"fmt"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// Limits of a lane.
const (
	// inFlightMax is how many batches of a producer a broker can tell repeats of.
	inFlightMax = 5
	// laneBackoffMin and Max bound the pause before a partition is tried again.
	laneBackoffMin = 50 * time.Millisecond
	laneBackoffMax = 5 * time.Second
	// aloneAfter is how long a partition may have been quiet before its next batch travels alone: the broker may have forgotten the producer.
	aloneAfter = 10 * time.Minute
	// shortOutage is how long after its first attempt a batch may be sent again where the broker cannot be asked what it has.
	shortOutage = time.Minute
	// sequenceErrorsMax is how often a batch's sequence may be found not due before its lane takes a new identity.
	sequenceErrorsMax = 3
)

// phase is what a lane does.
type phase int8

const (
	open     phase = iota // sends what is queued
	settling              // will ask the broker what it has
	asking                // waits for an answer that is not a produce's
	renewing              // needs a new identity
	held                  // cannot go on: outcomes are unknown, and on_unknown says hold
)

func (p phase) String() string {
	return [...]string{"open", "settling", "asking", "renewing", "held"}[p]
}

// laneKey names a lane: a partition of one topic's lifetime.
type laneKey struct {
	topic     TopicID
	name      string
	partition int32
}

// lane takes the batches of one partition from the journal to their acknowledgement. It decides only: what happened in, what is to be
// done out, by the core. Not safe for concurrent use.
type lane struct {
	key   laneKey
	queue []*Batch // unsettled, in order
	// ident and next are what the next new batch gets.
	ident identity
	next  int32
	// floor is the offset from which on our batches may lie; -1 when none was ever sent, as far as the journal knows.
	floor   int64
	phase   phase
	until   time.Time // nothing is tried before
	tries   int       // without success
	flights int       // batches flying
	// trusted is the identity that the broker is known to remember.
	trusted identity
	acked   time.Time // when trusted was last confirmed
	drop    bool      // renewing because the head is refused: its bad records are dropped
	// proving is a batch that the leader has, and refuses when it is sent again: that all replicas have it is read from the log.
	proving *Batch
}

func newLane(key laneKey) *lane { return &lane{key: key, floor: -1} }

// push adds a batch at the end.
func (l *lane) push(b *Batch) { l.queue = append(l.queue, b) }

// head is the first batch that is not settled.
func (l *lane) head() *Batch {
	if len(l.queue) == 0 {
		return nil
	}
	return l.queue[0]
}

// group is the queue's beginning that has the head's identity.
func (l *lane) group() []*Batch {
	for i, b := range l.queue {
		if b.identity() != l.queue[0].identity() {
			return l.queue[:i]
		}
	}
	return l.queue
}

// backoff puts the next attempt off.
func (l *lane) backoff(now time.Time) {
	l.until = now.Add(min(laneBackoffMin<<min(l.tries, 10), laneBackoffMax))
	l.tries++
}

// window is how many batches may be sent and not acknowledged. An identity that the broker may not know sends one: of several first
// batches it could take a later one and then refuse the others for good. So do batches of an earlier run, whose old timestamps let the
// broker forget the producer between two of them.
func (l *lane) window(most int, now time.Time) int {
	h := l.head()
	if h.Recovered || h.identity() != l.trusted || now.Sub(l.acked) > aloneAfter {
		return 1
	}
	return most
}

// sendable returns the next batch to send, or nil. check says that the broker must be asked first.
func (l *lane) sendable(most int, now time.Time) (next *Batch, check bool) {
	if len(l.queue) == 0 {
		return nil, false
	}
	room := l.window(most, now)
	if room > 1 {
		for _, b := range l.group() {
			if b.flight.state == presumed {
				room--
			}
		}
	}
	room -= l.flights
	for _, b := range l.group() {
		f := &b.flight
		switch {
		case f.state != queued:
			continue
		case f.check:
			return nil, true
		case f.refusal != nil, room < 1:
			return nil, false
		}
		return b, false
	}
	return nil, false
}

// fly notes that a batch is sent.
func (l *lane) fly(b *Batch, now time.Time) {
	f := &b.flight
	if f.sends == 0 {
		f.firstSent = now
	}
	f.state, f.before, f.doubt = flying, f.doubt, true
	f.sends++
	l.flights++
}

// verdict is an answer to a produce, as far as the lane cares.
type verdict int8

const (
	stored     verdict = iota // acknowledged
	lost                      // no answer, or one that leaves open whether it is stored
	unstored                  // certainly not stored by this attempt
	outOfOrder                // the sequence is not due
	refused                   // the batch is the trouble
)

// landed takes an answer. For stored it returns the batches that are acknowledged by it.
func (l *lane) landed(b *Batch, v verdict, why *refusal, now time.Time) (acked []*Batch) {
	f := &b.flight
	if f.state != flying {
		return nil // settled meanwhile by what was read back
	}
	l.flights--
	f.state = queued
	if v != lost {
		f.doubt = f.before
	}
	switch v {
	case stored:
		return l.confirmed(b, now)
	case refused:
		f.refusal = why
	case outOfOrder:
		f.sequence++
	}
	f.check = true
	if l.phase == open {
		l.phase = settling
		if v != refused {
			l.backoff(now)
		}
	}
	return nil
}

// confirmed settles a batch that is acknowledged, and those before it that the broker had and could not be acknowledged themselves: it
// is in all replicas, so they are.
func (l *lane) confirmed(b *Batch, now time.Time) (acked []*Batch) {
	l.trusted, l.acked, l.tries = b.identity(), now, 0
	keep := l.queue[:0]
	before := true
	for _, x := range l.queue {
		if x == b || before && x.flight.state == presumed {
			x.flight.state = settled
			acked = append(acked, x)
		} else {
			keep = append(keep, x)
		}
		before = before && x != b
	}
	clear(l.queue[len(keep):])
	l.queue = keep
	for _, x := range keep {
		x.flight.sequence = 0
	}
	return acked
}

// doubted says that a batch which was sent before another one may be stored, and lie before it: the floor must not pass it.
func (l *lane) doubted(of *Batch) bool {
	for _, x := range l.queue {
		before := x.identity() != of.identity() || (int64(of.BaseSequence)-int64(x.BaseSequence))&(1<<31-1) < 1<<30
		if x.flight.doubt && before {
			return true
		}
	}
	return false
}

// remove takes batches out of the queue.
func (l *lane) remove(gone func(*Batch) bool) (out []*Batch) {
	keep := l.queue[:0]
	for _, x := range l.queue {
		if gone(x) {
			x.flight.state = settled
			out = append(out, x)
		} else {
			keep = append(keep, x)
		}
	}
	clear(l.queue[len(keep):])
	l.queue = keep
	return out
}

// described takes the broker's word on the last sequence that it has of the head's identity. One that it has and would refuse if it were
// sent again is to be proved; unknown says that its word does not fit what was sent.
func (l *lane) described(last int32, now time.Time) (unknown error) {
	group := l.group()
	distance := int64(record.AddSequence(last, 1)) - int64(group[0].BaseSequence)
	if distance < 0 {
		distance += 1 << 31
	}
	if distance >= 1<<30 { // before the head: what was acknowledged is gone there
		for _, b := range group {
			b.flight.check, b.flight.sequence = false, sequenceErrorsMax
		}
		return nil
	}
	have := 0
	for _, b := range group { // between two of them may lie one that is acknowledged
		from := (int64(b.BaseSequence) - int64(group[0].BaseSequence)) & (1<<31 - 1)
		if distance > from && distance < from+int64(b.Records) {
			return fmt.Errorf("the broker has sequence %d of producer %d, which ends no batch that was sent", last, group[0].Producer)
		}
		if distance <= from {
			break
		}
		have++
	}
	if have > 0 && l.floor < 0 {
		l.floor = 0 // a power cut has left the batch in the journal, and taken its floor: it may lie anywhere
	}
	l.trusted, l.acked = group[0].identity(), now
	for i, b := range group {
		f := &b.flight
		f.state, f.check = queued, false
		if i+1 < have {
			f.state = presumed
		}
		f.doubt = f.doubt && i < have
	}
	if have > 0 && (group[have-1].flight.refusal != nil || group[have-1].flight.sequence > 0) {
		// Stored, and refused when it was sent again, or too long ago for the broker to know its repeat: its answer would be the same again.
		// The leader may be the only one that has it: it counts when it lies below the high watermark.
		l.proving = group[have-1]
	}
	return nil
}

// proved takes what lies below the high watermark of the identity of the batch that is to be proved. An incomplete log has no word on a
// batch that it does not show: what is compacted or deleted lay below the high watermark.
func (l *lane) proved(there map[int32]bool, complete bool, now time.Time) (acked []*Batch, wait bool) {
	b := l.proving
	l.proving = nil
	if b.flight.state == settled {
		return nil, false
	}
	if there[b.BaseSequence] || !complete {
		return l.confirmed(b, now), false
	}
	for _, x := range l.group() {
		x.flight.check = true // the leader may change, and lack it
	}
	return nil, true
}

// readBack takes what was found in the log of a partition whose leader has forgotten the producer: acked are the batches that are there.
// complete says that the log was read from the floor on without a gap; otherwise unknown are those that were not found.
func (l *lane) readBack(there map[int32]bool, complete bool) (acked, unknown []*Batch) {
	group, of := l.group(), l.queue[0].identity()
	found := func(b *Batch) bool { return b.identity() == of && there[b.BaseSequence] }
	l.trusted = identity{}
	for _, b := range group {
		b.flight.state, b.flight.check = queued, false
		if found(b) {
			continue
		}
		if !complete && b.flight.doubt {
			unknown = append(unknown, b)
		}
		b.flight.doubt = b.flight.doubt && !complete
	}
	return l.remove(found), unknown
}

// undescribed: the broker cannot be asked. What was first sent a moment ago may be sent again as it is, for the broker remembers it.
func (l *lane) undescribed(now time.Time) (unknown []*Batch) {
	for _, b := range l.group() {
		f := &b.flight
		f.check = false
		if f.doubt && (b.Recovered || f.refusal != nil || now.Sub(f.firstSent) > shortOutage) {
			unknown = append(unknown, b)
		}
	}
	return unknown
}
