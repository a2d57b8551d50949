package sinks

import (
	"errors"
	"fmt"
	"time"
)

// limits say when a batch of one partition is sealed, and how long its claim is good for.
type limits struct {
	rows  int           // records of a batch, at least 1
	bytes int64         // bytes of record values of a batch; the record that passes it is the last
	age   time.Duration // from the first record's arrival to the seal; and from the last write to its closing commit
	idle  time.Duration // from the last record's arrival to the seal; 0: age alone says

	// writeDeadline is how long after a claim was sent its rows may still be sent to the destination. It is below the group's
	// session timeout: until then no other member can have been given the partition.
	writeDeadline time.Duration

	backoffMin, backoffMax time.Duration // between attempts, doubled each time
}

// phase is how far the batch in hand has come.
type phase uint8

const (
	phaseSealed   phase = iota // its range is fixed; the claim has to be committed (again)
	phaseClaiming              // the claim's commit is under way
	phaseClaimed               // the claim is the group's commit; the rows may be written until the deadline
	phaseWriting               // the destination has it
)

// batch is a sealed range on its way to the destination.
type batch struct {
	claim   Claim
	records records   // of [Lo, Hi]
	age     time.Time // when the first record arrived

	attempts  int   // writes that failed in this worker
	repeat    bool  // an earlier write, of this worker or another, may have succeeded
	uncertain bool  // an earlier write had no answer: it may still arrive
	doubtTo   int64 // the destination may hold rows up to here that were written before the claim

	again whole // what a repetition of its write needs; used by the write alone

	sent map[int64]bool // offsets whose dead letters are acknowledged; used by the write alone
}

// whole is how a batch is repeated as it was, where that fills what hangs on the destination.
type whole struct {
	written   bool    // a write was begun
	leftOut   []Range // was stored before the first write
	mark      int64   // see Batch.Mark
	forgotten bool    // the destination may no longer know it: what is stored is left out
	notKept   int     // how often it was not there when the destination said so
}

// outcome is what became of a commit.
type outcome uint8

const (
	commitDone   outcome = iota
	commitRetry          // the coordinator's trouble: the same commit again, later
	commitFenced         // another member has the partition, or will have it
)

// act is what the partition wants done next.
type act uint8

const (
	actNone   act = iota
	actCommit     // commit offset and metadata, then call committed
	actWrite      // write hand, then call written
	actAsk        // ask the destination for rows of unknown origin at or above offset, then call asked
)

// action is one thing to do. For actCommit, epoch is the leader epoch of the record before offset, -1 if not known.
type action struct {
	do       act
	offset   int64
	epoch    int32
	metadata string
}

// origin is what is known of rows that the destination holds at or above the position, where they do not say themselves which topic they are of.
type origin uint8

const (
	originTrusted origin = iota // they are of this very topic, or there are none
	originUnasked               // nothing vouches for them: the destination has to be asked before the first claim
	originAsking                // the question is under way
)

// errEpochChanged stops a partition: the records of an open claim came back under another leader epoch, so the log was truncated and
// written anew (KIP-320), and what the destination holds may be rows that the log no longer has.
var errEpochChanged = errors.New("the open claim's offsets came back under another leader epoch")

// partition decides what happens to one partition: when to seal, claim, write and close. It does no I/O and reads no clock: records and
// results go in, actions come out of step. Not safe for concurrent use.
//
// What the group holds for the partition is always one of
//   - an open claim [lo,hi]: everything below lo is stored, of [lo,hi] nothing or everything is;
//   - a plain offset: everything below it is stored, and nothing at or above it has been sent to the destination by a
//     worker that followed this protocol.
//
// The two invariants behind it: a batch is written only after its claim is committed, and a claim or plain commit above a batch is only
// sent after the batch is stored.
type partition struct {
	limits limits
	base   Claim          // the fields every claim of the partition shares
	jitter func() float64 // in [0,1)
	size   sizing         // of the next batches

	filling      records
	fillingSince time.Time
	fillingLast  time.Time // when the last record arrived
	next         int64     // offset after the last record taken in, control records included
	nextEpoch    int32     // its leader epoch

	sealed int64 // offset after the last sealed batch: the next batch's lo
	replay *replay

	hand      *batch
	phase     phase
	retryAt   time.Time // not before this is the hand's next claim, or the next plain commit, sent
	claimSent time.Time // when the claim in force was sent

	writeBegan time.Time // when the write in progress was given out
	doubtTo    int64     // a write that was cut short may have left rows up to here

	stored       int64 // everything below is stored
	storedEpoch  int32
	storedSince  time.Time // when stored last moved
	committed    int64     // offset of the group's commit, -1 when there is none
	closing      bool      // a plain commit is under way
	openClaim    bool      // the group's commit is a claim that is not known to be written, or is not closed
	commitErrors int       // in a row

	origin  origin
	askedNo int   // failed questions in a row
	barred  error // rows of unknown origin are in the way: nothing is sealed until they are not

	waits     bool // it is not its turn to be fetched, though there is more in its log
	turn      bool // it may seal: the limit on parts leaves room
	turnless  bool // it would have sealed, had it been its turn
	rewinding bool // what was fetched was let go: nothing is taken in until fetching begins again at sealed

	eager    bool // close and seal at once: the end is near and nothing more will come
	draining bool // finish what is in hand, start nothing
	fenced   bool // the group gave the partition away: touch nothing
	failed   error
}

