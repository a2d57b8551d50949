package sinks

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/sluice-io/sluice/pipelines"
)

// world is one partition's log, the group's commit for it and a destination, over which workers come and go. Time is virtual.
type world struct {
	t     rapid.TB
	pipe  *pipelines.Pipeline
	log   []*kgo.Record
	sink  *memSink
	now   time.Time
	group struct {
		offset   int64 // -1: none
		metadata string
	}
	generation int // commits of older ones are fenced

	// A step is anything that a crash can come before or after. crashAt counts down to the crash; 0 and below: none.
	crashAt int
	steps   int
}

// errCrash is a worker's end at a step.
var errCrash = errors.New("crash")

// step returns errCrash if the worker ends here.
func (w *world) step() error {
	w.steps++
	if w.crashAt > 0 && w.steps == w.crashAt {
		return errCrash
	}
	return nil
}

func newWorld(t rapid.TB, drops bool) *world {
	pipes, err := pipelines.Parse("test.yaml", []byte(rawPipeline))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, pipe: pipes[0], sink: newMemSink(drops), now: time.Unix(1_700_000_000, 0)}
	w.group.offset = -1
	return w
}

// append adds n records after a gap; every seventh is a control record.
func (w *world) append(n int, gap int64) {
	next := int64(0)
	if len(w.log) > 0 {
		next = w.log[len(w.log)-1].Offset + 1
	}
	next += gap
	for range n {
		r := &kgo.Record{Topic: "t", Offset: next, Value: fmt.Appendf(nil, "v%d", next), LeaderEpoch: 2}
		if next%7 == 6 {
			r = controlRecord(next)
		}
		w.log = append(w.log, r)
		next++
	}
}

// controlRecord is a transaction marker as the client shows it.
func controlRecord(offset int64) *kgo.Record {
	return &kgo.Record{Topic: "t", Offset: offset, LeaderEpoch: 2, Attrs: kgo.NewRecordAttrs(kgo.RecordAttrsOpts{Control: true})}
}

// end is the offset after the log's last record.
func (w *world) end() int64 { return w.log[len(w.log)-1].Offset + 1 }

// member is one worker's life with the partition.
type member struct {
	*world
	worker     *Worker
	slot       *slot
	generation int
	fetched    int64 // next offset to fetch
	lets       func() bool
}

func (w *world) join(l limits) *member {
	w.generation++
	worker := &Worker{log: quiet(), cfg: Config{}.withDefaults(), sink: w.sink, metrics: newMetrics(nil, "p", ""), account: newAccount("p", "")}
	worker.destination.Store(&Destination{DropsRepeats: w.sink.drops})
	worker.pipe, worker.spec = w.pipe, w.pipe.Sinks[0]
	worker.encoders.make = worker.newEncoder
	note, ok := ParseCommitNote(w.group.metadata)
	var replayed *CommitNote
	if ok && note.Claim {
		replayed = &note
	}
	p := newPartition(l, Claim{Pipeline: "p", Topic: "t", Epoch: -1}, w.group.offset, replayed, func() float64 { return 0.5 })
	return &member{world: w, worker: worker, slot: &slot{partition: p}, generation: w.generation, fetched: w.group.offset}
}

const rawPipeline = `
pipeline: p
topic: {name: t}
sink:
  directory: {path: unused}
`

// fetch takes up to n records.
func (m *member) fetch(n int) {
	if m.slot.mayRewind() {
		m.fetched = m.slot.sealed
		m.slot.rewound()
	}
	var records []*kgo.Record
	for _, r := range m.log {
		if r.Offset >= m.fetched && len(records) < n {
			records = append(records, r)
		}
	}
	if len(records) > 0 {
		m.fetched = records[len(records)-1].Offset + 1
		m.slot.take(newRuns(records)[0], m.now)
	}
}

// act does everything that is due now.
func (m *member) act() error {
	for {
		a := m.slot.step(m.now, true)
		switch a.do {
		case actNone:
			return nil
		case actCommit:
			if err := m.commit(a); err != nil {
				return err
			}
		case actWrite:
			if err := m.write(); err != nil {
				return err
			}
		}
	}
}

func (m *member) commit(a action) error {
	if err := m.step(); err != nil {
		return err
	}
	o := commitFenced
	if m.generation == m.world.generation {
		o = commitDone
		m.group.offset, m.group.metadata = a.offset, a.metadata
	}
	if err := m.step(); err != nil {
		return err
	}
	m.slot.committedNow(o, m.now)
	return nil
}

