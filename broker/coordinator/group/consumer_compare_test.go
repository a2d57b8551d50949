package group_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/testenv"
)

// peer is a broker, ours or Apache Kafka, that is asked the same things as the other.
type peer struct {
	t      *testing.T
	cl     *kgo.Client
	topic  [16]byte
	answer []string
}

func newPeer(t *testing.T, addr string) *peer {
	t.Helper()
	p := &peer{t: t}
	var err error
	if p.cl, err = kgo.NewClient(kgo.SeedBrokers(addr), kgo.RequestTimeoutOverhead(clientTimeout)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.cl.Close)
	admin := kadm.NewClient(p.cl)
	made, err := admin.CreateTopic(t.Context(), 6, 1, nil, "t")
	if err != nil {
		t.Fatal(err)
	}
	p.topic = made.ID
	ctx, cancel := context.WithTimeout(t.Context(), clientTimeout)
	defer cancel()
	for { // until the offsets topic is there
		if _, err := admin.FetchOffsets(ctx, "g"); err == nil {
			return p
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func (p *peer) ask(req kmsg.Request) kmsg.Response {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), clientTimeout)
	defer cancel()
	resp, err := p.cl.DiscoveredBrokers()[0].Request(ctx, pinned{req, req.GetVersion()})
	if err != nil {
		p.t.Fatalf("%s version %d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp
}

func (p *peer) note(what, format string, args ...any) {
	p.answer = append(p.answer, what+": "+fmt.Sprintf(format, args...))
}

func errorName(code int16) string {
	if err := kerr.TypedErrorForCode(code); err != nil {
		return err.Message
	}
	return "none"
}

// nth is the epoch that a group has as its nth: the first is 2.
func nth(epoch int32) int32 {
	if epoch > 0 {
		return epoch + 1
	}
	return epoch
}

// heartbeat is one of a member with an epoch, which change may make another one.
func (p *peer) heartbeat(what, group, member string, epoch int32, change func(*kmsg.ConsumerGroupHeartbeatRequest)) {
	p.t.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, group, member, nth(epoch)
	if epoch == 0 {
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 60000, []string{"t"}
		req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	}
	if change != nil {
		change(req)
	}
	resp := p.ask(req).(*kmsg.ConsumerGroupHeartbeatResponse)
	given := "not told"
	if resp.Assignment != nil {
		n := 0
		for _, t := range resp.Assignment.Topics {
			n += len(t.Partitions)
		}
		given = fmt.Sprint(n, " partitions")
	}
	p.note(what, "%s, epoch %d, %s", errorName(resp.ErrorCode), resp.MemberEpoch, given)
}

// owns says what a member owns.
func (p *peer) owns(partitions ...int32) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(r *kmsg.ConsumerGroupHeartbeatRequest) {
		r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{{TopicID: p.topic, Partitions: partitions}}
	}
}

func (p *peer) describe(what, group string) {
	p.t.Helper()
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Version, req.Groups = 1, []string{group}
	g := p.ask(req).(*kmsg.ConsumerGroupDescribeResponse).Groups[0]
	var members []string
	for _, m := range g.Members {
		n := [2]int{}
		for i, as := range []kmsg.Assignment{m.Assignment, m.TargetAssignment} {
			for _, tp := range as.TopicPartitions {
				n[i] += len(tp.Partitions)
			}
		}
		members = append(members, fmt.Sprintf("epoch %d has %d of %d, type %d", m.MemberEpoch, n[0], n[1], m.MemberType))
	}
	slices.Sort(members)
	p.note(what, "%s, %s, epoch %d, target %d, %q, %v", errorName(g.ErrorCode), g.State, g.Epoch, g.AssignmentEpoch, g.AssignorName, members)
	listed := kmsg.NewPtrListGroupsRequest()
	listed.Version = 5
	for _, l := range p.ask(listed).(*kmsg.ListGroupsResponse).Groups {
		if l.Group == group {
			p.note(what, "listed as %s, %s, %s", l.GroupType, l.ProtocolType, l.GroupState)
		}
	}
	classic := kmsg.NewPtrDescribeGroupsRequest()
	classic.Version, classic.Groups = 6, []string{group}
	d := p.ask(classic).(*kmsg.DescribeGroupsResponse).Groups[0]
	p.note(what, "as a classic group %s, %s", errorName(d.ErrorCode), d.State)
}

func (p *peer) commit(what, group, member string, epoch int32, version int16, partition int32) {
	p.t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = version, group, member, nth(epoch)
	req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", TopicID: p.topic, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: partition, Offset: 3, LeaderEpoch: -1}}}}
	resp := p.ask(req).(*kmsg.OffsetCommitResponse)
	p.note(what, "%s", errorName(resp.Topics[0].Partitions[0].ErrorCode))
}

func (p *peer) fetch(what, group string, member *string, epoch int32) {
	p.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version = 10
	req.Groups = []kmsg.OffsetFetchRequestGroup{{Group: group, MemberID: member, MemberEpoch: nth(epoch),
		Topics: []kmsg.OffsetFetchRequestGroupTopic{{TopicID: p.topic, Partitions: []int32{0, 5}}}}}
	g := p.ask(req).(*kmsg.OffsetFetchResponse).Groups[0]
	var offsets []int64
	for _, rt := range g.Topics {
		for _, rp := range rt.Partitions {
			offsets = append(offsets, rp.Offset)
		}
	}
	p.note(what, "%s, %v", errorName(g.ErrorCode), offsets)
}

func (p *peer) deleteOffsets(what, group string) {
	p.t.Helper()
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = group
	for _, topic := range []string{"t", "nowhere"} {
		req.Topics = append(req.Topics, kmsg.OffsetDeleteRequestTopic{Topic: topic, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}})
	}
	resp := p.ask(req).(*kmsg.OffsetDeleteResponse)
	var topics []string // in whatever order
	for _, rt := range resp.Topics {
		topics = append(topics, rt.Topic+" "+errorName(rt.Partitions[0].ErrorCode))
	}
	slices.Sort(topics)
	p.note(what, "%s, %q", errorName(resp.ErrorCode), topics)
}

func (p *peer) join(what, group string) (member string) {
	p.t.Helper()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType = 9, group, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10000, 10000
	metadata := kmsg.ConsumerMemberMetadata{Topics: []string{"t"}}
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: metadata.AppendTo(nil)}}
	resp := p.ask(req).(*kmsg.JoinGroupResponse)
	if resp.ErrorCode == kerr.MemberIDRequired.Code {
		req.MemberID = resp.MemberID
		resp = p.ask(req).(*kmsg.JoinGroupResponse)
	}
	p.note(what, "%s", errorName(resp.ErrorCode))
	return resp.MemberID
}