// replay is an open claim that a predecessor left. Its range is written as it was sealed, whatever the limits are now.
type replay struct {
	hi    int64
	epoch int32
}

// newPartition starts at the group's commit; a negative one means that there is none, and the first record to arrive is the start. note is
// nil when the commit names no open claim.
func newPartition(l limits, base Claim, commit int64, note *CommitNote, jitter func() float64) *partition {
	p := &partition{
		limits: l, base: base, jitter: jitter, size: sizing{l.rows, l.bytes}, turn: true, doubtTo: -1,
		next: commit, nextEpoch: -1, sealed: commit, stored: commit, storedEpoch: -1, committed: commit,
	}
	if note != nil {
		p.replay = &replay{hi: note.Hi, epoch: note.Epoch}
		p.openClaim = true
	}
	return p
}

// take adds records that arrived, ascending. Records below the position were taken before and are passed over.
func (p *partition) take(x run, now time.Time) {
	if p.draining || p.fenced || p.failed != nil || p.rewinding {
		return // fetched again by whoever has the partition next
	}
	if x = x.from(p.next); len(x.records) == 0 {
		return
	}
	if p.next < 0 {
		p.sealed, p.stored = x.records[0].offset, x.records[0].offset
	}
	if p.filling.n == 0 {
		p.fillingSince = now
	}
	p.fillingLast = now
	p.filling.add(x)
	last := p.filling.last()
	p.next, p.nextEpoch = last.offset+1, last.epoch
}

// held is the memory of all records the partition holds.
func (p *partition) held() int64 {
	if p.hand != nil {
		return p.filling.bytes + p.hand.records.bytes
	}
	return p.filling.bytes
}

// full says that fetching should pause: a whole batch waits behind the one in hand, or the partition has stopped. A replay is never full, for
// it can only be sealed whole.
func (p *partition) full() bool {
	if p.barred != nil || p.failed != nil || p.rewinding {
		return true
	}
	waits := p.replay == nil && (p.hand != nil || p.turnless) || p.origin != originTrusted
	return waits && (p.filling.n >= p.size.rows || p.filling.bytes >= p.size.bytes)
}

// letGo drops what was fetched and not sealed. Nothing is taken in until rewound says that fetching has begun again at sealed. A partition
// that has no position yet keeps what it has, for without a commit nothing says where to begin again.
func (p *partition) letGo() {
	if p.sealed < 0 || p.rewinding || p.filling.n == 0 {
		return
	}
	p.filling = records{}
	p.next, p.rewinding = p.sealed, true
}

// rewound tells that the next record to arrive is the first at or after sealed.
func (p *partition) rewound() { p.rewinding = false }

// step returns the next thing to do; call it until it says actNone. mayWrite says that a write can start now.
func (p *partition) step(now time.Time, mayWrite bool) action {
	if p.fenced {
		return action{}
	}
	if p.origin != originTrusted {
		return p.ask(now)
	}
	p.seal(now)
	if p.closing || p.phase == phaseClaiming && p.hand != nil {
		return action{}
	}
	if p.hand == nil {
		return p.close(now)
	}
	switch p.phase {
	case phaseClaimed:
		if p.expired(now) {
			p.phase = phaseSealed // the claim no longer says who has the partition: commit it again first
			p.giveBack()
			return p.step(now, mayWrite)
		}
		if !mayWrite {
			return action{}
		}
		p.phase, p.writeBegan = phaseWriting, now
		return action{do: actWrite}
	case phaseSealed:
		return p.claim(now)
	}
	return action{}
}

// ask returns the question whether rows of unknown origin are in the way, once there are records to store.
func (p *partition) ask(now time.Time) action {
	if p.origin == originAsking || p.filling.n == 0 && p.barred == nil || p.draining || now.Before(p.retryAt) {
		return action{}
	}
	p.origin = originAsking
	return action{do: actAsk, offset: p.sealed}
}