func (m *member) write() error {
	if err := m.step(); err != nil {
		return err
	}
	_, _, err := m.worker.store(context.Background(), m.slot, m.slot.hand)
	if crash := m.step(); crash != nil {
		return crash
	}
	m.slot.written(err, m.now)
	return nil
}

// run works until the log's end is committed, or a crash.
func (m *member) run(fetch int) error {
	for range 10_000 {
		m.fetch(fetch)
		if m.lets != nil && m.lets() {
			m.slot.letGo()
		}
		if err := m.act(); err != nil {
			return err
		}
		if m.group.offset == m.end() && m.slot.hand == nil && !m.slot.unclosed() {
			return nil
		}
		m.now = m.now.Add(300 * time.Millisecond)
	}
	m.t.Fatalf("stuck: group %d %q, %+v", m.group.offset, m.group.metadata, m.slot.partition)
	return nil
}

// verify checks that each data record is stored exactly once.
func (w *world) verify(what string) {
	for _, r := range w.log {
		want := 1
		if r.Attrs.IsControl() {
			want = 0
		}
		if got := w.sink.rows[0][r.Offset]; got != want {
			w.t.Fatalf("%s: offset %d is stored %d times, want %d", what, r.Offset, got, want)
		}
	}
	if note, ok := ParseCommitNote(w.group.metadata); w.group.offset != w.end() || !ok || note.Claim {
		w.t.Fatalf("%s: the group's commit is %d %q, want %d and closed", what, w.group.offset, w.group.metadata, w.end())
	}
}

func testLimits(rows int) limits {
	return limits{rows: rows, bytes: 1 << 20, age: time.Second, writeDeadline: 10 * time.Second, backoffMin: 100 * time.Millisecond, backoffMax: 10 * time.Second}
}

// TestCrashAtEveryStep ends a worker before and after each commit and each write, and lets another with other limits go on; then ends that one too.
func TestCrashAtEveryStep(t *testing.T) {
	for _, drops := range []bool{true, false} {
		steps := crashRun(t, drops, 0, 0)
		for first := 1; first <= steps; first++ {
			for second := 1; second <= 12; second++ {
				crashRun(t, drops, first, second)
			}
		}
	}
}

func crashRun(t *testing.T, drops bool, first, second int) (steps int) {
	w := newWorld(t, drops)
	w.append(20, 3)
	w.append(5, 4) // a hole, as compaction leaves it
	for i, l := range []struct{ rows, fetch, crashAt int }{{4, 7, first}, {9, 3, second}, {3, 30, 0}} {
		w.crashAt, w.steps = l.crashAt, 0
		err := w.join(testLimits(l.rows)).run(l.fetch)
		if i == 0 {
			steps = w.steps
		}
		if err == nil {
			break
		}
	}
	w.verify(fmt.Sprintf("drops=%t crash at %d and %d", drops, first, second))
	return steps
}

// TestRandomLives lets writes fail before and after they take effect, in one worker after another, with crashes, records that keep coming, and former workers that
// wake up and try to go on.
func TestRandomLives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Bool().Draw(t, "drops"))
		w.append(rapid.IntRange(1, 40).Draw(t, "records"), rapid.Int64Range(0, 5).Draw(t, "start"))
		w.sink.fail = func(b *Batch, stored bool) error {
			switch rapid.IntRange(0, 9).Draw(t, "fail") {
			case 0:
				return fmt.Errorf("trouble, stored=%t", stored)
			case 1: // refused, with some of it stored
				if !stored {
					w.sink.putSome(b, rapid.IntRange(0, b.Block.Rows()).Draw(t, "some"))
				}
				return fmt.Errorf("refused: %w", ErrTooMuch)
			}
			return nil
		}
		var former *member
		for life := range rapid.IntRange(0, 5).Draw(t, "lives") {
			w.steps, w.crashAt = 0, rapid.IntRange(1, 30).Draw(t, "crash")
			m := w.join(testLimits(rapid.IntRange(1, 12).Draw(t, "rows")))
			m.lets = func() bool { return rapid.IntRange(0, 9).Draw(t, "let go") == 0 }
			if former != nil && rapid.Bool().Draw(t, "zombie") {
				zombie(former)
			}
			if err := m.run(rapid.IntRange(1, 20).Draw(t, "fetch")); err == nil && life > 0 {
				w.append(rapid.IntRange(1, 20).Draw(t, "more"), rapid.Int64Range(0, 3).Draw(t, "gap"))
			}
			former = m
		}
		w.sink.fail = nil
		w.crashAt = 0
		if err := w.join(testLimits(5)).run(10); err != nil {
			t.Fatal(err)
		}
		w.verify("in the end")
	})
}

