package producer

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/quickio"
)

// Limits of a sender.
const (
	// sayAgainAfter is the time between two log lines on the same trouble.
	sayAgainAfter = time.Minute
	// logRetryAfter is the pause before the journal is tried again.
	logRetryAfter = 500 * time.Millisecond
	// metadataPause is the shortest time between two questions for leaders.
	metadataPause = 100 * time.Millisecond
	// identityRetryAfter is the pause before an identity is asked for again.
	identityRetryAfter = 500 * time.Millisecond
)

// Log is where batches are written before they are sent. After an error nothing was written, and it is called again.
type Log interface {
	// Write writes bundles, all or none, gives their batches IDs, and returns the sequence of the first.
	Write(bundles []*Bundle) (first uint64, err error)
	// Replace writes batches that take the place of others.
	Replace(olds []ID, news []*Batch) error
	// Acknowledge writes acknowledgements.
	Acknowledge(acks []Ack) error
	// Floor writes the offset from which on batches of a partition may lie.
	Floor(topic TopicID, partition int32, offset int64) error
	// Read returns the bytes of a batch that was written and not acknowledged.
	Read(id ID) ([]byte, error)
}

// Ack says that batches are stored. Last is the last of them, and Base and Next are its offset and the one after it, or -1.
type Ack struct {
	Last       *Batch
	Base, Next int64
	IDs        []ID
}

// Floor is where batches of a partition may begin.
type Floor struct {
	Topic     TopicID
	Partition int32
	Offset    int64
}

// SenderConfig configures a sender. The zero value is usable.
type SenderConfig struct {
	// InFlightMax is how many batches of a partition may be sent and not acknowledged; 0 means 5, the most there can be.
	InFlightMax int
	// Unknown says what becomes of batches of which it cannot be told whether they are stored.
	Unknown OnUnknown
	// Memory keeps the memory of settled batches; nil means it is not kept.
	Memory *Memory
	// OnError is told every failure that is not a record's own. May be nil.
	OnError func(error)
	Owner
}

// Owner is told what becomes of batches, on one goroutine; it must not block. Its fields may be nil.
type Owner struct {
	// OnSettled is told every batch that is acknowledged.
	OnSettled func(*Batch)
	// OnRefused is told records that were refused for themselves. It returns batches to be sent in their place, such as dead letters.
	OnRefused func(of *Batch, records []Refused) []*Batch
	// OnUnknown is told batches of which it cannot be told whether they are stored.
	OnUnknown func([]*Batch)
}

// Sender takes bundles to the journal, to the brokers, and to their acknowledgement. It starts no goroutine and reads no clock: Kafka turns
// it. Turn and Due are for one goroutine, to which
// fields without a word on it belong; Send is safe for concurrent use.
type Sender struct {
	log       *slog.Logger
	cfg       SenderConfig
	journal   Log
	transport Transport
	wake      func() // called, from any goroutine, when there is something to turn for; may be nil
	closed    atomic.Bool

	core      *core
	rebuild   rebuilder
	todo      []action
	incoming  []*Bundle   // given to Send, not in the journal
	sparing   bool        // the journal did not take what is incoming at once: one by one
	logRetry  time.Time   // the journal is not tried before; zero: it takes what comes
	admission time.Time   // bundles are not written before; zero: at once
	out       []*outgoing // being filled
	asked     bool        // metadata is asked for
	again     bool        // and will be once more
	nextAsk   time.Time   // not before
	identify  time.Time   // an identity is not asked for before; zero: at once
	asksID    bool
	saidLog   bool
	saidSend  time.Time
	topicsFor map[string]bool // whose metadata is wanted

	mu     sync.Mutex
	posted []func(now time.Time) // guarded by mu
	sent   []*Bundle             // guarded by mu
}

// NewSender makes a sender. recovered are the batches that the journal holds unsettled, in order and in bundles, and floors what it knows
// of where they may lie. wake is called, on any goroutine, when Turn should be; it may be nil.
func NewSender(log *slog.Logger, journal Log, transport Transport, recovered []*Bundle, floors []Floor, cfg SenderConfig, wake func()) *Sender {
	s := &Sender{
		log: log, cfg: cfg, journal: journal, transport: transport, wake: wake, core: newCore(cfg.InFlightMax, cfg.Unknown), topicsFor: map[string]bool{},
	}
	for _, b := range recovered {
		b.left = len(b.Batches)
		for _, x := range b.Batches {
			x.bundle = b
			s.core.recovered(x)
			s.topicsFor[x.Topic] = true
		}
	}
	for _, f := range floors {
		s.core.floor(f.Topic, f.Partition, f.Offset)
	}
	return s
}

// Send takes a bundle over. It does not block.
func (s *Sender) Send(b *Bundle) {
	s.mu.Lock()
	s.sent = append(s.sent, b)
	s.mu.Unlock()
	s.nudge()
}

