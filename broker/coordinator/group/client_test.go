package group_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker"
	"github.com/sluice-io/sluice/internal/testenv"
)

// The tests of this file let real clients use groups of a real broker.

const (
	clientPartitions = 12
	clientTimeout    = 30 * time.Second
)

// node is a broker with a topic.
type node struct {
	*broker.Broker
	cfg broker.Config
}

func startNode(t *testing.T, cfg broker.Config) *node {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	b, err := broker.New(log, prometheus.NewRegistry(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := &node{b, cfg}
	t.Cleanup(func() { n.stop(t) })
	return n
}

func (n *node) stop(t *testing.T) {
	t.Helper()
	if n.Ready() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

func groupConfig(t *testing.T) broker.Config {
	cfg := broker.EmbeddedConfig(t.TempDir(), "127.0.0.1:0")
	cfg.GroupSessionTimeoutMin = 500 * time.Millisecond
	return cfg
}

func (n *node) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(n.Addr()),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond), // a waiting fetch does not learn of partitions that come
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.WithLogger(kgo.BasicLogger(io.Discard, kgo.LogLevelNone, nil)),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.CloseAllowingRebalance)
	return cl
}

// fill makes a topic and puts records into it.
func (n *node) fill(t *testing.T, topic string, records int) *kadm.Client {
	t.Helper()
	cl := n.client(t)
	admin := kadm.NewClient(cl)
	if _, err := admin.CreateTopic(t.Context(), clientPartitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	n.produce(t, cl, topic, 0, records)
	return admin
}

func (n *node) produce(t *testing.T, cl *kgo.Client, topic string, from, to int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientTimeout)
	defer cancel()
	var all []*kgo.Record
	for i := from; i < to; i++ {
		all = append(all, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%d", i)})
	}
	if err := cl.ProduceSync(ctx, all...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// consumers share what they have read, and what each of them owns.
type consumers struct {
	t    *testing.T
	mu   sync.Mutex
	seen map[string]int            // how often each value was read
	own  map[string]map[int32]bool // partitions by consumer
	wake chan struct{}             // something has changed
	end  map[string]context.CancelFunc
	done sync.WaitGroup
}

func newConsumers(t *testing.T) *consumers {
	return &consumers{
		t: t, seen: make(map[string]int), own: make(map[string]map[int32]bool),
		wake: make(chan struct{}, 1), end: make(map[string]context.CancelFunc),
	}
}

func (c *consumers) change(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// start runs a consumer that commits what it has read after each poll.
func (c *consumers) start(n *node, name, group, topic string, opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	c.own[name] = make(map[int32]bool)
	owns := func(is bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			c.change(func() {
				for _, p := range parts[topic] {
					if is {
						c.own[name][p] = true
					} else {
						delete(c.own[name], p)
					}
				}
			})
		}
	}
	cl := n.client(c.t, append([]kgo.Opt{
		kgo.ClientID(name), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(time.Second), kgo.HeartbeatInterval(100 * time.Millisecond),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(owns(true)), kgo.OnPartitionsRevoked(owns(false)), kgo.OnPartitionsLost(owns(false)),
	}, opts...)...)
	ctx, cancel := context.WithCancel(c.t.Context())
	c.end[name] = cancel
	c.done.Go(func() { c.run(ctx, cl) })
	c.t.Cleanup(c.stopAll) // before the client is closed, which waits for polls
	return cl
}

func (c *consumers) run(ctx context.Context, cl *kgo.Client) {
	for ctx.Err() == nil {
		records := cl.PollRecords(ctx, 50).Records()
		if len(records) > 0 {
			if err := cl.CommitRecords(ctx, records...); err == nil {
				c.change(func() {
					for _, r := range records {
						c.seen[string(r.Value)]++
					}
				})
			}
		}
		cl.AllowRebalance()
	}
}

// await waits until a condition holds of what was read and is owned.
func (c *consumers) await(what string, holds func() bool) {
	c.t.Helper()
	deadline := time.After(clientTimeout)
	for {
		c.mu.Lock()
		ok := holds()
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-c.wake:
		case <-deadline:
			c.t.Fatalf("%s: not after %v; owned %v, %d values", what, clientTimeout, c.own, len(c.seen))
		}
	}
}

// balanced says whether the named ones own each the same number of partitions, and all together.
func (c *consumers) balanced(names ...string) bool {
	for _, name := range names {
		if len(c.own[name]) != clientPartitions/len(names) {
			return false
		}
	}
	return true
}

// cut is a network that can be cut.
type cut struct {
	mu    sync.Mutex
	conns []net.Conn
	isCut bool
}

func (c *cut) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isCut {
		return nil, net.ErrClosed
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

// kill ends every connection and lets no new one be made: what a killed process looks like.
func (c *cut) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = true
	for _, conn := range c.conns {
		conn.Close()
	}
}

// heal lets connections be made again. A client that is being closed tries until it has left its
// group.
func (c *cut) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = false
}

// Three members share a topic; one is killed, and the others take over its partitions after the
// session timeout, from what it had committed.
func TestGroupSurvivesItsMembers(t *testing.T) {
	for name, balancer := range map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer(),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := groupConfig(t)
			cfg.NoGroupFsync = name == "range" // commits are answered by the append itself then
			n := startNode(t, cfg)
			admin := n.fill(t, "t", 3000)
			c := newConsumers(t)
			balance := kgo.Balancers(balancer)
			var network cut
			c.start(n, "a", "g", "t", balance)
			c.start(n, "b", "g", "t", balance)
			c.start(n, "c", "g", "t", balance, kgo.Dialer(network.dial))
			t.Cleanup(network.heal)
			c.await("all of the first", func() bool { return c.balanced("a", "b", "c") && len(c.seen) == 3000 })

			network.kill()
			c.end["c"]()
			n.produce(t, n.client(t), "t", 3000, 4000)
			c.await("all of the second", func() bool { return c.balanced("a", "b") && len(c.seen) == 4000 })

			lags, err := admin.Lag(t.Context(), "g")
			if lag := lags["g"]; err != nil || lag.Error() != nil || lag.Lag.Total() != 0 || len(lag.Members) != 2 {
				t.Errorf("lag: %+v, %v", lag, err)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			for v, times := range c.seen {
				if times != 1 {
					t.Errorf("%s was read and committed %d times", v, times)
				}
			}
		})
	}
}

