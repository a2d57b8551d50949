package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestClusterAgainstKafka measures three of our brokers and a ZooKeeper against three nodes of Apache Kafka in one run, and prints the
// table of bench/README.md. Like TestAgainstKafka it asserts nothing about speed: make bench-cluster.
var (
	clusterAgainstKafka = flag.Bool("cluster-against-kafka", false, "measure three brokers against three nodes of Apache Kafka")
	clusterKills        = flag.Int("kills", 5, "kills and restarts of each kind in each cluster; the median is printed")
	clusterPartitions   = flag.Int("partitions", 2000, "partitions whose leaders fail over")
	clusterAlone        = flag.Bool("alone", false, "measure our cluster only")
	clusterMade         = flag.Int("made", 5000, "partitions that are created")
)

const (
	benchSession  = 2 * time.Second
	benchReplicas = 3
	probeRate     = 1000 // records per second of the producer that notices interruptions
	settleTimeout = 3 * time.Minute
	settlePoll    = 50 * time.Millisecond
)

// A clusterRival is one running cluster.
type clusterRival struct {
	*testenv.Cluster
	admin     *kgo.Client
	zooKeeper *zk.Conn // ours only
	ready     time.Duration
}

func TestClusterAgainstKafka(t *testing.T) {
	if !*clusterAgainstKafka {
		t.Skip("a measurement of minutes: make bench-cluster")
	}
	rivals := []*clusterRival{startOurCluster(t)}
	if !*clusterAlone {
		rivals = append(rivals, startKafkaCluster(t))
	}
	fmt.Println("| load | figure | sluice | Kafka | ratio |\n|---|---|---|---|---|")
	both := func(load, figure string, of func(*clusterRival) float64) {
		clusterRow(load, figure, eachRival(rivals, of))
	}

	both("start of three nodes", "ready after, s", func(r *clusterRival) float64 { return r.ready.Seconds() })
	clusterLoads(t, rivals)
	interruptions(t, rivals)
	both(fmt.Sprintf("creation of %d partitions", *clusterMade), "s", func(r *clusterRival) float64 { return r.create(t, "made", *clusterMade).Seconds() })
	for _, r := range rivals {
		r.drop(t, "made")
	}
	both(fmt.Sprintf("failover of %d partitions", *clusterPartitions), "all led again, s after the session", func(r *clusterRival) float64 {
		return r.failover(t).Seconds()
	})
	both("after all", "resident MB of three nodes", func(r *clusterRival) float64 {
		mb := 0.0
		for _, n := range r.Nodes {
			mb += residentMB(t, rival{pid: n.Process().PID()})
		}
		return mb
	})
}

// eachRival is a figure of each cluster.
func eachRival(rivals []*clusterRival, of func(*clusterRival) float64) (values []float64) {
	for _, r := range rivals {
		values = append(values, of(r))
	}
	return values
}

// clusterRow prints ours and, if it was measured, Kafka's.
func clusterRow(load, figure string, values []float64) {
	if len(values) == 1 {
		fmt.Printf("| %s | %s | %.4g | | |\n", load, figure, values[0])
		return
	}
	row(load, figure, values[0], values[1])
}

func startOurCluster(t *testing.T) *clusterRival {
	testenv.Sluice(t) // built before the clock runs
	zooKeeper := testenv.StartZooKeeper(t)
	start := time.Now()
	c := testenv.StartCluster(t, zooKeeper.Addr+"/sluice", testenv.ClusterConfig{Properties: map[string]string{
		"zookeeper.session.timeout.ms": strconv.FormatInt(benchSession.Milliseconds(), 10), "log.segment.delete.delay.ms": "100"}})
	r := &clusterRival{Cluster: c, ready: time.Since(start)}
	conn, _, err := zk.Connect([]string{zooKeeper.Addr}, 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	r.zooKeeper = conn
	r.connect(t)
	return r
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func startKafkaCluster(t *testing.T) *clusterRival {
	start := time.Now()
	c := testenv.StartKafkaCluster(t, testenv.ClusterConfig{Measured: true, Properties: map[string]string{
		"broker.session.timeout.ms": strconv.FormatInt(benchSession.Milliseconds(), 10), "broker.heartbeat.interval.ms": "500",
		"log.segment.delete.delay.ms": "100", "file.delete.delay.ms": "100"}})
	r := &clusterRival{Cluster: c, ready: time.Since(start)}
	r.connect(t)
	return r
}

func (r *clusterRival) connect(t *testing.T) {
	r.admin = r.client(t)
	r.settle(t, "every node is known", func(ctx context.Context) error {
		m, err := kadm.NewClient(r.admin).BrokerMetadata(ctx)
		if err == nil && len(m.Brokers) != len(r.Nodes) {
			err = fmt.Errorf("%d nodes are known", len(m.Brokers))
		}
		return err
	})
}

// client notices a dead or moved leader as soon as a client reasonably can.
func (r *clusterRival) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(ProduceOptions(kgo.SeedBrokers(r.Addrs()...), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.RequestTimeoutOverhead(5*time.Second), kgo.UnknownTopicRetries(-1), kgo.ProducerLinger(0),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond })), opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// settle asks until done returns nil.
func (r *clusterRival) settle(t *testing.T, what string, done func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTimeout)
	defer cancel()
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for {
		err := done(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %s: %v", r.Name, settleTimeout, what, err)
		}
	}
}