// script is the life of some groups.
func (p *peer) script() {
	text := func(s string) *string { return &s }
	p.describe("nothing there", "g")
	p.heartbeat("no such group", "g", "a", 3, nil)
	p.heartbeat("leave of no group", "g", "a", -1, nil)
	p.heartbeat("join without a timeout", "g", "a", 0, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RebalanceTimeoutMillis = -1 })
	p.heartbeat("join without topics", "g", "a", 0, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicNames = nil })
	p.heartbeat("join without partitions", "g", "a", 0, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Topics = nil })
	p.heartbeat("join with partitions", "g", "a", 0, p.owns(1))
	p.heartbeat("join without an id", "g", "", 0, nil)
	p.heartbeat("epoch -3", "g", "a", -3, nil)
	p.heartbeat("epoch -2, not static", "g", "a", -2, nil)
	p.heartbeat("unknown assignor", "g", "a", 0, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.ServerAssignor = text("nope") })
	p.heartbeat("bad expression", "g", "a", 0, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicRegex = text("(") })
	p.heartbeat("empty instance", "g", "a", 0, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.InstanceID = text("") })
	p.heartbeat("empty rack", "g", "a", 0, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RackID = text("") })

	p.heartbeat("a joins", "g", "a", 0, nil)
	p.describe("one member", "g")
	p.heartbeat("a stays", "g", "a", 1, nil)
	p.heartbeat("a tells all", "g", "a", 1, func(r *kmsg.ConsumerGroupHeartbeatRequest) {
		p.owns(0, 1, 2, 3, 4, 5)(r)
		r.RebalanceTimeoutMillis, r.SubscribedTopicNames = 60000, []string{"t"}
	})
	p.heartbeat("b joins", "g", "b", 0, nil)
	p.describe("two members", "g")
	p.heartbeat("a is told", "g", "a", 1, nil)
	p.describe("a revokes", "g")
	p.heartbeat("a still owns", "g", "a", 1, p.owns(0, 1, 2, 3, 4, 5))
	p.commit("a commits what it is to give up", "g", "a", 1, 9, 5)
	p.heartbeat("b waits", "g", "b", 2, nil)
	p.heartbeat("a gives up nothing new", "g", "a", 1, p.owns())
	p.heartbeat("b gets its part", "g", "b", 2, nil)
	p.describe("shared", "g")
	p.heartbeat("a's last epoch, and not more than it has", "g", "a", 1, p.owns())
	p.heartbeat("a's last epoch, and too much", "g", "a", 1, p.owns(0, 1, 2, 3, 4, 5))
	p.heartbeat("greater epoch", "g", "a", 9, nil)
	p.heartbeat("stranger", "g", "x", 2, nil)

	p.commit("b", "g", "b", 2, 10, 5)
	p.commit("newer epoch", "g", "b", 3, 10, 5)
	p.commit("stranger commits", "g", "x", 2, 10, 5)
	p.commit("nobody commits", "g", "", -1, 10, 5)
	p.commit("older version", "g", "b", 2, 8, 5)
	p.commit("older version, no group", "nobody", "b", 2, 8, 5)
	p.commit("no group", "nobody", "b", 2, 9, 5)
	p.fetch("fetch", "g", nil, -1)
	p.fetch("member fetches", "g", text("b"), 2)
	p.fetch("older epoch fetches", "g", text("b"), 1)
	p.fetch("stranger fetches", "g", text("x"), 2)
	p.deleteOffsets("delete offsets", "g")
	p.deleteOffsets("delete offsets of no group", "nobody")
	p.join("classic member joins", "g")

	p.heartbeat("b joins again", "g", "b", 0, nil)
	p.heartbeat("b leaves", "g", "b", -1, nil)
	p.describe("b has left", "g")
	p.heartbeat("b leaves again", "g", "b", -1, nil)
	p.heartbeat("a gets it back", "g", "a", 2, p.owns())
	p.heartbeat("a changes its topics", "g", "a", 3, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicNames = []string{"nothing"} })
	p.heartbeat("a has given up", "g", "a", 3, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{} })
	p.describe("a has nothing", "g")
	p.deleteOffsets("delete offsets of no subscription", "g")
	p.heartbeat("a leaves", "g", "a", -1, nil)
	p.describe("empty", "g")
	p.commit("administrator commits", "g", "", -1, 10, 5)

	static := func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.InstanceID = text("i") }
	p.heartbeat("static member", "s", "a", 0, static)
	p.heartbeat("another of its name", "s", "b", 0, static)
	p.heartbeat("it in another's name", "s", "b", 1, static)
	p.heartbeat("unknown instance", "s", "a", 1, func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.InstanceID = text("j") })
	p.heartbeat("leaves for a while, as another", "s", "b", -2, static)
	p.heartbeat("leaves for a while", "s", "a", -2, static)
	p.describe("away", "s")
	p.heartbeat("is away", "s", "a", 1, static)
	p.heartbeat("comes back", "s", "b", 0, static)
	p.describe("back", "s")
	p.heartbeat("its old id", "s", "a", 1, static)
	p.heartbeat("leaves for good", "s", "b", -1, static)
	p.describe("gone", "s")

	member := p.join("classic member", "c")
	p.heartbeat("joins a classic group", "c", "a", 0, nil)
	p.describe("classic", "c")
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Version, leave.Group = 5, "c"
	leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: member}}
	p.ask(leave)
	p.heartbeat("joins an empty classic group", "c", "a", 0, nil)
	p.describe("converted", "c")
	p.heartbeat("leaves it", "c", "a", -1, nil)
	p.join("classic member joins the empty one", "c")
	p.describe("converted back", "c")
}

