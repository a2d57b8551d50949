package group

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// mixedMember is a consumer of the classic protocol that gives up what it is told to.
type mixedMember struct {
	f          *consumerFixture
	id         string
	instance   string
	generation int32
	owned      []int32
}

func (m *mixedMember) request() JoinRequest {
	s := kmsg.NewConsumerMemberMetadata()
	s.Version, s.Topics, s.Generation = 3, []string{"t"}, m.generation
	s.OwnedPartitions = []kmsg.ConsumerMemberMetadataOwnedPartition{{Topic: "t", Partitions: m.owned}}
	return JoinRequest{
		Group: "g", MemberID: m.id, InstanceID: m.instance, ClientID: "c", ClientHost: "/127.0.0.1",
		SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second,
		ProtocolType: consumerProtocol, Protocols: []Protocol{{"range", s.AppendTo(nil)}},
	}
}

func (m *mixedMember) take(assignment []byte) {
	m.owned = nil
	var a kmsg.ConsumerMemberAssignment
	if len(assignment) > 0 {
		if err := a.ReadFrom(assignment); err != nil {
			m.f.Fatal(err)
		}
	}
	for _, t := range a.Topics {
		m.owned = append(m.owned, t.Partitions...)
	}
}

// lead makes the only member of a classic group, with all partitions.
func (m *mixedMember) lead() {
	m.f.Helper()
	joined := m.f.join(m.request())
	m.f.clock.advance(time.Second) // the delay of a first rebalance
	resp := joined.get()
	if resp.Err != nil || resp.Leader != resp.MemberID {
		m.f.Fatalf("join: %+v", resp)
	}
	m.id, m.generation = resp.MemberID, resp.Generation
	a := kmsg.NewConsumerMemberAssignment()
	a.Topics = []kmsg.ConsumerMemberAssignmentTopic{{Topic: "t", Partitions: []int32{0, 1, 2, 3, 4, 5}}}
	synced := m.f.sync(SyncRequest{Group: "g", MemberID: m.id, Generation: m.generation, Assignments: []Assignment{{m.id, a.AppendTo(nil)}}}).get()
	if synced.Err != nil {
		m.f.Fatal(synced.Err)
	}
	m.take(synced.Assignment)
}

// follow heartbeats, and does what a member does that is asked to rejoin.
func (m *mixedMember) follow() (rejoined bool) {
	m.f.Helper()
	err := m.f.fixture.heartbeat("g", m.id, m.generation)
	if err == nil {
		return false
	}
	m.f.wantErr("heartbeat", err, ErrRebalanceInProgress)
	resp := m.f.join(m.request()).get()
	if resp.Err != nil || resp.Leader != "" || resp.Protocol != "range" {
		m.f.Fatalf("rejoin: %+v", resp)
	}
	m.generation = resp.Generation
	synced := m.f.sync(SyncRequest{Group: "g", MemberID: m.id, Generation: m.generation, ProtocolType: consumerProtocol, Protocol: "range"}).get()
	if synced.Err != nil {
		m.f.Fatal(synced.Err)
	}
	m.take(synced.Assignment)
	return true
}

// A group of the classic protocol is taken over by a member of the consumer
// protocol and given back by the last one, and a coordinator that takes over in
// the middle goes on with both kinds of members.
func TestMigration(t *testing.T) {
	f := newConsumerFixture(t, Config{InitialRebalanceDelay: time.Second})
	a := &mixedMember{f: f}
	a.lead()
	f.commit(oneCommit("g", a.id, a.generation, 7)).get()
	x := f.consumer("x", "t")
	failover := func() {
		t.Helper()
		f.wantConsumerReplay()
		f.elect(f.log.prefix(f.log.end))
	}
	x.mustBeat()
	if d := f.describeConsumer("g"); len(d.Members) != 2 || d.State != "Reconciling" {
		t.Fatalf("%+v", d)
	}
	failover()
	for range 4 {
		a.follow()
		x.mustBeat()
		failover()
	}
	if d := f.describeConsumer("g"); d.State != "Stable" || len(a.owned) != 3 || len(x.owned[f.topicID("t")]) != 3 {
		t.Fatalf("%+v; a has %v, x %v", d, a.owned, x.owned)
	}
	for _, p := range a.owned {
		if x.owned.has(f.topicID("t"), p) {
			t.Errorf("both have %d", p)
		}
	}
	if a.follow() {
		t.Error("a settled member is asked to rejoin")
	}
	f.wantErr("commit", f.commit(oneCommit("g", a.id, a.generation, 8)).get().Err, nil)
	f.wantErr("commit of another generation", f.commit(oneCommit("g", a.id, a.generation-1, 8)).get().Err, ErrIllegalGeneration)

	x.leave(leaveEpoch).get()
	if d, err := f.c.Describe("g"); err != nil || d.State != "PreparingRebalance" || len(d.Members) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	failover()
	f.wantReplay(f.log.end, f.durable(f.c))
	f.wantErr("heartbeat", f.fixture.heartbeat("g", a.id, a.generation), nil) // in the generation that was stored
	a.lead()
	if got := f.offset("g", "t", 0); got != 8 {
		t.Errorf("offset %d", got)
	}
}

// A member of the classic protocol that is silent, does not rejoin when it is
// asked to, or does not ask for its assignment, is out.
func TestMixedMembersTimeOut(t *testing.T) {
	for name, tc := range map[string]struct {
		after  time.Duration
		during func(f *consumerFixture, a *mixedMember)
	}{
		"silent": {11 * time.Second, func(*consumerFixture, *mixedMember) {}},
		"does not rejoin": {31 * time.Second, func(f *consumerFixture, a *mixedMember) {
			f.wantErr("heartbeat", f.fixture.heartbeat("g", a.id, a.generation), ErrRebalanceInProgress)
		}},
		"does not sync": {31 * time.Second, func(f *consumerFixture, a *mixedMember) {
			if resp := f.join(a.request()).get(); resp.Err == nil {
				a.generation = resp.Generation
			}
			_ = f.fixture.heartbeat("g", a.id, a.generation)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newConsumerFixture(t, Config{InitialRebalanceDelay: time.Second})
			a := &mixedMember{f: f}
			a.lead()
			x := f.consumer("x", "t")
			x.mustBeat()
			tc.during(f, a)
			for passed := time.Duration(0); passed < tc.after; passed += time.Second {
				if name != "silent" && passed < tc.after-2*time.Second {
					_ = f.fixture.heartbeat("g", a.id, a.generation)
				}
				f.clock.advance(time.Second)
				x.mustBeat()
			}
			if d := f.describeConsumer("g"); len(d.Members) != 1 || d.Members[0].ID != "x" {
				t.Fatalf("%+v", d)
			}
			x.mustBeat()
			x.wantHas("t[0 1 2 3 4 5]")
			f.wantConsumerReplay()
		})
	}
}

// A static member takes its own place under the other protocol.
func TestStaticMemberChangesItsProtocol(t *testing.T) {
	f := newConsumerFixture(t, Config{InitialRebalanceDelay: time.Second})
	a := &mixedMember{f: f, instance: "i"}
	a.lead()
	x := f.static("x", "i", "t")
	x.mustBeat()
	x.wantHas("t[0 1 2 3 4 5]")
	if d := f.describeConsumer("g"); len(d.Members) != 1 || d.Members[0].Classic {
		t.Fatalf("%+v", d)
	}
	f.wantErr("its old id", f.c.Heartbeat(HeartbeatRequest{Group: "g", MemberID: a.id, InstanceID: "i", Generation: a.generation}), ErrFencedInstance)
	f.wantConsumerReplay()
}
