package group

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

func TestFirstJoinGetsAnID(t *testing.T) {
	f := newFixture(t, Config{})
	req := joinRequest("g")
	first := f.join(req).get()
	f.wantErr("first join", first.Err, ErrMemberIDRequired)
	req.MemberID = first.MemberID
	w := f.join(req)
	f.clock.advance(time.Millisecond)
	if got := w.get(); got.Err != nil || got.Generation != 1 || got.Leader != first.MemberID || len(got.Members) != 1 || got.Protocol != "range" {
		t.Errorf("second join: %+v", got)
	}

	req = joinRequest("old") // before version 4
	req.RequireMemberID = false
	w = f.join(req)
	f.clock.advance(time.Millisecond)
	if got := w.get(); got.Err != nil || got.MemberID == "" {
		t.Errorf("join of an old client: %+v", got)
	}
}

func TestGivenIDExpires(t *testing.T) {
	f := newFixture(t, Config{})
	req := joinRequest("g")
	req.MemberID = f.join(req).get().MemberID
	f.clock.advance(req.SessionTimeout)
	f.wantErr("join with an id that was forgotten", f.join(req).get().Err, ErrUnknownMember)
	if all, _ := f.c.List(); len(all) != 0 {
		t.Errorf("groups %v, want none", all)
	}
}

// A member that was given an id is waited for by the others' rebalance.
func TestRebalanceWaitsForGivenID(t *testing.T) {
	f := newFixture(t, Config{})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	pending := f.join(joinRequest("g")).get().MemberID
	rejoin := joinRequest("g")
	rejoin.MemberID = ids[0]
	leader := f.join(rejoin)
	leader.mustWait()
	rejoin.MemberID = pending
	second := f.join(rejoin)
	if got := leader.get(); got.Generation != gen+1 || len(got.Members) != 2 {
		t.Errorf("leader: %+v", got)
	}
	if got := second.get(); got.Generation != gen+1 || len(got.Members) != 0 || got.Leader != ids[0] {
		t.Errorf("follower: %+v", got)
	}
}

func TestJoinRefusals(t *testing.T) {
	f := newFixture(t, Config{MembersMax: 2})
	f.stableGroup(joinRequest("g"), 2)
	for name, tc := range map[string]struct {
		change func(*JoinRequest)
		want   error
	}{
		"no group":              {func(r *JoinRequest) { r.Group = "" }, ErrInvalidGroupID},
		"session too short":     {func(r *JoinRequest) { r.SessionTimeout = 5999 * time.Millisecond }, ErrInvalidSessionTimeout},
		"session too long":      {func(r *JoinRequest) { r.SessionTimeout = 30*time.Minute + 1 }, ErrInvalidSessionTimeout},
		"group is full":         {func(*JoinRequest) {}, ErrGroupFull},
		"unknown member":        {func(r *JoinRequest) { r.Group, r.MemberID = "other", "x" }, ErrUnknownMember},
		"no protocols":          {func(r *JoinRequest) { r.Group, r.Protocols = "other", nil }, ErrInconsistentProtocol},
		"no protocol type":      {func(r *JoinRequest) { r.Group, r.ProtocolType = "other", "" }, ErrInconsistentProtocol},
		"session at its bounds": {func(r *JoinRequest) { r.Group, r.SessionTimeout = "other", 6*time.Second }, ErrMemberIDRequired},
	} {
		t.Run(name, func(t *testing.T) {
			req := joinRequest("g")
			tc.change(&req)
			if got := f.join(req).get(); !errors.Is(got.Err, tc.want) || got.Generation != -1 {
				t.Errorf("%+v, want %v", got, tc.want)
			}
		})
	}
	if all, _ := f.c.List(); len(all) != 2 {
		t.Errorf("groups %v: a refused join must not make one", all)
	}
}

func TestNoSharedProtocol(t *testing.T) {
	f := newFixture(t, Config{})
	f.stableGroup(joinRequest("g"), 1)
	req := joinRequest("g")
	req.Protocols = []Protocol{{"sticky", nil}}
	f.wantErr("other protocol", f.join(req).get().Err, ErrInconsistentProtocol)
	req = joinRequest("g")
	req.ProtocolType = "connect"
	f.wantErr("other protocol type", f.join(req).get().Err, ErrInconsistentProtocol)
}

