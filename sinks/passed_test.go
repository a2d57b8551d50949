package sinks

import (
	"context"
	"sync"
	"testing"
	"time"
)

func TestSealsWhenIdle(t *testing.T) {
	w := newWorld(t, true)
	w.append(6, 0)
	l := testLimits(100)
	l.age, l.idle = time.Minute, time.Second
	m := w.join(l)
	m.fetch(3)
	m.now = m.now.Add(900 * time.Millisecond)
	if a := m.slot.step(m.now, true); a.do != actNone {
		t.Fatalf("sealed too early: %+v", a)
	}
	m.fetch(1) // a record more: idle begins anew
	if at, ok := m.slot.wake(); !ok || !at.Equal(m.now.Add(l.idle)) {
		t.Errorf("wakes at %v, %t", at, ok)
	}
	if a := m.slot.step(m.now.Add(l.idle-1), true); a.do != actNone {
		t.Fatalf("sealed too early: %+v", a)
	}
	if a := m.slot.step(m.now.Add(l.idle), true); a.do != actCommit || m.slot.hand.claim.Hi != 3 {
		t.Errorf("not sealed when idle: %+v", a)
	}
}

func TestPassed(t *testing.T) {
	at := func(stored int64, change func(*partition)) *partition {
		p := newPartition(testLimits(10), Claim{}, stored, nil, func() float64 { return 0 })
		change(p)
		return p
	}
	nothing := func(*partition) {}
	for name, c := range map[string]struct {
		p          *partition
		start, end int64
		want       bool
	}{
		"stored to the end":      {at(10, nothing), 0, 10, true},
		"stored past it":         {at(11, nothing), 0, 10, true},
		"behind":                 {at(9, nothing), 0, 10, false},
		"empty, never committed": {at(-1, nothing), 0, 0, true},
		"emptied by retention":   {at(3, nothing), 10, 10, true},
		"never committed":        {at(-1, nothing), 0, 10, false},
		"records are on the way": {at(10, func(p *partition) { p.filling.n = 1 }), 0, 10, false},
		"a batch is in hand":     {at(10, func(p *partition) { p.hand = &batch{} }), 0, 10, false},
		"a claim is to be read":  {at(10, func(p *partition) { p.replay = &replay{} }), 0, 10, false},
		"given away":             {at(10, func(p *partition) { p.fenced = true }), 0, 10, false},
		"about to be given away": {at(10, func(p *partition) { p.draining = true }), 0, 10, false},
		"stopped":                {at(10, func(p *partition) { p.failed = errEpochChanged }), 0, 10, false},
		"barred by unknown rows": {at(10, func(p *partition) { p.barred = errEpochChanged }), 0, 10, false},
	} {
		if got := c.p.passed(c.start, c.end); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// follower is a destination that wants to know how far the log is stored.
type follower struct {
	*memSink
	mu     sync.Mutex
	passed map[int32]Position
}

func (f *follower) Passed(_ context.Context, p Position) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passed[p.Partition] = p
	return nil
}

func (f *follower) at(partition int32) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.passed[partition].At
}

// TestFollowerHearsOfEveryPartition, of those without records too.
func TestFollowerHearsOfEveryPartition(t *testing.T) {
	r := newRig(t, 2, "")
	r.produce("a", 100, 1) // all to the first
	produced := time.Now()
	f := &follower{memSink: newMemSink(true), passed: map[int32]Position{}}
	w := r.start(f, Config{})
	r.await("word of both partitions", func() bool { return f.at(0).After(produced) && f.at(1).After(produced) })
	r.stop(w)
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.passed[1]; p.Topic != r.topic || p.TopicID == (TopicID{}) || p.Partitions != 2 {
		t.Errorf("%+v", p)
	}
}