// asked tells what became of the question that step asked for. barred says which rows are in the way; err that the destination gave no answer.
func (p *partition) asked(barred, err error, now time.Time) {
	p.origin = originUnasked
	switch {
	case err != nil:
		p.askedNo++
		p.retryAt = now.Add(p.backoff(p.askedNo))
	case barred != nil:
		p.askedNo, p.barred = 0, barred
		p.retryAt = now.Add(p.limits.backoffMax)
		p.letGo()
	default:
		p.origin, p.barred, p.askedNo, p.retryAt = originTrusted, nil, 0, time.Time{}
		p.fillingSince = now
	}
}

// stopped is why the partition does not go on by itself, nil if it does.
func (p *partition) stopped() error {
	if p.failed != nil {
		return p.failed
	}
	return p.barred
}

// expired says that the claim in force was sent too long ago for a write to begin. The wall clock is asked beside the monotonic one, which
// stands still on some systems while the machine sleeps; a wall clock that jumps costs one commit more.
func (p *partition) expired(now time.Time) bool {
	elapsed := max(now.Sub(p.claimSent), now.Round(0).Sub(p.claimSent.Round(0)))
	return elapsed >= p.limits.writeDeadline
}

func (p *partition) claim(now time.Time) action {
	if now.Before(p.retryAt) {
		return action{}
	}
	if p.hand.records.data() == 0 { // nothing to store, so nothing to claim
		p.settle(now)
		return p.close(now)
	}
	p.phase = phaseClaiming
	p.claimSent = now
	return action{do: actCommit, offset: p.hand.claim.Lo, epoch: p.storedEpoch, metadata: p.hand.claim.metadata()}
}

// close returns the plain commit that closes the last claim, when none follows within the batch age.
func (p *partition) close(now time.Time) action {
	due := p.draining || p.eager || now.Sub(p.storedSince) >= p.limits.age
	if !p.unclosed() || !due || now.Before(p.retryAt) {
		return action{}
	}
	p.closing = true
	return action{do: actCommit, offset: p.stored, epoch: p.storedEpoch, metadata: ClosedMetadata(p.base.TopicID)}
}

// seal moves what is due from filling to hand.
func (p *partition) seal(now time.Time) {
	p.turnless = false
	if p.hand != nil || p.draining || p.failed != nil {
		return
	}
	if p.replay != nil {
		p.sealReplay()
		return
	}
	n, due := p.filling.prefix(p.size.rows, p.size.bytes)
	if n == 0 || !due && !p.eager && now.Before(p.sealAt()) {
		return
	}
	if p.turnless = !p.turn; p.turnless {
		return
	}
	p.setHand(n)
}

// waitAges is how many batch ages records wait at most for the others of their batch that are in the log and not fetched yet.
const waitAges = 10

// sealAt is when filling is closed though it is not full.
func (p *partition) sealAt() time.Time {
	if p.waits {
		return p.fillingSince.Add(waitAges * p.limits.age)
	}
	at := p.fillingSince.Add(p.limits.age)
	if idle := p.fillingLast.Add(p.limits.idle); p.limits.idle > 0 && idle.Before(at) {
		return idle
	}
	return at
}

// sealReplay seals exactly the open claim's range, once a record at or after its end has arrived: nothing of the range can come any more.
func (p *partition) sealReplay() {
	if p.next <= p.replay.hi {
		return
	}
	hi, epoch := p.replay.hi, p.replay.epoch
	head := p.filling.cut(p.filling.through(hi))
	if head.n > 0 {
		if last := head.last(); last.offset == hi && last.epoch >= 0 && epoch >= 0 && last.epoch != epoch {
			p.failed = fmt.Errorf("offset %d: claimed under epoch %d, fetched under %d: %w", hi, epoch, last.epoch, errEpochChanged)
			return
		}
	}
	p.replay = nil
	p.setBatch(head, hi, epoch)
	p.hand.repeat, p.hand.uncertain = true, true
}

// setHand takes the next batch from filling.
func (p *partition) setHand(n int) {
	head := p.filling.cut(n)
	last := head.last()
	p.setBatch(head, last.offset, last.epoch)
}

func (p *partition) setBatch(head records, hi int64, epoch int32) {
	c := p.base
	c.Lo, c.Hi, c.Epoch = p.sealed, hi, epoch
	p.hand, p.phase = &batch{claim: c, age: p.fillingSince, records: head, doubtTo: p.doubtTo}, phaseSealed
	p.sealed = hi + 1
}

