package sinks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/pipelines"
)

// Config is what a worker can be told. The zero value of each field means its default.
type Config struct {
	// Brokers are host:port addresses, used when the pipeline names none.
	Brokers []string
	// ClientID is the Kafka client ID; default "sluice-sink".
	ClientID string
	// InstanceID makes the worker a static member of its group (KIP-345): started again under the same ID within the session
	// timeout it gets its partitions back at once. Two workers under one ID shut each other out. Default "": a dynamic member.
	InstanceID string

	// SessionTimeout is how long the group waits for a silent member; default 15 s. Brokers refuse what is outside their
	// group.min.session.timeout.ms (6 s) and group.max.session.timeout.ms.
	SessionTimeout time.Duration
	// WriteDeadline is how long after its claim a batch may still be written; default two thirds of SessionTimeout, at most nine tenths.
	WriteDeadline time.Duration
	// DrainTimeout is how long a worker that is told to stop waits for writes in hand; default 10 s.
	DrainTimeout time.Duration

	// MemoryBytesMax bounds the records held over all partitions; default 48 MiB. Fetches on their way may take a quarter as much beside it, and each write
	// in progress has its block. RecordMemory says what it is to be for a process to stay within a limit.
	MemoryBytesMax int64
	// FetchBytesMax bounds one fetch answer of one broker, before decompression; default 2 MiB. What it expands to is bounded by MemoryBytesMax.
	FetchBytesMax int32
	// ParallelWritesMax is how many partitions are written at the same time; default 4.
	ParallelWritesMax int
	// BackoffMin and BackoffMax bound the wait before a failed write or commit is tried again; default 100 ms and 10 s.
	BackoffMin, BackoffMax time.Duration

	// OnLostOffsets decides when the group's position is no longer in the log; default: what the pipeline says, or LostStop.
	OnLostOffsets LostPolicy

	// SchemaInterval is how often the destination's schema is looked at while nothing goes wrong; default 15 s.
	SchemaInterval time.Duration

	// Once makes Run return when everything up to the topic's end is stored and committed. The end is taken when Run starts, or,
	// where ProducerDone is given, after ProducerDone is closed.
	Once         bool
	ProducerDone <-chan struct{}
}

// LostPolicy says what becomes of a partition whose records were removed by retention before they were stored.
type LostPolicy string

// The policies. Both count the lost records and log an error.
const (
	LostStop     LostPolicy = "stop"     // the partition stops, the others go on; Ready says so
	LostContinue LostPolicy = "continue" // the partition goes on at the start of the log
)

func (c Config) withDefaults() Config {
	set(&c.ClientID, "sluice-sink")
	set(&c.SessionTimeout, 15*time.Second)
	set(&c.WriteDeadline, c.SessionTimeout*2/3)
	c.WriteDeadline = min(c.WriteDeadline, c.SessionTimeout*9/10)
	set(&c.DrainTimeout, 10*time.Second)
	set(&c.MemoryBytesMax, RecordMemory(MemoryMaxDefault, 1))
	set(&c.FetchBytesMax, 2<<20)
	set(&c.ParallelWritesMax, 4)
	set(&c.SchemaInterval, schemaWatchInterval)
	set(&c.BackoffMin, 100*time.Millisecond)
	set(&c.BackoffMax, 10*time.Second)
	return c
}

// MemoryMaxDefault is what a process of sink workers may take, unless it is told otherwise.
const MemoryMaxDefault = 192 << 20

// The part of a process's memory that is for records, and the least of it for a worker.
const (
	recordsPart    = 4
	recordBytesMin = 4 << 20
)

// RecordMemory is the memory for records (MemoryBytesMax) of each of so many workers in a process that may take so much: the rest is for fetches on their way, for
// blocks, and for what the garbage collector needs to be able to wait.
func RecordMemory(process int64, workers int) int64 {
	return max(process/recordsPart/int64(max(workers, 1)), recordBytesMin)
}

