package producer

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// OnUnknown says what becomes of batches of which it cannot be told whether they are stored.
type OnUnknown int8

// The policies.
const (
	// Resend sends them: their lines may come twice, and none is lost.
	Resend OnUnknown = iota
	// Hold keeps them, and all that follow in the partition, until the policy is changed.
	Hold
)

// core decides for all partitions of a pipeline what to write, send and ask. It does no I/O and reads no clock: events come in by its
// methods, and what is to be done comes out of next, in an order that must be kept. Not safe for concurrent use.
type core struct {
	inFlightMax int
	onUnknown   OnUnknown

	lanes   map[laneKey]*lane
	order   []*lane
	topics  map[string]*topicState
	cluster string
	current identity // of new batches
	out     []action
	left    int // recovered batches that are not settled
	events  counts
}

// counts are what an owner wants to know.
type counts struct {
	unknown, resent int64
}

// topicState is what is known of a topic.
type topicState struct {
	id      TopicID
	leaders []int32 // by partition; -1 when there is none
}

// kind says what is to be done.
type kind int8

const (
	doSend     kind = iota // batch, to the lane's leader
	doAck                  // write that batches are acknowledged, with offsets
	doFloor                // write the lane's floor
	doReplace              // write that olds are now news
	doDone                 // tell that a batch is settled
	askFloor               // the end offset of the partition
	askState               // what the broker has of the identity
	askLog                 // the headers from the floor on
	askID                  // a new identity for the lane
	askTopics              // leaders and topic IDs
	sayUnknown             // batches are unknown
)

// action is one thing to be done.
type action struct {
	kind  kind
	lane  *lane
	batch *Batch
	olds  []*Batch
	news  []piece
	ident identity
	// base and next are the offsets of an acknowledgement, -1 when not told; or base is a floor.
	base, next int64
	err        error
	// made are batches in the place of dropped records; ready says that all of it is built, and only the journal is missing.
	made  []*Batch
	ready bool
}

// piece is a new batch made of a part of an old one.
type piece struct {
	batch *Batch // to be completed with its bytes
	of    *Batch
	from  int // first record of the old one
	to    int // after the last
	drop  []int
	// spilled says that the old one was in the journal only, and so is the new one then.
	spilled bool
}

func newCore(inFlight int, policy OnUnknown) *core {
	if inFlight <= 0 || inFlight > inFlightMax {
		inFlight = inFlightMax
	}
	return &core{inFlightMax: inFlight, onUnknown: policy, lanes: map[laneKey]*lane{}, topics: map[string]*topicState{}}
}

func (c *core) do(a action) { c.out = append(c.out, a) }

// next returns what is to be done now.
func (c *core) next(now time.Time) []action {
	for _, l := range c.order {
		if len(l.queue) > 0 {
			c.step(l, now)
		}
	}
	out := c.out
	c.out = nil
	return out
}

// due is when next must be called again if nothing happens; zero when never.
func (c *core) due() (at time.Time) {
	for _, l := range c.order {
		if len(l.queue) > 0 && !l.until.IsZero() && (at.IsZero() || l.until.Before(at)) {
			at = l.until
		}
	}
	return at
}

// lane returns the lane of a partition.
func (c *core) lane(key laneKey) *lane {
	l := c.lanes[key]
	if l == nil {
		l = newLane(key)
		l.ident = c.current
		c.lanes[key] = l
		c.order = append(c.order, l)
	}
	return l
}

// identified takes the identity of this run's batches.
func (c *core) identified(id identity) {
	c.current = id
	for _, l := range c.order {
		if !l.ident.known {
			l.ident = id
		}
	}
}

// recovered takes a batch of an earlier run; in the order of the journal, before anything else.
func (c *core) recovered(b *Batch) {
	b.Recovered = true
	b.flight.check, b.flight.doubt = true, true
	c.left++
	l := c.lane(laneKey{b.TopicID, b.Topic, b.Partition})
	l.phase = settling
	l.push(b)
}

