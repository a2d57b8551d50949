package group_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker"
	"github.com/sluice-io/sluice/internal/testenv"
)

// The tests of this file let real clients use the consumer group protocol.

// consumerConfig has short timeouts: the broker, not the client, decides on them.
func consumerConfig(t *testing.T) broker.Config {
	cfg := groupConfig(t)
	cfg.ConsumerGroupSessionTimeout = 6 * time.Second
	cfg.ConsumerGroupHeartbeatInterval = 300 * time.Millisecond
	return cfg
}

// lines is what a process prints, line by line, while it runs.
type lines struct{ testenv.Buffer }

func (l *lines) all() []string { return strings.Fields(l.String()) }

// launch starts a client that runs until the test ends, or is killed.
func launch(t *testing.T, cmd *exec.Cmd) (*exec.Cmd, *lines) {
	t.Helper()
	out, errs := new(lines), new(lines)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s printed:\n%s", cmd.Args[0], errs.String())
		}
	})
	return cmd, out
}

// eventually waits for a condition of processes that are watched from outside.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(2 * clientTimeout) // several processes start meanwhile
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not after %v", what, 2*clientTimeout)
		}
	}
}

func describeConsumers(t *testing.T, cl *kgo.Client, group string) kmsg.ConsumerGroupDescribeResponseGroup {
	t.Helper()
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Version, req.Groups = 1, []string{group}
	return ask(t, cl, req).(*kmsg.ConsumerGroupDescribeResponse).Groups[0]
}

