// Package producer sends record batches that lie in a journal to the brokers of Kafka's protocol, each exactly once.
//
// It builds the batches itself (Packer), gives each the identity and the sequences by which a broker tells repeats, has it written to the
// journal (Log), and sends exactly these bytes until the partition's leader has acknowledged them. What to do when there is no answer,
// one that leaves open what happened, or one that the batch is refused, is decided by lanes, which do no I/O. Trouble of the destination
// (down, moving, not authorised) is never a record's fault: it is waited out, in order, for ever.
package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Limits of the Kafka producer.
const (
	// batchBytesMaxDefault bounds a batch where the topic's own
	// max.message.bytes could not be asked for; Kafka's default for it.
	batchBytesMaxDefault = 1_000_012
	// batchBytesMaxCeiling bounds a batch however much a topic allows, unless
	// records may be larger.
	batchBytesMaxCeiling = 1<<20 + 12
	// dialTimeout bounds the wait for one connection.
	dialTimeout = 5 * time.Second
	// requestBackoffMax bounds the pause between two attempts of the client at the same request.
	requestBackoffMax = 2 * time.Second
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

// KafkaConfig configures a Kafka producer.
type KafkaConfig struct {
	ClientID string
	// RecordBytesMax is the largest record to expect; 0 means no larger than a
	// batch usually is.
	RecordBytesMax int
	// InFlightMax is how many batches of a partition may be sent and not acknowledged; 0 means 5, the most there can be.
	InFlightMax int
	// Unknown says what becomes of batches of which it cannot be told whether they are stored.
	Unknown OnUnknown
	// Client are the options that say where the brokers are and how they are
	// talked to: seeds, TLS, SASL. Seeds are required.
	Client []kgo.Opt
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

// Kafka sends bundles. Its loop is one goroutine, to which every answer is posted; fields without a word on it belong to the loop. Send,
// Prepare and Close are safe for concurrent use.
type Kafka struct {
	log     *slog.Logger
	cfg     KafkaConfig
	journal Log
	client  *kgo.Client
	admin   *kadm.Client
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	core      *core
	rebuild   rebuilder
	todo      []action
	incoming  []*Bundle // given to Send, not in the journal
	logRetry  time.Time // the journal is not tried before
	admission time.Time // bundles are not written before
	written   map[int32]chan struct{}
	out       []*outgoing // being filled
	asked     bool        // metadata is asked for
	again     bool        // and will be once more
	nextAsk   time.Time   // not before
	identify  time.Time
	asksID    bool
	saidLog   bool
	saidSend  time.Time
	topicsFor map[string]bool // whose metadata is wanted

	helpers sync.WaitGroup
	wake    chan struct{}

	mu     sync.Mutex
	posted []func()  // guarded by mu
	sent   []*Bundle // guarded by mu
}

// NewKafka makes a producer. It does not connect: brokers that are down are waited for. recovered are the batches that the journal holds
// unsettled, in order and in bundles, and floors what it knows of where they may lie.
func NewKafka(log *slog.Logger, journal Log, recovered []*Bundle, floors []Floor, cfg KafkaConfig) (*Kafka, error) {
	k := &Kafka{
		log: log, cfg: cfg, journal: journal, core: newCore(cfg.InFlightMax, cfg.Unknown),
		written: map[int32]chan struct{}{}, topicsFor: map[string]bool{}, wake: make(chan struct{}, 1),
	}
	opts := []kgo.Opt{
		kgo.ClientID(cfg.ClientID), kgo.DialTimeout(dialTimeout), kgo.RetryBackoffFn(backoff), kgo.DisableClientMetrics(),
	}
	var err error
	if k.client, err = kgo.NewClient(append(opts, cfg.Client...)...); err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	k.admin = kadm.NewClient(k.client)
	k.ctx, k.cancel = context.WithCancel(context.Background())
	for _, b := range recovered {
		b.left = len(b.Batches)
		for _, x := range b.Batches {
			x.bundle = b
			k.core.recovered(x)
			k.topicsFor[x.Topic] = true
		}
	}
	for _, f := range floors {
		k.core.floor(f.Topic, f.Partition, f.Offset)
	}
	k.helpers.Go(k.run)
	return k, nil
}

func backoff(attempt int) time.Duration {
	return min(50*time.Millisecond<<min(attempt, 10), requestBackoffMax)
}

// Send takes a bundle over. It does not block.
func (k *Kafka) Send(b *Bundle) {
	k.mu.Lock()
	k.sent = append(k.sent, b)
	k.mu.Unlock()
	k.nudge()
}

// post has something done by the loop.
func (k *Kafka) post(f func()) {
	k.mu.Lock()
	k.posted = append(k.posted, f)
	k.mu.Unlock()
	k.nudge()
}

func (k *Kafka) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Close gives up what is not acknowledged: it stays in the journal.
func (k *Kafka) Close() {
	k.cancel()
	k.client.Close()
	k.helpers.Wait()
}

// run is the loop.
func (k *Kafka) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		k.turn(time.Now())
		if at := k.due(); !at.IsZero() {
			timer.Reset(max(time.Until(at), time.Millisecond))
		}
	}
}

