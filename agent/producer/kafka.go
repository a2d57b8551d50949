package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
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
	// lingerDefault is how long a partition waits for more lines before a
	// batch that is not full is sent.
	lingerDefault = 2 * time.Millisecond
	// retryBackoffMax bounds the pause between two attempts at the same request.
	retryBackoffMax = 2 * time.Second
	// recoverBackoffMin and Max bound the pause before records that failed for
	// the destination's trouble are sent again.
	recoverBackoffMin = 200 * time.Millisecond
	recoverBackoffMax = 5 * time.Second
	// unlimitedRecords keeps the client from bounding what the agent bounds.
	unlimitedRecords = 1 << 30
	// dialTimeout bounds the wait for one connection.
	dialTimeout = 5 * time.Second
	// sayAgainAfter is the time between two log lines on the same trouble.
	sayAgainAfter = time.Minute
)

// TopicSpec is a topic as it should be when it is made.
type TopicSpec struct {
	Name       string
	Partitions int32             // 0: the broker's default
	Replicas   int16             // 0: the broker's default
	Config     map[string]string // topic settings by Kafka's names
}

// Topic is what a sender must know of a topic.
type Topic struct {
	Partitions int32
	// RecordBytesMax is the largest record the topic takes, with its key,
	// headers and about 100 bytes of framing; 0 when it is not known.
	RecordBytesMax int
}

// KafkaConfig configures a Kafka producer.
type KafkaConfig struct {
	ClientID string
	// RecordBytesMax is the largest record to expect; 0 means no larger than a
	// batch usually is.
	RecordBytesMax int
	// Compression is a codec by Kafka's name, or "auto" or "": zstd, and snappy
	// while catching up, which costs a third of the CPU for larger batches.
	Compression string
	// CatchingUp is asked for every batch of "auto"; nil means never.
	CatchingUp func() bool
	// Linger is how long a batch that is not full waits; 0 means 2 ms.
	Linger time.Duration
	// Client are the options that say where the brokers are and how they are
	// talked to: seeds, TLS, SASL. Seeds are required.
	Client []kgo.Opt
	// OnError is told every failure that is not a record's own. May be nil.
	OnError func(error)
}

// Kafka sends chunks to brokers of the Kafka protocol: idempotent, acks=all,
// retried without end. Safe for concurrent use.
//
// The client gives up a partition's buffered records when the broker answers
// one of their batches with an error that retrying cannot mend, since the
// sequence would have a gap. None of them is lost here: at the first failure
// the producer is held, which means that chunks given to Send are queued;
// when all that was in flight has been answered, the failed records are sent
// again in their order and alone, until each is acknowledged or has been
// refused when it was the only one sent; then the queue goes on.
type Kafka struct {
	log    *slog.Logger
	cfg    KafkaConfig
	client *kgo.Client
	admin  *kadm.Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	limits sync.Map // topic -> int32, the largest batch it takes

	mu     sync.Mutex
	held   bool     // guarded by mu: a failure is being mended
	flying int      // guarded by mu: chunks given to the client, not answered
	failed []*Chunk // guarded by mu: answered, with failures, in order of answer
	queue  []*Chunk // guarded by mu: sent while held
	sent   uint64   // guarded by mu: chunks sent, for their order
	mended sync.WaitGroup
	said   time.Time // guarded by mu: when trouble was last logged
}

