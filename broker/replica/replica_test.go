package replica

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/internal/record"
)

var now = time.UnixMilli(1_700_000_000_000)

// open makes a partition over a log in dir that does not lead yet.
func open(t testing.TB, dir string, opt Options) *Partition {
	t.Helper()
	opt.Topic, opt.BrokerID = "t", 1
	l, _, err := commitlog.Open(commitlog.OSFS{}, filepath.Join(dir, "t-0"), commitlog.Config{}, commitlog.OpenOptions{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Abort)
	return New(l, opt, DefaultTopicConfig())
}

// alone is the state of a partition that has its only replica here.
func alone(epoch int32) cluster.Partition {
	return cluster.Partition{Leader: 1, LeaderEpoch: epoch, Replicas: []int32{1}, ISR: []int32{1}}
}

// leader makes a partition that leads in epoch 1.
func leader(t testing.TB, opt Options) *Partition {
	t.Helper()
	p := open(t, t.TempDir(), opt)
	if err := p.Lead(alone(1), now); err != nil {
		t.Fatal(err)
	}
	return p
}

func batch(t testing.TB, records int) record.Batch {
	t.Helper()
	var b record.Builder
	for range records {
		b.Append(now.UnixMilli(), nil, []byte("value"), nil)
	}
	out, err := b.Build(record.BuildOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustAppend(t testing.TB, p *Partition, records int) {
	t.Helper()
	if _, err := p.Append(batch(t, records), 1, now); err != nil {
		t.Fatal(err)
	}
}

// recorder is a Waiter that remembers.
type recorder struct {
	mu    sync.Mutex
	fired []error
	after func(*Wait)
}

func (r *recorder) Fire(w *Wait, err error) {
	r.mu.Lock()
	r.fired = append(r.fired, err)
	r.mu.Unlock()
	if r.after != nil {
		r.after(w)
	}
}

func (r *recorder) expect(t *testing.T, want ...error) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.fired) != len(want) {
		t.Fatalf("fired %v, want %v", r.fired, want)
	}
	for i := range want {
		if !errors.Is(r.fired[i], want[i]) {
			t.Fatalf("fired %v, want %v", r.fired, want)
		}
	}
}

func await(p *Partition, m Mark, offset int64) (*recorder, *Wait, bool) {
	r := new(recorder)
	w := &Wait{Waiter: r, Mark: m, Offset: offset}
	return r, w, p.Await(w)
}

func TestHighWatermarkIsTheLogEndWithoutGroupFsync(t *testing.T) {
	p := leader(t, Options{})
	mustAppend(t, p, 3)
	if p.HighWatermark() != 3 || p.LastStableOffset() != 3 {
		t.Errorf("high watermark %d, last stable offset %d", p.HighWatermark(), p.LastStableOffset())
	}
}

func TestHighWatermarkIsTheSyncedOffsetWithGroupFsync(t *testing.T) {
	asked := 0
	p := leader(t, Options{GroupFsync: true, Notify: func(*Partition) { asked++ }})
	mustAppend(t, p, 1)
	mustAppend(t, p, 2)
	if p.HighWatermark() != 0 || asked != 1 {
		t.Errorf("high watermark %d, asked for %d syncs before one", p.HighWatermark(), asked)
	}
	visible := p.VisibleBytes()
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if p.HighWatermark() != 3 || p.VisibleBytes()-visible != int64(len(batch(t, 1))+len(batch(t, 2))) {
		t.Errorf("high watermark %d, %d more bytes", p.HighWatermark(), p.VisibleBytes()-visible)
	}
	mustAppend(t, p, 1)
	if asked != 2 {
		t.Errorf("asked for %d syncs", asked)
	}
}

func TestWaitsFireWhenTheMarkIsReached(t *testing.T) {
	p := leader(t, Options{GroupFsync: true, Notify: func(*Partition) {}})
	low, _, _ := await(p, HighWatermark, 1)
	high, _, _ := await(p, HighWatermark, 3)
	end, _, _ := await(p, LogEnd, 1)
	mustAppend(t, p, 2)
	end.expect(t, nil)
	low.expect(t)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	low.expect(t, nil)
	high.expect(t)
	mustAppend(t, p, 1)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	low.expect(t, nil)
	high.expect(t, nil)
	if _, _, armed := await(p, HighWatermark, 3); armed {
		t.Error("a wait for what is there was armed")
	}
}

func TestForgottenWaitsDoNotFire(t *testing.T) {
	p := leader(t, Options{})
	var all []*recorder
	for i := range 5 {
		r, w, _ := await(p, HighWatermark, 1)
		if i%2 == 0 {
			p.Forget(w)
			p.Forget(w) // once more is no harm
		}
		all = append(all, r)
	}
	mustAppend(t, p, 1)
	for i, r := range all {
		if i%2 == 0 {
			r.expect(t)
		} else {
			r.expect(t, nil)
		}
	}
}

func TestWaitsFireOutsideTheLock(t *testing.T) {
	p := leader(t, Options{})
	r := &recorder{after: func(w *Wait) { // would deadlock under p.mu
		p.Forget(w)
		p.Await(&Wait{Waiter: new(recorder), Offset: 100})
		_ = p.HighWatermark()
	}}
	p.Await(&Wait{Waiter: r, Offset: 1})
	mustAppend(t, p, 1)
	r.expect(t, nil)
}

func TestWaitsEndWithTheRole(t *testing.T) {
	disk := fmt.Errorf("%w: disk", ErrOffline)
	for _, tc := range []struct {
		name string
		end  func(*Partition)
		want error
	}{
		{"resign", func(p *Partition) { p.Resign(2) }, ErrNotLeader},
		{"delete", func(p *Partition) { p.Fail(ErrDeleted) }, ErrDeleted},
		{"disk", func(p *Partition) { p.Fail(disk) }, ErrOffline},
		{"new epoch", func(p *Partition) {
			if err := p.Lead(alone(2), now); err != nil {
				t.Fatal(err)
			}
		}, ErrNotLeader},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := leader(t, Options{})
			a, _, _ := await(p, HighWatermark, 1)
			b, _, _ := await(p, LogEnd, 1)
			tc.end(p)
			a.expect(t, tc.want)
			b.expect(t, tc.want)
		})
	}
}