// turn does all that can be done now.
func (k *Kafka) turn(now time.Time) {
	k.mu.Lock()
	posted, sent := k.posted, k.sent
	k.posted, k.sent = nil, nil
	k.mu.Unlock()
	for _, f := range posted {
		f()
	}
	k.incoming = append(k.incoming, sent...)
	k.needID(now)
	if !now.Before(k.logRetry) {
		k.perform(now)
		k.admit(now)
		k.perform(now)
	}
	k.askMetadataAgain(now)
	k.flush()
}

// due is when the loop must look again.
func (k *Kafka) due() time.Time {
	at := k.core.due()
	times := []time.Time{k.logRetry, k.admission, k.identify}
	if k.again && !k.asked {
		times = append(times, k.nextAsk)
	}
	for _, t := range times {
		if t.After(time.Now()) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// needID asks for the identity of this run once there is something to send.
func (k *Kafka) needID(now time.Time) {
	if k.core.current.known || k.asksID || now.Before(k.identify) || len(k.incoming) == 0 && k.core.left == 0 {
		return
	}
	k.asksID = true
	k.helpers.Go(func() {
		id, err := k.askID(k.ctx)
		k.post(func() {
			k.asksID = false
			if err != nil {
				k.identify = time.Now().Add(identityRetryAfter)
				k.complain(fmt.Errorf("ask for a producer ID: %w", err))
				return
			}
			k.core.identified(id)
		})
	})
}

// admit writes waiting bundles to the journal and queues their batches.
func (k *Kafka) admit(now time.Time) {
	if len(k.todo) > 0 || now.Before(k.admission) {
		return // the journal does not take what comes first
	}
	taken := 0
	for _, b := range k.incoming {
		if err := k.core.assign(b.Batches); err != nil {
			k.wantTopics(b.Batches)
			break
		}
		taken++
	}
	if taken == 0 {
		return
	}
	bundles := k.incoming[:taken]
	first, err := k.journal.Write(bundles)
	k.logged(err)
	if err != nil {
		k.admission = now.Add(logRetryAfter)
		for i := len(bundles) - 1; i >= 0; i-- {
			k.core.unassign(bundles[i].Batches)
		}
		return
	}
	k.incoming = append([]*Bundle(nil), k.incoming[taken:]...)
	for i, b := range bundles {
		k.admitted(b, first+uint64(i))
	}
}

func (k *Kafka) admitted(b *Bundle, sequence uint64) {
	b.left = len(b.Batches)
	for _, x := range b.Batches {
		x.bundle = b
	}
	if b.Written != nil {
		b.Written(sequence)
	}
	k.core.enqueue(b.Batches)
	b.finish()
}

// logged deals with the outcome of a write to the journal.
func (k *Kafka) logged(err error) {
	switch {
	case err != nil:
		if !k.saidLog {
			k.log.Warn("the journal takes no more for now; trying again without end, nothing is sent that is not in it", "error", err)
		}
	case k.saidLog:
		k.log.Info("the journal is written to again")
	}
	k.saidLog = err != nil
}

// perform does what the core decides, in its order. What the journal refuses is tried again before anything that follows it.
func (k *Kafka) perform(now time.Time) {
	k.todo = append(k.todo, k.core.next(now)...)
	for len(k.todo) > 0 {
		n, err := k.act(k.todo, now)
		k.logged(err)
		if err != nil {
			k.logRetry = now.Add(logRetryAfter)
			return
		}
		k.todo = k.todo[n:]
		if len(k.todo) == 0 {
			k.todo = append(k.todo[:0], k.core.next(now)...)
		}
	}
	k.todo = nil
}

// act does the first action, or all acknowledgements at the beginning, and returns how many it did.
func (k *Kafka) act(todo []action, now time.Time) (int, error) {
	a := &todo[0]
	switch a.kind {
	case doAck:
		return k.writeAcks(todo)
	case doFloor:
		return 1, k.journal.Floor(a.lane.key.topic, a.lane.key.partition, a.base)
	case doReplace:
		return 1, k.replace(a)
	case doSend:
		k.collect(a.lane, a.batch, now)
	case doDone:
		k.settled(a.batch)
	case askTopics:
		k.stale(a.lane.key.name)
	case sayUnknown:
		k.sayUnknown(a)
	default:
		k.ask(a)
	}
	return 1, nil
}

// writeAcks writes the acknowledgements that stand at the beginning.
func (k *Kafka) writeAcks(todo []action) (int, error) {
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
	return len(acks), k.journal.Acknowledge(acks)
}

// ask asks a broker without waiting.
func (k *Kafka) ask(a *action) {
	l, leader, ident, base, what := a.lane, k.core.leader(a.lane), a.ident, a.base, a.kind
	k.helpers.Go(func() {
		switch what {
		case askFloor:
			offset, err := k.askFloor(l, leader)
			k.took(err, func(now time.Time) { k.core.floored(l, offset, err, now) })
		case askState:
			present, last, err := k.askState(l, leader, ident)
			k.took(err, func(now time.Time) { k.core.described(l, ident, present, last, err, now) })
		case askLog:
			read, err := k.readLog(l, leader, base, ident)
			k.took(err, func(now time.Time) { k.core.wasRead(l, ident, read.there, read.complete, err, now) })
		case askID:
			id, err := k.askID(k.ctx)
			k.took(err, func(now time.Time) { k.core.gotID(l, id, err, now) })
		}
	})
}

func (k *Kafka) took(err error, f func(time.Time)) {
	k.post(func() {
		if err != nil && !errors.Is(err, errUnavailable) {
			k.complain(err)
		}
		f(time.Now())
	})
}

// collect puts a batch into a request to its leader.
func (k *Kafka) collect(l *lane, b *Batch, now time.Time) {
	leader := k.core.leader(l)
	if err := k.load(b); err != nil || leader < 0 {
		if err != nil {
			k.complain(err)
		}
		k.core.answered(l, b, unstored, nil, -1, now)
		return
	}
	// Not before one that has a batch of the same partition: they go in order.
	at := len(k.out)
	for i := len(k.out) - 1; i >= 0 && at == len(k.out); i-- {
		if k.out[i].leader == leader {
			if k.out[i].takes(l, b) {
				at = i
			}
			break
		}
	}
	if at == len(k.out) {
		k.out = append(k.out, newOutgoing(leader))
	}
	k.out[at].add(l, b)
}

// load sees to a batch's bytes.
func (k *Kafka) load(b *Batch) error {
	if b.Data != nil {
		return nil
	}
	data, err := k.journal.Read(b.ID)
	if err != nil {
		return fmt.Errorf("read a batch for %s-%d back: %w", b.Topic, b.Partition, err)
	}
	b.Data = data
	return nil
}

// flush sends the requests that were filled.
func (k *Kafka) flush() {
	for _, r := range k.out {
		k.send(r)
	}
	k.out = nil
}

func (k *Kafka) tookAnswers(r *outgoing, answers []answer) {
	now := time.Now()
	for i, a := range answers {
		if a.err != nil && a.refusal == nil {
			k.complain(a.err)
		}
		if a.stale {
			k.stale(r.batches[i].Topic)
		}
		k.core.answered(r.lanes[i], r.batches[i], a.verdict, a.refusal, a.base, now)
	}
}

// replace writes batches that take the place of others.
func (k *Kafka) replace(a *action) error {
	if !a.ready {
		if err := k.build(a); err != nil {
			return err
		}
		a.ready = true
	}
	if err := k.core.assign(a.made); err != nil {
		k.wantTopics(a.made)
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
	if err := k.journal.Replace(ids, append(news, a.made...)); err != nil {
		k.core.unassign(a.made)
		return err
	}
	k.core.enqueue(a.made)
	for _, b := range a.olds {
		b.Data = nil
		b.bundle.finish()
	}
	return nil
}

// build makes all batches of a replacement.
func (k *Kafka) build(a *action) error {
	for _, b := range a.olds {
		if err := k.load(b); err != nil {
			return err
		}
	}
	for _, p := range a.news {
		if p.batch != nil {
			if err := k.rebuild.fill(p, p.of.Data); err != nil {
				return err
			}
		}
		if len(p.drop) == 0 {
			continue
		}
		records, err := k.rebuild.refused(p, p.of.Data)
		if err != nil {
			return err
		}
		a.made = append(a.made, k.refused(p.of, records)...)
	}
	return nil
}

// refused tells records that were refused, and returns what is to be sent in their place.
func (k *Kafka) refused(of *Batch, records []Refused) []*Batch {
	if k.cfg.OnRefused == nil {
		return nil
	}
	dead := k.cfg.OnRefused(of, records)
	for _, b := range dead {
		if b.bundle = of.bundle; b.bundle != nil {
			b.bundle.left++
		}
	}
	return dead
}

// settled tells that a batch is stored.
func (k *Kafka) settled(b *Batch) {
	if k.cfg.OnSettled != nil {
		k.cfg.OnSettled(b)
	}
	if k.cfg.Memory != nil {
		k.cfg.Memory.release(b)
	}
	if b.bundle != nil {
		b.bundle.left--
		b.bundle.finish()
	}
}

func (k *Kafka) sayUnknown(a *action) {
	what := "sent again, their lines may come twice"
	if k.cfg.Unknown == Hold {
		what = "kept (on_unknown: hold), and the partition waits"
	}
	lines := int64(0)
	for _, b := range a.olds {
		lines += b.Lines
	}
	k.log.Error("it cannot be told whether batches are stored; they are "+what, "topic", a.lane.key.name, "partition", a.lane.key.partition,
		"batches", len(a.olds), "lines", lines, "error", a.err)
	if k.cfg.OnUnknown != nil {
		k.cfg.OnUnknown(a.olds)
	}
}

// wantTopics asks for what must be known of topics.
func (k *Kafka) wantTopics(batches []*Batch) {
	for _, b := range batches {
		if t := k.core.topics[b.Topic]; t == nil || len(t.leaders) == 0 {
			k.stale(b.Topic)
		}
	}
}

// stale has a topic's leaders looked for.
func (k *Kafka) stale(topic string) {
	k.topicsFor[topic] = true
	k.again = true
}

// askMetadataAgain asks for the leaders of all topics, when one is stale and the last time was not just now.
func (k *Kafka) askMetadataAgain(now time.Time) {
	if !k.again || k.asked || now.Before(k.nextAsk) {
		return
	}
	k.asked, k.again, k.nextAsk = true, false, now.Add(metadataPause)
	topics := make([]string, 0, len(k.topicsFor))
	for t := range k.topicsFor {
		topics = append(topics, t)
	}
	k.helpers.Go(func() {
		resp, err := k.askMetadata(k.ctx, topics)
		k.post(func() {
			k.asked = false
			if err != nil {
				k.again = true
				k.complain(fmt.Errorf("ask for the topics' leaders: %w", err))
				return
			}
			k.tookMetadata(resp)
		})
	})
}

// tookMetadata takes what the brokers say of topics.
func (k *Kafka) tookMetadata(resp *kmsg.MetadataResponse) {
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
			k.complain(fmt.Errorf("topic %s: %w", *t.Topic, err))
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
		k.core.metadata(cluster, *t.Topic, t.TopicID, leaders)
	}
}

// complain logs trouble once a minute and tells OnError.
func (k *Kafka) complain(err error) {
	if k.ctx.Err() != nil {
		return
	}
	if k.cfg.OnError != nil {
		k.cfg.OnError(err)
	}
	if time.Since(k.saidSend) >= sayAgainAfter {
		k.saidSend = time.Now()
		k.log.Error("the brokers do not take lines; they are kept and sent again", "error", err)
	}
}
