package group

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
	"github.com/sluice-io/sluice/internal/record"
)

// virtualClock is a clock that stands still until it is advanced. Functions run on the advancing
// goroutine.
type virtualClock struct {
	mu     sync.Mutex
	now    time.Time
	alarms []*alarm
}

type alarm struct {
	at time.Time
	f  func()
}

func newVirtualClock() *virtualClock {
	return &virtualClock{now: time.UnixMilli(1764500000000)}
}

func (c *virtualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *virtualClock) AfterFunc(d time.Duration, f func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &alarm{c.now.Add(d), f}
	c.alarms = append(c.alarms, a)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.alarms = slices.DeleteFunc(c.alarms, func(b *alarm) bool { return a == b })
	}
}

// advance moves the time on and fires what is due, at its time.
func (c *virtualClock) advance(d time.Duration) {
	until := c.Now().Add(d)
	for c.fire(until) {
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = until
}

// fire runs the earliest alarm up to a time; false when there is none.
func (c *virtualClock) fire(until time.Time) bool {
	c.mu.Lock()
	var next *alarm
	for _, a := range c.alarms {
		if next == nil || a.at.Before(next.at) {
			next = a
		}
	}
	if next == nil || next.at.After(until) {
		c.mu.Unlock()
		return false
	}
	c.alarms = slices.DeleteFunc(c.alarms, func(b *alarm) bool { return next == b })
	if next.at.After(c.now) {
		c.now = next.at
	}
	c.mu.Unlock()
	next.f()
	return true
}

// memLog is a coordinator.Log in memory. Unless held, what is appended is committed at once.
type memLog struct {
	mu      sync.Mutex
	batches []record.Batch
	start   int64
	end, hw int64
	held    bool  // the high watermark does not move by itself
	refuse  error // what Append answers
	readErr error
	waiters []waiter
}

type waiter struct {
	offset int64
	done   func(error)
}

func (l *memLog) Bounds() (start, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start, l.end, nil
}

func (l *memLog) Read(offset int64, maxBytes int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readErr != nil {
		return nil, l.readErr
	}
	var buf []byte
	for _, b := range l.batches {
		if b.LastOffset() < offset {
			continue
		}
		if len(buf) > 0 && len(buf)+len(b) > maxBytes {
			break
		}
		buf = append(buf, b...)
	}
	return buf, nil
}

func (l *memLog) Append(b record.Batch) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != nil {
		return 0, l.refuse
	}
	b.SetBaseOffset(l.end)
	l.batches = append(l.batches, bytes.Clone(b))
	l.end = b.LastOffset() + 1
	if !l.held {
		l.hw = l.end
	}
	return l.end - 1, nil
}

func (l *memLog) Await(offset int64, done func(error)) {
	l.mu.Lock()
	if l.hw <= offset {
		l.waiters = append(l.waiters, waiter{offset, done})
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	done(nil)
}

// commit moves the high watermark to the end, and fires who waits for that.
func (l *memLog) commit() { l.commitTo(l.end) }

func (l *memLog) commitTo(hw int64) {
	l.mu.Lock()
	l.hw = hw
	var due []waiter
	l.waiters = slices.DeleteFunc(l.waiters, func(w waiter) bool {
		if w.offset < hw {
			due = append(due, w)
			return true
		}
		return false
	})
	l.mu.Unlock()
	for _, w := range due {
		w.done(nil)
	}
}

// lose fails who waits, as a leader does that has been replaced.
func (l *memLog) lose() {
	l.mu.Lock()
	due := l.waiters
	l.waiters = nil
	l.refuse = coordinator.ErrNotLeader
	l.mu.Unlock()
	for _, w := range due {
		w.done(coordinator.ErrNotLeader)
	}
}

// prefix is a copy of the log up to an offset, all of it committed.
func (l *memLog) prefix(end int64) *memLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &memLog{end: end, hw: end}
	for _, b := range l.batches {
		if b.LastOffset() < end {
			p.batches = append(p.batches, bytes.Clone(b))
		}
	}
	return p
}

// fixture is a coordinator of one partition, on a log in memory and in virtual time.
type fixture struct {
	testing.TB
	clock *virtualClock
	log   *memLog
	c     *Coordinator
	epoch int32
	ids   int
}

func newFixture(t testing.TB, cfg Config) *fixture {
	f := &fixture{TB: t, clock: newVirtualClock(), log: new(memLog)}
	f.c = f.newCoordinator(cfg)
	f.elect(f.log)
	return f
}

func (f *fixture) newCoordinator(cfg Config) *Coordinator {
	c := New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, f.clock, cfg)
	c.newID = func() string { f.ids++; return fmt.Sprint(f.ids) }
	c.SetPartitions(1)
	return c
}

// elect begins the next leadership on a log, and waits until it is loaded.
func (f *fixture) elect(log *memLog) {
	f.epoch++
	f.log = log
	f.c.Elect(0, f.epoch, log)
	f.c.loading.Wait()
}

// waiting is an answer that may still come.
type waiting[T any] struct {
	fixture *fixture
	answers []T
}

func (w *waiting[T]) answer(v T) { w.answers = append(w.answers, v) }

// get is the answer, which must have come, once.
func (w *waiting[T]) get() T {
	w.fixture.Helper()
	if len(w.answers) != 1 {
		w.fixture.Fatalf("%d answers, want 1", len(w.answers))
	}
	return w.answers[0]
}

func (w *waiting[T]) mustWait() {
	w.fixture.Helper()
	if len(w.answers) != 0 {
		w.fixture.Fatalf("answered too early: %+v", w.answers[0])
	}
}

