package agent

import (
	"time"

	"github.com/sluice-io/sluice/pipelines"
)

// rate bounds what is read in a second. What is read is paid for afterwards, so
// that a line longer than a second's share passes, and then it is waited for as
// long as it cost. It reads no clock. The zero value bounds nothing.
type rate struct {
	lines, bytes allowance
}

func newRate(l pipelines.RateLimit) rate {
	return rate{lines: allowance{second: float64(l.Lines)}, bytes: allowance{second: float64(l.Bytes)}}
}

// allowance is a bucket that holds what half a second brings, and may be owed.
type allowance struct {
	second float64 // what a second brings; 0: no bound
	have   float64
	at     time.Time // as of when
}

// rateBurst is the part of a second that an allowance gathers at most.
const rateBurst = 0.5

// fill adds what has come since.
func (a *allowance) fill(now time.Time) {
	if a.second == 0 {
		return
	}
	full := max(a.second*rateBurst, 1)
	if a.at.IsZero() {
		a.have = full
	} else {
		a.have = min(a.have+a.second*now.Sub(a.at).Seconds(), full)
	}
	a.at = now
}

// due is when there is a whole one to spend; zero when there is now.
func (a *allowance) due() time.Time {
	if a.second == 0 || a.have >= 1 {
		return time.Time{}
	}
	return a.at.Add(time.Duration((1-a.have)/a.second*float64(time.Second)) + time.Nanosecond)
}

func (a *allowance) spend(n int64) {
	if a.second > 0 {
		a.have -= float64(n)
	}
}

// left is what may be spent, 0 for no bound.
func (a *allowance) left() int {
	if a.second == 0 {
		return 0
	}
	return int(max(a.have, 1))
}

// ready says whether there is something to spend.
func (r *rate) ready(now time.Time) bool {
	r.lines.fill(now)
	r.bytes.fill(now)
	return r.due().IsZero()
}

// due is when there is something to spend; zero when there is.
func (r *rate) due() time.Time {
	a, b := r.lines.due(), r.bytes.due()
	if a.After(b) {
		return a
	}
	return b
}

// allowed is how much a read may take; 0 is no bound.
func (r *rate) allowed() (lines, bytes int) { return r.lines.left(), r.bytes.left() }

// spend pays for what was read.
func (r *rate) spend(lines int, bytes int64) {
	r.lines.spend(int64(lines))
	r.bytes.spend(bytes)
}