func (c *consumers) stopAll() {
	for _, end := range c.end {
		end()
	}
	c.done.Wait()
}

// Groups and offsets are there after a restart, and members go on without a rebalance.
func TestGroupSurvivesARestart(t *testing.T) {
	cfg := groupConfig(t)
	n := startNode(t, cfg)
	n.fill(t, "t", 1000)
	addr := n.Addr()
	c := newConsumers(t)
	c.start(n, "a", "g", "t", kgo.SessionTimeout(10*time.Second))
	c.await("all of the first", func() bool { return len(c.seen) == 1000 })
	before := n.describe(t, "g")

	n.stop(t)
	cfg.Listen = []string{addr}
	n = startNode(t, cfg)
	n.produce(t, n.client(t), "t", 1000, 2000)
	c.await("all of the second", func() bool { return len(c.seen) == 2000 })
	after := n.describe(t, "g")
	if after.State != "Stable" || len(after.Members) != 1 || after.Members[0].MemberID != before.Members[0].MemberID {
		t.Errorf("before %+v, after %+v", before, after)
	}
	for v, times := range c.seen {
		if times != 1 {
			t.Errorf("%s was read %d times", v, times)
		}
	}
}

func (n *node) describe(t *testing.T, group string) kadm.DescribedGroup {
	t.Helper()
	all, err := kadm.NewClient(n.client(t)).DescribeGroups(t.Context(), group)
	if err != nil || all[group].Err != nil {
		t.Fatalf("describe: %v, %v", err, all[group].Err)
	}
	return all[group]
}

