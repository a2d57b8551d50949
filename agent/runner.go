package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/pipelines"
)

const (
	// prepareBackoffMin and Max bound the pause between two attempts to find
	// or make the topic.
	prepareBackoffMin = 200 * time.Millisecond
	prepareBackoffMax = 5 * time.Second
	// stalledAfter is how long the oldest line may be unacknowledged before
	// that is said and the topic is looked at again.
	stalledAfter = 15 * time.Second
	// unreadyAfter is how long it may be so before the agent is not ready.
	unreadyAfter = 5 * time.Second
	// catchUpLagBytes is the lag above which a pipeline is catching up, and
	// caughtUpLagBytes that below which it no longer is.
	catchUpLagBytes  = 64 << 20
	caughtUpLagBytes = 16 << 20
	// recordOverheadBytes is what a record takes in a batch beside key and
	// value: headers and lengths.
	recordOverheadBytes = 4 << 10
)

// input is where a pipeline's lines come from. What ends in Locked is called with runner.mu held and between two steps.
type input interface {
	// loop is the runner's one thread of work: it collects until ctx ends, or with Once until all that is there is taken, and hands over
	// what it reads by runner.take.
	loop(ctx context.Context)
	// restore takes over what a checkpoint knows, before anything else. known is false at the first start.
	restore(s savedPipeline, known bool)
	// replay moves positions over what the journal holds beyond the checkpoint, before the loop.
	replay(moves []journal.Range)
	// saveLocked adds the positions to a checkpoint.
	saveLocked(p *savedPipeline)
	// measureLocked adds to an account what is counted on demand.
	measureLocked(a *Account)
}

// runner runs the collecting part of one pipeline. Its loop, the input's, is one goroutine. Acknowledgements come on
// goroutines of the destination. Fields without a word on it belong to the loop.
//
// Lock order: stepping before mu.
type runner struct {
	log   *slog.Logger
	cfg   Config
	pipe  *pipelines.Pipeline
	input input
	dest  Destination

	watches *podWatches // of all pipelines

	work   *worker
	packer *producer.Packer
	parcel *parcel // being filled
	linger time.Duration
	opened time.Time // when the last parcel was
	prompt bool      // a parcel after a rest is shipped at once
	// bundleBytes and bundleLines are what a parcel is shipped at.
	bundleBytes, bundleLines int
	memoryPool               *producer.Memory
	spills                   bool // what the journal has need not be in memory: the input has no files that hold the rest
	kept                     *kept

	said      map[place]string // trouble by place, so that it is said once
	nextStall time.Time

	helpers  sync.WaitGroup  // goroutines of run
	helping  context.Context // of them; ends when nothing is collected any more
	wake     chan struct{}   // holds a token when the loop should look again
	prepared chan prepared   // the topics, once

	produceErrors atomic.Int64
	lastError     atomic.Pointer[error] // the last failure to produce
	catchingUp    atomic.Bool           // the input holds much that is not delivered
	handing       atomic.Bool           // what is open is left to a successor when the loop ends

	// stepping is held for each step of the input: a checkpoint is taken between two of
	// them, where a content that moves from one file to another is in one.
	stepping sync.Mutex

	mu      sync.Mutex
	account Account   // guarded by mu
	memory  int64     // guarded by mu: bytes of memory in flight
	share   *share    // of the budget of all pipelines
	parcels []*parcel // guarded by mu: in the order opened; the first is not settled
	// unsettled are the sequences of journal entries whose parcels are not settled, journalled is the sequence after the last one written.
	unsettled  map[uint64]bool // guarded by mu
	journalled uint64          // guarded by mu
	deadLetter producer.Topic  // guarded by mu, for the destination's goroutine
	dirty      bool            // guarded by mu: the checkpoint is behind
	known      bool            // guarded by mu: the first start is over, and may be stored
	ready      error           // guarded by mu: what is waited for; nil when ready
	finished   chan struct{}   // closed when nothing is in flight and the loop has ended
	ended      bool            // guarded by mu: the loop has ended
}

// prepared is what must be known of the topics before a line can be sent.
type prepared struct {
	topic, dead producer.Topic
}

var errNotPrepared = errors.New("waiting for the brokers to tell or make the topic")

func newRunner(log *slog.Logger, p *pipelines.Pipeline, cfg Config) (*runner, error) {
	work, err := newWorker(p, cfg.Hostname)
	if err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", p.Name, err)
	}
	r := &runner{
		log: log.With("pipeline", p.Name), cfg: cfg, pipe: p, work: work,
		said: map[place]string{},
		wake: make(chan struct{}, 1), prepared: make(chan prepared, 1), finished: make(chan struct{}),
		account: Account{Pipeline: p.Name}, ready: errNotPrepared,
		unsettled: map[uint64]bool{}, kept: &kept{}, memoryPool: &producer.Memory{},
	}
	r.work.runner, r.work.routes = r, newRoutes(r)
	r.batching(p.Topic)
	return r, nil
}