// whole waits until all replicas are in sync.
func (r *clusterRival) whole(t *testing.T) {
	t.Helper()
	r.settle(t, "all replicas are in sync", func(ctx context.Context) error {
		topics, err := kadm.NewClient(r.admin).ListTopicsWithInternal(ctx)
		for _, topic := range topics {
			for _, p := range topic.Partitions {
				if p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
					err = fmt.Errorf("%s-%d: leader %d, in sync %v of %v", p.Topic, p.Partition, p.Leader, p.ISR, p.Replicas)
				}
			}
		}
		return err
	})
}

// topic makes a topic with three replicas of each partition, the first of them, its leader, as leader says; and waits for it.
func (r *clusterRival) topic(t *testing.T, name string, partitions int, leader func(partition int) int) {
	t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	for p := range partitions {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition = int32(p)
		for i := range benchReplicas {
			a.Replicas = append(a.Replicas, r.Nodes[(leader(p)+i)%len(r.Nodes)].ID)
		}
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, a)
	}
	config := kmsg.NewCreateTopicsRequestTopicConfig()
	config.Name, config.Value = "min.insync.replicas", kmsg.StringPtr("2")
	topic.Configs = append(topic.Configs, config)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.Topics = int32(settleTimeout.Milliseconds()), append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), r.admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("%s: create topic %s: %v", r.Name, name, err)
	}
	r.whole(t)
	if err := waitForLeaders(t.Context(), r.admin, name); err != nil {
		t.Fatal(err)
	}
}

func (r *clusterRival) drop(t *testing.T, topics ...string) {
	t.Helper()
	if _, err := kadm.NewClient(r.admin).DeleteTopics(t.Context(), topics...); err != nil {
		t.Fatal(err)
	}
}

func spread(partition int) int { return partition % benchReplicas }
func onFirst(int) int          { return 0 }

// A clusterSample is one run of a load: the CPU of each node, in their order.
type clusterSample struct {
	stats Stats
	cpu   []time.Duration
}

func (s clusterSample) perGB(nodes ...int) float64 {
	var all time.Duration
	for _, n := range nodes {
		all += s.cpu[n]
	}
	return all.Seconds() / (float64(s.stats.Bytes) / 1e9)
}

func clusterLoads(t *testing.T, rivals []*clusterRival) {
	raw := func(size int) func(context.Context, *kgo.Client, string) (Stats, error) {
		return func(ctx context.Context, c *kgo.Client, topic string) (Stats, error) {
			return RawProduce(ctx, c, RawConfig{Topic: topic, Duration: *loadFor, RecordBytes: size, Acks: -1, Codec: "none", InFlight: 2}, nil)
		}
	}
	produce := func(cfg ProduceConfig) func(context.Context, *kgo.Client, string) (Stats, error) {
		return func(ctx context.Context, c *kgo.Client, topic string) (Stats, error) {
			cfg.Topic, cfg.Duration = topic, *loadFor
			return Produce(ctx, c, cfg, nil)
		}
	}
	for _, l := range []struct {
		name   string
		leader func(int) int
		apart  bool // leaders on the first node alone, so that its cost and the followers' stand apart
		run    func(context.Context, *kgo.Client, string) (Stats, error)
	}{
		{"raw produce 1 KiB", spread, false, raw(1024)},
		{"raw produce 100 B", spread, false, raw(100)},
		{"raw produce 1 KiB, one leader of all", onFirst, true, raw(1024)},
		{"franz-go produce 1 KiB", spread, false, produce(ProduceConfig{RecordBytes: 1024})},
		{"1,000/s of 1 KiB, linger 0", spread, false, produce(ProduceConfig{RecordBytes: 1024, Rate: 1000})},
	} {
		samples := make([][]clusterSample, len(rivals))
		for _, r := range rivals {
			r.measure(t, l.leader, l.run) // a JVM is slow until it is warm
		}
		for range *runsEach {
			for i, r := range rivals {
				samples[i] = append(samples[i], r.measure(t, l.leader, l.run))
			}
		}
		figure := func(what string, of func(clusterSample) float64) {
			var values []float64
			for _, s := range samples {
				values = append(values, clusterMedian(s, of))
			}
			clusterRow(l.name, what, values)
		}
		figure("MB/s", func(s clusterSample) float64 { return s.stats.MegabytesPerSecond() })
		figure("CPU of all nodes s/GB", func(s clusterSample) float64 { return s.perGB(0, 1, 2) })
		if l.apart {
			figure("CPU of the leader s/GB", func(s clusterSample) float64 { return s.perGB(0) })
			figure("CPU of a follower s/GB", func(s clusterSample) float64 { return s.perGB(1, 2) / 2 })
		}
		figure("p50 ms", func(s clusterSample) float64 { return ms(s.stats.Quantile(.5)) })
		figure("p99 ms", func(s clusterSample) float64 { return ms(s.stats.Quantile(.99)) })
	}
}