func TestGroupAdministration(t *testing.T) {
	n := startNode(t, groupConfig(t))
	admin := n.fill(t, "t", 100)
	c := newConsumers(t)
	cl := c.start(n, "a", "g", "t")
	c.await("everything", func() bool { return len(c.seen) == 100 })

	groups, err := admin.ListGroups(t.Context())
	if err != nil || len(groups) != 1 || groups["g"].State != "Stable" || groups["g"].ProtocolType != "consumer" {
		t.Errorf("list: %+v, %v", groups, err)
	}
	if some, err := admin.ListGroups(t.Context(), "Empty", "Dead"); err != nil || len(some) != 0 {
		t.Errorf("list of states: %+v, %v", some, err)
	}
	d := n.describe(t, "g")
	if m := d.Members[0]; m.ClientID != "a" || m.ClientHost != "/127.0.0.1" || len(d.AssignedPartitions()["t"]) != clientPartitions {
		t.Errorf("describe: %+v", d)
	}
	deleted, err := admin.DeleteGroups(t.Context(), "g", "nobody")
	if err != nil || deleted["g"].Err != kerr.NonEmptyGroup || deleted["nobody"].Err != kerr.GroupIDNotFound {
		t.Errorf("delete: %+v, %v", deleted, err)
	}

	c.stopAll()
	cl.CloseAllowingRebalance()
	if d := n.describe(t, "g"); d.State != "Empty" || len(d.Members) != 0 {
		t.Errorf("after the member left: %+v", d)
	}
	set := kadm.Offsets{}
	set.AddOffset("t", 3, 42, 7)
	set.AddOffset("nowhere", 0, 1, -1)
	if committed, err := admin.CommitOffsets(t.Context(), "g", set); err != nil {
		t.Errorf("commit: %v", err)
	} else if r, _ := committed.Lookup("nowhere", 0); r.Err != kerr.UnknownTopicOrPartition && r.Err != kerr.UnknownTopicID {
		t.Errorf("commit to a topic that does not exist: %v", r.Err)
	}
	offsets, err := admin.FetchOffsets(t.Context(), "g")
	if at, ok := offsets.Lookup("t", 3); err != nil || !ok || at.At != 42 || at.LeaderEpoch != 7 {
		t.Errorf("fetch: %+v, %v", at, err)
	}
	if none, err := admin.FetchOffsets(t.Context(), "nobody"); err != nil || len(none) != 0 {
		t.Errorf("fetch of an unknown group: %+v, %v", none, err)
	}
	if _, err := admin.DeleteTopics(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if left, err := admin.FetchOffsets(t.Context(), "g"); err != nil || len(left) != 0 {
		t.Errorf("offsets of a deleted topic: %+v, %v", left, err)
	}
	if deleted, err := admin.DeleteGroups(t.Context(), "g"); err != nil || deleted["g"].Err != nil {
		t.Errorf("delete: %+v, %v", deleted, err)
	}
}

// Every version of every request of groups is answered in a form that a client can read.
func TestEveryVersion(t *testing.T) {
	n := startNode(t, groupConfig(t))
	n.fill(t, "t", 1)
	cl := n.client(t)
	topics, err := kadm.NewClient(cl).ListTopics(t.Context(), "t") // also makes the client know the broker
	if err != nil {
		t.Fatal(err)
	}
	id := [16]byte(topics["t"].ID)
	for _, req := range []kmsg.Request{
		&kmsg.FindCoordinatorRequest{CoordinatorKey: "g", CoordinatorKeys: []string{"g"}},
		&kmsg.HeartbeatRequest{Group: "g", MemberID: "x"},
		&kmsg.JoinGroupRequest{Group: "g", SessionTimeoutMillis: 1},
		&kmsg.SyncGroupRequest{Group: "g", MemberID: "x"},
		&kmsg.LeaveGroupRequest{Group: "g", MemberID: "x", Members: []kmsg.LeaveGroupRequestMember{{MemberID: "x"}}},
		&kmsg.OffsetCommitRequest{Group: "g", Generation: -1, RetentionTimeMillis: -1, Topics: []kmsg.OffsetCommitRequestTopic{{
			Topic: "t", TopicID: id, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 9, LeaderEpoch: -1}},
		}}},
		&kmsg.OffsetFetchRequest{Group: "g",
			Topics: []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0}}},
			Groups: []kmsg.OffsetFetchRequestGroup{{Group: "g", MemberEpoch: -1,
				Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", TopicID: id, Partitions: []int32{0}}}}},
		},
		&kmsg.ListGroupsRequest{},
		&kmsg.DescribeGroupsRequest{Groups: []string{"g"}},
		&kmsg.DeleteGroupsRequest{Groups: []string{"nobody"}},
	} {
		t.Run(kmsg.NameForKey(req.Key()), func(t *testing.T) {
			for version := minVersion(req.Key()); version <= req.MaxVersion(); version++ {
				req.SetVersion(version)
				checkAnswer(t, version, ask(t, cl, req))
			}
		})
	}
}