// zombie lets a worker that was thought dead go on where it was frozen, after its deadline: it must not write.
func zombie(m *member) {
	m.world.crashAt = 0
	before := len(m.sink.seen)
	late := m.now.Add(m.slot.limits.writeDeadline)
	for {
		a := m.slot.step(late, true)
		if a.do == actNone {
			break
		}
		if a.do == actWrite {
			m.t.Fatalf("a worker that slept past its deadline wants to write")
		}
		m.slot.committedNow(commitFenced, late)
	}
	if len(m.sink.seen) != before {
		m.t.Fatal("a zombie wrote")
	}
}

func TestSealsByRowsBytesAndAge(t *testing.T) {
	w := newWorld(t, true)
	w.append(6, 0)
	l := testLimits(4)
	m := w.join(l)
	m.fetch(3)
	if a := m.slot.step(m.now, true); a.do != actNone {
		t.Fatalf("sealed too early: %+v", a)
	}
	if at, ok := m.slot.wake(); !ok || !at.Equal(m.now.Add(l.age)) {
		t.Errorf("wakes at %v, %t", at, ok)
	}
	if a := m.slot.step(m.now.Add(l.age), true); a.do != actCommit || m.slot.hand.claim.Hi != 2 {
		t.Errorf("not sealed by age: %+v", a)
	}

	m = w.join(l)
	m.fetch(6)
	if a := m.slot.step(m.now, true); a.do != actCommit || m.slot.hand.claim.Hi != 3 || m.slot.filling.n != 2 {
		t.Errorf("not sealed by rows: %+v", a)
	}

	l.bytes = 5 // values are of 2 bytes: the third passes it
	m = w.join(l)
	m.fetch(6)
	if a := m.slot.step(m.now, true); a.do != actCommit || m.slot.hand.claim.Hi != 2 {
		t.Errorf("not sealed by bytes: %+v", a)
	}
}

func TestDeadlineSendsTheClaimAgain(t *testing.T) {
	w := newWorld(t, true)
	w.append(2, 0)
	m := w.join(testLimits(2))
	m.fetch(2)
	if a := m.slot.step(m.now, true); a.do != actCommit {
		t.Fatal(a)
	}
	m.slot.committedNow(commitDone, m.now)
	if a := m.slot.step(m.now, false); a.do != actNone {
		t.Fatalf("no writer is free: %+v", a)
	}
	late := m.now.Add(m.slot.limits.writeDeadline)
	if a := m.slot.step(late, true); a.do != actCommit || a.metadata == "" {
		t.Fatalf("past the deadline the claim has to be sent again: %+v", a)
	}
	m.slot.committedNow(commitDone, late)
	if a := m.slot.step(late, true); a.do != actWrite {
		t.Fatalf("after that it may be written: %+v", a)
	}
	m.slot.written(nil, late)
}

func TestSleepOfTheMachineCountsAgainstTheDeadline(t *testing.T) {
	p := &partition{limits: testLimits(1), claimSent: time.Now()}
	if p.expired(p.claimSent.Add(time.Second)) {
		t.Error("expired after a second")
	}
	// The wall clock moved and the monotonic one did not, as when a machine was suspended.
	asleep := time.Unix(0, p.claimSent.UnixNano()).Add(time.Hour)
	if !p.expired(asleep) {
		t.Error("an hour of sleep went unnoticed")
	}
}

func TestEpochChangeStopsThePartition(t *testing.T) {
	w := newWorld(t, true)
	w.append(5, 0)
	w.group.offset = 0
	w.group.metadata = Claim{Hi: 3, Epoch: 1, Schema: "s"}.metadata() // the log has epoch 2
	m := w.join(testLimits(2))
	m.fetch(5)
	if a := m.slot.step(m.now, true); a.do != actNone || !errors.Is(m.slot.failed, errEpochChanged) {
		t.Errorf("%+v, %v", a, m.slot.failed)
	}
	if len(w.sink.seen) != 0 {
		t.Error("something was written")
	}
}

