package group

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// One member gets everything, a second one half of it when the first has given that up.
func TestConsumersShareATopic(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	a, b := f.consumer("a", "t"), f.consumer("b", "t")
	if resp := a.mustBeat(); resp.Epoch != 2 || resp.HeartbeatInterval != 5*time.Second || resp.MemberID != "a" {
		t.Errorf("%+v", resp)
	}
	a.wantHas("t[0 1 2 3 4 5]")
	f.wantGroup("g", "Stable", 1, 1, 1)

	a.slow = true
	if resp := b.mustBeat(); resp.Epoch != 3 || !resp.Assigned {
		t.Errorf("%+v", resp)
	}
	b.wantHas("") // nothing is free yet
	f.wantGroup("g", "Reconciling", 2, 2, 2)
	if resp := a.mustBeat(); resp.Epoch != 2 {
		t.Errorf("a has epoch %d before it has given anything up", resp.Epoch)
	}
	a.wantHas("t[0 1 2]")
	if resp := a.mustBeat(); resp.Assigned || resp.Epoch != 2 {
		t.Errorf("told again: %+v", resp)
	}
	if resp := b.mustBeat(); resp.Assigned {
		t.Errorf("b was given what a still has: %+v", resp)
	}
	a.revoke()
	if resp := a.mustBeat(); resp.Epoch != 3 || resp.Assigned {
		t.Errorf("after it gave up: %+v", resp)
	}
	b.mustBeat()
	b.wantHas("t[3 4 5]")
	f.wantGroup("g", "Stable", 2, 2, 2)
	f.wantConsumerReplay()

	// b leaves: a gets it back at its next heartbeat.
	if resp := b.leave(leaveEpoch).get(); resp.Err != nil || resp.Epoch != leaveEpoch {
		t.Errorf("leave: %+v", resp)
	}
	f.wantGroup("g", "Assigning", 3, 2, 1)
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5]")
	f.wantGroup("g", "Stable", 3, 3, 1)
	f.wantErr("a second leave", b.leave(leaveEpoch).get().Err, ErrUnknownMember)
	a.leave(leaveEpoch).get()
	f.wantGroup("g", "Empty", 4, 4, 0)
	f.wantConsumerReplay()
}

func TestConsumerHeartbeatRefusals(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerAssignors: []string{"range"}})
	text := func(s string) *string { return &s }
	for name, tc := range map[string]struct {
		change func(*ConsumerHeartbeat)
		want   error
	}{
		"no group":              {func(r *ConsumerHeartbeat) { r.Group = "" }, ErrInvalidRequest},
		"no member":             {func(r *ConsumerHeartbeat) { r.MemberID = "" }, ErrInvalidRequest},
		"no member, version 0":  {func(r *ConsumerHeartbeat) { r.MemberID, r.MemberIDRequired, r.Epoch = "", false, 5 }, ErrInvalidRequest},
		"empty instance":        {func(r *ConsumerHeartbeat) { r.InstanceID = text("") }, ErrInvalidRequest},
		"empty rack":            {func(r *ConsumerHeartbeat) { r.RackID = text("") }, ErrInvalidRequest},
		"no rebalance timeout":  {func(r *ConsumerHeartbeat) { r.RebalanceTimeout = -1 }, ErrInvalidRequest},
		"nothing owned":         {func(r *ConsumerHeartbeat) { r.Owned = nil }, ErrInvalidRequest},
		"something owned":       {func(r *ConsumerHeartbeat) { r.Owned = []TopicPartitions{{}} }, ErrInvalidRequest},
		"no subscription":       {func(r *ConsumerHeartbeat) { r.Topics = nil }, ErrInvalidRequest},
		"epoch":                 {func(r *ConsumerHeartbeat) { r.Epoch = -3 }, ErrInvalidRequest},
		"leaves for a while":    {func(r *ConsumerHeartbeat) { r.Epoch = leaveStaticEpoch }, ErrInvalidRequest},
		"assignor":              {func(r *ConsumerHeartbeat) { r.Assignor = text("uniform") }, ErrUnsupportedAssignor},
		"regex":                 {func(r *ConsumerHeartbeat) { r.Regex = text("(") }, ErrInvalidRegex},
		"regex that closes":     {func(r *ConsumerHeartbeat) { r.Regex = text("a)|(b") }, ErrInvalidRegex},
		"unknown group":         {func(r *ConsumerHeartbeat) { r.Epoch = 3 }, ErrGroupNotFound},
		"unknown group, static": {func(r *ConsumerHeartbeat) { r.Epoch, r.InstanceID = 3, text("i") }, ErrGroupNotFound},
	} {
		req := f.consumer("a", "t").request()
		tc.change(&req)
		f.wantErr(name, f.heartbeat(req).get().Err, tc.want)
	}
	if all, _ := f.c.List(); len(all) != 0 {
		t.Errorf("groups were made: %v", all)
	}
	// Version 0 of the request lets the coordinator make the id.
	req := f.consumer("", "t").request()
	req.MemberIDRequired = false
	if resp := f.heartbeat(req).get(); resp.Err != nil || resp.MemberID == "" {
		t.Errorf("%+v", resp)
	}
	f.wantErr("unknown member", f.heartbeat(ConsumerHeartbeat{Group: "g", MemberID: "x", Epoch: 2, RebalanceTimeout: -1}).get().Err, ErrUnknownMember)
}

