package broker

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

// flusher syncs partitions that have something to sync. While one sync of a
// partition runs, what is appended meanwhile gathers for the next one: that is
// the group commit, and needs no timer. A few workers serve all partitions.
//
// It is safe for concurrent use.
type flusher struct {
	log     *slog.Logger
	now     func() time.Time
	seconds prometheus.Observer

	mu    sync.Mutex // guards what follows; a leaf
	work  sync.Cond  // signalled when queue grows or stopped is set
	idle  sync.Cond  // signalled when nothing is queued or running
	queue []*replica.Partition
	// running has the partitions that a worker syncs; true means that it is to
	// be queued again, since no two workers sync the same one.
	running map[*replica.Partition]bool
	stopped bool
	workers sync.WaitGroup
}

func newFlusher(log *slog.Logger, seconds prometheus.Observer, now func() time.Time) *flusher {
	f := &flusher{log: log, now: now, seconds: seconds, running: map[*replica.Partition]bool{}}
	f.work.L, f.idle.L = &f.mu, &f.mu
	return f
}

func (f *flusher) start(workers int) {
	for range workers {
		f.workers.Go(func() {
			for f.step() {
			}
		})
	}
}

// notify asks for a sync of p. It never blocks for long.
func (f *flusher) notify(p *replica.Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, busy := f.running[p]; busy {
		f.running[p] = true
		return
	}
	f.queue = append(f.queue, p)
	f.work.Signal()
}

// step syncs one partition, waiting for one if need be; it returns false when
// there will be no more.
func (f *flusher) step() bool {
	p := f.take()
	if p == nil {
		return false
	}
	start := f.now()
	err := p.Flush()
	f.seconds.Observe(f.now().Sub(start).Seconds())
	// A partition that is deleted or closed is not to be synced any more.
	if err != nil && !errors.Is(err, commitlog.ErrClosed) && !errors.Is(err, replica.ErrDeleted) {
		f.log.Error("sync failed, the partition is offline until the broker restarts",
			"topic", p.Topic(), "partition", p.Index(), "error", err)
	}
	f.done(p)
	return true
}

func (f *flusher) take() *replica.Partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.queue) == 0 {
		if f.stopped {
			return nil
		}
		f.work.Wait()
	}
	p := f.queue[0]
	f.queue[0] = nil
	f.queue = f.queue[1:]
	f.running[p] = false
	return p
}

func (f *flusher) done(p *replica.Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	again := f.running[p]
	delete(f.running, p)
	switch {
	case again:
		f.queue = append(f.queue, p)
		f.work.Signal()
	case len(f.queue) == 0 && len(f.running) == 0:
		f.idle.Broadcast()
	}
}

// wait returns when everything that was asked for is synced.
func (f *flusher) wait() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.queue) > 0 || len(f.running) > 0 {
		f.idle.Wait()
	}
}

// stop ends the workers once the queue is empty.
func (f *flusher) stop() {
	f.mu.Lock()
	f.stopped = true
	f.work.Broadcast()
	f.mu.Unlock()
	f.workers.Wait()
}