// floor takes what the journal knows of where batches may lie.
func (c *core) floor(topic TopicID, partition int32, offset int64) {
	for _, l := range c.order {
		if l.key.topic == topic && l.key.partition == partition {
			l.floor = offset
		}
	}
}

// errNoTopic says that a batch is for a topic that is not known yet.
var errNoTopic = errors.New("the topic is not known yet")

// assign gives the batches of a bundle their identity and sequences. It is undone by unassign when the journal refuses them.
func (c *core) assign(batches []*Batch) error {
	for i, b := range batches {
		if err := c.assignOne(b); err != nil {
			c.unassign(batches[:i])
			return err
		}
	}
	return nil
}

func (c *core) assignOne(b *Batch) error {
	t := c.topics[b.Topic]
	if t == nil || len(t.leaders) == 0 || !c.current.known {
		return fmt.Errorf("topic %s: %w", b.Topic, errNoTopic)
	}
	if int(b.Partition) >= len(t.leaders) { // of a topic that was made again, smaller
		b.Partition %= int32(len(t.leaders))
	}
	b.Cluster, b.TopicID = c.cluster, t.id
	b.take(c.lane(laneKey{t.id, b.Topic, b.Partition}))
	return nil
}

// take gives a batch the next sequences of a lane.
func (b *Batch) take(l *lane) {
	b.Producer, b.Epoch, b.BaseSequence = l.ident.id, l.ident.epoch, l.next
	if b.Data != nil {
		b.Data.SetProducer(b.Producer, b.Epoch, b.BaseSequence)
		b.Records, b.Size = b.Data.Count(), len(b.Data)
	}
	l.next = sequenceAfter(b.BaseSequence, b.Records)
}

func sequenceAfter(base, records int32) int32 {
	return int32((int64(base) + int64(records)) & (1<<31 - 1))
}

func (c *core) unassign(batches []*Batch) {
	for _, b := range slices.Backward(batches) {
		l := c.lanes[laneKey{b.TopicID, b.Topic, b.Partition}]
		l.next = b.BaseSequence
	}
}

// enqueue takes batches that are in the journal.
func (c *core) enqueue(batches []*Batch) {
	for _, b := range batches {
		c.lanes[laneKey{b.TopicID, b.Topic, b.Partition}].push(b)
	}
}

// step finds what a lane needs.
func (c *core) step(l *lane, now time.Time) {
	if now.Before(l.until) || l.phase == asking || l.phase == held {
		return
	}
	l.until = time.Time{}
	if l.flights == 0 && c.strange(l) {
		c.move(l)
		return
	}
	if !c.led(l) {
		l.backoff(now)
		c.do(action{kind: askTopics, lane: l})
		return
	}
	switch l.phase {
	case settling:
		if l.flights == 0 {
			l.phase = asking
			c.do(action{kind: askState, lane: l, ident: l.head().identity()})
		}
	case renewing:
		if l.flights == 0 {
			l.phase = asking
			c.do(action{kind: askID, lane: l})
		}
	case open:
		c.advance(l, now)
	}
}

// advance sends what may be sent.
func (c *core) advance(l *lane, now time.Time) {
	if c.judge(l) {
		return
	}
	if l.floor < 0 {
		l.phase = asking
		c.do(action{kind: askFloor, lane: l})
		return
	}
	for {
		b, check := l.sendable(c.inFlightMax, now)
		if check {
			l.phase = settling
			c.step(l, now)
			return
		}
		if b == nil || !b.Recovered && c.left > 0 && c.settlesFirst() {
			return
		}
		if b.flight.sends > 0 || b.Recovered {
			c.events.resent++
		}
		l.fly(b, now)
		c.do(action{kind: doSend, lane: l, batch: b})
	}
}

// settlesFirst says that batches of an earlier run are on their way, which go before anything new. Those that cannot be settled now, with
// no leader or on hold, keep only their own partition.
func (c *core) settlesFirst() bool {
	for _, l := range c.order {
		if h := l.head(); h != nil && h.Recovered && l.phase != held && c.led(l) {
			return true
		}
	}
	return false
}

