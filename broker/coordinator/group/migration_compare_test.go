package group_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/testenv"
)

// classic is a member of the classic protocol of a peer's group.
type classic struct {
	p          *peer
	group, id  string
	instance   *string
	topics     []string
	owned      []int32
	protocols  []string
	generation int32
	protocol   string
}

func (p *peer) classic(group string) *classic {
	return &classic{p: p, group: group, topics: []string{"t"}, protocols: []string{"range"}}
}

// join sends a join and does not wait for its answer.
func (c *classic) joining(what string) <-chan struct{} {
	c.p.t.Helper()
	answered := make(chan struct{})
	go func() { c.join(what); close(answered) }()
	return answered
}

func (c *classic) join(what string) {
	c.p.t.Helper()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType, req.MemberID, req.InstanceID = 9, c.group, "consumer", c.id, c.instance
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10000, 10000
	metadata := kmsg.NewConsumerMemberMetadata()
	metadata.Version, metadata.Topics = 3, c.topics
	metadata.OwnedPartitions = []kmsg.ConsumerMemberMetadataOwnedPartition{{Topic: "t", Partitions: c.owned}}
	metadata.Generation = c.generation
	for _, name := range c.protocols {
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: name, Metadata: metadata.AppendTo(nil)})
	}
	resp := c.p.ask(req).(*kmsg.JoinGroupResponse)
	if resp.ErrorCode == kerr.MemberIDRequired.Code {
		c.id, req.MemberID = resp.MemberID, resp.MemberID
		resp = c.p.ask(req).(*kmsg.JoinGroupResponse)
	}
	protocol, kind := "none", "none"
	if resp.Protocol != nil {
		protocol = *resp.Protocol
	}
	if resp.ProtocolType != nil {
		kind = *resp.ProtocolType
	}
	leads := "nobody leads"
	if resp.LeaderID != "" {
		leads = fmt.Sprintf("leads %v, of %d", resp.LeaderID == resp.MemberID, len(resp.Members))
	}
	c.p.note(what, "%s, generation %d, %s %s, %s", errorName(resp.ErrorCode), resp.Generation, kind, protocol, leads)
	if resp.ErrorCode == 0 {
		c.id, c.generation, c.protocol = resp.MemberID, resp.Generation, protocol
	}
}

// sync asks for the assignment; a leader gives all partitions to the members in turn.
func (c *classic) sync(what string, members ...*classic) {
	c.p.t.Helper()
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation, req.InstanceID = 5, c.group, c.id, c.generation, c.instance
	kind := "consumer"
	req.ProtocolType, req.Protocol = &kind, &c.protocol
	for i, m := range members {
		assignment := kmsg.NewConsumerMemberAssignment()
		assignment.Version = 1
		topic := kmsg.ConsumerMemberAssignmentTopic{Topic: "t"}
		for p := int32(0); p < 6; p++ {
			if int(p)%len(members) == i {
				topic.Partitions = append(topic.Partitions, p)
			}
		}
		assignment.Topics = append(assignment.Topics, topic)
		req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m.id, MemberAssignment: assignment.AppendTo(nil)})
	}
	resp := c.p.ask(req).(*kmsg.SyncGroupResponse)
	var given kmsg.ConsumerMemberAssignment
	if err := given.ReadFrom(resp.MemberAssignment); err != nil && len(resp.MemberAssignment) > 0 {
		c.p.t.Fatal(err)
	}
	c.owned = nil
	for _, t := range given.Topics {
		c.owned = append(c.owned, t.Partitions...)
	}
	slices.Sort(c.owned)
	// How many, not which: that depends on the members' ids, which are made at random.
	c.p.note(what, "%s, %d partitions, version %d", errorName(resp.ErrorCode), len(c.owned), given.Version)
}

func (c *classic) beat(what string) {
	c.p.t.Helper()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation, req.InstanceID = 4, c.group, c.id, c.generation, c.instance
	c.p.note(what, "%s", errorName(c.p.ask(req).(*kmsg.HeartbeatResponse).ErrorCode))
}

func (c *classic) leave(what string) {
	c.p.t.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Version, req.Group = 5, c.group
	req.Members = []kmsg.LeaveGroupRequestMember{{MemberID: c.id, InstanceID: c.instance}}
	resp := c.p.ask(req).(*kmsg.LeaveGroupResponse)
	c.p.note(what, "%s, %s", errorName(resp.ErrorCode), errorName(resp.Members[0].ErrorCode))
}

func (c *classic) commit(what string, generation int32) {
	c.p.t.Helper()
	c.p.commit(what, c.group, c.id, generation-1, 9, 0)
}

// modern is a member of the consumer protocol that does what it is told.
type modern struct {
	p         *peer
	group, id string
	epoch     int32
	given     []int32
}

func (m *modern) beat(what string) {
	m.p.t.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, m.group, m.id, m.epoch
	req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 60000, []string{"t"}
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if m.epoch > 0 && len(m.given) > 0 {
		req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{{TopicID: m.p.topic, Partitions: m.given}}
	}
	resp := m.p.ask(req).(*kmsg.ConsumerGroupHeartbeatResponse)
	if resp.Assignment != nil {
		m.given = nil
		for _, t := range resp.Assignment.Topics {
			m.given = append(m.given, t.Partitions...)
		}
		slices.Sort(m.given)
	}
	m.p.note(what, "%s, epoch %d, %d partitions", errorName(resp.ErrorCode), resp.MemberEpoch, len(m.given))
	if resp.ErrorCode == 0 {
		m.epoch = resp.MemberEpoch
	}
}

