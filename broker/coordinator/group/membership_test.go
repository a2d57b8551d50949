package group

import (
	"errors"
	"testing"
	"time"
)

func TestHeartbeat(t *testing.T) {
	f := newFixture(t, Config{})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	f.wantErr("member", f.heartbeat("g", ids[0], gen), nil)
	f.wantErr("old generation", f.heartbeat("g", ids[0], gen-1), ErrIllegalGeneration)
	f.wantErr("unknown member", f.heartbeat("g", "x", gen), ErrUnknownMember)
	f.wantErr("unknown group", f.heartbeat("h", ids[0], gen), ErrUnknownMember)
	f.wantErr("no group", f.heartbeat("", ids[0], gen), ErrInvalidGroupID)
	f.leave("g", LeavingMember{MemberID: ids[0]}).get()
	f.wantErr("empty group", f.heartbeat("g", ids[0], gen), ErrUnknownMember)
}

// A member that dies is out after its session timeout, and not a moment earlier.
func TestSessionTimeout(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.stableGroup(joinRequest("g"), 2)
	f.wantErr("both", errors.Join(f.heartbeat("g", ids[0], gen), f.heartbeat("g", ids[1], gen)), nil)
	f.clock.advance(6 * time.Second)
	f.wantErr("the living", f.heartbeat("g", ids[0], gen), nil)
	f.clock.advance(4*time.Second - time.Nanosecond)
	f.wantErr("the living, before the timeout", f.heartbeat("g", ids[0], gen), nil)
	f.clock.advance(time.Nanosecond)
	f.wantErr("the living, after it", f.heartbeat("g", ids[0], gen), ErrRebalanceInProgress)
	f.wantErr("the dead", f.heartbeat("g", ids[1], gen), ErrUnknownMember)

	req := joinRequest("g")
	req.MemberID = ids[0]
	if got := f.join(req).get(); got.Generation != gen+1 || len(got.Members) != 1 {
		t.Errorf("%+v", got)
	}
}

// A member that heartbeats but does not rejoin is out after the rebalance timeout.
func TestRebalanceTimeout(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.stableGroup(joinRequest("g"), 2)
	_, newcomer := f.joinWithID(joinRequest("g"))
	req := joinRequest("g")
	req.MemberID = ids[1]
	follower := f.join(req)
	for range 6 {
		f.clock.advance(10*time.Second - time.Nanosecond)
		follower.mustWait()
		f.wantErr("slow leader", f.heartbeat("g", ids[0], gen), ErrRebalanceInProgress)
	}
	f.clock.advance(time.Second)
	if got := follower.get(); got.Generation != gen+1 || got.Leader != ids[1] || len(got.Members) != 2 {
		t.Errorf("follower: %+v", got)
	}
	f.wantErr("newcomer", newcomer.get().Err, nil)
	f.wantErr("the slow", f.heartbeat("g", ids[0], gen), ErrUnknownMember)
}

// A static member that does not rejoin keeps its place until its session ends.
func TestStaticMemberNeedNotRejoin(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	req := staticRequest("a")
	req.SessionTimeout = 10 * time.Minute
	a := f.join(req)
	b := f.join(staticRequest("b"))
	f.clock.advance(2 * time.Second)
	ids := []string{a.get().MemberID, b.get().MemberID}
	f.syncAll("g", ids, 1)
	rejoin := staticRequest("b")
	rejoin.MemberID, rejoin.Protocols = ids[1], []Protocol{{"range", subscription("t", "u")}}
	w := f.join(rejoin)
	f.clock.advance(60 * time.Second)
	if got := w.get(); got.Leader != ids[1] || len(got.Members) != 2 {
		t.Errorf("%+v", got)
	}
}

// When nobody rejoins, static members are waited for until their sessions end, and then the group
// is empty.
func TestNobodyRejoins(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	req := staticRequest("a")
	req.SessionTimeout = 3 * time.Minute
	a := f.join(req)
	_, b := f.joinWithID(joinRequest("g"))
	f.clock.advance(2 * time.Second)
	f.syncAll("g", []string{a.get().MemberID, b.get().MemberID}, 1)
	f.clock.advance(10 * time.Second) // b's session
	f.wantState("g", preparingRebalance)
	f.clock.advance(130 * time.Second) // two rebalance timeouts
	f.wantState("g", preparingRebalance)
	f.clock.advance(time.Minute) // a's session
	f.wantState("g", empty)
}