func TestProtocolIsElected(t *testing.T) {
	protocols := func(names ...string) (ps []Protocol) {
		for _, n := range names {
			ps = append(ps, Protocol{n, subscription("t")})
		}
		return ps
	}
	for name, tc := range map[string]struct {
		members [][]Protocol
		want    string
	}{
		"first choice of one":    {[][]Protocol{protocols("range", "sticky")}, "range"},
		"what all have":          {[][]Protocol{protocols("range", "sticky"), protocols("coop", "sticky")}, "sticky"},
		"most votes":             {[][]Protocol{protocols("a", "b"), protocols("b", "a"), protocols("b", "a")}, "b"},
		"votes only of possible": {[][]Protocol{protocols("x", "a", "b"), protocols("b", "a"), protocols("x", "a", "b")}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
			var waits []*waiting[JoinResponse]
			for _, ps := range tc.members {
				req := joinRequest("g")
				req.Protocols = ps
				_, w := f.joinWithID(req)
				waits = append(waits, w)
			}
			f.clock.advance(time.Minute)
			for _, w := range waits {
				if got := w.get(); got.Err != nil || got.Protocol != tc.want {
					t.Errorf("%+v, want protocol %s", got, tc.want)
				}
			}
		})
	}
}

// The first rebalance waits for the delay, again for each newcomer, and at most for the rebalance
// timeout.
func TestInitialRebalanceDelay(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: 3 * time.Second})
	req := joinRequest("g")
	req.RebalanceTimeout = 7 * time.Second
	_, first := f.joinWithID(req)
	f.clock.advance(2 * time.Second)
	_, second := f.joinWithID(req) // 2 s: extends from 3 s to 6 s
	f.clock.advance(3 * time.Second)
	first.mustWait()
	_, third := f.joinWithID(req) // 5 s: extends from 6 s to 7 s, the rebalance timeout
	f.clock.advance(1999 * time.Millisecond)
	third.mustWait()
	f.clock.advance(time.Millisecond)
	for _, w := range []*waiting[JoinResponse]{first, second, third} {
		if got := w.get(); got.Err != nil || got.Generation != 1 {
			t.Errorf("%+v", got)
		}
	}
	if n := len(first.get().Members); n != 3 {
		t.Errorf("leader sees %d members, want 3", n)
	}
}