// A member that missed an answer may go on with its last epoch; any other is fenced, and begins
// anew with epoch 0.
func TestConsumerEpochs(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	a, b := f.consumer("a", "t"), f.consumer("b", "t")
	f.settle(a)
	f.settle(a, b)
	if a.epoch != 3 || b.epoch != 3 {
		t.Fatalf("epochs %d, %d", a.epoch, b.epoch)
	}
	b.leave(leaveEpoch).get()
	before := *a
	a.mustBeat() // gets everything in epoch 3, and misses the answer
	*a = before
	a.news = true
	if resp := a.mustBeat(); resp.Epoch != 4 {
		t.Errorf("with the last epoch: %+v", resp)
	}
	for _, epoch := range []int32{2, 5} {
		a.epoch = epoch
		a.wantErr(ErrFencedMemberEpoch)
	}
	before.owned = partitionSet{f.topicID("t"): {0, 1, 2, 3, 4, 5, 6}}
	before.news = true
	before.wantErr(ErrFencedMemberEpoch) // owns what it does not have
	a.epoch = joinEpoch
	if resp := a.mustBeat(); resp.Epoch != 4 || !resp.Assigned {
		t.Errorf("joins again: %+v", resp)
	}
	a.wantHas("t[0 1 2 3 4 5]")
}

// The answer comes when what it says is committed, and so does one that only depends on that.
func TestConsumerAnswersWaitForTheLog(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	f.log.held = true
	a := f.consumer("a", "t")
	first := f.heartbeat(a.request())
	first.mustWait()
	again := f.heartbeat(a.request()) // a retry of the same join
	described := false
	f.c.DescribeConsumer("g", func(d ConsumerDescription, err error) { described = err == nil && d.Epoch == 2 })
	again.mustWait()
	if described {
		t.Error("a group is told of before it is committed")
	}
	f.log.commit()
	if first.get().Epoch != 2 || again.get().Epoch != 2 || !described {
		t.Errorf("%+v, %+v, %v", first.get(), again.get(), described)
	}
	f.log.held = false
	f.log.refuse = errors.New("disk full")
	b := f.consumer("b", "t")
	b.wantErr(ErrUnavailable)
	f.wantGroup("g", "Stable", 1, 1, 1)
	f.log.refuse = nil
	b.mustBeat()
	f.wantGroup("g", "Reconciling", 2, 2, 2)

	f.log.held = true
	lost := f.heartbeat(f.consumer("c", "t").request())
	f.log.lose()
	f.wantErr("lost leadership", lost.get().Err, ErrNotCoordinator)
}

// A silent member is out after the session timeout, and not before.
func TestConsumerSessionTimeout(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerSessionTimeout: 10 * time.Second})
	a, b := f.consumer("a", "t"), f.consumer("b", "t")
	f.settle(a)
	f.settle(a, b)
	f.clock.advance(9 * time.Second)
	a.mustBeat()
	f.wantGroup("g", "Stable", 2, 2, 2)
	f.clock.advance(999 * time.Millisecond)
	f.wantGroup("g", "Stable", 2, 2, 2)
	f.clock.advance(time.Millisecond)
	f.wantGroup("g", "Assigning", 3, 2, 1)
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5]")
	b.wantErr(ErrUnknownMember)

	// Two that time out at once make two epochs.
	b.epoch = joinEpoch
	f.settle(a, b)
	epoch := a.epoch
	f.clock.advance(10 * time.Second)
	f.wantGroup("g", "Empty", epoch+1, epoch+1, 0)
	f.wantConsumerReplay()
}

