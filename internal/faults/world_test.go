package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	// sessionTimeout is after how long without a word ZooKeeper, or Kafka's
	// controller, takes a broker for dead.
	sessionTimeout = 3 * time.Second
	// wholeWithin is how long after the end of a fault all replicas are in sync
	// again. A JVM on a busy machine takes 20 s to start.
	wholeWithin = 60 * time.Second
	groupWithin = 30 * time.Second
	poll        = 50 * time.Millisecond
	askTimeout  = 3 * time.Second

	replicas  = 3
	diskBytes = 256 << 20
)

// world is a cluster and what it stands on. Faults work on it one at a time, on
// the test's goroutine.
type world struct {
	t         *testing.T
	net       *testenv.Network
	zooKeeper []*testenv.ZooKeeperServer // none beneath Apache Kafka
	cluster   *testenv.Cluster
	client    *kgo.Client
	admin     *kadm.Client
	rng       *rand.Rand
	topic     string // of the workload now

	outageOver time.Time // when the round's fault left enough brokers again
}

func newWorld(t *testing.T, net *testenv.Network, cluster *testenv.Cluster, seed uint64) *world {
	t.Helper()
	client, err := kgo.NewClient(clientOptions(cluster.Addrs(), kgo.RetryTimeout(askTimeout))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &world{t: t, net: net, cluster: cluster, client: client, admin: kadm.NewClient(client), rng: rand.New(rand.NewPCG(seed, seed))}
}

// newSluice is three brokers of ours and a ZooKeeper, each on a host of its own.
func newSluice(t *testing.T, seed uint64, ensemble int) *world {
	t.Helper()
	net := testenv.NewNetwork(t)
	var hosts []*testenv.Host
	for i := range ensemble {
		hosts = append(hosts, net.Host(t, fmt.Sprintf("zookeeper-%d", i+1)))
	}
	servers := testenv.StartZooKeeperOn(t, hosts...)
	connect := ""
	for _, s := range servers {
		connect += "," + s.Addr
	}
	cfg := testenv.ClusterConfig{Nodes: *nodes, Network: net, WallClock: *clock, Properties: map[string]string{
		"zookeeper.session.timeout.ms": fmt.Sprint(sessionTimeout.Milliseconds()),
		"replica.lag.time.max.ms":      fmt.Sprint(sessionTimeout.Milliseconds()),
		"auto.create.topics.enable":    "false",
	}}
	if net.CanCut() {
		cfg.DiskBytes = diskBytes
	}
	w := newWorld(t, net, testenv.StartCluster(t, connect[1:]+"/sluice", cfg), seed)
	w.zooKeeper = servers
	return w
}

func newKafka(t *testing.T, seed uint64) *world {
	t.Helper()
	net := testenv.NewNetwork(t)
	cfg := testenv.ClusterConfig{Nodes: *nodes, Network: net, Properties: map[string]string{
		"broker.session.timeout.ms":    fmt.Sprint(sessionTimeout.Milliseconds()),
		"broker.heartbeat.interval.ms": "500",
		"replica.lag.time.max.ms":      fmt.Sprint(sessionTimeout.Milliseconds()),
		"auto.create.topics.enable":    "false",
		"log.index.size.max.bytes":     "1048576", // else each index takes 10 MB of the small disk
	}}
	if net.CanCut() {
		cfg.DiskBytes = diskBytes
	}
	return newWorld(t, net, testenv.StartKafkaCluster(t, cfg), seed)
}

// makeTopic makes the topic that the next rounds work on.
func (w *world) makeTopic(name string) {
	w.t.Helper()
	w.await(wholeWithin, "topic "+name+" is made", func(ctx context.Context) error {
		two := "2"
		_, err := w.admin.CreateTopic(ctx, partitions, replicas, map[string]*string{"min.insync.replicas": &two}, name)
		if err != nil && w.exists(ctx, name) {
			err = nil // an earlier try
		}
		return err
	})
	w.topic = name
	w.awaitWhole()
}

func (w *world) exists(ctx context.Context, topic string) bool {
	topics, err := w.admin.ListTopics(ctx, topic)
	return err == nil && topics.Has(topic)
}

// await asks again and again until done returns nil.
func (w *world) await(limit time.Duration, what string, done func(context.Context) error) {
	w.t.Helper()
	if err := w.until(limit, done); err != nil {
		w.t.Fatalf("not within %s: %s: %v", limit, what, err)
	}
}

func (w *world) until(limit time.Duration, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// hold lets a fault last.
func (w *world) hold(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
	}
}

// between draws a duration.
func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)))
}