// RepeatWindow is how long after it was first sent a write may be repeated by a worker with this configuration, or end at the destination: what a dedup window
// has to cover twice.
func RepeatWindow(c Config) time.Duration {
	c = c.withDefaults()
	return c.WriteDeadline + c.SessionTimeout
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Worker moves one pipeline's topic into one sink, as a member of the group named by the sink. Its methods are safe for concurrent use; Run is
// called once.
type Worker struct {
	log     *slog.Logger
	cfg     Config
	pipe    *pipelines.Pipeline
	spec    *pipelines.SinkSpec
	sink    Sink
	metrics *metrics

	options []kgo.Opt    // of every client
	admin   *kadm.Client // beside the group's client; set by Run
	letters *deadLetters // set by Run

	clientTrouble clientTrouble

	memory      atomic.Int64 // for records
	destination atomic.Pointer[Destination]
	session     atomic.Pointer[session] // the one at work, or the last
	encoders    encoders
	replacing   sync.Mutex // held while destination and encoders are replaced together

	mu      sync.Mutex // guards what follows
	account Account
	outage  outage
	waiting map[string]error // what keeps the worker from being ready, by subject
}

// NewWorker makes a worker; Run starts it. The worker owns the sink from here on: Run closes it. log should name the pipeline and the
// sink. An error says what of the pipeline cannot work: stages that do not compile, no brokers, an unreadable certificate or password.
func NewWorker(log *slog.Logger, reg prometheus.Registerer, p *pipelines.Pipeline, spec *pipelines.SinkSpec, sink Sink, cfg Config) (*Worker, error) {
	w := &Worker{
		log:     log,
		cfg:     cfg.withDefaults(),
		pipe:    p,
		spec:    spec,
		sink:    sink,
		metrics: newMetrics(reg, p.Name, spec.Name),
		account: newAccount(p.Name, spec.Name),
		waiting: map[string]error{"start": errors.New("not started yet")},
	}
	set(&w.cfg.OnLostOffsets, LostPolicy(spec.OnLost))
	set(&w.cfg.OnLostOffsets, LostStop)
	w.memory.Store(w.cfg.MemoryBytesMax)
	w.encoders.make = w.newEncoder
	if _, err := spec.NewProcess(); err != nil {
		return nil, err
	}
	var err error
	w.options, err = w.kafkaOptions()
	return w, err
}

// Run works until ctx is cancelled, and then drains: writes in hand are waited for and closed, nothing new is begun. It returns nil after a
// drain or, with Once, when all is stored; an error is a setting that cannot work, or with Once a partition that stopped. Trouble of
// the brokers and of the destination is logged, shown by Ready and waited out.
func (w *Worker) Run(ctx context.Context) error {
	client, err := kgo.NewClient(w.options...)
	if err != nil {
		return fmt.Errorf("sink %s: %w", w.spec.Group(), err)
	}
	defer client.Close()
	w.admin = kadm.NewClient(client)
	w.letters = newDeadLetters(w.log, w.admin, client, w.deadLetterTopic())
	err = w.run(ctx)
	w.letters.flush()
	if closeErr := w.sink.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("sink %s: close the destination: %w", w.spec.Group(), closeErr)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func (w *Worker) run(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		exists, err := w.awaitTopic(ctx)
		if err != nil || !exists {
			return err
		}
		if err := w.awaitDestination(ctx); err != nil {
			return err
		}
		s := newSession(w)
		w.session.Store(s)
		began := time.Now()
		err = s.run(ctx)
		switch {
		case err == nil, !errors.Is(err, errRejoin) && !errors.Is(err, errTopicGone):
			return err
		case errors.Is(err, errTopicGone) && w.cfg.Once:
			return fmt.Errorf("sink %s: %w", w.spec.Group(), err)
		case ctx.Err() != nil:
			return nil
		}
		if time.Since(began) > w.cfg.SessionTimeout {
			attempt = 1 // it was a member
		}
		w.log.Warn("joining the group again with a new client", "reason", err)
		if err := sleep(ctx, w.backoff(attempt)); err != nil {
			return err
		}
	}
}

// awaitDestination repeats Check until the destination can take rows.
func (w *Worker) awaitDestination(ctx context.Context) error {
	var logged time.Time
	for attempt := 1; ; attempt++ {
		_, err := w.check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(logged) >= outageReminder {
			logged = time.Now()
			w.log.Error("the destination cannot take rows yet; trying again until it can", "attempt", attempt, "error", err)
		}
		if err := sleep(ctx, w.backoff(attempt)); err != nil {
			return err
		}
	}
}

// checkTimeout bounds one Check.
const checkTimeout = 10 * time.Second

// check asks the destination what it is. changed says that it is not what it was: blocks made before are of no use then.
func (w *Worker) check(ctx context.Context) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	d, err := w.sink.Check(ctx)
	w.setWaiting("destination", err)
	if err != nil {
		return false, err
	}
	w.replacing.Lock()
	defer w.replacing.Unlock()
	if before := w.destination.Swap(&d); before != nil && *before == d {
		return false, nil
	}
	w.log.Info("destination is ready", "server", d.Server, "schema", d.Schema, "guarantee", d.Guarantee)
	w.encoders.renew()
	return true, nil
}

// schemaWatchInterval is how often the worker looks whether the destination's schema has changed: a write notices that a column has gone or has another type, but
// not that one has come.
const schemaWatchInterval = 15 * time.Second