// Apache Kafka and we answer the same, word for word.
func TestConsumerGroupsAnswerAsKafkaDoes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an Apache Kafka")
	}
	kafka := testenv.StartKafka(t, testenv.KafkaConfig{Properties: map[string]string{
		"group.consumer.migration.policy":        "disabled",
		"group.consumer.assignment.interval.ms":  "0",
		"group.consumer.assignor.offload.enable": "false",
	}})
	cfg := consumerConfig(t)
	cfg.ConsumerGroupSessionTimeout = 45 * time.Second
	cfg.ConsumerGroupAssignmentInterval, cfg.ConsumerGroupMigration = -1, "disabled"
	n := startNode(t, cfg)
	theirs, ours := newPeer(t, kafka.Addr), newPeer(t, n.Addr())
	theirs.script()
	ours.script()
	compare(t, ours, theirs)
	compareRecords(t, cfg.DataDir, kafka.LogDir(), 40)
}

// compare looks for what is answered otherwise than by Kafka.
func compare(t *testing.T, ours, theirs *peer) {
	t.Helper()
	for i := range min(len(theirs.answer), len(ours.answer)) {
		if got, want := ours.answer[i], theirs.answer[i]; got != want {
			t.Errorf("we answer\n%s\nKafka\n%s", got, want)
		}
	}
	if len(theirs.answer) != len(ours.answer) {
		t.Errorf("%d answers, Kafka gives %d", len(ours.answer), len(theirs.answer))
	}
	if t.Failed() {
		t.Logf("Kafka answers:\n%s", strings.Join(theirs.answer, "\n"))
	}
}

