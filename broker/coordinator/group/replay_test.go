package group

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
	"github.com/sluice-io/sluice/internal/record"
)

// durableState is what of a coordinator's state must be in its log: every offset, and every group
// that is not just rebalancing. Times of states differ by the time that the write took, and are
// left out.
type durableState struct {
	offsets string
	groups  map[string]string
}

func (f *fixture) durable(c *Coordinator) durableState {
	f.Helper()
	var offsets strings.Builder
	groups := make(map[string]string)
	err := c.do("", func(m *machine, _ time.Time, _ *coordinator.Actions) {
		for _, id := range m.groupIDs() {
			g := m.groups[id]
			for _, o := range allOffsets(g.offsets) {
				fmt.Fprintf(&offsets, "%s %+v\n", id, o)
			}
			if g.persisted && (g.state == stable || g.state == empty) {
				since := g.since
				g.since = time.Time{}
				groups[id] = hex.EncodeToString(encodeGroup(g, g.assignments()).Value)
				g.since = since
			}
		}
	})
	if err != nil {
		f.Fatalf("durable state: %v", err)
	}
	return durableState{offsets.String(), groups}
}

// replayed is the durable state of a new coordinator on a log.
func (f *fixture) replayed(log *memLog) durableState {
	f.Helper()
	c := f.newCoordinator(f.c.cfg)
	c.Elect(0, 1, log)
	c.loading.Wait()
	defer c.Close()
	return f.durable(c)
}

// wantReplay replays the first records of the log and compares that with the state there was after
// them. A group that was rebalancing then comes back as it was before.
func (f *fixture) wantReplay(end int64, want durableState) {
	f.Helper()
	got := f.replayed(f.log.prefix(end))
	if got.offsets != want.offsets {
		f.Errorf("replay of %d records: offsets\n%swant\n%s", end, got.offsets, want.offsets)
	}
	for id, g := range want.groups {
		if got.groups[id] != g {
			f.Errorf("replay of %d records: group %s\n%s\nwant\n%s", end, id, got.groups[id], g)
		}
	}
}

// A coordinator that is killed after any record finds what was committed up to there.
func TestCrashAtAnyRecord(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second, OffsetsRetention: time.Hour})
	after := make(map[int64]durableState)
	note := func() { after[f.log.end] = f.durable(f.c) }

	f.commit(oneCommit("simple", "", -1, 1)).get()
	note()
	ids, gen := f.stableGroup(joinRequest("g"), 2)
	note()
	for offset := range int64(3) {
		f.commit(oneCommit("g", ids[0], gen, offset)).get()
		note()
	}
	f.commit(CommitRequest{Group: "g", MemberID: ids[1], Generation: gen, Commits: []Commit{{Topic: "u", Offset: 9}, {Topic: "u", Partition: 1, Offset: 8}}}).get()
	note()
	f.c.TopicsDeleted("u")
	note()
	static := f.join(staticRequest("a"))
	req := joinRequest("g")
	for _, id := range ids {
		req.MemberID = id
		f.join(req)
	}
	f.syncAll("g", []string{ids[0], ids[1], static.get().MemberID}, gen+1)
	note()
	f.join(staticRequest("a")).get()
	note()
	f.leave("g", LeavingMember{MemberID: ids[0]}, LeavingMember{MemberID: ids[1]}, LeavingMember{InstanceID: "a"}).get()
	note()
	f.delete("simple").get()
	note()
	f.delete("g").get()
	note()

	if len(after) < 11 {
		t.Fatalf("%d states", len(after))
	}
	for end, want := range after {
		f.wantReplay(end, want)
	}
}

// Until it has replayed its log, and the high watermark has passed what it found, a coordinator
// says that it is loading.
func TestLoadingRefusesEverything(t *testing.T) {
	f := newFixture(t, Config{})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	f.commit(oneCommit("g", ids[0], gen, 5)).get()

	log := f.log.prefix(f.log.end)
	log.hw = 0
	f.elect(log)
	refusals := func(want error) {
		t.Helper()
		_, fetch := f.c.Offsets(FetchRequest{Group: "g", All: true})
		_, describe := f.c.Describe("g")
		_, list := f.c.List()
		for what, err := range map[string]error{
			"fetch": fetch, "describe": describe, "list": list,
			"join":   f.join(joinRequest("g")).get().Err,
			"sync":   f.sync(SyncRequest{Group: "g", MemberID: ids[0], Generation: gen}).get().Err,
			"commit": f.commit(oneCommit("g", ids[0], gen, 6)).get().Err,
			"leave":  f.leave("g", LeavingMember{MemberID: ids[0]}).get().Err,
			"delete": f.delete("g").get(),
		} {
			f.wantErr(what, err, want)
		}
	}
	refusals(ErrLoading)
	f.wantErr("heartbeat", f.heartbeat("g", ids[0], gen), nil)
	log.commit()
	if got := f.offset("g", "t", 0); got != 5 {
		t.Errorf("offset %d, want 5", got)
	}
}