// A member that cannot be taken out because the log refuses it is taken out later.
func TestConsumerFencingIsTriedAgain(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerSessionTimeout: 10 * time.Second})
	f.settle(f.consumer("a", "t"))
	f.log.refuse = errors.New("disk full")
	f.clock.advance(20 * time.Second)
	f.wantGroup("g", "Stable", 1, 1, 1)
	f.log.refuse = nil
	f.clock.advance(fenceRetryInterval)
	f.wantGroup("g", "Empty", 2, 2, 0)
}

// A member that does not give up in time what it was told to is out, though it is not silent.
func TestConsumerRebalanceTimeout(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	a, b := f.consumer("a", "t"), f.consumer("b", "t")
	a.slow, a.rebalanceTimeout = true, 20*time.Second
	a.mustBeat()
	b.mustBeat()
	a.mustBeat() // is told to give up three
	for range 3 {
		f.clock.advance(6 * time.Second)
		a.mustBeat()
		b.mustBeat()
		b.wantHas("")
	}
	f.clock.advance(2 * time.Second)
	a.wantErr(ErrUnknownMember)
	b.mustBeat()
	b.wantHas("t[0 1 2 3 4 5]")

	// One that does in time stays.
	a.epoch, a.slow = joinEpoch, false
	f.settle(a, b)
	f.clock.advance(21 * time.Second)
	a.mustBeat()
	b.mustBeat()
	f.wantGroup("g", "Stable", 4, 4, 2)
}

// Many members that come together are assigned together: one target in an interval.
func TestConsumerAssignmentInterval(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerAssignmentInterval: always(time.Second)})
	a, b, c := f.consumer("a", "t"), f.consumer("b", "t"), f.consumer("c", "t")
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5]") // the first one at once
	b.mustBeat()
	c.mustBeat()
	f.wantGroup("g", "Assigning", 3, 1, 3)
	f.clock.advance(999 * time.Millisecond)
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5]")
	f.clock.advance(time.Millisecond)
	f.settle(a, b, c)
	f.wantGroup("g", "Stable", 3, 3, 3)
	a.wantHas("t[0 1]")
}

func TestConsumersFollowTopics(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	a := f.consumer("a", "t", "u")
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5]")
	f.topic("other", 3)
	a.mustBeat()
	f.wantGroup("g", "Stable", 1, 1, 1)

	f.topic("u", 2) // comes into being
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5] u[0 1]")
	f.wantGroup("g", "Stable", 2, 2, 1)
	f.topic("u", 3)
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5] u[0 1 2]")

	f.image = f.image.Without("t")
	f.c.SetImage(f.image)
	a.mustBeat()
	a.wantHas("u[0 1 2]")
	a.mustBeat()
	f.wantGroup("g", "Stable", 4, 4, 1)

	// After a failover nothing changes as long as the topics are the same.
	f.elect(f.log.prefix(f.log.end))
	a.mustBeat()
	f.wantGroup("g", "Stable", 4, 4, 1)
	f.elect(f.log.prefix(f.log.end))
	f.topic("u", 4)
	a.mustBeat()
	a.wantHas("u[0 1 2 3]")
}

// A member that changes its subscription loses what it no longer wants, at once.
func TestConsumerChangesSubscription(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerAssignmentInterval: always(time.Second)})
	f.topic("u", 2)
	a, b := f.consumer("a", "t", "u"), f.consumer("b", "t", "u")
	f.settle(a, b)
	req := a.request()
	req.Topics = []string{"u"}
	resp := f.heartbeat(req).get()
	a.take(resp)
	if resp.Err != nil || strings.Contains(a.has(), "t[") {
		t.Errorf("still has %s: %+v", a.has(), resp)
	}
	f.settle(a, b)
	b.wantHas("t[0 1 2 3 4 5]")
	a.wantHas("u[0 1]")
	f.wantConsumerReplay()
}

