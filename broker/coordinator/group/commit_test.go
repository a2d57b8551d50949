package group

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestCommitIsFenced(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(f *fixture) CommitRequest
		want    error
	}{
		"a consumer without a group": {func(f *fixture) CommitRequest { return oneCommit("g", "", -1, 7) }, nil},
		"generation -1 in an empty group": {func(f *fixture) CommitRequest {
			ids, _ := f.stableGroup(joinRequest("g"), 1)
			f.leave("g", LeavingMember{MemberID: ids[0]}).get()
			return oneCommit("g", "", -1, 7)
		}, nil},
		"a member in a stable group": {func(f *fixture) CommitRequest {
			ids, gen := f.stableGroup(joinRequest("g"), 1)
			return oneCommit("g", ids[0], gen, 7)
		}, nil},
		"a member while others rejoin": {func(f *fixture) CommitRequest {
			ids, gen := f.stableGroup(joinRequest("g"), 1)
			_, w := f.joinWithID(joinRequest("g"))
			w.mustWait()
			f.wantState("g", preparingRebalance)
			return oneCommit("g", ids[0], gen, 7)
		}, nil},
		"a member while the assignment is awaited": {func(f *fixture) CommitRequest {
			id, w := f.joinWithID(joinRequest("g"))
			f.clock.advance(time.Millisecond)
			f.wantState("g", completingRebalance)
			return oneCommit("g", id, w.get().Generation, 7)
		}, ErrRebalanceInProgress},
		"an old generation": {func(f *fixture) CommitRequest {
			ids, gen := f.stableGroup(joinRequest("g"), 1)
			return oneCommit("g", ids[0], gen-1, 7)
		}, ErrIllegalGeneration},
		"an old generation while others rejoin": {func(f *fixture) CommitRequest {
			ids, gen := f.stableGroup(joinRequest("g"), 1)
			f.joinWithID(joinRequest("g"))
			return oneCommit("g", ids[0], gen-1, 7)
		}, ErrIllegalGeneration},
		"a stranger while the group has members": {func(f *fixture) CommitRequest {
			f.stableGroup(joinRequest("g"), 1)
			return oneCommit("g", "", -1, 7)
		}, ErrUnknownMember},
		"an unknown member": {func(f *fixture) CommitRequest {
			_, gen := f.stableGroup(joinRequest("g"), 1)
			return oneCommit("g", "x", gen, 7)
		}, ErrUnknownMember},
		"a member of a group that is gone": {func(f *fixture) CommitRequest { return oneCommit("g", "x", 3, 7) }, ErrGroupNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Config{})
			req := tc.prepare(f)
			got := f.commit(req).get()
			f.wantErr("commit", got.Err, tc.want)
			want := int64(7)
			if tc.want != nil {
				want = -1
			}
			if offset := f.offset("g", "t", 0); offset != want {
				t.Errorf("offset %d, want %d", offset, want)
			}
		})
	}
}

func TestCommitKeepsTheSession(t *testing.T) {
	f := newFixture(t, Config{})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	for offset := range int64(5) {
		f.clock.advance(9 * time.Second)
		f.wantErr("commit", f.commit(oneCommit("g", ids[0], gen, offset)).get().Err, nil)
	}
	f.clock.advance(10 * time.Second)
	f.wantErr("commit of a member that timed out", f.commit(oneCommit("g", ids[0], gen, 9)).get().Err, ErrUnknownMember)
}

func TestOffsetsComeBackAsStored(t *testing.T) {
	f := newFixture(t, Config{})
	full := strings.Repeat("m", 4096)
	resp := f.commit(CommitRequest{Group: "g", Generation: -1, Commits: []Commit{
		{Topic: "b", Partition: 1, Offset: 11, LeaderEpoch: 3, Metadata: full},
		{Topic: "b", Partition: 2, Offset: 12, LeaderEpoch: -1, Metadata: full + "m"},
		{Topic: "a", Partition: 0, Offset: 13, LeaderEpoch: -1, Metadata: strings.Repeat("é", 4096)},
	}}).get()
	f.wantErr("commit", resp.Err, nil)
	for i, want := range []error{nil, ErrMetadataTooLarge, nil} {
		f.wantErr("commit", resp.Commits[i], want)
	}

	all, err := f.c.Offsets(FetchRequest{Group: "g", All: true})
	if err != nil || len(all) != 2 || all[0].Topic != "a" || all[1].Topic != "b" {
		t.Fatalf("all: %+v, %v", all, err)
	}
	if got := all[1]; got.Partition != 1 || got.Offset != 11 || got.LeaderEpoch != 3 || got.Metadata != full || !got.CommitTime.Equal(f.clock.Now()) {
		t.Errorf("%+v", got)
	}
	some, err := f.c.Offsets(FetchRequest{Group: "g", Partitions: []Partition{{Topic: "b", Partition: 2}, {Topic: "a", Partition: 0}}})
	if err != nil || len(some) != 2 || some[0].Offset != -1 || some[0].LeaderEpoch != -1 || some[0].Metadata != "" || some[1].Offset != 13 {
		t.Errorf("some: %+v, %v", some, err)
	}
	if none, err := f.c.Offsets(FetchRequest{Group: "nobody", All: true}); err != nil || len(none) != 0 {
		t.Errorf("unknown group: %v, %v", none, err)
	}
	if got := f.offset("nobody", "a", 0); got != -1 {
		t.Errorf("unknown group: offset %d, want -1", got)
	}
}