// Members that joined and never ask for their assignment are out after the rebalance timeout.
func TestSyncTimeout(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	req := joinRequest("g")
	req.SessionTimeout = 10 * time.Minute
	a, first := f.joinWithID(req)
	b, _ := f.joinWithID(req)
	f.clock.advance(2 * time.Second)
	gen := first.get().Generation
	f.sync(SyncRequest{Group: "g", MemberID: a, Generation: gen}).get()
	f.wantState("g", stable)
	f.clock.advance(61 * time.Second)
	f.wantErr("who did not ask", f.heartbeat("g", b, gen), ErrUnknownMember)
	f.wantErr("who asked", f.heartbeat("g", a, gen), ErrRebalanceInProgress)
}

// A new member's join is given up after five minutes, since nobody can tell whether it still lives.
func TestNewMemberTimesOut(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	req := joinRequest("g")
	req.SessionTimeout, req.RebalanceTimeout = 20*time.Minute, 20*time.Minute
	ids, gen := f.stableGroup(req, 1)
	_, w := f.joinWithID(req)
	f.clock.advance(5*time.Minute - time.Nanosecond)
	w.mustWait()
	f.clock.advance(time.Nanosecond)
	f.wantErr("new member", w.get().Err, ErrUnknownMember)
	req.MemberID = ids[0]
	if got := f.join(req).get(); got.Generation != gen+1 || len(got.Members) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestSyncRefusals(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.stableGroup(joinRequest("g"), 2)
	base := SyncRequest{Group: "g", MemberID: ids[1], Generation: gen, ProtocolType: "consumer", Protocol: "range"}
	for name, tc := range map[string]struct {
		change func(*SyncRequest)
		want   error
	}{
		"as it should be":     {func(*SyncRequest) {}, nil},
		"no group":            {func(r *SyncRequest) { r.Group = "" }, ErrInvalidGroupID},
		"unknown group":       {func(r *SyncRequest) { r.Group = "h" }, ErrUnknownMember},
		"unknown member":      {func(r *SyncRequest) { r.MemberID = "x" }, ErrUnknownMember},
		"old generation":      {func(r *SyncRequest) { r.Generation-- }, ErrIllegalGeneration},
		"other protocol":      {func(r *SyncRequest) { r.Protocol = "sticky" }, ErrInconsistentProtocol},
		"other protocol type": {func(r *SyncRequest) { r.ProtocolType = "connect" }, ErrInconsistentProtocol},
		"unknown instance":    {func(r *SyncRequest) { r.InstanceID = "i" }, ErrUnknownMember},
	} {
		req := base
		tc.change(&req)
		f.wantErr(name, f.sync(req).get().Err, tc.want)
	}
	_, w := f.joinWithID(joinRequest("g"))
	w.mustWait()
	f.wantErr("while members rejoin", f.sync(base).get().Err, ErrRebalanceInProgress)
}

func TestSyncWaitsForTheLeaderAndTheLog(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	a, first := f.joinWithID(joinRequest("g"))
	b, _ := f.joinWithID(joinRequest("g"))
	f.clock.advance(2 * time.Second)
	gen := first.get().Generation
	follower := f.sync(SyncRequest{Group: "g", MemberID: b, Generation: gen})
	f.log.held = true
	leader := f.sync(SyncRequest{Group: "g", MemberID: a, Generation: gen, Assignments: []Assignment{{a, []byte("1")}, {b, []byte("2")}}})
	follower.mustWait()
	leader.mustWait()
	f.wantState("g", completingRebalance)
	f.log.commit()
	if one, two := leader.get(), follower.get(); string(one.Assignment) != "1" || string(two.Assignment) != "2" || two.Protocol != "range" {
		t.Errorf("%+v, %+v", one, two)
	}
	f.wantState("g", stable)
	if again := f.sync(SyncRequest{Group: "g", MemberID: b, Generation: gen}).get(); string(again.Assignment) != "2" {
		t.Errorf("asked again: %+v", again)
	}
}

func TestAssignmentThatIsNotStored(t *testing.T) {
	f := newFixture(t, Config{})
	id, _ := f.joinWithID(joinRequest("g"))
	f.clock.advance(time.Millisecond)
	f.log.refuse = errors.New("disk full")
	w := f.sync(SyncRequest{Group: "g", MemberID: id, Generation: 1})
	f.wantErr("sync", w.get().Err, ErrUnavailable)
	f.wantState("g", preparingRebalance)
	f.log.refuse = nil
	req := joinRequest("g")
	req.MemberID = id
	again := f.join(req)
	f.clock.advance(unstoredPauseMin)
	if got := again.get(); got.Generation != 2 {
		t.Errorf("%+v", got)
	}
}

// A member that comes or goes while the assignment is being stored makes it void.
func TestRebalanceWhileAssignmentIsStored(t *testing.T) {
	f := newFixture(t, Config{})
	id, _ := f.joinWithID(joinRequest("g"))
	f.clock.advance(time.Millisecond)
	f.log.held = true
	w := f.sync(SyncRequest{Group: "g", MemberID: id, Generation: 1})
	_, newcomer := f.joinWithID(joinRequest("g"))
	f.wantErr("sync", w.get().Err, ErrRebalanceInProgress)
	newcomer.mustWait()
	f.log.commit()
	f.wantState("g", preparingRebalance)
	if n := len(w.answers); n != 1 {
		t.Errorf("%d answers", n)
	}
}

func TestLeave(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.stableGroup(joinRequest("g"), 3)
	f.wantErr("unknown group", f.leave("h", LeavingMember{MemberID: ids[0]}).get().Err, ErrUnknownMember)
	f.wantErr("no group", f.leave("", LeavingMember{MemberID: ids[0]}).get().Err, ErrInvalidGroupID)
	pending := f.join(joinRequest("g")).get().MemberID

	got := f.leave("g", LeavingMember{MemberID: ids[1]}, LeavingMember{MemberID: "x"}, LeavingMember{InstanceID: "i"},
		LeavingMember{MemberID: pending}, LeavingMember{}).get()
	f.wantErr("leave", got.Err, nil)
	for i, want := range []error{nil, ErrUnknownMember, ErrUnknownMember, nil, ErrUnknownMember} {
		f.wantErr("member", got.Members[i], want)
	}
	f.wantErr("who stays", f.heartbeat("g", ids[0], gen), ErrRebalanceInProgress)
	f.wantErr("who left", f.heartbeat("g", ids[1], gen), ErrUnknownMember)

	f.leave("g", LeavingMember{MemberID: ids[0]}, LeavingMember{MemberID: ids[2]}).get()
	f.wantState("g", empty)
	if d, _ := f.c.Describe("g"); d.ProtocolType != "consumer" || d.Protocol != "" {
		t.Errorf("%+v", d)
	}
}

// An administrator takes static members out by their instance ids.
func TestLeaveByInstance(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.staticGroup("a", "b")
	got := f.leave("g", LeavingMember{InstanceID: "a"}, LeavingMember{InstanceID: "c"}).get()
	f.wantErr("a", got.Members[0], nil)
	f.wantErr("c", got.Members[1], ErrUnknownMember)
	f.wantErr("a's heartbeat", f.heartbeat("g", ids[0], gen), ErrUnknownMember)
	req := staticRequest("b")
	req.MemberID = ids[1]
	if got := f.join(req).get(); got.Leader != ids[1] || len(got.Members) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestEmptiedGroupIsStoredBeforeTheAnswer(t *testing.T) {
	f := newFixture(t, Config{})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	f.log.held = true
	w := f.leave("g", LeavingMember{MemberID: ids[0]})
	w.mustWait()
	f.log.commit()
	f.wantErr("leave", w.get().Err, nil)
	f.elect(f.log.prefix(f.log.end))
	f.wantState("g", empty)
	req := joinRequest("g")
	_, j := f.joinWithID(req)
	f.clock.advance(time.Millisecond)
	if got := j.get(); got.Generation != gen+2 {
		t.Errorf("generation %d, want %d: it must go on", got.Generation, gen+2)
	}
}

func TestDescribeAndList(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, _ := f.stableGroup(joinRequest("g"), 1)
	d, err := f.c.Describe("g")
	if err != nil || d.State != "Stable" || d.Protocol != "range" || len(d.Members) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if m := d.Members[0]; m.ID != ids[0] || m.ClientID != "client" || m.ClientHost != "/127.0.0.1" ||
		string(m.Assignment) != "of "+ids[0] || string(m.Metadata) != string(subscription("t")) {
		t.Errorf("%+v", m)
	}
	f.joinWithID(joinRequest("g"))
	if d, _ := f.c.Describe("g"); d.State != "PreparingRebalance" || d.Protocol != "" || len(d.Members) != 2 || d.Members[0].Assignment != nil {
		t.Errorf("%+v", d)
	}
	f.commit(oneCommit("simple", "", -1, 1)).get()
	all, err := f.c.List()
	if err != nil || len(all) != 2 || all[0] != (Listing{"g", ClassicType, "consumer", "PreparingRebalance"}) || all[1] != (Listing{"simple", ClassicType, "", "Empty"}) {
		t.Errorf("%+v, %v", all, err)
	}
}
