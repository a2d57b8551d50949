package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// ControllerConfig says what a controller decides by default.
type ControllerConfig struct {
	// DefaultPartitions is num.partitions, for a topic created with -1. Zero means 1.
	DefaultPartitions int32
	// DefaultReplicationFactor is default.replication.factor, for a topic
	// created with -1. Zero means 1.
	DefaultReplicationFactor int16
	// PartitionsPerTopicMax bounds the partitions of one topic. Zero means 10,000.
	PartitionsPerTopicMax int32
	// BrokerConfigs are the settings that a broker takes while it runs; see AlterConfigs.
	BrokerConfigs []ConfigDef
	// Now is the clock for the timestamps in the store. Nil means time.Now.
	Now func() time.Time
	// NewTopicID makes topic ids. Nil means random ones.
	NewTopicID func() TopicID
}

// Controller decides and writes every change of the cluster. It keeps the
// newest image it decided, which its own broker like the others learns of by an
// [Update].
//
// A Controller is safe for concurrent use. Its one lock is held over a change's
// write to the store and over the subscribers; it is taken before any lock a
// subscriber takes.
type Controller struct {
	log   *slog.Logger
	store Store
	meta  *Metadata // of the controller's own broker
	cfg   ControllerConfig

	mu           sync.Mutex // guards what follows, and orders changes
	image        *Image     // as decided
	seq          int64      // of the last update
	self         Registration
	epochVersion int32 // of /controller_epoch, checked by every write
	epoch        int32 // the controller epoch
}

// NewController returns a controller that is not yet elected; call Start. meta
// is the picture of the broker that it runs in.
func NewController(log *slog.Logger, store Store, meta *Metadata, cfg ControllerConfig) *Controller {
	return &Controller{log: log, store: store, meta: meta, cfg: cfg.withDefaults()}
}

func (cfg ControllerConfig) withDefaults() ControllerConfig {
	if cfg.DefaultPartitions == 0 {
		cfg.DefaultPartitions = 1
	}
	if cfg.DefaultReplicationFactor == 0 {
		cfg.DefaultReplicationFactor = 1
	}
	if cfg.PartitionsPerTopicMax == 0 {
		cfg.PartitionsPerTopicMax = 10_000
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewTopicID == nil {
		cfg.NewTopicID = randomTopicID
	}
	return cfg
}

// publish makes im what is decided, and tells the brokers. The caller holds mu.
func (c *Controller) publish(im *Image) {
	u := Diff(c.image, im)
	c.seq++
	u.Seq = c.seq
	c.image = im
	if err := c.meta.Receive(u); err != nil {
		c.log.Error("this broker does not take its controller's update", "error", err)
	}
}

// NewTopic asks for a topic.
type NewTopic struct {
	Name string
	// Partitions is their number; -1 means the broker's default, also where
	// Assignment says it.
	Partitions int32
	// ReplicationFactor; -1 means the broker's default, also where Assignment says it.
	ReplicationFactor int16
	// Assignment has the replicas of each partition, in order of preference.
	// Nil lets the controller choose.
	Assignment map[int32][]int32
	// Config has the topic's own settings; a nil value is refused.
	Config map[string]*string
}

// CreateResult answers for one topic: either Err or Topic is set.
type CreateResult struct {
	Name  string
	Topic *Topic
	Err   error
}

// CreateTopics makes topics; each answers for itself, in the order asked. With
// validateOnly nothing is made. It returns once the topics are durable and all
// subscribers have seen them. Errors are [ErrTopicExists], [*InvalidTopicError],
// [*InvalidConfigError], [ErrInvalidPartitions], [ErrInvalidReplicationFactor],
// [ErrInvalidAssignment], [ErrInvalidRequest], [ErrNotController] or the store's.
func (c *Controller) CreateTopics(ctx context.Context, topics []NewTopic, validateOnly bool) []CreateResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]CreateResult, len(topics))
	counts := make(map[string]int, len(topics))
	for _, t := range topics {
		counts[t.Name]++
	}
	im := c.image
	var planned []int
	for i, t := range topics {
		out[i].Name = t.Name
		if counts[t.Name] > 1 {
			out[i].Err = fmt.Errorf("%w: topic %q appears more than once in the request", ErrInvalidRequest, t.Name)
			continue
		}
		if out[i].Topic, out[i].Err = planTopic(im, t, c.cfg); out[i].Err == nil {
			im = im.With(out[i].Topic) // so that a later one that collides with it is refused
			planned = append(planned, i)
		}
	}
	if validateOnly || len(planned) == 0 {
		return out
	}
	var ops []Op
	for _, i := range planned {
		ops = append(ops, createTopicOps(out[i].Topic, c.epoch)...)
	}
	if err := c.write(ctx, ops); err != nil {
		for _, i := range planned {
			out[i].Topic, out[i].Err = nil, fmt.Errorf("create topic %q: %w", out[i].Name, err)
		}
		c.reload(ctx)
		return out
	}
	c.publish(im)
	return out
}