// shares is how many partitions each member has, sorted; of a group that is not stable, nothing.
func shares(g kmsg.ConsumerGroupDescribeResponseGroup) (all []int) {
	if g.State != "Stable" {
		return nil
	}
	for _, m := range g.Members {
		n := 0
		for _, tp := range m.Assignment.TopicPartitions {
			n += len(tp.Partitions)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

func distinct(all ...*lines) int {
	seen := make(map[string]bool)
	for _, l := range all {
		for _, v := range l.all() {
			seen[v] = true
		}
	}
	return len(seen)
}

func consoleConsumer(t *testing.T, n *node, group string, more ...string) *exec.Cmd {
	return testenv.KafkaTool(t, "org.apache.kafka.tools.consumer.ConsoleConsumer", append([]string{
		"--bootstrap-server", n.Addr(), "--topic", "t", "--group", group, "--from-beginning",
		"--command-property", "group.protocol=consumer", "--command-property", "auto.commit.interval.ms=100",
	}, more...)...)
}

// Two Java consumers share a topic; one is killed, and the other takes over from what it had
// committed. Kafka's tools tell of the group in each state.
func TestJavaConsumersOfTheNewProtocol(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Java virtual machine")
	}
	cfg := consumerConfig(t)
	cfg.OffsetsPartitions = 1
	n := startNode(t, cfg)
	n.fill(t, "t", 1000)
	cl := n.pinged(t)
	a, outA := launch(t, consoleConsumer(t, n, "g"))
	_, outB := launch(t, consoleConsumer(t, n, "g"))
	eventually(t, "shared", func() bool {
		return slices.Equal(shares(describeConsumers(t, cl, "g")), []int{clientPartitions / 2, clientPartitions / 2})
	})
	eventually(t, "all of the first", func() bool { return distinct(outA, outB) == 1000 })

	describe := groupTool(t, n, "--describe", "--group", "g")
	if got := strings.Count(describe, "\ng "); got != clientPartitions {
		t.Errorf("consumer groups: %d lines of the group\n%s", got, describe)
	}
	members := groupTool(t, n, "--describe", "--group", "g", "--members", "--verbose")
	if strings.Count(members, "\ng ") != 2 || strings.Count(members, "console-consumer 6 ") != 2 {
		t.Errorf("members:\n%s", members)
	}
	state := strings.Fields(groupTool(t, n, "--describe", "--group", "g", "--state"))
	if !slices.Contains(state, "uniform") || !slices.Contains(state, "Stable") {
		t.Errorf("state:\n%s", state)
	}

	_ = a.Process.Kill()
	_ = a.Wait() // it was killed
	eventually(t, "taken over", func() bool {
		return slices.Equal(shares(describeConsumers(t, cl, "g")), []int{clientPartitions})
	})
	n.produce(t, cl, "t", 1000, 1500)
	eventually(t, "all of the second", func() bool { return distinct(outA, outB) == 1500 })

	dump := run(t, testenv.KafkaTool(t, "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--deep-iteration", "--files",
		filepath.Join(cfg.DataDir, "__consumer_offsets-0", "00000000000000000000.log")))
	for _, want := range []string{
		`{"type":"3","data":{"groupId":"g"}} payload: {"version":"0","data":{"epoch":2,"metadataHash":`,
		`{"type":"5","data":{"groupId":"g","memberId":"`, `"subscribedTopicNames":["t"]`, `"classicMemberMetadata":null`,
		`{"type":"6","data":{"groupId":"g"}} payload: {"version":"0","data":{"assignmentEpoch":2,"assignmentTimestamp":`,
		`{"type":"7","data":{"groupId":"g","memberId":"`, `"partitions":[0,1,2,3,4,5,6,7,8,9,10,11]`,
		`{"type":"8","data":{"groupId":"g","memberId":"`, `"partitionsPendingRevocation":[{"topicId":`, `"assignmentEpochs":[2,`,
		`payload: <DELETE>`,
	} {
		if !strings.Contains(dump, want) {
			t.Errorf("dump of the log lacks %s:\n%s", want, dump)
			break
		}
	}
}

// The Go client, with an assignor of the broker's.
func TestGoConsumersOfTheNewProtocol(t *testing.T) {
	cfg := consumerConfig(t)
	cfg.ConsumerGroupSessionTimeout = 1500 * time.Millisecond
	n := startNode(t, cfg)
	n.fill(t, "t", 3000)
	c := newConsumers(t)
	var network cut
	balance := []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())} // sticky asks for uniform
	c.start(n, "a", "g", "t", balance...)
	c.start(n, "b", "g", "t", balance...)
	c.start(n, "c", "g", "t", append(balance, kgo.Dialer(network.dial))...)
	t.Cleanup(network.heal)
	c.await("all of the first", func() bool { return c.balanced("a", "b", "c") && len(c.seen) == 3000 })
	network.kill()
	c.end["c"]()
	n.produce(t, n.client(t), "t", 3000, 4000)
	c.await("all of the second", func() bool { return c.balanced("a", "b") && len(c.seen) == 4000 })
	if g := describeConsumers(t, n.pinged(t), "g"); len(g.Members) != 2 || g.AssignorName != "uniform" {
		t.Errorf("%+v", g)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for v, times := range c.seen {
		if times != 1 {
			t.Errorf("%s was read and committed %d times", v, times)
		}
	}
}

// pinged is a client that knows the broker.
func (n *node) pinged(t *testing.T) *kgo.Client {
	t.Helper()
	cl := n.client(t)
	if err := cl.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cl
}

// What Kafka's tool does with a group whose members have gone, and with the two types of groups.
func TestKafkaToolsAndTheNewProtocol(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Java virtual machine")
	}
	n := startNode(t, consumerConfig(t))
	admin := n.fill(t, "t", 100)
	out := run(t, consoleConsumer(t, n, "new", "--max-messages", "100", "--timeout-ms", "60000"))
	if got := len(strings.Fields(out)); got < 100 {
		t.Fatalf("%d values", got)
	}
	set := kadm.Offsets{}
	set.AddOffset("t", 3, 42, -1)
	if err := admin.CommitAllOffsets(t.Context(), "old", set); err != nil {
		t.Fatal(err)
	}
	if list := groupTool(t, n, "--list", "--type", "consumer"); !strings.Contains(list, "new") || strings.Contains(list, "old") {
		t.Errorf("consumer groups:\n%s", list)
	}
	if list := groupTool(t, n, "--list", "--type", "classic", "--state", "Empty"); strings.Contains(list, "new") || !strings.Contains(list, "old") {
		t.Errorf("classic groups:\n%s", list)
	}
	groupTool(t, n, "--reset-offsets", "--group", "new", "--topic", "t:3", "--to-offset", "2", "--execute")
	groupTool(t, n, "--delete-offsets", "--group", "new", "--topic", "t:4")
	offsets, err := admin.FetchOffsets(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := offsets.Lookup("t", 3); o.At != 2 {
		t.Errorf("offset after a reset: %+v", o)
	}
	if o, ok := offsets.Lookup("t", 4); ok {
		t.Errorf("offset after it was deleted: %+v", o)
	}
	groupTool(t, n, "--delete", "--group", "new")
	if list, err := admin.ListGroups(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("groups after a deletion: %v, %v", list, err)
	}
}

// readScript is a member of a group that reads so many records, commits them and leaves.
const readScript = `
import os, sys
from confluent_kafka import Consumer, KafkaError
addr, subscription, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
conf = {'bootstrap.servers': addr, 'group.protocol': 'consumer', 'auto.offset.reset': 'earliest', 'topic.metadata.refresh.interval.ms': 500}
conf.update(a.split('=', 1) for a in sys.argv[4:])
c = Consumer(conf)
c.subscribe([subscription])
while total > 0:
    m = c.poll(1)
    if m is None:
        continue
    if m.error():
        print('error', m.error().name(), flush=True)
        if m.error().code() == KafkaError._FATAL:
            os._exit(3)
        continue
    print(m.value().decode(), flush=True)
    total -= 1
c.commit(asynchronous=False)
c.close()
`

func reader(t *testing.T, n *node, group, subscription string, total int, more ...string) *exec.Cmd {
	t.Helper()
	script := filepath.Join(t.TempDir(), "read.py")
	if err := os.WriteFile(script, []byte(readScript), 0o600); err != nil {
		t.Fatal(err)
	}
	return testenv.Python(t, append([]string{script, n.Addr(), subscription, fmt.Sprint(total), "group.id=" + group}, more...)...)
}

// librdkafka speaks the protocol too: by names, by a regular expression, as a static member, with
// an assignor of its choice, and is refused one that there is not.
func TestLibrdkafkaConsumersOfTheNewProtocol(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Python")
	}
	n := startNode(t, consumerConfig(t))
	admin := n.fill(t, "t", 600)
	cl := n.pinged(t)
	for round, total := range []int{400, 200} { // the second goes on where the first was
		out := run(t, reader(t, n, "g", "t", total))
		if got := len(strings.Fields(out)); got != total {
			t.Errorf("round %d: %d values, want %d", round, got, total)
		}
	}
	if lags, err := admin.Lag(t.Context(), "g"); err == nil && lags["g"].Lag.Total() != 0 {
		t.Errorf("lag: %+v", lags["g"].Lag)
	}

	_, out := launch(t, reader(t, n, "r", "^t.*", 1<<30, "group.instance.id=i", "group.remote.assignor=range"))
	_, other := launch(t, reader(t, n, "r", "^t.*", 1<<30, "group.instance.id=j", "group.remote.assignor=range"))
	eventually(t, "shared", func() bool {
		return slices.Equal(shares(describeConsumers(t, cl, "r")), []int{clientPartitions / 2, clientPartitions / 2})
	})
	eventually(t, "everything", func() bool { return distinct(out, other) == 600 })
	g := describeConsumers(t, cl, "r")
	if m := g.Members[0]; g.AssignorName != "range" || m.InstanceID == nil || m.SubscribedTopicRegex == nil || !strings.Contains(*m.SubscribedTopicRegex, "^t.*") {
		t.Errorf("regular expression %q, %+v", *m.SubscribedTopicRegex, g)
	}

	cmd := reader(t, n, "x", "t", 1, "group.remote.assignor=nobody")
	if text, err := cmd.Output(); err == nil || !strings.Contains(string(text), "error") {
		t.Errorf("an assignor that there is not: %v\n%s", err, text)
	}
}