// committedNow tells what became of the commit that step asked for.
func (p *partition) committedNow(o outcome, now time.Time) {
	claimed := p.hand != nil && p.phase == phaseClaiming
	closed := p.closing
	p.closing = false
	if claimed {
		p.phase = phaseSealed
	}
	switch o {
	case commitFenced:
		p.fence()
	case commitRetry:
		p.commitErrors++
		p.retryAt = now.Add(p.backoff(p.commitErrors))
		p.giveBack()
	case commitDone:
		p.commitErrors = 0
		switch {
		case claimed:
			p.phase, p.committed, p.openClaim = phaseClaimed, p.hand.claim.Lo, true
		case closed:
			p.committed, p.openClaim = p.stored, false
		}
	}
}

// written tells what became of the write that step asked for; a nil err means stored.
func (p *partition) written(err error, now time.Time) {
	if p.fenced {
		p.hand = nil
	}
	if p.hand == nil {
		return
	}
	p.adapt(err, now)
	if err == nil {
		p.settle(now)
		return
	}
	p.phase = phaseSealed
	p.reseal(err)
	p.hand.attempts++
	p.hand.repeat = true
	p.hand.uncertain = p.hand.uncertain || !answered(err)
	p.retryAt = now.Add(p.backoff(p.hand.attempts))
	p.giveBack()
}

// answered says that the error came from the destination itself and ended the write, or that no write was begun.
func answered(err error) bool {
	return errors.Is(err, ErrTooMuch) || errors.Is(err, ErrTooOften) || errors.Is(err, ErrSchemaChanged) || errors.Is(err, errTooManyLetters) || errors.Is(err, errLate)
}

// settle moves the stored position over the batch in hand.
func (p *partition) settle(now time.Time) {
	p.stored, p.storedEpoch, p.storedSince = p.hand.claim.Hi+1, p.hand.claim.Epoch, now
	p.hand, p.retryAt = nil, time.Time{}
}

// giveBack drops a batch that waits for its claim when the partition is draining. If it was claimed before, that claim stays the
// group's commit (stored has not passed it, so no plain commit follows), and whoever has the partition next writes it under the same
// identity.
func (p *partition) giveBack() {
	if p.draining && p.hand != nil && p.phase == phaseSealed {
		p.hand = nil
	}
}

// drain asks for the quickest end that is clean: the write in hand is waited for, what is not claimed is given back.
func (p *partition) drain() {
	p.draining = true
	p.filling, p.turnless = records{}, false
	p.giveBack()
}

// drained says that nothing is in hand and everything stored is committed.
func (p *partition) drained() bool {
	if p.fenced {
		return p.hand == nil
	}
	return p.draining && p.hand == nil && !p.closing && !p.unclosed()
}

// unclosed says that the destination holds more than the group's commit says.
func (p *partition) unclosed() bool { return p.stored > p.committed && !p.storedSince.IsZero() }

// stop ends fetching and sealing for good; what is in hand is brought to its end.
func (p *partition) stop(err error) {
	p.failed = err
	p.filling = records{}
}

// skipTo goes on at offset start, where the log now begins. What was taken in before is still stored.
func (p *partition) skipTo(start int64) {
	p.next = start
	if p.replay != nil && p.replay.hi < start { // nothing of the claim is left to write
		p.replay = nil
	}
	if p.filling.n == 0 && p.hand == nil && p.replay == nil {
		p.sealed, p.stored = start, start
	}
}

// fence drops everything: the group has another owner for the partition, or will have.
func (p *partition) fence() {
	p.fenced = true
	p.filling = records{}
	if p.phase != phaseWriting {
		p.hand = nil
	}
}

// backoff is the wait before the n-th repetition, n from 1: doubled each time up to the limit, and between half and the whole of it.
func (p *partition) backoff(n int) time.Duration {
	d := p.limits.backoffMax
	if n < 16 {
		d = min(d, p.limits.backoffMin<<(n-1))
	}
	return d/2 + time.Duration(p.jitter()*float64(d/2))
}

// wake is when step may have something to do that no event will announce; ok is false when there is no such time.
func (p *partition) wake() (at time.Time, ok bool) {
	if p.fenced || p.closing {
		return at, false
	}
	earliest := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	switch {
	case p.hand != nil && p.phase == phaseSealed:
		earliest(p.retryAt)
	case p.hand == nil && p.unclosed():
		due := p.storedSince.Add(p.limits.age)
		if p.draining || p.eager {
			due = p.storedSince
		}
		if due.Before(p.retryAt) {
			due = p.retryAt
		}
		earliest(due)
	}
	if p.origin == originUnasked && (p.filling.n > 0 || p.barred != nil) {
		earliest(p.retryAt)
	}
	if p.origin == originTrusted && p.hand == nil && p.replay == nil && p.failed == nil && p.filling.n > 0 && !p.turnless {
		earliest(p.sealAt())
	}
	return at, ok
}