func clusterMedian(samples []clusterSample, of func(clusterSample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	return middle(values)
}

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func (r *clusterRival) measure(t *testing.T, leader func(int) int, run func(context.Context, *kgo.Client, string) (Stats, error)) clusterSample {
	t.Helper()
	topic := strconv.FormatInt(time.Now().UnixNano(), 36)
	r.topic(t, topic, benchPartitions, leader)
	client := r.client(t)
	defer client.Close()
	var s clusterSample
	before := r.cpu(t)
	var err error
	if s.stats, err = run(t.Context(), client, topic); err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	for i, after := range r.cpu(t) {
		s.cpu = append(s.cpu, after-before[i])
	}
	r.drop(t, topic)
	return s
}

func (r *clusterRival) cpu(t *testing.T) []time.Duration {
	var each []time.Duration
	for _, n := range r.Nodes {
		each = append(each, cpuOf(t, n.Process().PID()))
	}
	return each
}

// A probe is an idempotent producer on one partition that notes when each record was acknowledged.
type probe struct {
	stop   context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	acks   []time.Time
	failed []error
}

func (r *clusterRival) probe(t *testing.T, topic string) *probe {
	ctx, cancel := context.WithCancel(t.Context())
	p := &probe{stop: cancel, done: make(chan struct{})}
	client := r.client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordRetries(1<<30))
	go func() {
		defer close(p.done)
		pace := newPacer(probeRate)
		for pace.wait(ctx) {
			client.Produce(context.WithoutCancel(ctx), &kgo.Record{Topic: topic, Value: make([]byte, 100)}, p.acknowledged)
		}
		_ = client.Flush(context.WithoutCancel(ctx))
	}()
	return p
}

func (p *probe) acknowledged(_ *kgo.Record, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed = append(p.failed, err)
		return
	}
	p.acks = append(p.acks, time.Now())
}

func (p *probe) givenUp() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.failed)
}

// longest is the longest pause since then, and when it ended.
func (p *probe) longest(since time.Time) (pause time.Duration, end time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := since
	for _, at := range p.acks {
		if at.Before(since) {
			continue
		}
		if d := at.Sub(last); d > pause {
			pause, end = d, at
		}
		last = at
	}
	return pause, end
}

func (p *probe) steady(since time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.acks)
	if n == 0 || !p.acks[n-1].After(since) {
		return errors.New("nothing is acknowledged")
	}
	return nil
}

// interruptions kills and stops leaders under a probe, and restarts all nodes in turn.
func interruptions(t *testing.T, rivals []*clusterRival) {
	var all []interrupted
	for _, r := range rivals {
		all = append(all, r.interruptions(t))
	}
	figure := func(load, what string, of func(interrupted) float64) {
		var values []float64
		for _, i := range all {
			values = append(values, of(i))
		}
		clusterRow(load, what, values)
	}
	figure("SIGKILL of a leader", "until the next acknowledgement, ms", func(i interrupted) float64 { return middle(i.killed) })
	figure("SIGKILL of a leader", "the same from the end of its session, ms", func(i interrupted) float64 { return middle(i.afterSession) })
	figure("SIGTERM of a leader", "longest pause, ms", func(i interrupted) float64 { return middle(i.stopped) })
	figure("rolling restart of three nodes", "records given up", func(i interrupted) float64 { return i.givenUp })
}