// Defaults of batching.
const (
	lingerDefault = 2 * time.Millisecond
	// restMin is after what time without a parcel the next is shipped at once, unless the age of batches is set: lines that come so seldom
	// seldom have company to wait for.
	restMin            = 20 * time.Millisecond
	bundleBytesDefault = 1 << 20
	bundleLinesDefault = 100_000
)

// batching takes the settings of the topic.
func (r *runner) batching(t pipelines.Topic) {
	r.linger, r.bundleBytes, r.bundleLines = t.Batch.Age, t.Batch.Bytes, t.Batch.Lines
	r.prompt = t.Batch.Age == 0
	setDefault(&r.linger, lingerDefault)
	setDefault(&r.bundleBytes, bundleBytesDefault)
	setDefault(&r.bundleLines, bundleLinesDefault)
	r.packer = producer.NewPacker(r.memoryPool, r.bundleBytes, codecOf(t.Compression, r.catchingUp.Load))
}

// codecOf chooses the codec of each batch. With auto it is zstd, and snappy, at a third of the CPU, while catching up.
func codecOf(c pipelines.Compression, catchingUp func() bool) func() record.Codec {
	if codec, err := record.ParseCodec(string(c)); err == nil {
		return func() record.Codec { return codec }
	}
	return func() record.Codec {
		if catchingUp() {
			return record.Snappy
		}
		return record.Zstd
	}
}

// restore takes over what a checkpoint knows. known is false at the first start.
func (r *runner) restore(s savedPipeline, known bool) {
	r.known = known
	r.kept.stored.Store(known)
	r.input.restore(s, known)
}

// run collects until ctx ends, or with Once until all is read.
func (r *runner) run(ctx context.Context) {
	helping, cancel := context.WithCancel(ctx)
	r.helping = helping
	r.helpers.Go(func() { r.prepare(helping) })
	r.input.loop(helping)
	r.ship()
	cancel()
	r.helpers.Wait()
	r.end()
}

// tend does what is due whatever the input.
func (r *runner) tend(ctx context.Context, now time.Time) {
	if r.parcel != nil && !now.Before(r.shipAt()) {
		r.ship()
	}
	r.watchStall(ctx, now)
}

// shipDue is when the open parcel is to be shipped, if that is before another time.
func (r *runner) shipDue(other time.Time) time.Time {
	if r.parcel == nil {
		return other
	}
	return earlier(other, r.shipAt())
}

// shipAt is when the open parcel is to be shipped.
func (r *runner) shipAt() time.Time {
	if r.parcel.prompt {
		return r.parcel.opened
	}
	return r.parcel.opened.Add(r.linger)
}

// holdLocked counts memory of lines on their way. It needs mu.
func (r *runner) holdLocked(bytes int64) {
	r.memory += bytes
	r.share.add(bytes)
}

// room says whether another chunk may be in flight.
func (r *runner) room() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.memory < r.cfg.InFlightBytesMax && r.share.room()
}

// notePlight counts a failure to produce that is not a record's own.
func (r *runner) notePlight(err error) {
	r.produceErrors.Add(1)
	r.lastError.Store(&err)
}