// minVersion is the first version that is served.
func minVersion(key int16) int16 {
	return map[int16]int16{8: 2, 9: 1}[key]
}

// Topics that do not exist, and null for all topics, in the forms of all versions.
func TestOffsetRequestsAtTheEdges(t *testing.T) {
	n := startNode(t, groupConfig(t))
	n.fill(t, "t", 1)
	cl := n.client(t)
	set := kadm.Offsets{}
	set.AddOffset("t", 0, 9, -1)
	if err := kadm.NewClient(cl).CommitAllOffsets(t.Context(), "g", set); err != nil {
		t.Fatal(err)
	}
	for version := int16(2); version <= 10; version++ {
		unknown := kerr.UnknownTopicOrPartition.Code
		if version >= 10 {
			unknown = kerr.UnknownTopicID.Code
		}
		commit := ask(t, cl, &kmsg.OffsetCommitRequest{Version: version, Group: "g", Generation: -1, RetentionTimeMillis: -1,
			Topics: []kmsg.OffsetCommitRequestTopic{{Topic: "nowhere", TopicID: [16]byte{1}, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{}}}},
		}).(*kmsg.OffsetCommitResponse)
		if got := commit.Topics[0].Partitions[0].ErrorCode; got != unknown {
			t.Errorf("commit version %d: %v", version, kerr.ErrorForCode(got))
		}
		stale := ask(t, cl, &kmsg.OffsetCommitRequest{Version: version, Group: "nobody", Generation: 3, MemberID: "x", RetentionTimeMillis: -1,
			Topics: commitTopics(t, cl),
		}).(*kmsg.OffsetCommitResponse)
		want := kerr.IllegalGeneration.Code
		if version >= 9 {
			want = kerr.GroupIDNotFound.Code
		}
		if got := stale.Topics[0].Partitions[0].ErrorCode; got != want {
			t.Errorf("commit of a group that is gone, version %d: %v", version, kerr.ErrorForCode(got))
		}

		all := ask(t, cl, &kmsg.OffsetFetchRequest{Version: version, Group: "g", Groups: []kmsg.OffsetFetchRequestGroup{{Group: "g", MemberEpoch: -1}}}).(*kmsg.OffsetFetchResponse)
		topics := len(all.Topics)
		if version >= 8 {
			topics = len(all.Groups[0].Topics)
		}
		if topics != 1 {
			t.Errorf("fetch of all, version %d: %d topics", version, topics)
		}
	}
	gone := ask(t, cl, &kmsg.OffsetFetchRequest{Version: 10, Groups: []kmsg.OffsetFetchRequestGroup{{Group: "g", MemberEpoch: -1,
		Topics: []kmsg.OffsetFetchRequestGroupTopic{{TopicID: [16]byte{1}, Partitions: []int32{0}}}}}}).(*kmsg.OffsetFetchResponse)
	if p := gone.Groups[0].Topics[0].Partitions[0]; p.ErrorCode != kerr.UnknownTopicID.Code || p.Offset != -1 {
		t.Errorf("fetch of an unknown topic id: %+v", p)
	}
	for version, want := range map[int16]int16{5: 0, 6: kerr.GroupIDNotFound.Code} {
		d := ask(t, cl, &kmsg.DescribeGroupsRequest{Version: version, Groups: []string{"nobody"}}).(*kmsg.DescribeGroupsResponse)
		if g := d.Groups[0]; g.State != "Dead" || g.ErrorCode != want {
			t.Errorf("describe of an unknown group, version %d: %+v", version, g)
		}
	}
	for kind, want := range map[int8]int16{1: kerr.UnsupportedVersion.Code, 2: kerr.InvalidRequest.Code} {
		found := ask(t, cl, &kmsg.FindCoordinatorRequest{Version: 4, CoordinatorType: kind, CoordinatorKeys: []string{"x"}}).(*kmsg.FindCoordinatorResponse)
		if c := found.Coordinators[0]; c.ErrorCode != want || c.ErrorMessage == nil || c.NodeID != -1 {
			t.Errorf("coordinator of kind %d: %+v", kind, c)
		}
	}
}

