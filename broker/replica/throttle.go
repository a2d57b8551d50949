package replica

import (
	"sync"
	"time"
)

// throttleBurst is how much of its rate a Throttle lets through at once.
const throttleBurst = time.Second

// Throttle bounds a flow of bytes by a rate, over all that share it. What is under
// way when the rate is used up is not held back: it is paid for by a later pause,
// so that a batch that is larger than the rate comes through too. A nil Throttle
// bounds nothing. It is safe for concurrent use.
type Throttle struct {
	mu     sync.Mutex
	rate   float64 // bytes a second; 0: no bound
	budget float64 // bytes; below 0 there is a pause
	at     time.Time
}

// SetRate sets the bound in bytes a second; 0 is none.
func (t *Throttle) SetRate(bytesPerSecond int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rate, t.budget, t.at = float64(bytesPerSecond), 0, time.Time{}
}

// Take counts bytes that went.
func (t *Throttle) Take(bytes int, now time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refill(now)
	if t.rate > 0 {
		t.budget -= float64(bytes)
	}
}

// Until is when more may go: now or earlier if it may at once.
func (t *Throttle) Until(now time.Time) time.Time {
	if t == nil {
		return now
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refill(now)
	if t.rate <= 0 || t.budget >= 0 {
		return now
	}
	return now.Add(time.Duration(-t.budget / t.rate * float64(time.Second)))
}

// refill adds what the time since the last call allows. Called with mu held.
func (t *Throttle) refill(now time.Time) {
	if passed := now.Sub(t.at).Seconds(); !t.at.IsZero() && passed > 0 {
		t.budget = min(t.budget+passed*t.rate, t.rate*throttleBurst.Seconds())
	}
	if t.at.IsZero() || now.After(t.at) {
		t.at = now
	}
}