// interrupted is what a producer noticed of nodes that ended, in ms and in records.
type interrupted struct {
	killed, afterSession, stopped []float64
	givenUp                       float64
}

func (r *clusterRival) interruptions(t *testing.T) (i interrupted) {
	r.topic(t, "probed", 1, onFirst)
	p := r.probe(t, "probed")
	for range *clusterKills {
		whole, afterSession := r.interrupt(t, p, func(n *testenv.Node) { n.Kill() })
		i.killed, i.afterSession = append(i.killed, ms(whole)), append(i.afterSession, ms(afterSession))
	}
	for range *clusterKills {
		whole, _ := r.interrupt(t, p, func(n *testenv.Node) { _ = n.Stop() })
		i.stopped = append(i.stopped, ms(whole))
	}
	before := p.givenUp()
	r.roll(t)
	p.stop()
	<-p.done
	i.givenUp = float64(p.givenUp() - before)
	r.drop(t, "probed")
	return i
}

// interrupt ends the leader of the probed partition, and returns how long nothing was acknowledged: in all, and from the end of the
// node's session.
func (r *clusterRival) interrupt(t *testing.T, p *probe, end func(*testenv.Node)) (whole, afterSession time.Duration) {
	t.Helper()
	r.whole(t)
	r.settle(t, "records are acknowledged", func(context.Context) error { return p.steady(time.Now().Add(-settlePoll)) })
	leader := r.leaderOf(t, "probed")
	sessionEnd := r.sessionEnd(t, leader)
	start := time.Now()
	end(leader)
	over := <-sessionEnd
	r.settle(t, "records are acknowledged again", func(context.Context) error { return p.steady(over) })
	whole, again := p.longest(start)
	if err := leader.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	return whole, again.Sub(over)
}

// sessionEnd tells when the cluster learns of the end of a node: ours by its node in ZooKeeper. Of Kafka's controller it is known only
// that it waits for the session's timeout.
func (r *clusterRival) sessionEnd(t *testing.T, n *testenv.Node) <-chan time.Time {
	t.Helper()
	if r.zooKeeper == nil {
		end := make(chan time.Time, 1)
		time.AfterFunc(benchSession, func() { end <- time.Now() })
		return end
	}
	there, _, changed, err := r.zooKeeper.ExistsW(fmt.Sprintf("/sluice/brokers/ids/%d", n.ID))
	if err != nil || !there {
		t.Fatalf("node %d is not in ZooKeeper: %v", n.ID, err)
	}
	end := make(chan time.Time, 1)
	go func() {
		<-changed
		end <- time.Now()
	}()
	return end
}

func (r *clusterRival) leaderOf(t *testing.T, topic string) *testenv.Node {
	t.Helper()
	topics, err := kadm.NewClient(r.admin).ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	n := r.Node(topics[topic].Partitions[0].Leader)
	if n == nil {
		t.Fatalf("%s: topic %s has no leader", r.Name, topic)
	}
	return n
}

// roll restarts the nodes one after the other, each when all replicas are in sync.
func (r *clusterRival) roll(t *testing.T) {
	t.Helper()
	for _, n := range r.Nodes {
		_ = n.Stop() // a JVM ends with the signal's status
		if err := n.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.whole(t)
	}
}

// create times the creation of a topic until every partition has a leader and its replicas are in sync.
func (r *clusterRival) create(t *testing.T, topic string, partitions int) time.Duration {
	t.Helper()
	start := time.Now()
	r.topic(t, topic, partitions, spread)
	return time.Since(start)
}

// failover kills a node that leads a third of many partitions, and times from the end of its session until each of them is led again
// and its leader answers.
func (r *clusterRival) failover(t *testing.T) time.Duration {
	t.Helper()
	r.topic(t, "many", *clusterPartitions, spread)
	dead := r.Nodes[0]
	sessionEnd := r.sessionEnd(t, dead)
	dead.Kill()
	over := <-sessionEnd
	r.settle(t, "every partition is led again", func(ctx context.Context) error {
		ends, err := kadm.NewClient(r.admin).ListEndOffsets(ctx, "many")
		if err == nil {
			err = ends.Error()
		}
		if n := len(ends["many"]); err == nil && n != *clusterPartitions {
			err = fmt.Errorf("%d partitions answer", n)
		}
		return err
	})
	took := time.Since(over)
	if err := dead.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.whole(t)
	return took
}