func (r *runner) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// prepare finds or makes the topics, however long that takes.
func (r *runner) prepare(ctx context.Context) {
	pause := prepareBackoffMin
	for {
		p, err := r.prepareOnce(ctx)
		if err == nil {
			r.prepared <- p
			return
		}
		if ctx.Err() != nil {
			return
		}
		r.setReady(err)
		if pause == prepareBackoffMin {
			r.log.Warn("the topic cannot be had from the brokers; trying again without end, "+r.keeps(), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(pause*2, prepareBackoffMax)
	}
}

func (r *runner) prepareOnce(ctx context.Context) (p prepared, err error) {
	p.topic, err = r.dest.Prepare(ctx, topicSpec(r.pipe))
	if err != nil || r.pipe.Errors.DeadLetter == "" {
		return p, err
	}
	p.dead, err = r.dest.Prepare(ctx, producer.TopicSpec{Name: r.pipe.Errors.DeadLetter, Replicas: r.pipe.Topic.Replicas})
	return p, err
}

func topicSpec(p *pipelines.Pipeline) producer.TopicSpec {
	spec := producer.TopicSpec{Name: p.Topic.Name, Partitions: p.Topic.Partitions, Replicas: p.Topic.Replicas}
	for _, l := range p.Topic.Config {
		if spec.Config == nil {
			spec.Config = map[string]string{}
		}
		spec.Config[l.Name] = l.Value
	}
	return spec
}

// begin notes that lines may be sent.
func (r *runner) begin(p prepared) {
	r.work.begin(p)
	r.mu.Lock()
	r.deadLetter, r.ready = p.dead, nil
	r.mu.Unlock()
}

// lineBytesMax is the setting, and no more than the topic takes.
func (r *runner) lineBytesMax() int {
	limit := r.pipe.Collect.Options().LineBytesMax
	if limit == 0 {
		limit = tail.LineBytesMaxDefault
	}
	if most := r.work.topic.RecordBytesMax; most > 2*recordOverheadBytes {
		limit = min(limit, most-recordOverheadBytes)
	}
	return limit
}

func (r *runner) deadTopic() producer.Topic {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deadLetter
}

func (r *runner) setReady(err error) {
	r.mu.Lock()
	r.ready = err
	r.mu.Unlock()
}

// place is where trouble is: of which kind, and at which path, if at one.
type place struct{ kind, path string }

func (p place) attrs(more ...any) []any {
	if p.path == "" {
		return more
	}
	return append([]any{"path", p.path}, more...)
}

// say logs trouble at a place once, until it changes or heals.
func (r *runner) say(at place, what string, err error) {
	if r.said[at] == err.Error() {
		return
	}
	r.said[at] = err.Error()
	r.log.Warn(what, at.attrs("error", err)...)
}

func (r *runner) heal(at place, what string) {
	if _, ok := r.said[at]; ok {
		delete(r.said, at)
		r.log.Info(what, at.attrs()...)
	}
}

// watchStall says once when nothing is acknowledged for long, and looks at the
// topic again: it may have been deleted.
func (r *runner) watchStall(ctx context.Context, now time.Time) {
	if now.Before(r.nextStall) {
		return
	}
	r.nextStall = now.Add(stalledAfter)
	age := r.oldestUnacked(now)
	if age < stalledAfter {
		r.heal(place{kind: "brokers"}, "lines are acknowledged again")
		return
	}
	r.say(place{kind: "brokers"}, "no line was acknowledged for a while; waiting without end, "+r.keeps(),
		fmt.Errorf("the brokers of topic %s do not answer", r.pipe.Topic.Name))
	r.helpers.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, stalledAfter)
		defer cancel()
		_, _ = r.prepareOnce(ctx) // its only use here is to make a topic that is gone
	})
}

// oldestUnacked is the age of the oldest parcel that is not settled.
func (r *runner) oldestUnacked(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.parcels) == 0 {
		return 0
	}
	return now.Sub(r.parcels[0].opened)
}

// end notes that no chunk will be sent any more.
func (r *runner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.finishLocked()
}

// finishLocked closes finished when nothing is left to wait for.
func (r *runner) finishLocked() {
	if r.ended && r.account.InFlight == (Count{}) && !closed(r.finished) {
		close(r.finished)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// snapshot returns what the checkpoint stores, whether it moved since the last
// one, and whether the pipeline may be stored: not before its first scan, which
// alone knows what was there at the first start.
func (r *runner) snapshot() (p savedPipeline, moved, known bool) {
	r.stepping.Lock()
	defer r.stepping.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Journal = r.keepFromLocked()
	r.input.saveLocked(&p)
	moved = r.dirty
	r.dirty = false
	return p, moved, r.known
}

// soiled says that the next snapshot will count as moved.
func (r *runner) soiled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dirty
}

// soil makes the next snapshot count as moved: the last one was not stored.
func (r *runner) soil() {
	r.mu.Lock()
	r.dirty = true
	r.mu.Unlock()
}

// snapshotAccount returns the account with what is counted on demand.
func (r *runner) snapshotAccount() Account {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.account.clone()
	r.input.measureLocked(&a)
	a.JournalBytes, a.JournalBatches = r.kept.size()
	return a
}

// keeps says who has the lines while the brokers do not take them.
func (r *runner) keeps() string {
	if r.pipe.Collect.File != nil {
		return "the files keep the lines"
	}
	return "the journal takes lines up to its limit once the brokers have answered, and then the senders wait"
}

// sayCut says once for a place that its lines are over the limit.
func (r *runner) sayCut(path string) {
	r.say(place{"line", path}, fmt.Sprintf("lines over the limit are cut (collect.%s.line_bytes_max)", r.pipe.Collect.Input()),
		fmt.Errorf("a line is longer than %d bytes", r.lineBytesMax()))
}

// saySplit says once for a place that its records are over a limit.
func (r *runner) saySplit(path string) {
	r.say(place{"record", path}, fmt.Sprintf("records over a limit are split (collect.%s.multiline.lines_max and bytes_max)", r.pipe.Collect.Input()),
		errors.New("a record of several lines is too long"))
}

// count changes the account.
func (r *runner) count(change func(*Account)) {
	r.mu.Lock()
	change(&r.account)
	r.mu.Unlock()
}

// header makes a header of a constant.
func header(key, value string) producer.Header {
	return producer.Header{Key: key, Value: []byte(value)}
}