// judge deals with a head that is refused and not stored. It returns true when there is nothing to be sent before that is done.
func (c *core) judge(l *lane) bool {
	h := l.head()
	f := &h.flight
	if l.flights > 0 || f.state != queued || f.check {
		return false
	}
	switch {
	case f.sequence >= sequenceErrorsMax: // nothing of it is stored, and its sequence is not taken
		l.phase, l.drop = renewing, false
	case f.refusal == nil:
		return false
	case h.Records > 1 && len(f.refusal.records) == 0:
		c.split(l, h)
		return true
	default:
		l.phase, l.drop = renewing, true
	}
	l.phase = asking
	c.do(action{kind: askID, lane: l})
	return true
}

// split puts two halves in the place of the head. They keep the sequences of its records.
func (c *core) split(l *lane, h *Batch) {
	half := int(h.Records) / 2
	first, second := h.part(half), h.part(int(h.Records)-half)
	second.BaseSequence = sequenceAfter(h.BaseSequence, int32(half))
	second.divide(h, half)
	first.divide(h, 0)
	l.replace(h, first, second)
	c.countLeft(h, first, second)
	c.do(action{kind: doReplace, lane: l, olds: []*Batch{h}, news: []piece{
		{batch: first, of: h, from: 0, to: half}, {batch: second, of: h, from: half, to: int(h.Records)}}})
}

// part is a batch of n records under the same identity.
func (b *Batch) part(n int) *Batch {
	p := *b
	p.Records, p.Data, p.Marks, p.flight, p.piece = int32(n), nil, nil, flight{}, true
	return &p
}

// divide gives a part its share of the account: exact where the marks are known.
func (p *Batch) divide(of *Batch, from int) {
	share := func(total int64) int64 { return total * int64(from+int(p.Records)) / int64(of.Records) }
	start := func(total int64) int64 { return total * int64(from) / int64(of.Records) }
	p.Lines = share(of.Lines) - start(of.Lines)
	p.SourceBytes = share(of.SourceBytes) - start(of.SourceBytes)
	if of.Marks == nil {
		return
	}
	p.Marks = of.Marks[from : from+int(p.Records)]
	p.SourceBytes = 0
	for _, m := range p.Marks {
		p.SourceBytes += int64(m.Bytes)
	}
}

func (l *lane) replace(old *Batch, news ...*Batch) {
	i := slices.Index(l.queue, old)
	old.flight.state = settled
	l.queue = slices.Replace(l.queue, i, i+1, news...)
}

func (c *core) countLeft(old *Batch, news ...*Batch) {
	if old.bundle != nil {
		old.bundle.left += len(news) - 1
	}
	if !old.Recovered {
		return
	}
	c.left--
	for _, n := range news {
		if n.Recovered {
			c.left++
		}
	}
}

// renewed takes a new identity for a lane: everything in it is written to the journal again, without the records that were refused.
func (c *core) renewed(l *lane, to identity) {
	l.phase, l.ident, l.next, l.trusted = open, to, 0, identity{}
	olds := l.queue
	var news []piece
	l.queue = nil
	for i, old := range olds {
		p := piece{of: old, to: int(old.Records)}
		if i == 0 && l.drop {
			p.drop = dropped(old)
		}
		old.flight.state = settled
		keep := int(old.Records) - len(p.drop)
		if keep == 0 {
			c.countLeft(old)
			news = append(news, p)
			continue
		}
		p.batch = old.part(keep)
		p.batch.without(old, p.drop)
		p.batch.Recovered = false
		p.batch.take(l)
		c.countLeft(old, p.batch)
		l.push(p.batch)
		news = append(news, p)
	}
	l.drop = false
	c.replaceInParts(l, olds, news)
}

// replaceBytesMax bounds what is read from the journal and written to it at once when the batches of a lane are replaced, which may be all
// that a spool holds: one batch may be larger.
const replaceBytesMax = 4 << 20