// commitTopics is a commit of topic t, by name and by id.
func commitTopics(t *testing.T, cl *kgo.Client) []kmsg.OffsetCommitRequestTopic {
	t.Helper()
	topics, err := kadm.NewClient(cl).ListTopics(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	return []kmsg.OffsetCommitRequestTopic{{Topic: "t", TopicID: topics["t"].ID, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{LeaderEpoch: -1}}}}
}

// ask sends a request as it is, in the version that it has.
func ask(t *testing.T, cl *kgo.Client, req kmsg.Request) kmsg.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientTimeout)
	defer cancel()
	resp, err := cl.DiscoveredBrokers()[0].Request(ctx, pinned{req, req.GetVersion()})
	if err != nil {
		t.Fatalf("version %d: %v", req.GetVersion(), err)
	}
	return resp
}

// pinned keeps the client from choosing another version.
type pinned struct {
	kmsg.Request
	version int16
}

func (p pinned) SetVersion(int16)  { p.Request.SetVersion(p.version) }
func (p pinned) MaxVersion() int16 { return p.version }

func checkAnswer(t *testing.T, version int16, resp kmsg.Response) {
	t.Helper()
	want, got := int16(0), int16(0)
	switch r := resp.(type) {
	case *kmsg.FindCoordinatorResponse:
		got = r.ErrorCode
		if version >= 4 {
			got = r.Coordinators[0].ErrorCode
		}
	case *kmsg.HeartbeatResponse:
		got, want = r.ErrorCode, kerr.UnknownMemberID.Code
	case *kmsg.JoinGroupResponse:
		got, want = r.ErrorCode, kerr.InvalidSessionTimeout.Code
	case *kmsg.SyncGroupResponse:
		got, want = r.ErrorCode, kerr.UnknownMemberID.Code
	case *kmsg.LeaveGroupResponse:
		got, want = r.ErrorCode, kerr.UnknownMemberID.Code
	case *kmsg.OffsetCommitResponse:
		got = r.Topics[0].Partitions[0].ErrorCode
	case *kmsg.OffsetFetchResponse:
		offset := int64(-1)
		if version >= 8 {
			offset = r.Groups[0].Topics[0].Partitions[0].Offset
		} else {
			offset = r.Topics[0].Partitions[0].Offset
		}
		if offset != 9 {
			t.Errorf("version %d: offset %d, want 9", version, offset)
		}
	case *kmsg.ListGroupsResponse:
		got = r.ErrorCode
		if len(r.Groups) != 1 {
			t.Errorf("version %d: %d groups", version, len(r.Groups))
		}
	case *kmsg.DescribeGroupsResponse:
		got = r.Groups[0].ErrorCode
		if r.Groups[0].State != "Empty" {
			t.Errorf("version %d: state %s", version, r.Groups[0].State)
		}
	case *kmsg.DeleteGroupsResponse:
		got, want = r.Groups[0].ErrorCode, kerr.GroupIDNotFound.Code
	}
	if got != want {
		t.Errorf("version %d: error %v, want %v", version, kerr.ErrorForCode(got), kerr.ErrorForCode(want))
	}
}