// post has something done by the next turn.
func (s *Sender) post(f func(now time.Time)) {
	s.mu.Lock()
	s.posted = append(s.posted, f)
	s.mu.Unlock()
	s.nudge()
}

func (s *Sender) nudge() {
	if s.wake != nil {
		s.wake()
	}
}

// Turn does all that can be done now.
func (s *Sender) Turn(now time.Time) {
	s.mu.Lock()
	posted, sent := s.posted, s.sent
	s.posted, s.sent = nil, nil
	s.mu.Unlock()
	for _, f := range posted {
		f(now)
	}
	s.incoming = append(s.incoming, sent...)
	s.needID(now)
	if !now.Before(s.logRetry) {
		s.logRetry = time.Time{}
		s.perform(now)
		s.admit(now)
	}
	if s.logRetry.IsZero() {
		s.perform(now)
	}
	s.askMetadataAgain(now)
	s.flush()
}

// Due is when Turn must be called again if nothing happens before, which may have passed; zero when never.
func (s *Sender) Due() time.Time {
	times := []time.Time{s.logRetry, s.admission}
	if s.lacksID() {
		times = append(times, s.identify)
	}
	if s.logRetry.IsZero() { // else lanes wait for the journal
		times = append(times, s.core.due())
	}
	if s.again && !s.asked {
		times = append(times, s.nextAsk)
	}
	at := time.Time{}
	for _, t := range times {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// lacksID says that there is something to send, and no identity of this run.
func (s *Sender) lacksID() bool {
	return !s.core.current.known && !s.asksID && (len(s.incoming) > 0 || s.core.left > 0)
}

// needID asks for the identity of this run once there is something to send.
func (s *Sender) needID(now time.Time) {
	if !s.lacksID() || now.Before(s.identify) {
		return
	}
	s.asksID, s.identify = true, time.Time{}
	s.transport.Go(func() {
		id, err := s.askID()
		s.post(func(now time.Time) {
			s.asksID = false
			if err != nil {
				s.identify = now.Add(identityRetryAfter)
				s.complain(fmt.Errorf("ask for a producer ID: %w", err), now)
				return
			}
			s.core.identified(id)
		})
	})
}

// admit writes waiting bundles to the journal and queues their batches.
func (s *Sender) admit(now time.Time) {
	if len(s.todo) > 0 || now.Before(s.admission) {
		return // the journal does not take what comes first
	}
	s.admission = time.Time{}
	for s.admitSome(now) && s.sparing && len(s.incoming) > 0 {
	}
}

// admitSome writes the first of the waiting bundles, all that have a place: or one, after the journal had no room for all. It says whether it did.
func (s *Sender) admitSome(now time.Time) bool {
	taken := 0
	for _, b := range s.incoming {
		if s.sparing && taken > 0 {
			break
		}
		if err := s.core.assign(b.Batches); err != nil {
			s.wantTopics(b.Batches)
			break
		}
		taken++
	}
	if taken == 0 {
		return false
	}
	bundles := s.incoming[:taken]
	first, err := s.journal.Write(bundles)
	s.logged(err)
	if err != nil {
		s.sparing, s.admission = quickio.NoRoom(err), now.Add(logRetryAfter)
		for i := len(bundles) - 1; i >= 0; i-- {
			s.core.unassign(bundles[i].Batches)
		}
		return false
	}
	if s.sparing {
		s.incoming = s.incoming[taken:]
		s.sparing = len(s.incoming) > 0
	} else {
		s.incoming = append([]*Bundle(nil), s.incoming[taken:]...)
	}
	for i, b := range bundles {
		s.admitted(b, first+uint64(i))
	}
	return true
}

func (s *Sender) admitted(b *Bundle, sequence uint64) {
	b.left = len(b.Batches)
	for _, x := range b.Batches {
		x.bundle = b
	}
	if b.Written != nil {
		b.Written(sequence)
	}
	s.core.enqueue(b.Batches)
	b.finish()
}

// logged deals with the outcome of a write to the journal.
func (s *Sender) logged(err error) {
	switch {
	case err != nil:
		if !s.saidLog {
			s.log.Warn("the journal takes no more for now; trying again without end, nothing is sent that is not in it", "error", err)
		}
	case s.saidLog:
		s.log.Info("the journal is written to again")
	}
	s.saidLog = err != nil
}

// perform does what the core decides, in its order. What the journal refuses is tried again before anything that follows it.
func (s *Sender) perform(now time.Time) {
	s.todo = append(s.todo, s.core.next(now)...)
	for len(s.todo) > 0 {
		n, err := s.act(s.todo, now)
		s.logged(err)
		if err != nil {
			s.logRetry = now.Add(logRetryAfter)
			return
		}
		s.todo = s.todo[n:]
		if len(s.todo) == 0 {
			s.todo = append(s.todo[:0], s.core.next(now)...)
		}
	}
	s.todo = nil
}

// act does the first action, or all acknowledgements at the beginning, and returns how many it did.
func (s *Sender) act(todo []action, now time.Time) (int, error) {
	a := &todo[0]
	switch a.kind {
	case doAck:
		return s.writeAcks(todo)
	case doFloor:
		return 1, s.journal.Floor(a.lane.key.topic, a.lane.key.partition, a.base)
	case doReplace:
		return 1, s.replace(a)
	case doSend:
		s.collect(a.lane, a.batch, now)
	case doDone:
		s.settled(a.batch)
	case askTopics:
		s.stale(a.lane.key.name)
	case sayUnknown:
		s.sayUnknown(a)
	default:
		s.ask(a)
	}
	return 1, nil
}

// writeAcks writes the acknowledgements that stand at the beginning.
func (s *Sender) writeAcks(todo []action) (int, error) {
	var acks []Ack
	for _, a := range todo {
		if a.kind != doAck {
			break
		}
		ids := make([]ID, len(a.olds))
		for i, b := range a.olds {
			ids[i] = b.ID
		}
		acks = append(acks, Ack{Last: a.batch, Base: a.base, Next: a.next, IDs: ids})
	}
	return len(acks), s.journal.Acknowledge(acks)
}

// ask asks a broker without waiting.
func (s *Sender) ask(a *action) {
	l, leader, ident, base, what := a.lane, s.core.leader(a.lane), a.ident, a.base, a.kind
	s.transport.Go(func() {
		switch what {
		case askFloor:
			offset, err := s.askFloor(l, leader)
			s.took(err, func(now time.Time) { s.core.floored(l, offset, err, now) })
		case askState:
			present, last, err := s.askState(l, leader, ident)
			s.took(err, func(now time.Time) { s.core.described(l, ident, present, last, err, now) })
		case askLog:
			read, err := s.readLog(l, leader, base, ident)
			s.took(err, func(now time.Time) { s.core.wasRead(l, ident, read.there, read.complete, err, now) })
		case askID:
			id, err := s.askID()
			s.took(err, func(now time.Time) { s.core.gotID(l, id, err, now) })
		}
	})
}

func (s *Sender) took(err error, f func(time.Time)) {
	s.post(func(now time.Time) {
		if err != nil && !errors.Is(err, errUnavailable) {
			s.complain(err, now)
		}
		f(now)
	})
}

// collect puts a batch into a request to its leader.
func (s *Sender) collect(l *lane, b *Batch, now time.Time) {
	leader := s.core.leader(l)
	if err := s.load(b); err != nil || leader < 0 {
		if err != nil {
			s.complain(err, now)
		}
		s.core.answered(l, b, unstored, nil, -1, now)
		return
	}
	// Not before one that has a batch of the same partition: they go in order.
	at := len(s.out)
	for i := len(s.out) - 1; i >= 0 && at == len(s.out); i-- {
		if s.out[i].leader == leader {
			if s.out[i].takes(l, b) {
				at = i
			}
			break
		}
	}
	if at == len(s.out) {
		s.out = append(s.out, newOutgoing(leader))
	}
	s.out[at].add(l, b)
}

// load sees to a batch's bytes.
func (s *Sender) load(b *Batch) error {
	if b.Data != nil {
		return nil
	}
	data, err := s.journal.Read(b.ID)
	if err != nil {
		return fmt.Errorf("read a batch for %s-%d back: %w", b.Topic, b.Partition, err)
	}
	b.Data = data
	return nil
}

// flush sends the requests that were filled.
func (s *Sender) flush() {
	for _, r := range s.out {
		s.send(r)
	}
	s.out = nil
}

func (s *Sender) tookAnswers(r *outgoing, answers []answer, now time.Time) {
	for i, a := range answers {
		if a.err != nil && a.refusal == nil {
			s.complain(a.err, now)
		}
		if a.stale {
			s.stale(r.batches[i].Topic)
		}
		s.core.answered(r.lanes[i], r.batches[i], a.verdict, a.refusal, a.base, now)
	}
}

// replace writes batches that take the place of others.
func (s *Sender) replace(a *action) error {
	if !a.ready {
		if err := s.build(a); err != nil {
			return err
		}
		a.ready = true
	}
	if err := s.core.assign(a.made); err != nil {
		s.wantTopics(a.made)
		return err
	}
	ids := make([]ID, len(a.olds))
	for i, b := range a.olds {
		ids[i] = b.ID
	}
	news := make([]*Batch, 0, len(a.news)+len(a.made))
	for _, p := range a.news {
		if p.batch != nil {
			news = append(news, p.batch)
		}
	}
	if err := s.journal.Replace(ids, append(news, a.made...)); err != nil {
		s.core.unassign(a.made)
		return err
	}
	s.core.enqueue(a.made)
	for _, b := range a.olds {
		b.Data = nil
		b.bundle.finish()
	}
	for _, p := range a.news {
		if p.batch != nil && p.spilled {
			p.batch.Data = nil
		}
	}
	return nil
}

// build makes all batches of a replacement.
func (s *Sender) build(a *action) error {
	for i := range a.news {
		p := &a.news[i]
		p.spilled = p.spilled || p.of.Data == nil
	}
	for _, b := range a.olds {
		if err := s.load(b); err != nil {
			return err
		}
	}
	for _, p := range a.news {
		if p.batch != nil {
			if err := s.rebuild.fill(p, p.of.Data); err != nil {
				return err
			}
		}
		if len(p.drop) == 0 {
			continue
		}
		records, err := s.rebuild.refused(p, p.of.Data)
		if err != nil {
			return err
		}
		a.made = append(a.made, s.refused(p.of, records)...)
	}
	return nil
}

// refused tells records that were refused, and returns what is to be sent in their place.
func (s *Sender) refused(of *Batch, records []Refused) []*Batch {
	if s.cfg.OnRefused == nil {
		return nil
	}
	dead := s.cfg.OnRefused(of, records)
	for _, b := range dead {
		if b.bundle = of.bundle; b.bundle != nil {
			b.bundle.left++
		}
	}
	return dead
}

// settled tells that a batch is stored.
func (s *Sender) settled(b *Batch) {
	if s.cfg.OnSettled != nil {
		s.cfg.OnSettled(b)
	}
	if s.cfg.Memory != nil {
		s.cfg.Memory.release(b)
	}
	if b.bundle != nil {
		b.bundle.left--
		b.bundle.finish()
	}
}

func (s *Sender) sayUnknown(a *action) {
	what := "sent again, their lines may come twice"
	if s.cfg.Unknown == Hold {
		what = "kept (on_unknown: hold), and the partition waits"
	}
	lines := int64(0)
	for _, b := range a.olds {
		lines += b.Lines
	}
	s.log.Error("it cannot be told whether batches are stored; they are "+what, "topic", a.lane.key.name, "partition", a.lane.key.partition,
		"batches", len(a.olds), "lines", lines, "error", a.err)
	if s.cfg.OnUnknown != nil {
		s.cfg.OnUnknown(a.olds)
	}
}

// wantTopics asks for what must be known of topics.
func (s *Sender) wantTopics(batches []*Batch) {
	for _, b := range batches {
		if t := s.core.topics[b.Topic]; t == nil || len(t.leaders) == 0 {
			s.stale(b.Topic)
		}
	}
}

// stale has a topic's leaders looked for.
func (s *Sender) stale(topic string) {
	s.topicsFor[topic] = true
	s.again = true
}

// askMetadataAgain asks for the leaders of all topics, when one is stale and the last time was not just now.
func (s *Sender) askMetadataAgain(now time.Time) {
	if !s.again || s.asked || now.Before(s.nextAsk) {
		return
	}
	s.asked, s.again, s.nextAsk = true, false, now.Add(metadataPause)
	topics := make([]string, 0, len(s.topicsFor))
	for t := range s.topicsFor {
		topics = append(topics, t)
	}
	s.transport.Go(func() {
		resp, err := s.askMetadata(topics)
		s.post(func(now time.Time) {
			s.asked = false
			if err != nil {
				s.again = true
				s.complain(fmt.Errorf("ask for the topics' leaders: %w", err), now)
				return
			}
			s.tookMetadata(resp, now)
		})
	})
}

// tookMetadata takes what the brokers say of topics.
func (s *Sender) tookMetadata(resp *kmsg.MetadataResponse, now time.Time) {
	cluster := ""
	if resp.ClusterID != nil {
		cluster = *resp.ClusterID
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if t.Topic == nil {
			continue
		}
		err := kerr.ErrorForCode(t.ErrorCode)
		if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			s.complain(fmt.Errorf("topic %s: %w", *t.Topic, err), now)
			continue
		}
		leaders := make([]int32, len(t.Partitions))
		for i := range leaders {
			leaders[i] = -1
		}
		for _, p := range t.Partitions {
			if int(p.Partition) < len(leaders) {
				leaders[p.Partition] = p.Leader
			}
		}
		s.core.metadata(cluster, *t.Topic, t.TopicID, leaders)
	}
}

// complain logs trouble once a minute and tells OnError.
func (s *Sender) complain(err error, now time.Time) {
	if s.closed.Load() {
		return
	}
	if s.cfg.OnError != nil {
		s.cfg.OnError(err)
	}
	if now.Sub(s.saidSend) >= sayAgainAfter {
		s.saidSend = now
		s.log.Error("the brokers do not take lines; they are kept and sent again", "error", err)
	}
}