func (w *Worker) watchSchema(ctx context.Context) {
	for sleep(ctx, w.cfg.SchemaInterval) == nil {
		if w.destination.Load().Alterable {
			_, _ = w.check(ctx) // Ready says what it found
		}
	}
}

// awaitTopic waits until the topic exists. exists is false when it never will: a Once worker whose producer is done.
func (w *Worker) awaitTopic(ctx context.Context) (exists bool, err error) {
	wasMissing := false
	for attempt := 1; ; attempt++ {
		done := w.producerDone()
		_, _, err := w.topicID(ctx)
		w.setWaiting("topic", err)
		if err == nil {
			if attempt > 1 {
				w.log.Info("the topic is there", "topic", w.pipe.Topic.Name)
			}
			return true, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if errors.Is(err, errNoTopic) && w.cfg.Once && done {
			return false, w.missingTopic(err)
		}
		if missing := errors.Is(err, errNoTopic); attempt == 1 || missing != wasMissing {
			w.log.Info("waiting for the topic", "topic", w.pipe.Topic.Name, "reason", err)
			wasMissing = missing
		}
		if err := sleep(ctx, min(w.backoff(attempt), topicPollMax)); err != nil {
			return false, err
		}
	}
}

// topicPollMax is the longest pause between two looks whether the topic exists.
const topicPollMax = time.Second

// missingTopic is nil when a producer ran and made no topic: there was nothing to produce.
func (w *Worker) missingTopic(err error) error {
	if w.cfg.ProducerDone != nil {
		return nil
	}
	return fmt.Errorf("sink %s: %w", w.spec.Group(), err)
}

// producerDone says that nothing more will be produced that this run has to store.
func (w *Worker) producerDone() bool {
	if w.cfg.ProducerDone == nil {
		return true
	}
	select {
	case <-w.cfg.ProducerDone:
		return true
	default:
		return false
	}
}

var errNoTopic = errors.New("it does not exist")

// topicID asks the brokers for the topic's identity and number of partitions.
func (w *Worker) topicID(ctx context.Context) (TopicID, int, error) {
	// Asked for authorized operations, kadm goes past the client's metadata cache: what the cache says of a topic may be older than the
	// end of the producer, and a Once worker that believes it ends with nothing stored.
	topics, err := w.admin.ListTopics(kadm.WithAuthorizedOps(ctx), w.pipe.Topic.Name)
	if err != nil {
		return TopicID{}, 0, fmt.Errorf("ask the brokers for topic %s: %w", w.pipe.Topic.Name, err)
	}
	t, ok := topics[w.pipe.Topic.Name]
	switch {
	case !ok, errors.Is(t.Err, kerr.UnknownTopicOrPartition), t.Err == nil && len(t.Partitions) == 0:
		return TopicID{}, 0, fmt.Errorf("topic %s: %w", w.pipe.Topic.Name, errNoTopic)
	case t.Err != nil:
		return TopicID{}, 0, fmt.Errorf("topic %s: %w", w.pipe.Topic.Name, t.Err)
	}
	return TopicID(t.ID), len(t.Partitions), nil
}

// Ready is nil when the worker has joined its group, the destination takes rows and no partition is stopped. The error does not name the sink.
func (w *Worker) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, subject := range slices.Sorted(maps.Keys(w.waiting)) {
		errs = append(errs, fmt.Errorf("%s: %w", subject, w.waiting[subject]))
	}
	return errors.Join(errs...)
}

// setWaiting notes what keeps the worker from being ready; a nil err clears it.
func (w *Worker) setWaiting(subject string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.waiting, subject)
		return
	}
	w.waiting[subject] = err
}

// SetRecordMemory changes the memory for records, Config.MemoryBytesMax, of a worker that may be at work: one that holds more fetches nothing until it does not.
func (w *Worker) SetRecordMemory(bytes int64) { w.memory.Store(bytes) }

func (w *Worker) recordMemory() int64 { return w.memory.Load() }

func (w *Worker) limits() limits {
	b := w.spec.Batch
	return limits{
		rows:          max(b.Rows, 1),
		bytes:         max(int64(b.Bytes), 1),
		age:           b.Age,
		idle:          b.Idle,
		writeDeadline: w.cfg.WriteDeadline,
		backoffMin:    w.cfg.BackoffMin,
		backoffMax:    w.cfg.BackoffMax,
	}
}

// partsPerSecond is the destination's limit on parts, 0 for none.
func (w *Worker) partsPerSecond() float64 {
	if w.spec.ClickHouse == nil {
		return 0
	}
	return w.spec.ClickHouse.PartsPerSecond
}

func (w *Worker) backoff(attempt int) time.Duration {
	p := partition{limits: w.limits(), jitter: rand.Float64}
	return p.backoff(attempt)
}

// sleep waits for d or for ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