// Kafka's own tool reads what is in the offsets topic, and its administration tool works on the
// groups.
func TestKafkaToolsReadGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Java virtual machine")
	}
	cfg := groupConfig(t)
	cfg.OffsetsPartitions = 1
	n := startNode(t, cfg)
	admin := n.fill(t, "t", 100)
	c := newConsumers(t)
	cl := c.start(n, "a", "g", "t")
	c.await("everything", func() bool { return len(c.seen) == 100 })

	groups := groupTool(t, n, "--describe", "--group", "g")
	if lines := strings.Count(groups, "\ng "); lines != clientPartitions {
		t.Errorf("consumer groups: %d lines of the group\n%s", lines, groups)
	}
	c.stopAll()
	cl.CloseAllowingRebalance()
	groupTool(t, n, "--reset-offsets", "--group", "g", "--topic", "t:3", "--to-offset", "2", "--execute")
	if at, err := admin.FetchOffsets(t.Context(), "g"); err != nil {
		t.Error(err)
	} else if o, _ := at.Lookup("t", 3); o.At != 2 {
		t.Errorf("offset after a reset: %+v", o)
	}
	if list := groupTool(t, n, "--list", "--state", "Empty"); !strings.Contains(list, "g ") {
		t.Errorf("list of empty groups:\n%s", list)
	}
	groupTool(t, n, "--delete", "--group", "g")
	if list, err := admin.ListGroups(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("groups after a deletion: %v, %v", list, err)
	}

	dump := run(t, testenv.KafkaTool(t, "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--deep-iteration", "--files",
		filepath.Join(cfg.DataDir, "__consumer_offsets-0", "00000000000000000000.log")))
	for _, want := range []string{`"group":"g","topic":"t"`, `"protocolType":"consumer"`, `"clientHost":"/127.0.0.1"`, `{"version":"4","data":{"offset":`} {
		if !strings.Contains(dump, want) {
			t.Errorf("dump of the log lacks %s:\n%s", want, dump)
		}
	}
}

// groupTool runs Kafka's kafka-consumer-groups.
func groupTool(t *testing.T, n *node, args ...string) string {
	t.Helper()
	return run(t, testenv.KafkaTool(t, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
		append([]string{"--bootstrap-server", n.Addr()}, args...)...))
}

// The clients that are not written in Go consume as members of groups, commit, and go on from
// there.
func TestOtherClientsUseGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Java virtual machine")
	}
	const total = 100
	for name, consumer := range map[string]func(n *node, topic string) *exec.Cmd{
		"Java": func(n *node, topic string) *exec.Cmd {
			return testenv.KafkaTool(t, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", n.Addr(),
				"--topic", topic, "--group", "g", "--from-beginning", "--max-messages", fmt.Sprint(total), "--timeout-ms", "60000")
		},
		"librdkafka": func(n *node, topic string) *exec.Cmd {
			return exec.CommandContext(t.Context(), testenv.Kcat(t), "-b", n.Addr(), "-G", "g", "-X", "auto.offset.reset=earliest",
				"-c", fmt.Sprint(total), "-q", topic)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, groupConfig(t))
			admin := n.fill(t, "t", total)
			for round := range 2 {
				out, err := consumer(n, "t").Output()
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				seen := make(map[string]bool)
				for _, line := range strings.Fields(string(out)) {
					seen[line] = true
				}
				if len(seen) != total || !seen[fmt.Sprint(round*total)] {
					t.Errorf("round %d: %d values\n%s", round, len(seen), out)
				}
				n.produce(t, n.client(t), "t", (round+1)*total, (round+2)*total)
			}
			lags, err := admin.Lag(t.Context(), "g")
			if lag := lags["g"]; err != nil || lag.Error() != nil || lag.Lag.Total() != total || lag.State != "Empty" {
				t.Errorf("lag: %+v, %v", lag, err)
			}
		})
	}
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}