// After a move the members go on with what they have, each with a new session.
func TestMembersGoOnAfterAMove(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.stableGroup(joinRequest("g"), 2)
	f.clock.advance(9 * time.Second)
	f.elect(f.log.prefix(f.log.end))
	f.clock.advance(9 * time.Second)
	f.wantErr("heartbeat", f.heartbeat("g", ids[0], gen), nil)
	f.wantErr("commit", f.commit(oneCommit("g", ids[0], gen, 5)).get().Err, nil)
	if got := f.sync(SyncRequest{Group: "g", MemberID: ids[1], Generation: gen}).get(); string(got.Assignment) != "of "+ids[1] {
		t.Errorf("assignment: %+v", got)
	}
	f.clock.advance(time.Second)
	f.wantErr("who did not show", f.heartbeat("g", ids[1], gen), ErrUnknownMember)
	f.wantErr("who did", f.heartbeat("g", ids[0], gen), ErrRebalanceInProgress)
}

// What the high watermark had not passed when the leadership ended is gone, and nobody was told
// that it is stored.
func TestUncommittedIsThrownAway(t *testing.T) {
	f := newFixture(t, Config{InitialRebalanceDelay: time.Second})
	ids, gen := f.stableGroup(joinRequest("g"), 1)
	f.commit(oneCommit("g", ids[0], gen, 5)).get()
	committed := f.log.end
	f.log.held = true
	lost := f.commit(oneCommit("g", ids[0], gen, 6))
	_, joining := f.joinWithID(joinRequest("g"))
	lost.mustWait()
	f.c.Resign(0, f.epoch+1)
	f.wantErr("commit", lost.get().Err, ErrNotCoordinator)
	f.wantErr("join", joining.get().Err, ErrNotCoordinator)
	_, err := f.c.Offsets(FetchRequest{Group: "g", All: true})
	f.wantErr("fetch", err, ErrNotCoordinator)

	old := f.log
	f.epoch++
	f.elect(f.log.prefix(committed))
	f.log.held = true
	next := f.commit(oneCommit("g", ids[0], gen, 7))
	old.commit() // too late, and of another log
	next.mustWait()
	if got := f.offset("g", "t", 0); got != 5 {
		t.Errorf("offset %d, want 5", got)
	}
	if n := len(lost.answers); n != 1 {
		t.Errorf("%d answers", n)
	}
}

func TestElections(t *testing.T) {
	f := newFixture(t, Config{})
	f.commit(oneCommit("g", "", -1, 5)).get()
	other := new(memLog)
	f.c.Elect(0, f.epoch, other)   // led already
	f.c.Elect(0, f.epoch-1, other) // old
	f.c.Resign(0, f.epoch-1)       // old
	f.c.Resign(7, 9)               // never led
	if got := f.offset("g", "t", 0); got != 5 {
		t.Errorf("offset %d, want 5", got)
	}
	f.c.Resign(0, -1)
	_, err := f.c.Offsets(FetchRequest{Group: "g"})
	f.wantErr("fetch", err, ErrNotCoordinator)
	f.c.Elect(0, 0, new(memLog)) // the topic was made again
	f.c.loading.Wait()
	if got := f.offset("g", "t", 0); got != -1 {
		t.Errorf("offset %d, want -1", got)
	}
	f.c.SetPartitions(0)
	_, err = f.c.Offsets(FetchRequest{Group: "g"})
	f.wantErr("fetch without an offsets topic", err, ErrNotCoordinator)
}

