package group

import (
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf16"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
)

// Coordinator serves the groups whose partitions of the offsets topic this broker leads: one shard
// for each partition. It is safe for concurrent use.
//
// The broker tells it of the cluster through SetPartitions, SetImage, Elect, Resign and TopicsDeleted.
// Answers come through a function: at once on the caller's goroutine where nothing has to be waited
// for, later from any goroutine otherwise. A function is called exactly once.
type Coordinator struct {
	log     *slog.Logger
	clock   coordinator.Clock
	cfg     Config
	metrics *metrics
	newID   func() string // makes the random part of member ids; does not change once there are shards
	loads   chan struct{} // one token for each running load
	loading sync.WaitGroup
	image   atomic.Pointer[cluster.Image]

	mu         sync.RWMutex // guards what follows
	shards     map[int32]*shard
	partitions int32 // of the offsets topic; 0: not created yet
}

type shard = coordinator.Shard[*machine]

// New returns a coordinator that leads no partition yet. reg may be nil.
func New(log *slog.Logger, reg prometheus.Registerer, clock coordinator.Clock, cfg Config) *Coordinator {
	cfg = cfg.withDefaults()
	return &Coordinator{
		log: log, clock: clock, cfg: cfg, metrics: newMetrics(reg), newID: uuid.NewString,
		loads:  make(chan struct{}, cfg.LoadsMax),
		shards: make(map[int32]*shard),
	}
}

// PartitionFor returns the partition of the offsets topic that holds a group: the absolute value of
// Java's String.hashCode, with the smallest integer as 0, modulo the partitions.
func PartitionFor(group string, partitions int32) int32 {
	var h int32
	for _, unit := range utf16.Encode([]rune(group)) {
		h = 31*h + int32(unit)
	}
	if h == math.MinInt32 {
		return 0
	}
	return max(h, -h) % partitions
}

// SetPartitions says how many partitions the offsets topic has; 0 while it does not exist. The
// number of an existing topic must not change: groups would be looked for in the wrong partitions.
func (c *Coordinator) SetPartitions(n int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.partitions = n
}

// Elect begins the leadership of a partition of the offsets topic in a leader epoch: it answers
// ErrLoading until part is replayed. It returns at once. An epoch that is older than what is known
// is ignored, and so is one that is already led.
func (c *Coordinator) Elect(partition, epoch int32, part coordinator.Log) {
	load := c.shardOf(partition).Elect(epoch, part)
	if load == nil {
		return
	}
	c.loading.Go(func() {
		c.loads <- struct{}{}
		defer func() { <-c.loads }()
		load()
	})
}

// Resign ends the leadership of a partition, because another broker leads it in the given epoch, or
// (epoch -1) because it is gone. Members that wait are answered with ErrNotCoordinator.
func (c *Coordinator) Resign(partition, epoch int32) {
	c.mu.RLock()
	s := c.shards[partition]
	c.mu.RUnlock()
	if s != nil {
		s.Resign(epoch)
	}
}

// Close resigns from every partition and waits for loads to end.
func (c *Coordinator) Close() {
	for _, s := range c.allShards() {
		s.Resign(-1)
	}
	c.loading.Wait()
}

// TopicsDeleted removes the committed offsets of deleted topics from every group of this
// coordinator.
func (c *Coordinator) TopicsDeleted(topics ...string) {
	for _, s := range c.allShards() {
		s.DoWhenActive(func(m *machine, _ time.Time, out *coordinator.Actions) { m.topicsDeleted(topics, out) })
	}
}

// shardOf returns the shard of a partition, made if there is none.
func (c *Coordinator) shardOf(partition int32) *shard {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.shards[partition]
	if s == nil {
		log := c.log.With("topic", cluster.OffsetsTopic, "partition", partition)
		newMachine := func() *machine { return newMachine(log, c.cfg, c.metrics, c.newID, c.image.Load) }
		s = coordinator.NewShard(log, c.clock, newMachine, coordinator.Config{})
		c.shards[partition] = s
	}
	return s
}

// allShards returns the shards by partition.
func (c *Coordinator) allShards() []*shard {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make([]*shard, 0, len(c.shards))
	for _, p := range slices.Sorted(maps.Keys(c.shards)) {
		all = append(all, c.shards[p])
	}
	return all
}

// do runs an input on the shard that holds a group.
func (c *Coordinator) do(group string, f func(m *machine, now time.Time, out *coordinator.Actions)) error {
	c.mu.RLock()
	var s *shard
	if c.partitions > 0 {
		s = c.shards[PartitionFor(group, c.partitions)]
	}
	c.mu.RUnlock()
	if s == nil {
		return ErrNotCoordinator
	}
	return s.Do(f)
}