// replaceInParts writes new batches, one for each old one. When the process ends between two parts the rest is found as it was, behind
// what is new, and is replaced then.
func (c *core) replaceInParts(l *lane, olds []*Batch, news []piece) {
	for len(olds) > 0 {
		n, bytes := 0, 0
		for n < len(olds) && (n == 0 || bytes+olds[n].Size <= replaceBytesMax) {
			bytes += olds[n].Size
			n++
		}
		c.do(action{kind: doReplace, lane: l, olds: olds[:n], news: news[:n]})
		olds, news = olds[n:], news[n:]
	}
}

// dropped are the records of a refused batch that are the trouble.
func dropped(b *Batch) []int {
	if b.Records == 1 {
		return []int{0}
	}
	return slices.Compact(slices.Sorted(slices.Values(b.flight.refusal.records)))
}

// without takes the share of dropped records out of the account.
func (p *Batch) without(of *Batch, drop []int) {
	if len(drop) == 0 {
		p.Marks = of.Marks
		return
	}
	p.Lines -= int64(len(drop))
	if of.Marks == nil {
		p.SourceBytes -= of.SourceBytes * int64(len(drop)) / int64(of.Records)
		return
	}
	for i, m := range of.Marks {
		if slices.Contains(drop, i) {
			p.SourceBytes -= int64(m.Bytes)
		} else {
			p.Marks = append(p.Marks, m)
		}
	}
}

// led says whether the lane's partition has a leader.
func (c *core) led(l *lane) bool { return c.leader(l) >= 0 }

func (c *core) leader(l *lane) int32 {
	t := c.topics[l.key.name]
	if t == nil || int(l.key.partition) >= len(t.leaders) || t.id != l.key.topic {
		return -1
	}
	return t.leaders[l.key.partition]
}

// strange says that the lane's topic is not the one that has its name now, or that its batches are of another cluster.
func (c *core) strange(l *lane) bool {
	t := c.topics[l.key.name]
	if t == nil || len(t.leaders) == 0 || !c.current.known {
		return false
	}
	h := l.head()
	return t.id != l.key.topic || int(l.key.partition) >= len(t.leaders) || h.Cluster != "" && c.cluster != "" && h.Cluster != c.cluster
}

// move takes the batches of a lane whose topic is gone to the topic that has its name now. Those that may have been stored in the old
// one are unknown.
func (c *core) move(l *lane) {
	var unknown []*Batch
	for _, b := range l.queue {
		if b.flight.doubt && !(b.Recovered && l.floor < 0) { // without a floor nothing was ever sent
			unknown = append(unknown, b)
		}
	}
	if len(unknown) > 0 {
		c.do(action{kind: sayUnknown, lane: l, olds: unknown, err: errors.New("the topic or the cluster is not the one that they were sent to")})
		c.events.unknown += int64(len(unknown))
		if c.onUnknown == Hold {
			l.phase = held
			return
		}
	}
	t := c.topics[l.key.name]
	target := c.lane(laneKey{t.id, l.key.name, l.key.partition % int32(len(t.leaders))})
	if target == l {
		target.ident, target.next = c.current, 0 // another cluster: the producer is not known there
		target.floor = -1
	}
	olds := l.queue
	var news []piece
	l.queue, l.phase = nil, open
	for _, old := range olds {
		old.flight.state = settled
		b := old.part(int(old.Records))
		b.without(old, nil)
		b.Cluster, b.TopicID, b.Partition, b.Recovered = c.cluster, t.id, target.key.partition, false
		b.take(target)
		c.countLeft(old, b)
		target.push(b)
		news = append(news, piece{batch: b, of: old, to: int(old.Records)})
	}
	c.replaceInParts(target, olds, news)
}

// metadata takes what the brokers say of topics. A topic that is not there has no leaders.
func (c *core) metadata(cluster string, name string, id TopicID, leaders []int32) {
	if cluster != "" {
		c.cluster = cluster
	}
	t := c.topics[name]
	if t == nil {
		t = &topicState{}
		c.topics[name] = t
	}
	if len(leaders) > 0 {
		t.id = id
	}
	t.leaders = leaders
}

