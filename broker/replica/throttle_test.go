package replica

import (
	"testing"
	"time"
)

// Over any time that is longer than the burst, what goes through a throttle is the
// rate, whatever the size of the pieces; pieces larger than the rate too.
func TestThrottleKeepsTheRate(t *testing.T) {
	const rate = 1000
	for _, piece := range []int{1, 7, 100, 999, 5000} {
		var th Throttle
		th.SetRate(rate)
		at, sent := now, 0
		for at.Before(now.Add(time.Minute)) {
			if until := th.Until(at); until.After(at) {
				at = until
				continue
			}
			th.Take(piece, at)
			sent += piece
		}
		if most, least := 60*rate+piece, 60*rate-piece; sent > most || sent < least {
			t.Errorf("in pieces of %d: %d bytes in a minute", piece, sent)
		}
	}
}

// What was not used is kept for a second, and no longer.
func TestThrottleBurst(t *testing.T) {
	var th Throttle
	th.SetRate(1000)
	th.Until(now)
	at := now.Add(time.Hour)
	th.Take(1000, at)
	if until := th.Until(at); until != at {
		t.Errorf("a second's worth has to wait until %v", until.Sub(at))
	}
	th.Take(500, at)
	if until := th.Until(at); until.Sub(at) != 500*time.Millisecond {
		t.Errorf("half a second's worth more has to wait until %v", until.Sub(at))
	}
	// A clock that goes back changes nothing.
	if until := th.Until(at.Add(-time.Minute)); until.Sub(at.Add(-time.Minute)) != 500*time.Millisecond {
		t.Errorf("a minute before: until %v", until)
	}
}

func TestThrottleWithoutARate(t *testing.T) {
	var none *Throttle
	none.Take(1<<30, now)
	var th Throttle
	th.Take(1<<30, now)
	for _, th := range []*Throttle{none, &th} {
		if until := th.Until(now); until != now {
			t.Errorf("wait until %v", until)
		}
	}
	th.SetRate(1)
	th.Take(100, now)
	th.SetRate(0) // nothing is left of it
	if until := th.Until(now); until != now {
		t.Errorf("wait until %v", until)
	}
}