// What a member no longer subscribes to is taken from it also while there is no new target yet.
func TestConsumerChangesSubscriptionBeforeTheTarget(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerAssignmentInterval: always(time.Minute)})
	f.topic("u", 2)
	f.topic("w", 1)
	a := f.consumer("a", "t", "u", "w")
	a.mustBeat()
	a.slow = true
	subscribe := func(topics ...string) {
		req := a.request()
		req.Topics = topics
		resp := f.heartbeat(req).get()
		f.wantErr("heartbeat", resp.Err, nil)
		a.take(resp)
	}
	subscribe("u", "w")
	a.wantHas("u[0 1] w[0]")
	f.wantGroup("g", "Assigning", 2, 1, 1)
	subscribe("u") // it has not yet given up the first
	a.wantHas("u[0 1]")
	if mem := f.describeConsumer("g").Members[0]; mem.Epoch != 2 {
		t.Errorf("member epoch %d", mem.Epoch)
	}
	f.wantConsumerReplay()
	a.revoke()
	a.mustBeat()
	a.wantHas("u[0 1]")
	f.clock.advance(30 * time.Second)
	a.mustBeat()
	f.clock.advance(30 * time.Second)
	a.mustBeat()
	f.wantGroup("g", "Stable", 3, 3, 1)

	// One that has given up what it does not want before it says so does not wait for anything.
	f.clock.advance(time.Second)
	req := a.request()
	req.Topics, req.Owned = []string{}, []TopicPartitions{}
	if resp := f.heartbeat(req).get(); resp.Err != nil || !resp.Assigned || len(resp.Assignment) != 0 {
		t.Errorf("%+v", resp)
	}
	f.wantConsumerReplay()
}

func TestConsumerRegex(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	f.topic("xa", 1)
	pattern := "x.*"
	a, b := f.consumer("a"), f.consumer("b", "t")
	a.topics, a.regex = nil, &pattern
	a.mustBeat()
	a.wantHas("xa[0]")
	f.topic("xb", 1)
	f.topic("axa", 1)
	a.mustBeat()
	a.wantHas("xa[0]") // it is not matched again so soon
	f.clock.advance(regexRefreshMin)
	a.mustBeat()
	a.wantHas("xa[0] xb[0]")
	b.mustBeat()
	b.wantHas("t[0 1 2 3 4 5]")
	d := f.describeConsumer("g")
	if d.Members[0].Regex != pattern || len(d.Members[0].Topics) != 0 {
		t.Errorf("%+v", d.Members[0])
	}
	f.wantConsumerReplay()

	f.image = f.image.Without("xa")
	f.c.SetImage(f.image)
	f.settle(a, b)
	a.wantHas("xb[0]")

	// Another expression takes the place of the first, which goes.
	other := "(?i)T|axa"
	req := a.request()
	req.Regex = &other
	a.take(f.heartbeat(req).get())
	f.settle(a, b)
	a.wantHas("axa[0] t[4 5]")
	if records := f.consumerRecords(f.c); strings.Contains(records, pattern) {
		t.Errorf("the first expression is still stored:\n%s", records)
	}
	a.leave(leaveEpoch).get()
	f.wantConsumerReplay()
	if records := f.consumerRecords(f.c); strings.Contains(records, "axa") {
		t.Errorf("the second expression is still stored:\n%s", records)
	}
}

func TestConsumerAssignors(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	f.topic("u", 6)
	byRange, uniform := "range", "uniform"
	a, b, c := f.consumer("a", "t", "u"), f.consumer("b", "t", "u"), f.consumer("c", "t", "u")
	a.assignor, b.assignor = &byRange, &byRange
	c.assignor = &uniform
	f.settle(a, b, c)
	a.wantHas("t[0 1] u[0 1]")
	b.wantHas("t[2 3] u[2 3]")
	if d := f.describeConsumer("g"); d.Assignor != "range" {
		t.Errorf("assignor %s", d.Assignor)
	}
	a.leave(leaveEpoch).get()
	b.leave(leaveEpoch).get()
	if d := f.describeConsumer("g"); d.Assignor != "uniform" {
		t.Errorf("assignor %s", d.Assignor)
	}
}

func TestConsumerGroupSize(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerMembersMax: 2})
	a, b, c := f.consumer("a", "t"), f.static("b", "i", "t"), f.consumer("c", "t")
	f.settle(a, b)
	c.wantErr(ErrGroupFull)
	a.mustBeat()
	b.leave(leaveStaticEpoch).get()
	b2 := f.static("b2", "i", "t")
	b2.mustBeat() // takes a place that there is
	a.leave(leaveEpoch).get()
	c.mustBeat()
}