func (m *modern) leave(what string) {
	m.p.t.Helper()
	m.epoch = -1
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, m.group, m.id, -1
	resp := m.p.ask(req).(*kmsg.ConsumerGroupHeartbeatResponse)
	m.p.note(what, "%s, epoch %d", errorName(resp.ErrorCode), resp.MemberEpoch)
}

// settle lets classic members rejoin until they are told nothing new.
func (c *classic) settle(what string) {
	c.p.t.Helper()
	c.beat(what + ", heartbeat")
	c.join(what + ", join")
	c.sync(what + ", sync")
}

// migrationScript is what groups live through when their members change protocols.
func (p *peer) migrationScript() {
	a, b := p.classic("g"), p.classic("g")
	joined := a.joining("a joins")
	<-joined
	a.sync("a syncs", a)
	a.beat("a is settled")
	p.describe("a classic group", "g")

	x := &modern{p: p, group: "g", id: "x"}
	x.beat("x joins")
	p.describe("both protocols", "g")
	a.beat("a is asked to rejoin")
	a.commit("a commits before it has", a.generation)
	a.commit("a commits in another generation", a.generation+5)
	a.join("a rejoins")
	a.sync("a syncs again")
	a.beat("a's heartbeat while it gives up")
	x.beat("x waits")
	p.describe("while a gives up", "g")
	a.settle("a gives up")
	x.beat("x gets its part")
	p.describe("shared", "g")
	a.beat("a is settled again")
	a.commit("a commits", a.generation)
	stranger := p.classic("g")
	stranger.id, stranger.generation, stranger.protocol = "nobody", a.generation, "range"
	stranger.beat("a stranger's heartbeat")
	stranger.sync("a stranger's sync")
	stranger.leave("a stranger leaves")
	old := *a
	old.generation--
	old.beat("an old generation's heartbeat")
	old.sync("an old generation's sync")
	other := p.classic("g")
	other.protocols = []string{"roundrobin"}
	other.join("one without a common protocol")

	b.join("b joins")
	b.sync("b syncs")
	p.describe("three members", "g")
	for range 3 {
		a.settle("a")
		x.beat("x")
		b.settle("b")
	}
	p.describe("three settled members", "g")
	b.leave("b leaves")
	p.describe("b has left", "g")
	for range 2 {
		a.settle("a")
		x.beat("x")
	}
	p.describe("two again", "g")

	x.leave("x leaves")
	p.describe("the last of the consumer protocol has left", "g")
	a.beat("a in the classic group")
	a.join("a joins it")
	a.sync("a leads it", a)
	p.describe("classic again", "g")
	a.leave("a leaves")
	p.describe("empty", "g")

	x2 := &modern{p: p, group: "h", id: "x"}
	x2.beat("a consumer group")
	c := p.classic("h")
	c.join("a classic member joins it")
	c.sync("and syncs")
	for range 2 {
		x2.beat("x")
		c.settle("c")
	}
	p.describe("both", "h")
	x2.leave("x leaves")
	p.describe("downgraded", "h")
	c.join("c joins")
	c.sync("c leads", c)
	c.leave("c leaves")

	odd := p.classic("o")
	odd.join("a member with an assignor of its own")
	odd.syncUserData("gives user data")
	x3 := &modern{p: p, group: "o", id: "x"}
	x3.beat("joins it")
	p.describe("not upgraded", "o")
}

// syncUserData leads with an assignment that only its own assignor understands.
func (c *classic) syncUserData(what string) {
	c.p.t.Helper()
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 5, c.group, c.id, c.generation
	kind := "consumer"
	req.ProtocolType, req.Protocol = &kind, &c.protocol
	assignment := kmsg.NewConsumerMemberAssignment()
	assignment.Topics = []kmsg.ConsumerMemberAssignmentTopic{{Topic: "t", Partitions: []int32{0}}}
	assignment.UserData = []byte("mine")
	req.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: c.id, MemberAssignment: assignment.AppendTo(nil)}}
	c.p.note(what, "%s", errorName(c.p.ask(req).(*kmsg.SyncGroupResponse).ErrorCode))
}

// everyPolicy compares the two policies too that allow one direction only, each with
// a Kafka of its own: -args -every-policy.
var everyPolicy = flag.Bool("every-policy", false, "compare all migration policies with Kafka")

// A group whose members change their protocol one by one is answered as by Kafka.
func TestMigrationAnswersAsKafkaDoes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an Apache Kafka")
	}
	policies := []string{"bidirectional", "disabled"}
	if *everyPolicy {
		policies = append(policies, "upgrade", "downgrade")
	}
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			kafka := testenv.StartKafka(t, testenv.KafkaConfig{Properties: map[string]string{
				"group.consumer.migration.policy":        policy,
				"group.consumer.assignment.interval.ms":  "0",
				"group.consumer.assignor.offload.enable": "false",
			}})
			cfg := consumerConfig(t)
			cfg.ConsumerGroupSessionTimeout, cfg.ConsumerGroupMigration = 45*time.Second, policy
			cfg.ConsumerGroupAssignmentInterval = -1
			n := startNode(t, cfg)
			theirs, ours := newPeer(t, kafka.Addr), newPeer(t, n.Addr())
			theirs.migrationScript()
			ours.migrationScript()
			compare(t, ours, theirs)
			// Kafka's tool reads what was written.
			all := records(t, cfg.DataDir)
			undecoded := slices.ContainsFunc(all, func(r string) bool {
				return !strings.Contains(r, `payload: {"version"`) && !strings.Contains(r, "payload: <DELETE>")
			})
			if len(all) < 20 || undecoded {
				t.Errorf("%d records:\n%s", len(all), strings.Join(all, "\n"))
			}
		})
	}
}