// Every version of the requests is answered in a form that a client can read.
func TestEveryVersionOfTheNewProtocol(t *testing.T) {
	n := startNode(t, consumerConfig(t))
	n.fill(t, "t", 1)
	cl := n.client(t)
	topics := commitTopics(t, cl) // also makes the client know the broker
	ask(t, cl, &kmsg.FindCoordinatorRequest{Version: 4, CoordinatorKeys: []string{"g"}})
	for version := int16(0); version <= 1; version++ {
		group := fmt.Sprint("g", version)
		join := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		join.Version, join.Group, join.MemberID = version, group, "m"
		join.RebalanceTimeoutMillis, join.SubscribedTopicNames = 1000, []string{"t"}
		join.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		resp := ask(t, cl, join).(*kmsg.ConsumerGroupHeartbeatResponse)
		if resp.ErrorCode != 0 || resp.MemberEpoch != 2 || resp.HeartbeatIntervalMillis != 300 || resp.Assignment == nil ||
			len(resp.Assignment.Topics) != 1 || len(resp.Assignment.Topics[0].Partitions) != clientPartitions {
			t.Errorf("heartbeat version %d: %+v", version, resp)
		}
		stay := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		stay.Version, stay.Group, stay.MemberID, stay.MemberEpoch = version, group, "m", 2
		if resp := ask(t, cl, stay).(*kmsg.ConsumerGroupHeartbeatResponse); resp.ErrorCode != 0 || resp.Assignment != nil {
			t.Errorf("heartbeat version %d: %+v", version, resp)
		}
		stay.MemberEpoch = 7
		if resp := ask(t, cl, stay).(*kmsg.ConsumerGroupHeartbeatResponse); resp.ErrorCode != kerr.FencedMemberEpoch.Code || resp.ErrorMessage == nil {
			t.Errorf("heartbeat version %d: %+v", version, resp)
		}

		describe := kmsg.NewPtrConsumerGroupDescribeRequest()
		describe.Version, describe.Groups = version, []string{group, "nobody"}
		described := ask(t, cl, describe).(*kmsg.ConsumerGroupDescribeResponse)
		if g := described.Groups[0]; g.ErrorCode != 0 || g.State != "Stable" || len(g.Members) != 1 || (g.Members[0].MemberType == 1) != (version == 1) {
			t.Errorf("describe version %d: %+v", version, g)
		}
		if g := described.Groups[1]; g.ErrorCode != kerr.GroupIDNotFound.Code {
			t.Errorf("describe version %d: %+v", version, g)
		}
	}

	// The requests of offsets say their members' epochs in the versions that can.
	for version := int16(8); version <= 10; version++ {
		commit := &kmsg.OffsetCommitRequest{Version: version, Group: "g1", MemberID: "m", Generation: 3, Topics: topics}
		want := kerr.StaleMemberEpoch.Code
		if version < 9 {
			want = kerr.UnsupportedVersion.Code
		}
		if got := ask(t, cl, commit).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode; got != want {
			t.Errorf("commit version %d: %v", version, kerr.ErrorForCode(got))
		}
		member := "m"
		fetch := &kmsg.OffsetFetchRequest{Version: version, Groups: []kmsg.OffsetFetchRequestGroup{{Group: "g1", MemberID: &member, MemberEpoch: 3}}}
		want = kerr.StaleMemberEpoch.Code
		if version < 9 {
			want = 0 // the request does not say who asks
		}
		if got := ask(t, cl, fetch).(*kmsg.OffsetFetchResponse).Groups[0].ErrorCode; got != want {
			t.Errorf("fetch version %d: %v", version, kerr.ErrorForCode(got))
		}
	}
	del := kmsg.NewPtrOffsetDeleteRequest()
	del.Group = "g1"
	for _, topic := range []string{"t", "nowhere"} {
		rt := kmsg.NewOffsetDeleteRequestTopic()
		rt.Topic, rt.Partitions = topic, []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}
		del.Topics = append(del.Topics, rt)
	}
	deleted := ask(t, cl, del).(*kmsg.OffsetDeleteResponse)
	if deleted.ErrorCode != 0 || deleted.Topics[0].Partitions[0].ErrorCode != kerr.GroupSubscribedToTopic.Code ||
		deleted.Topics[1].Partitions[0].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("offset delete: %+v", deleted)
	}
	del.Group = "nobody"
	if deleted := ask(t, cl, del).(*kmsg.OffsetDeleteResponse); deleted.ErrorCode != kerr.GroupIDNotFound.Code {
		t.Errorf("offset delete of an unknown group: %+v", deleted)
	}
}