// NewKafka makes a producer. It does not connect: brokers that are down are
// waited for by Prepare and Send.
func NewKafka(log *slog.Logger, cfg KafkaConfig) (*Kafka, error) {
	compressor, err := compressorOf(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Linger == 0 {
		cfg.Linger = lingerDefault
	}
	k := &Kafka{log: log, cfg: cfg}
	opts := []kgo.Opt{
		kgo.ClientID(cfg.ClientID),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.WithCompressor(compressor),
		kgo.ProducerLinger(cfg.Linger),
		kgo.ProducerBatchMaxBytesFn(k.batchBytesMax),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(unlimitedRecords),
		kgo.UnknownTopicRetries(-1),
		kgo.DialTimeout(dialTimeout),
		kgo.RetryBackoffFn(backoff),
		kgo.DisableClientMetrics(),
	}
	k.client, err = kgo.NewClient(append(opts, cfg.Client...)...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	k.admin = kadm.NewClient(k.client)
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k, nil
}

func backoff(attempt int) time.Duration {
	return min(50*time.Millisecond<<min(attempt, 10), retryBackoffMax)
}

// batchBytesMax is asked by the client for every batch of a topic.
func (k *Kafka) batchBytesMax(topic string) int32 {
	if v, ok := k.limits.Load(topic); ok {
		return v.(int32)
	}
	return batchBytesMaxDefault
}

// Prepare creates the topic if it is absent and returns its partitions. Call
// it before the first Send to the topic, and again when it fails.
func (k *Kafka) Prepare(ctx context.Context, spec TopicSpec) (Topic, error) {
	partitions, err := k.partitions(ctx, spec.Name)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return k.create(ctx, spec)
	}
	if err != nil {
		return Topic{}, fmt.Errorf("describe topic %s: %w", spec.Name, err)
	}
	return Topic{Partitions: partitions, RecordBytesMax: k.learnLimit(ctx, spec.Name)}, nil
}

// partitions asks the brokers, not the client's cache: it may hold a topic that
// was deleted.
func (k *Kafka) partitions(ctx context.Context, topic string) (int32, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, k.client)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 {
		return 0, fmt.Errorf("asked for one topic, told of %d", len(resp.Topics))
	}
	return int32(len(resp.Topics[0].Partitions)), kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

func (k *Kafka) create(ctx context.Context, spec TopicSpec) (Topic, error) {
	config := make(map[string]*string, len(spec.Config))
	for _, name := range slices.Sorted(maps.Keys(spec.Config)) {
		config[name] = kadm.StringPtr(spec.Config[name])
	}
	partitions, replicas := spec.Partitions, spec.Replicas
	if partitions == 0 {
		partitions = -1
	}
	if replicas == 0 {
		replicas = -1
	}
	made, err := k.admin.CreateTopic(ctx, partitions, replicas, config, spec.Name)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return Topic{}, fmt.Errorf("create topic %s: made by another at the same time, looking again: %w", spec.Name, err)
	}
	if err != nil {
		return Topic{}, fmt.Errorf("create topic %s with %d partitions and %d replicas: %w", spec.Name, partitions, replicas, errors.Join(err, message(made.ErrMessage)))
	}
	k.log.Info("topic created", "topic", spec.Name, "partitions", made.NumPartitions, "replicas", made.ReplicationFactor)
	if made.NumPartitions > 0 {
		return Topic{Partitions: made.NumPartitions, RecordBytesMax: k.learnLimit(ctx, spec.Name)}, nil
	}
	return Topic{}, fmt.Errorf("create topic %s: partitions not told, looking again", spec.Name)
}

func message(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// learnLimit asks for the topic's max.message.bytes: a batch over it would be
// refused as a whole, though each of its records is small enough.
func (k *Kafka) learnLimit(ctx context.Context, topic string) int {
	limit := int64(batchBytesMaxDefault)
	configs, err := k.admin.DescribeTopicConfigs(ctx, topic)
	if err == nil {
		if c, err := configs.On(topic, nil); err == nil && c.Err == nil {
			for _, kv := range c.Configs {
				if kv.Key != "max.message.bytes" || kv.Value == nil {
					continue
				}
				if v, err := strconv.ParseInt(*kv.Value, 10, 64); err == nil && v >= 512 {
					limit = v
				}
			}
		}
	}
	limit = min(limit, max(batchBytesMaxCeiling, int64(k.cfg.RecordBytesMax)))
	k.limits.Store(topic, int32(limit))
	return int(limit)
}

// Close gives up what is not acknowledged: Done is not called for it.
func (k *Kafka) Close() {
	k.mu.Lock()
	k.cancel() // under the lock: no mending begins after it
	k.mu.Unlock()
	k.client.Close()
	k.mended.Wait()
}

// own says whether an error is the record's and not the broker's.
func own(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.InvalidRecord) ||
		errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidTimestamp)
}