func TestRoles(t *testing.T) {
	p := open(t, t.TempDir(), Options{})
	_, err := p.Append(batch(t, 1), 0, now)
	if !errors.Is(err, ErrNotLeader) {
		t.Errorf("append before leading: %v", err)
	}
	if err := p.Lead(alone(5), now); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, p, 1)
	for epoch, want := range map[int32]error{NoEpoch: nil, 5: nil, 4: ErrFencedEpoch, 6: ErrUnknownEpoch} {
		if err := p.Check(epoch); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("epoch %d: %v, want %v", epoch, err, want)
		}
	}
	if err := p.Lead(alone(4), now); !errors.Is(err, ErrFencedEpoch) {
		t.Errorf("an older epoch: %v", err)
	}
	p.Resign(6)
	if _, err := p.Append(batch(t, 1), 0, now); !errors.Is(err, ErrNotLeader) {
		t.Errorf("append after resigning: %v", err)
	}
	if p.LeaderEpoch() != 6 || p.Err() == nil {
		t.Errorf("epoch %d, %v", p.LeaderEpoch(), p.Err())
	}
	p.Fail(ErrDeleted)
	p.Fail(ErrOffline) // the first reason stands
	if err := p.Lead(alone(7), now); !errors.Is(err, ErrDeleted) {
		t.Errorf("lead after deletion: %v", err)
	}
	if err := p.Check(NoEpoch); !errors.Is(err, ErrDeleted) {
		t.Errorf("%v", err)
	}
}

func TestMinInSyncReplicas(t *testing.T) {
	p := leader(t, Options{})
	if _, err := p.Append(batch(t, 1), 2, now); !errors.Is(err, ErrNotEnoughReplicas) {
		t.Errorf("%v", err)
	}
	if p.Log().EndOffset() != 0 {
		t.Error("appended all the same")
	}
}

func TestBatchesCarryTheEpochOfTheirLeader(t *testing.T) {
	p := leader(t, Options{})
	mustAppend(t, p, 1)
	if err := p.Lead(alone(4), now); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, p, 1)
	for offset, want := range []int32{1, 4} {
		if got := p.Log().EpochForOffset(int64(offset)); got != want {
			t.Errorf("epoch %d at %d, want %d", got, offset, want)
		}
	}
}