func TestLoadThatFails(t *testing.T) {
	f := newFixture(t, Config{})
	f.commit(oneCommit("g", "", -1, 5)).get()
	good := f.log.prefix(f.log.end)

	unreadable := f.log.prefix(f.log.end)
	unreadable.readErr = errors.New("bad disk")
	flipped := f.log.prefix(f.log.end)
	flipped.batches[0][len(flipped.batches[0])-3] ^= 1
	foreign := f.log.prefix(f.log.end)
	foreign.appendRecord(t, []byte{0, 1, 0}, nil, record.BuildOptions{})
	for name, log := range map[string]*memLog{"unreadable": unreadable, "wrong CRC": flipped, "corrupt record": foreign} {
		f.elect(log)
		_, err := f.c.Offsets(FetchRequest{Group: "g"})
		f.wantErr(name, err, ErrUnavailable)
	}
	deposed := f.log.prefix(f.log.end)
	deposed.readErr = coordinator.ErrNotLeader
	f.elect(deposed)
	_, err := f.c.Offsets(FetchRequest{Group: "g"})
	f.wantErr("deposed while it loads", err, ErrNotCoordinator)

	f.elect(good)
	if got := f.offset("g", "t", 0); got != 5 {
		t.Errorf("offset %d, want 5", got)
	}
}

// appendRecord puts a batch of one record into the log.
func (l *memLog) appendRecord(t *testing.T, key, value []byte, opts record.BuildOptions) {
	t.Helper()
	var b record.Builder
	b.Append(0, key, value, nil)
	batch, err := b.Build(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(batch); err != nil {
		t.Fatal(err)
	}
}

// A log has holes where compaction was, records of other protocols, and markers of transactions.
func TestReplayOfALogThatOthersWrote(t *testing.T) {
	f := newFixture(t, Config{})
	for offset := range int64(4) {
		f.commit(oneCommit("g", "", -1, offset)).get()
	}
	f.log.appendRecord(t, []byte{0, 10, 1, 2, 3}, []byte("share group"), record.BuildOptions{})
	f.log.appendRecord(t, []byte{0, 0, 0, 1}, []byte{0, 0, 0, 0, 0, 0}, record.BuildOptions{Control: true, Transactional: true, Idempotent: true, ProducerID: 1})
	log := f.log.prefix(f.log.end)
	log.batches = slices.Delete(log.batches, 0, 2)
	log.end += 3 // the last batches were compacted away
	log.hw = log.end
	f.elect(log)
	if got := f.offset("g", "t", 0); got != 3 {
		t.Errorf("offset %d, want 3", got)
	}
	f.commit(oneCommit("g", "", -1, 4)).get()
	f.elect(log.prefix(log.end))
	if got := f.offset("g", "t", 0); got != 4 {
		t.Errorf("offset %d, want 4", got)
	}
}

func TestTopicDeletedWhileLoading(t *testing.T) {
	f := newFixture(t, Config{})
	f.commit(oneCommit("g", "", -1, 5)).get()
	log := f.log.prefix(f.log.end)
	log.hw = 0
	f.elect(log)
	f.c.TopicsDeleted("t")
	log.commit()
	if got := f.offset("g", "t", 0); got != -1 {
		t.Errorf("offset %d, want -1", got)
	}
}

// Requests come from many goroutines, while leaderships come and go: everyone gets one answer.
func TestConcurrentUse(t *testing.T) {
	f := newConsumerFixture(t, Config{})
	f.c.clock = coordinator.SystemClock{}
	var work sync.WaitGroup
	var answers, asked [8]int
	for w := range asked {
		work.Go(func() {
			group := fmt.Sprint("g", w%3)
			for i := range 300 {
				asked[w]++
				done := make(chan struct{})
				switch i % 7 {
				case 5:
					req := f.consumer(fmt.Sprint("m", w, i), "t").request()
					req.Group = fmt.Sprint("c", w%2)
					f.c.ConsumerHeartbeat(req, func(ConsumerHeartbeatResponse) { close(done) })
				case 6:
					f.c.DescribeConsumer(fmt.Sprint("c", w%2), func(ConsumerDescription, error) { close(done) })
				case 0:
					f.c.Join(joinRequest(group), func(JoinResponse) { close(done) })
				case 1:
					f.c.Delete(group, func(error) { close(done) })
				case 2:
					_, _ = f.c.List()
					f.c.TopicsDeleted("u")
					close(done)
				default:
					f.c.Commit(oneCommit(group, "", -1, int64(i)), func(CommitResponse) { close(done) })
				}
				<-done
				answers[w]++
			}
		})
	}
	work.Go(func() {
		for epoch := range int32(50) {
			_, end, _ := f.log.Bounds()
			f.c.Elect(0, epoch+10, f.log.prefix(end))
			f.c.Views()
			if epoch%7 == 0 {
				f.c.Resign(0, epoch+10)
			}
		}
	})
	work.Wait()
	f.c.Close()
	if answers != asked {
		t.Errorf("%v answers to %v requests", answers, asked)
	}
}