func TestRejoins(t *testing.T) {
	t.Run("a follower with nothing new gets the generation", func(t *testing.T) {
		f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
		ids, gen := f.stableGroup(joinRequest("g"), 2)
		req := joinRequest("g")
		req.MemberID = ids[1]
		if got := f.join(req).get(); got.Err != nil || got.Generation != gen || got.Leader != ids[0] || got.Members != nil {
			t.Errorf("%+v", got)
		}
		f.wantState("g", stable)
	})
	t.Run("a follower with other metadata begins a rebalance", func(t *testing.T) {
		f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
		ids, gen := f.stableGroup(joinRequest("g"), 2)
		req := joinRequest("g")
		req.MemberID, req.Protocols = ids[1], []Protocol{{"range", subscription("t", "u")}}
		w := f.join(req)
		w.mustWait()
		f.wantErr("leader's heartbeat", f.heartbeat("g", ids[0], gen), ErrRebalanceInProgress)
		req = joinRequest("g")
		req.MemberID = ids[0]
		f.join(req).get()
		if got := w.get(); got.Generation != gen+1 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("the leader begins one just so", func(t *testing.T) {
		f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
		ids, gen := f.stableGroup(joinRequest("g"), 2)
		req := joinRequest("g")
		req.MemberID = ids[0]
		f.join(req).mustWait()
		f.wantErr("follower's heartbeat", f.heartbeat("g", ids[1], gen), ErrRebalanceInProgress)
	})
	t.Run("a lost join answer is given again", func(t *testing.T) {
		f := newFixture(t, Config{})
		id, w := f.joinWithID(joinRequest("g"))
		f.clock.advance(time.Millisecond)
		req := joinRequest("g")
		req.MemberID = id
		if again := f.join(req).get(); again.Generation != w.get().Generation || len(again.Members) != 1 {
			t.Errorf("%+v", again)
		}
		f.wantState("g", completingRebalance)
	})
	t.Run("other metadata while the assignment is awaited begins another", func(t *testing.T) {
		f := newFixture(t, Config{})
		id, _ := f.joinWithID(joinRequest("g"))
		f.clock.advance(time.Millisecond)
		waits := f.sync(SyncRequest{Group: "g", MemberID: id, Generation: 1}) // gives no assignment: stored as empty
		if got := waits.get(); got.Err != nil || got.Assignment != nil {
			t.Errorf("%+v", got)
		}
		req := joinRequest("g")
		req.MemberID, req.Protocols = id, []Protocol{{"range", subscription("u")}}
		if got := f.join(req).get(); got.Generation != 2 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("a join repeated while it waits replaces the first", func(t *testing.T) {
		f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
		id, first := f.joinWithID(joinRequest("g"))
		req := joinRequest("g")
		req.MemberID = id
		second := f.join(req)
		f.wantErr("first", first.get().Err, ErrRebalanceInProgress)
		f.clock.advance(time.Second)
		f.wantErr("second", second.get().Err, nil)
	})
}

func TestGroupSizeWhileRebalancing(t *testing.T) {
	f := newFixture(t, Config{MembersMax: 2, InitialRebalanceDelay: time.Second})
	req := joinRequest("g")
	_, a := f.joinWithID(req)
	_, b := f.joinWithID(req)
	f.wantErr("third first join", f.join(req).get().Err, ErrGroupFull)
	f.clock.advance(2 * time.Second)
	f.wantErr("first", a.get().Err, nil)
	f.wantErr("second", b.get().Err, nil)
}

// A member for which there is no room when it rejoins, because the limit was lowered, is out.
func TestLoadedGroupIsTooLarge(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.stableGroup(joinRequest("g"), 3)
	log := f.log.prefix(f.log.end)
	f.c = f.newCoordinator(Config{MembersMax: 2, InitialRebalanceDelay: time.Second})
	f.elect(log)
	f.wantErr("heartbeat", f.heartbeat("g", ids[0], gen), ErrRebalanceInProgress)
	var waits []*waiting[JoinResponse]
	for _, id := range ids {
		req := joinRequest("g")
		req.MemberID = id
		waits = append(waits, f.join(req))
	}
	f.wantErr("the last", waits[2].get().Err, ErrGroupFull)
	f.clock.advance(time.Minute)
	for _, w := range waits[:2] {
		if got := w.get(); got.Err != nil || got.Generation != gen+1 {
			t.Errorf("%+v", got)
		}
	}
}

func staticRequest(instance string) JoinRequest {
	req := joinRequest("g")
	req.InstanceID = instance
	return req
}

// staticGroup makes a stable group of static members.
func (f *fixture) staticGroup(instances ...string) (ids []string, generation int32) {
	f.Helper()
	var waits []*waiting[JoinResponse]
	for _, name := range instances {
		waits = append(waits, f.join(staticRequest(name)))
	}
	f.clock.advance(2 * time.Second)
	for _, w := range waits {
		ids = append(ids, w.get().MemberID)
	}
	f.syncAll("g", ids, waits[0].get().Generation)
	return ids, waits[0].get().Generation
}

func TestStaticMemberComesBack(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.staticGroup("a", "b")

	got := f.join(staticRequest("b")).get()
	if got.Err != nil || got.Generation != gen || got.MemberID == ids[1] || got.Leader != ids[0] || got.SkipAssignment {
		t.Fatalf("follower: %+v", got)
	}
	f.wantState("g", stable)
	sync := f.sync(SyncRequest{Group: "g", MemberID: got.MemberID, InstanceID: "b", Generation: gen}).get()
	if sync.Err != nil || string(sync.Assignment) != "of "+ids[1] {
		t.Errorf("its assignment: %+v", sync)
	}

	for name, err := range map[string]error{
		"heartbeat": f.c.Heartbeat(HeartbeatRequest{Group: "g", MemberID: ids[1], InstanceID: "b", Generation: gen}),
		"sync":      f.sync(SyncRequest{Group: "g", MemberID: ids[1], InstanceID: "b", Generation: gen}).get().Err,
		"commit": f.commit(CommitRequest{Group: "g", MemberID: ids[1], InstanceID: "b", Generation: gen,
			Commits: []Commit{{Topic: "t"}}}).get().Err,
		"join": func() error {
			req := staticRequest("b")
			req.MemberID = ids[1]
			return f.join(req).get().Err
		}(),
		"leave": f.leave("g", LeavingMember{MemberID: ids[1], InstanceID: "b"}).get().Members[0],
	} {
		f.wantErr("the old holder's "+name, err, ErrFencedInstance)
	}
}

func TestStaticLeaderComesBack(t *testing.T) {
	t.Run("and skips the assignment", func(t *testing.T) {
		f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
		_, gen := f.staticGroup("a", "b")
		got := f.join(staticRequest("a")).get()
		if got.Err != nil || got.Generation != gen || got.Leader != got.MemberID || !got.SkipAssignment || len(got.Members) != 2 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("and does not know of skipping", func(t *testing.T) {
		f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
		ids, gen := f.staticGroup("a", "b")
		req := staticRequest("a")
		req.CanSkipAssignment = false
		if got := f.join(req).get(); got.Err != nil || got.Generation != gen || got.Leader != ids[0] || got.SkipAssignment || got.Members != nil {
			t.Errorf("%+v", got)
		}
	})
}

func TestStaticMemberComesBackOtherwise(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.staticGroup("a", "b")
	req := staticRequest("b")
	req.Protocols = []Protocol{{"sticky", nil}, {"range", subscription("t")}}
	f.join(req).get() // both still vote for range
	f.wantState("g", stable)

	// While the assignment is awaited a rebalance is needed: the leader assigns to the old id.
	req = joinRequest("g")
	req.MemberID, req.InstanceID = ids[0], "a"
	f.join(req).mustWait()
	f.wantState("g", preparingRebalance)
	second := f.join(staticRequest("b"))
	f.wantState("g", completingRebalance)
	f.wantErr("b", second.get().Err, nil)
	again := f.join(staticRequest("b"))
	again.mustWait()
	f.wantState("g", preparingRebalance)
	f.wantErr("a's heartbeat", f.c.Heartbeat(HeartbeatRequest{Group: "g", MemberID: ids[0], InstanceID: "a", Generation: gen + 1}), ErrRebalanceInProgress)
}

// Whoever waits under an instance id is told at once that another has taken it.
func TestWaitingStaticMemberIsFenced(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	first := f.join(staticRequest("a"))
	second := f.join(staticRequest("a"))
	f.wantErr("first", first.get().Err, ErrFencedInstance)
	f.clock.advance(2 * time.Second)
	f.wantErr("second", second.get().Err, nil)
}

func TestReplacementThatIsNotStored(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.staticGroup("a", "b")
	f.log.refuse = errors.New("disk full")
	f.wantErr("join", f.join(staticRequest("b")).get().Err, ErrUnavailable)
	f.log.refuse = nil
	err := f.c.Heartbeat(HeartbeatRequest{Group: "g", MemberID: ids[1], InstanceID: "b", Generation: gen})
	f.wantErr("the old holder's heartbeat", err, nil)
}

func TestReplacementIsAnsweredWhenStored(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	_, gen := f.staticGroup("a", "b")
	f.log.held = true
	w := f.join(staticRequest("b"))
	w.mustWait()
	f.log.commit()
	if got := w.get(); got.Err != nil || got.Generation != gen {
		t.Errorf("%+v", got)
	}

	w = f.join(staticRequest("b"))
	f.log.lose()
	f.wantErr("after the leadership was lost", w.get().Err, coordinator.ErrNotLeader)
}