// A static member that says that it comes back keeps its partitions for a session timeout, and gets
// them under its new id without a new epoch.
func TestStaticConsumers(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerSessionTimeout: 10 * time.Second})
	a, b := f.consumer("a", "t"), f.static("b", "i", "t")
	f.settle(a, b)
	has := b.has()
	f.static("x", "i", "t").wantErr(ErrUnreleasedInstance)
	stranger := f.static("x", "i", "t")
	stranger.epoch = 3
	stranger.wantErr(ErrFencedInstance)
	unknown := f.static("b", "j", "t")
	unknown.epoch = 3
	unknown.wantErr(ErrUnknownMember)
	f.wantErr("leave of a stranger", stranger.leave(leaveStaticEpoch).get().Err, ErrFencedInstance)
	f.wantErr("leave of an unknown one", unknown.leave(leaveEpoch).get().Err, ErrUnknownMember)

	if resp := b.leave(leaveStaticEpoch).get(); resp.Err != nil || resp.Epoch != leaveStaticEpoch {
		t.Errorf("leave: %+v", resp)
	}
	f.wantGroup("g", "Reconciling", 2, 2, 2)
	b.wantErr(ErrFencedMemberEpoch)
	f.clock.advance(9 * time.Second)
	a.mustBeat()
	f.wantConsumerReplay()
	b2 := f.static("b2", "i", "t")
	if resp := b2.mustBeat(); resp.Epoch != 3 || b2.has() != has {
		t.Errorf("came back with %s, %+v; it had %s", b2.has(), resp, has)
	}
	f.wantGroup("g", "Stable", 2, 2, 2)
	b.epoch = 3
	b.wantErr(ErrFencedInstance)
	f.wantConsumerReplay()

	// One that does not come back in time is out.
	b2.leave(leaveStaticEpoch).get()
	f.clock.advance(5 * time.Second)
	a.mustBeat()
	f.clock.advance(5 * time.Second)
	a.mustBeat()
	a.wantHas("t[0 1 2 3 4 5]")
	f.wantGroup("g", "Stable", 3, 3, 1)
}

func TestConsumerSurvivesAFailover(t *testing.T) {
	f := newConsumerFixture(t, Config{ConsumerSessionTimeout: 10 * time.Second})
	a, b := f.consumer("a", "t"), f.consumer("b", "t")
	a.slow, a.rebalanceTimeout = true, 15*time.Second
	a.mustBeat()
	b.mustBeat()
	a.mustBeat()
	f.clock.advance(9 * time.Second)
	f.elect(f.log.prefix(f.log.end))
	f.clock.advance(9 * time.Second) // sessions and the rebalance timeout have begun anew
	a.mustBeat()
	b.mustBeat()
	f.wantGroup("g", "Reconciling", 2, 2, 2)
	f.clock.advance(6 * time.Second)
	f.wantGroup("g", "Assigning", 3, 2, 1)
	b.mustBeat()
	b.wantHas("t[0 1 2 3 4 5]")
}