func TestRevokeWaitsForTheWriteAndGivesBackTheRest(t *testing.T) {
	w := newWorld(t, true)
	w.append(6, 0)
	m := w.join(testLimits(2))
	m.fetch(6)
	m.slot.step(m.now, true)
	m.slot.committedNow(commitDone, m.now)
	if a := m.slot.step(m.now, true); a.do != actWrite {
		t.Fatal(a)
	}
	m.slot.drain()
	if m.slot.drained() {
		t.Fatal("drained while a write is in progress")
	}
	m.slot.written(nil, m.now)
	a := m.slot.step(m.now, true)
	if a.do != actCommit || a.offset != 2 || a.metadata != ClosedMetadata(TopicID{}) {
		t.Fatalf("the last claim is to be closed at once: %+v", a)
	}
	m.slot.committedNow(commitDone, m.now)
	if !m.slot.drained() {
		t.Error("not drained")
	}
}

func TestFailedCommitIsSentAgainWithBackoff(t *testing.T) {
	w := newWorld(t, true)
	w.append(2, 0)
	m := w.join(testLimits(2))
	m.fetch(2)
	for range 3 {
		if a := m.slot.step(m.now, true); a.do != actCommit {
			t.Fatal(a)
		}
		m.slot.committedNow(commitRetry, m.now)
		if a := m.slot.step(m.now, true); a.do != actNone {
			t.Fatalf("at once again: %+v", a)
		}
		at, ok := m.slot.wake()
		if !ok || !at.After(m.now) {
			t.Fatal("does not wake")
		}
		m.now = at
	}
}

func TestFullPartitionPauses(t *testing.T) {
	w := newWorld(t, true)
	w.append(12, 0)
	m := w.join(testLimits(4))
	m.fetch(4)
	m.slot.step(m.now, true)
	if m.slot.full() {
		t.Error("full with nothing behind the batch in hand")
	}
	m.fetch(4)
	if !m.slot.full() {
		t.Error("not full with a whole batch waiting")
	}
}

func TestBackoffIsBounded(t *testing.T) {
	p := partition{limits: testLimits(1), jitter: func() float64 { return 0.999 }}
	last := time.Duration(0)
	for n := 1; n < 100; n++ {
		d := p.backoff(n)
		if d < last/2 || d > p.limits.backoffMax {
			t.Fatalf("attempt %d: %v after %v", n, d, last)
		}
		last = d
	}
}

// TestBarredPartitionClaimsNothing: until the destination has no rows of unknown origin, no claim may be committed, for its note would vouch for them.
func TestBarredPartitionClaimsNothing(t *testing.T) {
	w := newWorld(t, true)
	w.append(6, 0)
	m := w.join(testLimits(2))
	m.slot.origin = originUnasked
	if a := m.slot.step(m.now, true); a.do != actNone {
		t.Fatalf("asked before there is anything to store: %+v", a)
	}
	m.fetch(1)
	if a := m.slot.step(m.now, true); a.do != actAsk || a.offset != 0 {
		t.Fatalf("%+v", a)
	}
	if a := m.slot.step(m.now, true); a.do != actNone {
		t.Fatalf("asked twice: %+v", a)
	}
	m.slot.asked(nil, errors.New("no answer"), m.now)
	if a := m.slot.step(m.now, true); a.do != actNone || m.slot.full() {
		t.Fatalf("at once again: %+v", a)
	}
	for range 3 {
		at, ok := m.slot.wake()
		if !ok || !at.After(m.now) {
			t.Fatal("does not wake")
		}
		m.now = at
		if a := m.slot.step(m.now, true); a.do != actAsk {
			t.Fatalf("%+v", a)
		}
		m.slot.asked(errors.New("rows"), nil, m.now)
		if m.slot.stopped() == nil || !m.slot.full() {
			t.Fatal("not stopped")
		}
	}
	m.now, _ = m.slot.wake()
	m.slot.step(m.now, true)
	m.slot.asked(nil, nil, m.now)
	if err := m.run(7); err != nil || m.slot.stopped() != nil {
		t.Fatal(err)
	}
	w.verify("in the end")
}
