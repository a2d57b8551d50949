package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/internal/testenv"
)

// brokers are several brokers in this process, over one ZooKeeper.
type brokers struct {
	t       *testing.T
	connect string
	configs []Config
	nodes   []*node // nil where one does not run
}

var chroots atomic.Int64

// newChroot makes a place in a ZooKeeper for a cluster of the test's own.
func newChroot(t *testing.T, server *testenv.ZooKeeperServer) (connect string) {
	t.Helper()
	chroot := fmt.Sprintf("/broker-%d-%d", time.Now().UnixNano(), chroots.Add(1))
	store, err := cluster.OpenZooKeeper(t.Context(), testLog(t), cluster.ZooKeeperConfig{Servers: []string{server.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Txn(t.Context(), cluster.Create(chroot, nil)); err != nil {
		t.Fatal(err)
	}
	return server.Addr + chroot
}

func clusterConfig(t *testing.T, id int32, connect string) Config {
	return Config{
		NodeID: id, Listen: []string{"127.0.0.1:0"}, DataDir: t.TempDir(),
		ZooKeeperConnect: connect, ZooKeeperSessionTimeout: 6 * time.Second,
		OffsetsPartitions: 4, GroupInitialRebalanceDelay: -1,
		ReplicaFetchBackoff: 50 * time.Millisecond, ReplicaLagMax: 2 * time.Second,
		ControlledShutdownBackoff: 100 * time.Millisecond,
	}
}

// startBrokers starts n brokers, with ids from 1, over the tests' ZooKeeper.
func startBrokers(t *testing.T, n int, change ...func(*Config)) *brokers {
	t.Helper()
	return startBrokersOn(t, testenv.ZooKeeper(t), n, change...)
}

func startBrokersOn(t *testing.T, server *testenv.ZooKeeperServer, n int, change ...func(*Config)) *brokers {
	t.Helper()
	bs := &brokers{t: t, connect: newChroot(t, server), nodes: make([]*node, n)}
	for i := range n {
		cfg := clusterConfig(t, int32(i+1), bs.connect)
		for _, fn := range change {
			fn(&cfg)
		}
		bs.configs = append(bs.configs, cfg)
		bs.start(int32(i + 1))
	}
	return bs
}

// start starts a broker, on the port that it had before.
func (bs *brokers) start(id int32) *node {
	bs.t.Helper()
	n := startNode(bs.t, bs.configs[id-1])
	bs.configs[id-1].Listen = []string{n.Addr()}
	bs.nodes[id-1] = n
	return n
}

func (bs *brokers) stop(id int32) {
	bs.t.Helper()
	bs.nodes[id-1].stop(bs.t)
	bs.nodes[id-1] = nil
}

func (bs *brokers) running() (list []*node) {
	for _, n := range bs.nodes {
		if n != nil {
			list = append(list, n)
		}
	}
	return list
}

func (bs *brokers) seeds() kgo.Opt {
	var addrs []string
	for _, n := range bs.running() {
		addrs = append(addrs, n.Addr())
	}
	return kgo.SeedBrokers(addrs...)
}

func (bs *brokers) client(opts ...kgo.Opt) *kgo.Client {
	bs.t.Helper()
	return bs.running()[0].client(bs.t, append([]kgo.Opt{bs.seeds()}, opts...)...)
}

func (bs *brokers) createTopic(name string, partitions int32, replicas int16, config map[string]*string) {
	bs.t.Helper()
	if _, err := kadm.NewClient(bs.client()).CreateTopic(bs.t.Context(), partitions, replicas, config, name); err != nil {
		bs.t.Fatal(err)
	}
}

// await polls until cond is true of every running broker's picture of the cluster.
func (bs *brokers) await(what string, cond func(*cluster.Image) bool) {
	bs.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		bad := ""
		for _, n := range bs.running() {
			if !cond(n.metadata.Image()) {
				bad = fmt.Sprintf("%s: not so on broker %d", what, n.cfg.NodeID)
			}
		}
		if bad == "" {
			return
		}
		if time.Now().After(deadline) {
			bs.t.Fatal(bad)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// inSync tells whether all partitions of a topic have so many replicas in sync.
func inSync(topic string, replicas int) func(*cluster.Image) bool {
	return func(im *cluster.Image) bool {
		t := im.Topic(topic)
		if t == nil {
			return false
		}
		for _, p := range t.Partitions {
			if len(p.ISR) != replicas || p.Leader == cluster.NoLeader {
				return false
			}
		}
		return true
	}
}

func TestThreeBrokersReplicate(t *testing.T) {
	bs := startBrokers(t, 3)
	bs.createTopic("t", 3, 3, nil)
	bs.await("all in sync", inSync("t", 3))
	cl := bs.client(kgo.ConsumeTopics("t"))
	produce(t, cl, "t", 0, 1000)
	if got := len(consume(t, cl, 1000)); got != 1000 {
		t.Fatalf("%d records", got)
	}
	// Every broker has all records, and learns that they are committed.
	deadline := time.Now().Add(10 * time.Second)
	for _, n := range bs.nodes {
		for {
			var end, hw int64
			for i := range int32(3) {
				p := n.partitions.Get("t", i)
				end, hw = end+p.Log().EndOffset(), hw+p.HighWatermark()
			}
			if end == 1000 && hw == 1000 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("broker %d has %d records, %d of them committed", n.cfg.NodeID, end, hw)
			}
			<-time.After(5 * time.Millisecond)
		}
	}
}

// A producer does not notice that the brokers are stopped and started, one
// after the other.
func TestRollingRestart(t *testing.T) {
	bs := startBrokers(t, 3)
	bs.createTopic("t", 3, 3, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")})
	bs.await("all in sync", inSync("t", 3))
	cl := bs.client(kgo.RequiredAcks(kgo.AllISRAcks()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			r := &kgo.Record{Topic: "t", Value: fmt.Appendf(nil, "value-%06d", n)}
			if err := cl.ProduceSync(context.WithoutCancel(ctx), r).FirstErr(); err != nil {
				t.Errorf("record %d: %v", n, err)
			}
			n++
		}
		done <- n
	}()
	for id := int32(1); id <= 3; id++ {
		bs.stop(id)
		bs.start(id)
		bs.await("all in sync again", inSync("t", 3))
	}
	cancel()
	n := <-done
	records := consume(t, bs.client(kgo.ConsumeTopics("t")), n)
	seen := map[string]bool{}
	for _, r := range records {
		seen[string(r.Value)] = true
	}
	if len(records) != n || len(seen) != n {
		t.Fatalf("%d records were acknowledged, %d are there, %d of them different", n, len(records), len(seen))
	}
}

// The start of a log moves on all replicas.
func TestDeleteRecordsOnAllReplicas(t *testing.T) {
	bs := startBrokers(t, 3)
	bs.createTopic("t", 1, 3, nil)
	bs.await("all in sync", inSync("t", 3))
	cl := bs.client()
	produce(t, cl, "t", 0, 100)
	offsets := kadm.Offsets{}
	offsets.AddOffset("t", 0, 40, -1)
	if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), offsets); err != nil {
		t.Fatal(err)
	}
	for _, n := range bs.nodes {
		if start := n.partitions.Get("t", 0).Log().StartOffset(); start != 40 {
			t.Errorf("the log of broker %d starts at %d", n.cfg.NodeID, start)
		}
	}
}

// Whichever broker is asked, the controller decides.
func TestAnyBrokerTakesChanges(t *testing.T) {
	bs := startBrokers(t, 3)
	for i, n := range bs.nodes {
		topic := fmt.Sprintf("t%d", i)
		cl := n.client(t, kgo.DisableIdempotentWrite())
		req := kmsg.NewPtrCreateTopicsRequest()
		one := kmsg.NewCreateTopicsRequestTopic()
		one.Topic, one.NumPartitions, one.ReplicationFactor = topic, 2, 3
		req.TimeoutMillis, req.Topics = 10_000, append(req.Topics, one)
		got, err := cl.Broker(int(n.cfg.NodeID)).Request(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if c := got.(*kmsg.CreateTopicsResponse).Topics[0]; c.ErrorCode != 0 || c.NumPartitions != 2 {
			t.Errorf("through broker %d: %+v", n.cfg.NodeID, c)
		}
		bs.await("known everywhere", inSync(topic, 3))
		// A topic that is made because it is asked for goes the same way.
		auto := kmsg.NewPtrMetadataRequest()
		auto.AllowAutoTopicCreation = true
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = kmsg.StringPtr("auto-" + topic)
		auto.Topics = append(auto.Topics, asked)
		got, err = cl.Broker(int(n.cfg.NodeID)).Request(t.Context(), auto)
		if err != nil || got.(*kmsg.MetadataResponse).Topics[0].ErrorCode != 0 {
			t.Errorf("through broker %d: %+v, %v", n.cfg.NodeID, got, err)
		}
	}
}

// A consumer is sent to the replica in its rack, and reads it up to what is committed.
func TestClosestReplica(t *testing.T) {
	bs := startBrokers(t, 3, func(cfg *Config) {
		cfg.Rack, cfg.RackAwareReads = fmt.Sprintf("rack-%d", cfg.NodeID), true
	})
	bs.createTopic("t", 3, 3, nil)
	bs.await("all in sync", inSync("t", 3))
	produce(t, bs.client(), "t", 0, 3000)
	cl := bs.client(kgo.ConsumeTopics("t"), kgo.Rack("rack-2"))
	consume(t, cl, 3000)
	produce(t, bs.client(), "t", 3000, 3100)
	consume(t, cl, 100)
	for _, n := range bs.nodes {
		if sent := series(t, n.reg, "sluice_broker_bytes_out_total")["topic=t "]; (sent > 0) != (n.cfg.NodeID == 2) {
			t.Errorf("broker %d gave %v bytes", n.cfg.NodeID, sent)
		}
	}
}

// consumeOver reads n records while brokers come and go: that one cannot be
// reached is told by the client, which tries the others.
func consumeOver(t *testing.T, cl *kgo.Client, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for got := 0; got < n; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records: %v", got, n, fetches.Err())
		}
		got += fetches.NumRecords()
	}
}

// A group's committed offsets and members move with the leader of their
// partition, and nobody is ever told that there are none.
func TestCoordinatorMoves(t *testing.T) {
	bs := startBrokers(t, 3, func(cfg *Config) { cfg.OffsetsPartitions = 1 })
	bs.createTopic("t", 1, 3, nil)
	bs.await("all in sync", inSync("t", 3))
	cl := bs.client(kgo.ConsumeTopics("t"), kgo.ConsumerGroup("g"), kgo.DisableAutoCommit())
	for round := range 4 {
		produce(t, cl, "t", round*100, round*100+100)
		consumeOver(t, cl, 100)
		if err := cl.CommitUncommittedOffsets(t.Context()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		leader := bs.nodes[0].metadata.Image().Topic(cluster.OffsetsTopic).Partitions[0].Leader
		bs.stop(leader)
		for answers := 0; answers < 20 && t.Context().Err() == nil; {
			offsets, err := kadm.NewClient(bs.client()).FetchOffsets(t.Context(), "g")
			var refused *net.OpError
			if errors.As(err, &refused) {
				continue // the broker that stopped was still named as the coordinator
			}
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			answers++
			if o, ok := offsets.Lookup("t", 0); !ok || o.Err != nil || o.At != int64(round*100+100) {
				t.Fatalf("round %d: committed %+v", round, o)
			}
		}
		bs.start(leader)
		bs.await("offsets in sync", inSync(cluster.OffsetsTopic, 3))
		bs.await("in sync", inSync("t", 3))
	}
}

// A stop in good order moves what the broker leads first: an idempotent producer
// sees no error, and hardly a pause.
func TestControlledShutdownPause(t *testing.T) {
	bs := startBrokers(t, 3)
	bs.createTopic("t", 1, 3, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")})
	bs.await("all in sync", inSync("t", 3))
	cl := bs.client(kgo.RequiredAcks(kgo.AllISRAcks()))
	produce(t, cl, "t", 0, 100)
	leader := bs.nodes[0].metadata.Image().Topic("t").Partitions[0].Leader
	stopped := make(chan struct{})
	var longest time.Duration
	go func() {
		bs.stop(leader)
		close(stopped)
	}()
	last := time.Now()
	for n := 100; ; n++ {
		produce(t, cl, "t", n, n+1)
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
		select {
		case <-stopped:
			t.Logf("longest pause %v in %d records", longest, n-100)
			if longest > 2*time.Second {
				t.Errorf("a pause of %v", longest)
			}
			return
		default:
		}
	}
}