// Where the policy does not let protocols mix, what a group is, and which requests it takes, follows
// from who came first; one without members can change.
func TestGroupsChangeTheirProtocol(t *testing.T) {
	f := newConsumerFixture(t, Config{InitialRebalanceDelay: time.Second, ConsumerMigration: MigrateNever})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	f.commit(oneCommit("g", ids[0], gen, 7)).get()
	a := f.consumer("a", "t")
	a.wantErr(ErrGroupNotFound) // it has members
	f.leave("g", LeavingMember{MemberID: ids[0]}).get()
	a.mustBeat()
	f.wantGroup("g", "Stable", 1, 1, 1)
	if got := f.offset("g", "t", 0); got != 7 {
		t.Errorf("offset %d after the change, want 7", got)
	}
	f.wantConsumerReplay()
	f.elect(f.log.prefix(f.log.end))
	f.wantGroup("g", "Stable", 1, 1, 1)
	if got := f.offset("g", "t", 0); got != 7 {
		t.Errorf("offset %d after a replay, want 7", got)
	}

	// Requests of the classic protocol.
	f.wantErr("join", f.join(joinRequest("g")).get().Err, ErrInconsistentProtocol)
	f.wantErr("heartbeat", f.c.Heartbeat(HeartbeatRequest{Group: "g", MemberID: ids[0], Generation: gen}), ErrUnknownMember)
	f.wantErr("sync", f.sync(SyncRequest{Group: "g", MemberID: ids[0], Generation: gen}).get().Err, ErrUnknownMember)
	f.wantErr("leave", f.leave("g", LeavingMember{MemberID: "a"}).get().Members[0], ErrUnknownMember)
	_, err := f.c.Describe("g")
	f.wantErr("describe", err, ErrGroupNotFound)
	f.wantErr("delete", f.delete("g").get(), ErrNonEmptyGroup)
	if all, _ := f.c.List(); len(all) != 1 || all[0] != (Listing{"g", ConsumerType, "consumer", "Stable"}) {
		t.Errorf("%+v", all)
	}

	a.leave(leaveEpoch).get()
	ids, gen = f.stableGroup(joinRequest("g"), 2)
	f.commit(oneCommit("g", ids[0], gen, 8)).get()
	if all, _ := f.c.List(); len(all) != 1 || all[0].Type != ClassicType || all[0].State != "Stable" {
		t.Errorf("%+v", all)
	}
	f.wantReplay(f.log.end, f.durable(f.c))
	f.wantConsumerReplay()
	f.c.DescribeConsumer("g", func(_ ConsumerDescription, err error) { f.wantErr("describe", err, ErrGroupNotFound) })
}

func TestConsumerCommits(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	a, b := f.consumer("a", "t"), f.consumer("b", "t")
	f.settle(a)
	commit := func(member string, epoch int32, partition int32) error {
		if epoch > 0 {
			epoch += emptyEpoch
		}
		return f.commit(CommitRequest{Group: "g", MemberID: member, Generation: epoch, ByEpoch: true, Commits: []Commit{{
			Topic: "t", TopicID: f.topicID("t"), Partition: partition, Offset: 10 + int64(epoch), LeaderEpoch: -1,
		}}}).get().Err
	}
	f.wantErr("its epoch", commit("a", 1, 0), nil)
	f.wantErr("a stranger", commit("x", 1, 0), ErrUnknownMember)
	f.wantErr("without a member", commit("", -1, 0), ErrUnknownMember)
	f.wantErr("newer", commit("a", 2, 0), ErrStaleMemberEpoch)
	old := oneCommit("g", "a", 2, 5)
	f.wantErr("older version", f.commit(old).get().Err, ErrUnsupportedVersion)

	a.slow = true
	b.mustBeat()
	a.mustBeat()
	f.wantErr("of what is being given up", commit("a", 1, 5), nil)
	a.revoke()
	a.mustBeat()
	b.mustBeat()
	f.wantErr("older, of what it kept", commit("a", 1, 0), nil)
	f.wantErr("older, of what it gave up", commit("a", 1, 5), ErrStaleMemberEpoch)
	f.wantErr("older than when it was given", commit("b", 1, 5), ErrStaleMemberEpoch)
	f.wantErr("its epoch", commit("b", 2, 5), nil)

	fetch := func(member string, epoch int32) error {
		if epoch > 0 {
			epoch += emptyEpoch
		}
		_, err := f.c.Offsets(FetchRequest{Group: "g", MemberID: member, MemberEpoch: epoch, All: true})
		return err
	}
	f.wantErr("fetch", fetch("a", 2), nil)
	f.wantErr("fetch, not a member", fetch("", -1), nil)
	f.wantErr("fetch, stranger", fetch("x", 2), ErrUnknownMember)
	f.wantErr("fetch, older", fetch("a", 1), ErrStaleMemberEpoch)
	a.leave(leaveEpoch).get()
	b.leave(leaveEpoch).get()
	f.wantErr("administrator", commit("", -1, 3), nil)
}