// compareRecords looks for what is written otherwise than by Kafka, which is so much at least.
func compareRecords(t *testing.T, ourDir, theirDir string, least int) {
	t.Helper()
	wrote, want := records(t, ourDir), records(t, theirDir)
	if len(want) < least {
		t.Errorf("only %d records", len(want))
	}
	for i := range max(len(wrote), len(want)) {
		if i >= len(wrote) || i >= len(want) || wrote[i] != want[i] {
			t.Fatalf("record %d; we wrote\n%s\nKafka\n%s", i, strings.Join(wrote[min(i, len(wrote)):], "\n"), strings.Join(want[min(i, len(want)):], "\n"))
		}
	}
}

// records lists what a broker has written of the groups of the script, as Kafka's tool shows it,
// without times and what is made at random.
func records(t *testing.T, dir string) (all []string) {
	t.Helper()
	random := regexp.MustCompile(`"(topicId|metadataHash|assignmentTimestamp|commitTimestamp|currentStateTimestamp)":[^,}]*`)
	for partition := range 4 {
		dump := run(t, testenv.KafkaTool(t, "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--deep-iteration", "--files",
			filepath.Join(dir, fmt.Sprint("__consumer_offsets-", partition), "00000000000000000000.log")))
		for line := range strings.Lines(dump) {
			_, record, found := strings.Cut(line, " key: ")
			if !found || strings.HasPrefix(record, `{"type":"2"`) { // the classic protocol, tested elsewhere
				continue
			}
			all = append(all, random.ReplaceAllString(strings.TrimSpace(record), `"$1":0`))
		}
	}
	return all
}