func TestOffsetOfAnEarlierTopicIsNotFound(t *testing.T) {
	f := newFixture(t, Config{})
	old, now := [16]byte{1}, [16]byte{2}
	f.commit(CommitRequest{Group: "g", Generation: -1, Commits: []Commit{{Topic: "t", TopicID: old, Offset: 5}}}).get()
	for id, want := range map[[16]byte]int64{old: 5, now: -1, {}: 5} {
		found, _ := f.c.Offsets(FetchRequest{Group: "g", Partitions: []Partition{{Topic: "t", TopicID: id}}})
		if found[0].Offset != want {
			t.Errorf("topic id %v: offset %d, want %d", id[0], found[0].Offset, want)
		}
	}
}

// Nobody sees an offset, or hears that it is stored, before the high watermark has passed it.
func TestCommitWaitsForTheHighWatermark(t *testing.T) {
	f := newFixture(t, Config{})
	f.commit(oneCommit("g", "", -1, 1)).get()
	f.log.held = true
	first, second := f.commit(oneCommit("g", "", -1, 2)), f.commit(oneCommit("g", "", -1, 3))
	first.mustWait()
	if got := f.offset("g", "t", 0); got != 1 {
		t.Errorf("offset %d, want 1", got)
	}
	f.log.commitTo(f.log.end - 1)
	f.wantErr("first", first.get().Err, nil)
	second.mustWait()
	if got := f.offset("g", "t", 0); got != 2 {
		t.Errorf("offset %d, want 2", got)
	}
	f.log.commit()
	f.wantErr("second", second.get().Err, nil)
	if got := f.offset("g", "t", 0); got != 3 {
		t.Errorf("offset %d, want 3", got)
	}
}

func TestRefusedCommit(t *testing.T) {
	f := newFixture(t, Config{})
	f.log.refuse = errors.New("disk full")
	f.wantErr("commit", f.commit(oneCommit("g", "", -1, 1)).get().Err, ErrUnavailable)
	if all, _ := f.c.List(); len(all) != 0 {
		t.Errorf("groups %v, want none", all)
	}
	f.log.refuse = ErrNotCoordinator
	f.wantErr("commit", f.commit(oneCommit("g", "", -1, 1)).get().Err, ErrNotCoordinator)
	f.log.refuse = nil
	f.wantErr("commit", f.commit(oneCommit("g", "", -1, 2)).get().Err, nil)

	var many []Commit
	for p := range int32(300) {
		many = append(many, Commit{Topic: "t", Partition: p, Metadata: strings.Repeat("m", 4096)})
	}
	f.wantErr("a commit over a batch", f.commit(CommitRequest{Group: "g", Generation: -1, Commits: many}).get().Err, ErrTooLarge)
	f.wantErr("the next", f.commit(oneCommit("g", "", -1, 3)).get().Err, nil)
}