// DeleteTopics deletes topics by name, also while they are written and read.
// Each answers for itself. A topic is gone from the image and from its
// partitions' directories before its nodes go, so that a crash in between ends
// with the deletion done. Errors are [ErrUnknownTopic], [ErrNotController] or
// the store's.
func (c *Controller) DeleteTopics(ctx context.Context, names []string) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]error, len(names))
	im := c.image
	for i, name := range names {
		t := im.Topic(name)
		if t == nil {
			out[i] = fmt.Errorf("%w: %q", ErrUnknownTopic, name)
			continue
		}
		out[i] = c.deleteTopic(ctx, t)
		im = c.image
	}
	return out
}

func (c *Controller) deleteTopic(ctx context.Context, t *Topic) error {
	if err := c.write(ctx, []Op{Create(deleteTopicPath(t.Name), nil)}); err != nil && !errors.Is(err, ErrNodeExists) {
		return fmt.Errorf("delete topic %q: %w", t.Name, err)
	}
	c.publish(c.image.Without(t.Name))
	// The deletion is decided and will be finished at the next start if not now.
	if err := c.finishDeletion(ctx, t.Name); err != nil {
		return fmt.Errorf("delete topic %q: %w", t.Name, err)
	}
	return nil
}

// NewPartitions asks for a topic to have Total partitions.
type NewPartitions struct {
	Topic string
	Total int32
	// Assignment has the replicas of each added partition. Nil lets the controller choose.
	Assignment [][]int32
}

// CreatePartitions adds partitions to topics; each answers for itself, in
// order. Errors are [ErrUnknownTopic], [ErrInvalidPartitions],
// [ErrInvalidAssignment], [ErrInvalidRequest], [ErrNotController] or the store's.
func (c *Controller) CreatePartitions(ctx context.Context, asked []NewPartitions, validateOnly bool) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]error, len(asked))
	counts := make(map[string]int, len(asked))
	for _, a := range asked {
		counts[a.Topic]++
	}
	for i, a := range asked {
		if counts[a.Topic] > 1 {
			out[i] = fmt.Errorf("%w: topic %q appears more than once in the request", ErrInvalidRequest, a.Topic)
			continue
		}
		out[i] = c.createPartitions(ctx, a, validateOnly)
	}
	return out
}

func (c *Controller) createPartitions(ctx context.Context, asked NewPartitions, validateOnly bool) error {
	im := c.image
	grown, err := planPartitions(im, asked, c.cfg)
	if err != nil || validateOnly {
		return err
	}
	old := im.Topic(asked.Topic)
	_, stat, err := c.store.Get(ctx, topicPath(old.Name))
	if err != nil {
		return fmt.Errorf("add partitions to topic %q: %w", old.Name, err)
	}
	ops := []Op{Set(topicPath(grown.Name), topicNode(grown), stat.Version)}
	for p := len(old.Partitions); p < len(grown.Partitions); p++ {
		ops = append(ops, createPartitionOps(grown, int32(p), c.epoch)...)
	}
	if err := c.write(ctx, ops); err != nil {
		c.reload(ctx)
		return fmt.Errorf("add partitions to topic %q: %w", old.Name, err)
	}
	c.publish(im.With(grown))
	return nil
}

// AllocateProducerIDs takes the next block of producer ids, durably, and
// returns its first and the number of ids in it. No id is ever given twice.
func (c *Controller) AllocateProducerIDs(ctx context.Context) (first int64, count int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, op, err := c.nextProducerIDs(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("allocate producer ids: %w", err)
	}
	if err := c.write(ctx, []Op{op}); err != nil {
		return 0, 0, fmt.Errorf("allocate producer ids: %w", err)
	}
	return first, producerIDBlock, nil
}

func (c *Controller) nextProducerIDs(ctx context.Context) (int64, Op, error) {
	data, stat, err := c.store.Get(ctx, producerIDsPath)
	if errors.Is(err, ErrNoNode) {
		return 0, Create(producerIDsPath, producerIDsNode(c.self.Broker.ID, 0, producerIDBlock-1)), nil
	}
	if err != nil {
		return 0, Op{}, err
	}
	_, end, err := parseProducerIDsNode(data)
	if err != nil {
		return 0, Op{}, err
	}
	first := end + 1
	return first, Set(producerIDsPath, producerIDsNode(c.self.Broker.ID, first, first+producerIDBlock-1), stat.Version), nil
}

// txnOpsMax bounds one transaction, so that it stays under the largest request
// that a ZooKeeper takes by default (jute.maxbuffer, 1 MiB). What needs more is
// written in several, in an order that a restart can complete.
const txnOpsMax = 500

// write applies ops while this controller is in office. The caller holds mu.
func (c *Controller) write(ctx context.Context, ops []Op) error {
	for len(ops) > 0 {
		n := min(len(ops), txnOpsMax)
		txn := append([]Op{Check(controllerEpochPath, c.epochVersion)}, ops[:n]...)
		if err := c.store.Txn(ctx, txn...); err != nil {
			return c.explain(err)
		}
		ops = ops[n:]
	}
	return nil
}

// explain turns a failed check of the epoch into ErrNotController.
func (c *Controller) explain(err error) error {
	var txn *TxnError
	if errors.As(err, &txn) && txn.Index == 0 {
		return fmt.Errorf("%w: another broker has been elected since epoch %d", ErrNotController, c.epoch)
	}
	return err
}