// Offsets of topics that members subscribe to stay; others go, and with the last one the group.
func TestConsumerOffsetsExpire(t *testing.T) {
	f := newConsumerFixture(t, Config{OffsetsRetention: time.Hour, RetentionCheckInterval: time.Minute})
	f.topic("u", 1)
	a := f.consumer("a", "t")
	a.mustBeat()
	for _, topic := range []string{"t", "u"} {
		f.wantErr("commit", f.commit(CommitRequest{Group: "g", MemberID: "a", Generation: 2, ByEpoch: true,
			Commits: []Commit{{Topic: topic, TopicID: f.topicID(topic), Offset: 3}}}).get().Err, nil)
	}
	for range 200 {
		f.clock.advance(30 * time.Second)
		a.mustBeat()
	}
	if got, gone := f.offset("g", "t", 0), f.offset("g", "u", 0); got != 3 || gone != -1 {
		t.Errorf("offsets %d and %d, want 3 and none", got, gone)
	}
	a.leave(leaveEpoch).get()
	f.clock.advance(2 * time.Minute) // its commit is old
	if all, _ := f.c.List(); len(all) != 0 {
		t.Errorf("group is still there: %v", all)
	}
	f.wantConsumerReplay()
	if got := f.replayed(f.log.prefix(f.log.end)); got.offsets != "" || len(got.groups) != 0 {
		t.Errorf("after a replay: %+v", got)
	}
}

func TestConsumerGroupIsDeleted(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	pattern := "t.*"
	a := f.consumer("a")
	a.topics, a.regex = nil, &pattern
	a.mustBeat()
	a.leave(leaveEpoch).get()
	f.commit(oneCommit("g", "", -1, 4)).get()
	f.wantErr("delete", f.delete("g").get(), nil)
	if all, _ := f.c.List(); len(all) != 0 {
		t.Errorf("group is still there: %v", all)
	}
	f.elect(f.log.prefix(f.log.end))
	if all, _ := f.c.List(); len(all) != 0 {
		t.Errorf("group is there again: %v", all)
	}
	b := f.consumer("b", "t")
	if resp := b.mustBeat(); resp.Epoch != 2 {
		t.Errorf("%+v", resp)
	}
}

func TestDeleteOffsets(t *testing.T) {
	f := newConsumerFixture(t, Config{InitialRebalanceDelay: time.Second})
	del := func(group string, partitions ...Partition) (errs []error, err error) {
		w := &waiting[[]error]{fixture: f.fixture}
		f.c.DeleteOffsets(group, partitions, func(e []error, refused error) { w.answer(e); err = refused })
		return w.get(), err
	}
	_, err := del("nobody")
	f.wantErr("unknown group", err, ErrGroupNotFound)

	a := f.consumer("a", "t")
	a.mustBeat()
	for _, topic := range []string{"t", "old"} {
		f.commit(CommitRequest{Group: "g", MemberID: "a", Generation: 2, ByEpoch: true, Commits: []Commit{{Topic: topic, Offset: 3}, {Topic: topic, Partition: 1, Offset: 4}}}).get()
	}
	errs, err := del("g", Partition{Topic: "t"}, Partition{Topic: "old"}, Partition{Topic: "old", Partition: 9})
	if err != nil || !errors.Is(errs[0], ErrSubscribed) || errs[1] != nil || errs[2] != nil {
		t.Errorf("%v, %v", errs, err)
	}
	if kept, gone, other := f.offset("g", "t", 0), f.offset("g", "old", 0), f.offset("g", "old", 1); kept != 3 || gone != -1 || other != 4 {
		t.Errorf("offsets %d, %d, %d", kept, gone, other)
	}

	ids, gen := f.stableGroup(joinRequest("c"), 1) // subscribes to t
	f.commit(CommitRequest{Group: "c", MemberID: ids[0], Generation: gen, Commits: []Commit{{Topic: "t", Offset: 1}, {Topic: "u", Offset: 2}}}).get()
	errs, err = del("c", Partition{Topic: "t"}, Partition{Topic: "u"})
	if err != nil || !errors.Is(errs[0], ErrSubscribed) || errs[1] != nil || f.offset("c", "u", 0) != -1 {
		t.Errorf("%v, %v", errs, err)
	}
	f.leave("c", LeavingMember{MemberID: ids[0]}).get()
	if errs, err = del("c", Partition{Topic: "t"}); err != nil || errs[0] != nil || f.offset("c", "t", 0) != -1 {
		t.Errorf("%v, %v", errs, err)
	}
	connect := joinRequest("w")
	connect.ProtocolType = "connect"
	f.stableGroup(connect, 1)
	_, err = del("w", Partition{Topic: "t"})
	f.wantErr("group of another kind", err, ErrNonEmptyGroup)
	f.wantReplay(f.log.end, f.durable(f.c))
}