func TestOffsetsExpire(t *testing.T) {
	cfg := Config{OffsetsRetention: time.Hour, RetentionCheckInterval: time.Minute}

	t.Run("of a consumer without a group, from the commit on", func(t *testing.T) {
		f := newFixture(t, cfg)
		f.commit(oneCommit("g", "", -1, 1)).get()
		f.clock.advance(30 * time.Minute)
		f.commit(CommitRequest{Group: "g", Generation: -1, Commits: []Commit{{Topic: "u", Offset: 2}}}).get()
		f.clock.advance(29 * time.Minute)
		if f.offset("g", "t", 0) != 1 {
			t.Error("expired too early")
		}
		f.clock.advance(2 * time.Minute)
		if a, b := f.offset("g", "t", 0), f.offset("g", "u", 0); a != -1 || b != 2 {
			t.Errorf("offsets %d, %d, want -1, 2", a, b)
		}
		f.clock.advance(time.Hour)
		f.wantState("g", dead)
	})
	t.Run("never of a live group, but from when it is empty on", func(t *testing.T) {
		f := newFixture(t, cfg)
		ids, gen := f.stableGroup(joinRequest("g"), 1)
		f.commit(oneCommit("g", ids[0], gen, 1)).get()
		for range 60 * 20 { // 3 hours
			f.clock.advance(9 * time.Second)
			f.wantErr("heartbeat", f.heartbeat("g", ids[0], gen), nil)
		}
		if f.offset("g", "t", 0) != 1 {
			t.Fatal("expired in a live group")
		}
		f.leave("g", LeavingMember{MemberID: ids[0]}).get()
		f.clock.advance(59 * time.Minute)
		if f.offset("g", "t", 0) != 1 {
			t.Error("expired too early")
		}
		f.clock.advance(2 * time.Minute)
		if got := f.offset("g", "t", 0); got != -1 {
			t.Errorf("offset %d, want -1", got)
		}
		f.wantState("g", dead)
	})
	t.Run("of a topic that a live group no longer subscribes to", func(t *testing.T) {
		f := newFixture(t, cfg)
		ids, gen := f.stableGroup(joinRequest("g"), 1)
		f.commit(CommitRequest{Group: "g", MemberID: ids[0], Generation: gen, Commits: []Commit{{Topic: "t", Offset: 1}, {Topic: "gone", Offset: 2}}}).get()
		for range 60 * 7 {
			f.clock.advance(9 * time.Second)
			f.heartbeat("g", ids[0], gen)
		}
		if a, b := f.offset("g", "t", 0), f.offset("g", "gone", 0); a != 1 || b != -1 {
			t.Errorf("offsets %d, %d, want 1, -1", a, b)
		}
	})
	t.Run("with a retention of their own", func(t *testing.T) {
		f := newFixture(t, cfg)
		req := oneCommit("g", "", -1, 1)
		req.Retention = 3 * time.Hour
		f.commit(req).get()
		f.clock.advance(179 * time.Minute)
		if f.offset("g", "t", 0) != 1 {
			t.Error("expired too early")
		}
		f.elect(f.log.prefix(f.log.end)) // it is kept with the offset
		f.clock.advance(2 * time.Minute)
		if got := f.offset("g", "t", 0); got != -1 {
			t.Errorf("offset %d, want -1", got)
		}
	})
}

func TestDeleteGroup(t *testing.T) {
	f := newFixture(t, Config{})
	f.wantErr("no such group", f.delete("g").get(), ErrGroupNotFound)
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	f.commit(oneCommit("g", ids[0], gen, 1)).get()
	f.wantErr("with members", f.delete("g").get(), ErrNonEmptyGroup)
	f.leave("g", LeavingMember{MemberID: ids[0]}).get()

	f.log.held = true
	w := f.delete("g")
	w.mustWait()
	f.wantErr("again, before it is stored", f.delete("g").get(), ErrGroupNotFound)
	f.wantErr("commit, before it is stored", f.commit(oneCommit("g", "", -1, 2)).get().Err, ErrUnavailable)
	f.wantErr("join, before it is stored", f.join(joinRequest("g")).get().Err, ErrUnavailable)
	f.log.commit()
	f.wantErr("delete", w.get(), nil)
	if got := f.offset("g", "t", 0); got != -1 {
		t.Errorf("offset %d, want -1", got)
	}
	if d, err := f.c.Describe("g"); !errors.Is(err, ErrGroupNotFound) || d.State != "Dead" {
		t.Errorf("%+v, %v", d, err)
	}
	f.elect(f.log.prefix(f.log.end))
	if all, _ := f.c.List(); len(all) != 0 {
		t.Errorf("after a replay: %v, want no group", all)
	}
}

// A commit that is on its way when the group is deleted is deleted with it.
func TestDeleteTakesCommitsOnTheirWay(t *testing.T) {
	f := newFixture(t, Config{})
	f.log.held = true
	commit := f.commit(oneCommit("g", "", -1, 1))
	deleted := f.delete("g")
	f.log.commit()
	f.wantErr("commit", commit.get().Err, nil)
	f.wantErr("delete", deleted.get(), nil)
	for _, when := range []string{"live", "replayed"} {
		if all, _ := f.c.List(); len(all) != 0 {
			t.Errorf("%s: %v, want no group", when, all)
		}
		f.elect(f.log.prefix(f.log.end))
	}
}