// awaitWhole waits until all replicas of all topics are in sync.
func (w *world) awaitWhole() {
	w.t.Helper()
	w.await(wholeWithin, "all replicas are in sync", w.whole)
}

func (w *world) whole(ctx context.Context) error {
	topics, err := w.admin.ListTopicsWithInternal(ctx)
	if err != nil {
		return err
	}
	if n := len(topics[w.topic].Partitions); n != partitions {
		return fmt.Errorf("topic %s has %d partitions", w.topic, n)
	}
	for _, topic := range topics {
		for _, p := range topic.Partitions {
			if p.Err != nil || p.Leader < 0 || len(p.ISR) != len(p.Replicas) {
				return fmt.Errorf("%s-%d: leader %d, in sync %v of %v: %w", topic.Topic, p.Partition, p.Leader, p.ISR, p.Replicas, errors.Join(p.Err))
			}
		}
	}
	return nil
}

// partition is a partition of the workload's topic as the cluster says it is.
func (w *world) partition(number int) kadm.PartitionDetail {
	w.t.Helper()
	var detail kadm.PartitionDetail
	w.await(*within, "a leader is known", func(ctx context.Context) error {
		topics, err := w.admin.ListTopics(ctx, w.topic)
		if err != nil {
			return err
		}
		detail = topics[w.topic].Partitions[int32(number)]
		if detail.Err != nil {
			return detail.Err
		}
		if w.cluster.Node(detail.Leader) == nil {
			return fmt.Errorf("partition %d has no leader", number)
		}
		return nil
	})
	return detail
}

// leader is the leader of a partition that is drawn.
func (w *world) leader() *testenv.Node {
	w.t.Helper()
	return w.cluster.Node(w.partition(w.rng.IntN(partitions)).Leader)
}

// follower leads not the partition that is drawn, but follows.
func (w *world) follower() *testenv.Node {
	w.t.Helper()
	p := w.partition(w.rng.IntN(partitions))
	followers := slices.DeleteFunc(slices.Clone(p.Replicas), func(id int32) bool { return id == p.Leader })
	return w.cluster.Node(followers[w.rng.IntN(len(followers))])
}

func (w *world) controller() *testenv.Node {
	w.t.Helper()
	var node *testenv.Node
	w.await(*within, "a controller is known", func(ctx context.Context) error {
		id, err := w.controllerID(ctx)
		if node = w.cluster.Node(id); err == nil && node == nil {
			err = fmt.Errorf("controller %d", id)
		}
		return err
	})
	return node
}

// controllerID asks Apache Kafka for the leader of its controllers, since the
// controller in its metadata is any broker.
func (w *world) controllerID(ctx context.Context) (int32, error) {
	if w.cluster.Name != "kafka" {
		m, err := w.admin.BrokerMetadata(ctx)
		return m.Controller, err
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = []kmsg.DescribeQuorumRequestTopicPartition{kmsg.NewDescribeQuorumRequestTopicPartition()}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, w.client)
	if err != nil {
		return -1, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return -1, fmt.Errorf("no quorum in the answer: error %d", resp.ErrorCode)
	}
	return resp.Topics[0].Partitions[0].LeaderID, nil
}

// others are the nodes beside one.
func (w *world) others(n *testenv.Node) []*testenv.Node {
	return slices.DeleteFunc(slices.Clone(w.cluster.Nodes), func(o *testenv.Node) bool { return o == n })
}

func (w *world) restart() {
	w.t.Helper()
	if err := w.cluster.Restart(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}
