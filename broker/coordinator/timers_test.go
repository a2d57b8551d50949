package coordinator

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestTimersFireInOrder(t *testing.T) {
	var (
		ts    Timers
		zero  = time.UnixMilli(0)
		rng   = rand.New(rand.NewPCG(1, 2))
		timer [200]Timer
		due   = make(map[int]time.Time)
		last  = zero
	)
	if !ts.Deadline().IsZero() {
		t.Error("a deadline without a timer")
	}
	for range 2000 {
		i := rng.IntN(len(timer))
		if rng.IntN(4) == 0 {
			ts.Stop(&timer[i])
			delete(due, i)
			continue
		}
		at := zero.Add(time.Duration(rng.IntN(1000)) * time.Millisecond)
		ts.Set(&timer[i], at, func(time.Time, *Actions) {
			if at.Before(last) || due[i] != at {
				t.Errorf("timer %d of %v fired after %v, want %v", i, at, last, due[i])
			}
			last = at
			delete(due, i)
		})
		due[i] = at
	}
	half := zero.Add(500 * time.Millisecond)
	ts.Expire(half, nil)
	for i, at := range due {
		if !at.After(half) {
			t.Errorf("timer %d of %v did not fire", i, at)
		}
	}
	if next := ts.Deadline(); !next.After(half) {
		t.Errorf("next deadline %v", next)
	}
	ts.Expire(zero.Add(time.Second), nil)
	if len(due) != 0 {
		t.Errorf("%d timers did not fire", len(due))
	}
}

// A timer that is set while others fire, and is due, fires too.
func TestTimerSetWhileExpiring(t *testing.T) {
	var (
		ts   Timers
		a, b Timer
		now  = time.UnixMilli(7)
		got  []string
	)
	ts.Set(&a, now, func(now time.Time, _ *Actions) {
		got = append(got, "a")
		ts.Set(&b, now, func(time.Time, *Actions) { got = append(got, "b") })
		ts.Set(&a, now.Add(1), func(time.Time, *Actions) { got = append(got, "late") })
	})
	ts.Expire(now, nil)
	if len(got) != 2 || got[1] != "b" || ts.Deadline() != now.Add(1) {
		t.Errorf("fired %v, next %v", got, ts.Deadline())
	}
}