func TestRefusedDeletion(t *testing.T) {
	f := newFixture(t, Config{})
	f.commit(oneCommit("g", "", -1, 1)).get()
	f.log.refuse = errors.New("disk full")
	f.wantErr("delete", f.delete("g").get(), ErrUnavailable)
	f.log.refuse = nil
	if got := f.offset("g", "t", 0); got != 1 {
		t.Errorf("offset %d, want 1", got)
	}
	f.wantErr("delete", f.delete("g").get(), nil)
}

// More offsets than fit into one batch go in several.
func TestDeleteManyOffsets(t *testing.T) {
	f := newFixture(t, Config{})
	for topic := range 5 {
		var cs []Commit
		for p := range int32(500) {
			cs = append(cs, Commit{Topic: strings.Repeat("t", topic+1), Partition: p, Offset: int64(p)})
		}
		f.wantErr("commit", f.commit(CommitRequest{Group: "g", Generation: -1, Commits: cs}).get().Err, nil)
	}
	batches := len(f.log.batches)
	f.wantErr("delete", f.delete("g").get(), nil)
	if n := len(f.log.batches) - batches; n != 3 {
		t.Errorf("%d batches, want 3", n)
	}
	f.elect(f.log.prefix(f.log.end))
	if views := f.c.Views(); len(views) != 0 {
		t.Errorf("%d groups, want none", len(views))
	}
}

// What is committed again while expired offsets are removed in several batches stays.
func TestExpiryLeavesWhatWasCommittedAgain(t *testing.T) {
	f := newFixture(t, Config{OffsetsRetention: time.Hour, RetentionCheckInterval: 2 * time.Hour})
	for range 2 {
		var cs []Commit
		for p := range int32(1500) {
			cs = append(cs, Commit{Topic: "t", Partition: p, Offset: 1})
		}
		f.commit(CommitRequest{Group: "g", Generation: -1, Commits: cs}).get()
	}
	f.log.held = true
	f.clock.advance(2 * time.Hour)
	again := f.commit(CommitRequest{Group: "g", Generation: -1, Commits: []Commit{{Topic: "t", Partition: 1400, Offset: 2}}})
	f.wantErr("commit to a group that is going", again.get().Err, ErrUnavailable)
	f.log.held = false
	f.log.commit()

	f.commit(oneCommit("h", "", -1, 1)).get()
	var cs []Commit
	for p := range int32(1500) {
		cs = append(cs, Commit{Topic: "u", Partition: p, Offset: 1})
	}
	f.commit(CommitRequest{Group: "h", Generation: -1, Commits: cs}).get()
	f.clock.advance(90 * time.Minute)
	f.commit(oneCommit("h", "", -1, 2)).get() // keeps the group
	f.log.held = true
	f.clock.advance(30 * time.Minute)
	f.commit(CommitRequest{Group: "h", Generation: -1, Commits: []Commit{{Topic: "u", Partition: 1400, Offset: 2}}})
	f.log.held = false
	f.log.commit()
	for _, when := range []string{"live", "replayed"} {
		if a, b, c := f.offset("h", "u", 0), f.offset("h", "u", 1400), f.offset("h", "u", 1499); a != -1 || b != 2 || c != -1 {
			t.Errorf("%s: offsets %d, %d, %d, want -1, 2, -1", when, a, b, c)
		}
		f.elect(f.log.prefix(f.log.end))
	}
}

func TestDeletedTopicTakesItsOffsets(t *testing.T) {
	f := newFixture(t, Config{})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	f.commit(CommitRequest{Group: "g", MemberID: ids[0], Generation: gen, Commits: []Commit{{Topic: "t", Offset: 1}, {Topic: "u", Offset: 2}}}).get()
	f.commit(oneCommit("h", "", -1, 3)).get()
	f.c.TopicsDeleted("t")
	for _, when := range []string{"live", "replayed"} {
		if a, b, c := f.offset("g", "t", 0), f.offset("g", "u", 0), f.offset("h", "t", 0); a != -1 || b != 2 || c != -1 {
			t.Errorf("%s: offsets %d, %d, %d, want -1, 2, -1", when, a, b, c)
		}
		f.wantState("g", stable)
		f.elect(f.log.prefix(f.log.end))
	}
}

func TestViews(t *testing.T) {
	f := newFixture(t, Config{})
	ids, gen := f.stableGroup(joinRequest("g"), 2)
	f.commit(oneCommit("g", ids[0], gen, 4)).get()
	views := f.c.Views()
	if len(views) != 1 || views[0].Group != "g" || views[0].Members != 2 || views[0].State != "Stable" ||
		len(views[0].Offsets) != 1 || views[0].Offsets[0].Offset != 4 || views[0].Offsets[0].Topic != "t" {
		t.Errorf("%+v", views)
	}
}
