package stream

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Waiting is what a feed waits for. The zero value is nothing. Safe for concurrent use.
type Waiting struct {
	mu   sync.Mutex
	err  error // guarded by mu
	said bool  // guarded by mu
}

// Set notes the outcome of an attempt to do something, and says a failure once, and its end.
func (w *Waiting) Set(log *slog.Logger, do string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && w.said:
		log.Info("could " + do + " again")
	case err != nil && (!w.said || w.err.Error() != err.Error()):
		log.Warn("cannot "+do+"; trying again without end", "error", err)
	}
	w.err, w.said = err, err != nil
}

// Begin notes what is waited for at first, which is not said.
func (w *Waiting) Begin(err error) {
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
}

// Get returns what is waited for; nil when for nothing.
func (w *Waiting) Get() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Pause waits, and returns early when ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