// joinRequest is a first join of a consumer.
func joinRequest(group string) JoinRequest {
	return JoinRequest{
		Group: group, ClientID: "client", ClientHost: "/127.0.0.1",
		SessionTimeout: 10 * time.Second, RebalanceTimeout: 60 * time.Second,
		ProtocolType: "consumer", Protocols: []Protocol{{"range", subscription("t")}},
		RequireMemberID: true, CanSkipAssignment: true,
	}
}

// subscription is a consumer's metadata: version 0, topics, no user data.
func subscription(topics ...string) []byte {
	b := []byte{0, 0, 0, 0, 0, byte(len(topics))}
	for _, t := range topics {
		b = append(append(b, 0, byte(len(t))), t...)
	}
	return append(b, 0xff, 0xff, 0xff, 0xff)
}

func (f *fixture) join(req JoinRequest) *waiting[JoinResponse] {
	w := &waiting[JoinResponse]{fixture: f}
	f.c.Join(req, w.answer)
	return w
}

// joinWithID joins as a client does: the id that is given comes back with the second join.
func (f *fixture) joinWithID(req JoinRequest) (memberID string, w *waiting[JoinResponse]) {
	f.Helper()
	first := f.join(req).get()
	if !errors.Is(first.Err, ErrMemberIDRequired) || first.MemberID == "" {
		f.Fatalf("first join: %+v, want ErrMemberIDRequired with an id", first)
	}
	req.MemberID = first.MemberID
	return req.MemberID, f.join(req)
}

func (f *fixture) sync(req SyncRequest) *waiting[SyncResponse] {
	w := &waiting[SyncResponse]{fixture: f}
	f.c.Sync(req, w.answer)
	return w
}

func (f *fixture) commit(req CommitRequest) *waiting[CommitResponse] {
	w := &waiting[CommitResponse]{fixture: f}
	f.c.Commit(req, w.answer)
	return w
}

func (f *fixture) delete(group string) *waiting[error] {
	w := &waiting[error]{fixture: f}
	f.c.Delete(group, w.answer)
	return w
}

func (f *fixture) leave(group string, members ...LeavingMember) *waiting[LeaveResponse] {
	w := &waiting[LeaveResponse]{fixture: f}
	f.c.Leave(LeaveRequest{Group: group, Members: members}, w.answer)
	return w
}

func (f *fixture) heartbeat(group, member string, generation int32) error {
	return f.c.Heartbeat(HeartbeatRequest{Group: group, MemberID: member, Generation: generation})
}

func (f *fixture) wantErr(what string, got, want error) {
	f.Helper()
	if !errors.Is(got, want) || (want == nil && got != nil) {
		f.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func (f *fixture) wantState(group string, want state) {
	f.Helper()
	if d, _ := f.c.Describe(group); d.State != want.String() {
		f.Fatalf("group %s is %s, want %s", group, d.State, want)
	}
}

// offset is a committed offset; -1 for none.
func (f *fixture) offset(group, topic string, partition int32) int64 {
	f.Helper()
	found, err := f.c.Offsets(FetchRequest{Group: group, MemberEpoch: -1, Partitions: []Partition{{Topic: topic, Partition: partition}}})
	if err != nil {
		f.Fatalf("fetch offset: %v", err)
	}
	return found[0].Offset
}

// oneCommit is a commit of one offset of topic t, partition 0.
func oneCommit(group, member string, generation int32, offset int64) CommitRequest {
	return CommitRequest{
		Group: group, MemberID: member, Generation: generation,
		Commits: []Commit{{Topic: "t", Offset: offset, LeaderEpoch: -1}},
	}
}

// stableGroup makes a group of dynamic members, all with the same request, and returns their ids,
// the leader first, and the generation.
func (f *fixture) stableGroup(req JoinRequest, members int) (ids []string, generation int32) {
	f.Helper()
	waits := make([]*waiting[JoinResponse], members)
	for i := range waits {
		var id string
		id, waits[i] = f.joinWithID(req)
		ids = append(ids, id)
	}
	f.clock.advance(time.Nanosecond + f.c.cfg.InitialRebalanceDelay)
	for f.awaitingDelay(waits) {
		f.clock.advance(f.c.cfg.InitialRebalanceDelay)
	}
	generation = waits[0].get().Generation
	f.syncAll(req.Group, ids, generation)
	return ids, generation
}

func (f *fixture) awaitingDelay(waits []*waiting[JoinResponse]) bool {
	return f.c.cfg.InitialRebalanceDelay > 0 && len(waits[0].answers) == 0
}

// syncAll lets every member ask for its assignment, the leader (the first) last: its id in bytes is
// what each is given.
func (f *fixture) syncAll(group string, ids []string, generation int32) {
	f.Helper()
	waits := make([]*waiting[SyncResponse], len(ids))
	var all []Assignment
	for i, id := range ids[1:] {
		waits[i+1] = f.sync(SyncRequest{Group: group, MemberID: id, Generation: generation})
		waits[i+1].mustWait()
	}
	for _, id := range ids {
		all = append(all, Assignment{id, []byte("of " + id)})
	}
	waits[0] = f.sync(SyncRequest{Group: group, MemberID: ids[0], Generation: generation, Assignments: all})
	for i, w := range waits {
		if got := w.get(); got.Err != nil || string(got.Assignment) != "of "+ids[i] {
			f.Fatalf("sync of %s: %+v", ids[i], got)
		}
	}
	f.wantState(group, stable)
}