// What an unclean stop left unsynced is not committed before a sync.
func TestLeadAsksForTheSyncOfWhatRecoveryFound(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{})
	if err := p.Lead(alone(1), now); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, p, 3)
	p.Log().Abort()
	asked := 0
	p = open(t, dir, Options{GroupFsync: true, Notify: func(*Partition) { asked++ }})
	if err := p.Lead(alone(2), now); err != nil {
		t.Fatal(err)
	}
	switch {
	case p.HighWatermark() == 3: // recovery has synced it
	case asked != 1:
		t.Errorf("high watermark %d and no sync asked for", p.HighWatermark())
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if p.HighWatermark() != 3 {
		t.Errorf("high watermark %d after a sync", p.HighWatermark())
	}
}

func TestPartitionsRegistry(t *testing.T) {
	dir := t.TempDir()
	partition := func(id byte, index int32) *Partition {
		l, _, err := commitlog.Open(commitlog.OSFS{}, filepath.Join(dir, fmt.Sprint(id, "-", index)), commitlog.Config{}, commitlog.OpenOptions{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Abort)
		return New(l, Options{Topic: "t", TopicID: [16]byte{id}, Partition: index}, DefaultTopicConfig())
	}
	var ps Partitions
	if ps.Get("t", 0) != nil || ps.GetByID([16]byte{1}, 0) != nil || ps.All() != nil {
		t.Error("the empty registry has something")
	}
	a0, a2, b0 := partition(1, 0), partition(1, 2), partition(2, 0)
	ps.Add(a0, a2)
	if ps.Get("t", 0) != a0 || ps.Get("t", 1) != nil || ps.Get("t", 2) != a2 || ps.Get("t", 3) != nil || ps.Get("t", -1) != nil || ps.GetByID([16]byte{1}, 2) != a2 {
		t.Error("not what was added")
	}
	// The topic is made again while the old one is being deleted.
	ps.Add(b0)
	if ps.Get("t", 0) != b0 || ps.GetByID([16]byte{1}, 0) != a0 {
		t.Error("the new topic has not taken the name")
	}
	ps.Remove(a0, a2)
	if ps.Get("t", 0) != b0 || ps.GetByID([16]byte{1}, 0) != nil || len(ps.All()) != 1 {
		t.Error("removing the old topic touched the new one")
	}
	ps.Remove(b0, a0)
	if ps.Get("t", 0) != nil || len(ps.All()) != 0 {
		t.Error("something was left")
	}
}

func TestLookupsAllocateNothing(t *testing.T) {
	p := leader(t, Options{})
	var ps Partitions
	ps.Add(p)
	if n := testing.AllocsPerRun(100, func() {
		if ps.Get("t", 0) != p || ps.GetByID(p.TopicID(), 0) != p {
			t.Fatal("not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Waits come and go while the high watermark moves and the role changes: none
// is lost and none fires twice.
func TestWaitsUnderLoad(t *testing.T) {
	notify := make(chan struct{}, 1)
	p := leader(t, Options{GroupFsync: true, Notify: func(*Partition) {
		select {
		case notify <- struct{}{}:
		default:
		}
	}})
	var flusher, waiters sync.WaitGroup
	flusher.Go(func() {
		for range notify {
			if err := p.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	const goroutines, rounds = 4, 100
	for g := range goroutines {
		waiters.Go(func() {
			for i := range rounds {
				done, err := p.Append(batch(t, 1), 1, now)
				if err != nil {
					t.Error(err)
					return
				}
				fired := make(chan error, 2)
				w := &Wait{Waiter: waiterFunc(func(err error) { fired <- err }), Offset: done.Last + 1}
				if !p.Await(w) {
					continue
				}
				if (g+i)%7 == 0 {
					p.Forget(w)
					continue
				}
				if err := <-fired; err != nil || p.HighWatermark() <= done.Last {
					t.Errorf("offset %d: %v at high watermark %d", done.Last, err, p.HighWatermark())
				}
			}
		})
	}
	waiters.Wait()
	close(notify)
	flusher.Wait()
}

type waiterFunc func(error)

func (f waiterFunc) Fire(_ *Wait, err error) { f(err) }

func BenchmarkAppend(b *testing.B) {
	p := leader(b, Options{})
	one := batch(b, 100)
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Append(one, 1, now); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendWithWaiters has consumers that wait further on.
func BenchmarkAppendWithWaiters(b *testing.B) {
	p := leader(b, Options{})
	for range 100 {
		p.Await(&Wait{Waiter: new(recorder), Offset: 1 << 60})
	}
	one := batch(b, 100)
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Append(one, 1, now); err != nil {
			b.Fatal(err)
		}
	}
}