// answered takes the answer to a send.
func (c *core) answered(l *lane, b *Batch, v verdict, why *refusal, base int64, now time.Time) {
	acked := l.landed(b, v, why, now)
	c.acknowledge(l, b, acked, base)
}

// acknowledge writes and tells that batches are stored. of is the one that base is the offset of, if any.
func (c *core) acknowledge(l *lane, of *Batch, acked []*Batch, base int64) {
	if len(acked) == 0 {
		return
	}
	a := action{kind: doAck, lane: l, batch: acked[len(acked)-1], olds: acked, base: -1, next: -1}
	if of != nil && base >= 0 && !l.doubted(of) {
		a.base, a.next = base, base+int64(of.Records)
		l.floor = max(l.floor, a.next)
	}
	c.do(a)
	for _, b := range acked {
		if b.Recovered {
			c.left--
		}
		c.do(action{kind: doDone, lane: l, batch: b})
	}
}

// floored takes the end of the partition, from which on the first batch will lie.
func (c *core) floored(l *lane, offset int64, err error, now time.Time) {
	l.phase = open
	if err != nil {
		c.retry(l, now)
		return
	}
	l.floor = offset
	c.do(action{kind: doFloor, lane: l, base: offset})
}

// retry asks for the leader anew before the lane goes on.
func (c *core) retry(l *lane, now time.Time) {
	l.backoff(now)
	c.do(action{kind: askTopics, lane: l})
}

// errUnavailable says that the broker does not tell what it has of a producer: it is too old for that, or the right to read is missing.
var errUnavailable = errors.New("the broker does not tell what it has of a producer")

// described takes the broker's word on an identity.
func (c *core) described(l *lane, ident identity, present bool, last int32, err error, now time.Time) {
	if len(l.queue) == 0 || l.head().identity() != ident {
		l.phase = open
		return
	}
	switch {
	case errors.Is(err, errUnavailable):
		l.phase = open
		c.unknown(l, l.undescribed(now), err)
	case err != nil:
		l.phase = settling
		c.retry(l, now)
	case present:
		l.phase = open
		strange := l.described(last, now)
		if strange != nil {
			c.unknown(l, slices.Clone(l.group()), strange)
		}
		if l.proving != nil {
			l.phase = asking
			c.do(action{kind: askLog, lane: l, ident: ident, base: max(l.floor, 0)})
		}
	case l.floor < 0: // nothing was ever sent
		l.phase = open
		l.readBack(nil, true)
	default:
		c.do(action{kind: askLog, lane: l, ident: ident, base: l.floor})
	}
}

// wasRead takes what the log holds of an identity from the floor on, by base sequence.
func (c *core) wasRead(l *lane, ident identity, there map[int32]bool, complete bool, err error, now time.Time) {
	if err != nil {
		l.phase, l.proving = settling, nil
		c.retry(l, now)
		return
	}
	l.phase = open
	if l.proving != nil {
		acked, wait := l.proved(there, complete, now)
		c.acknowledge(l, nil, acked, -1)
		if wait {
			l.phase = settling
			l.backoff(now)
		}
		return
	}
	if len(l.queue) == 0 || l.head().identity() != ident {
		return
	}
	acked, unknown := l.readBack(there, complete)
	c.acknowledge(l, nil, acked, -1)
	c.unknown(l, unknown, errors.New("the log does not reach back to where they would lie, or was compacted"))
}

// unknown deals with batches of which it cannot be told whether they are stored.
func (c *core) unknown(l *lane, batches []*Batch, why error) {
	if len(batches) == 0 {
		return
	}
	c.events.unknown += int64(len(batches))
	c.do(action{kind: sayUnknown, lane: l, olds: batches, err: why})
	if c.onUnknown == Hold {
		l.phase = held
		return
	}
	for _, b := range batches {
		b.flight.check, b.flight.state = false, queued
	}
}

// gotID takes a new identity for a lane.
func (c *core) gotID(l *lane, to identity, err error, now time.Time) {
	if err != nil {
		l.phase = renewing
		l.backoff(now)
		return
	}
	c.renewed(l, to)
}
