package broker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

const (
	// rollCheck is how often old segments are closed and removed files deleted.
	rollCheck = 10 * time.Second
	// offlineRetry is how often a partition that could not be opened is tried again.
	offlineRetry = 30 * time.Second
	// flushCheck is how often records are looked for that have waited for a sync
	// for as long as flush.ms says, where log.flush.scheduler.interval.ms is not shorter.
	flushCheck = time.Second
)

// step is something that is done again and again in the background.
type step struct {
	every time.Duration
	run   func()
	due   time.Time
}

func (b *Broker) steps() []*step {
	return []*step{
		{every: min(rollCheck, b.cfg.RetentionCheck), run: b.rollStep},
		{every: b.cfg.RetentionCheck, run: b.retentionStep},
		{every: b.cfg.CheckpointInterval, run: b.checkpointStep},
		{every: b.cfg.HighWatermarkCheckpoint, run: b.highWatermarkStep},
		{every: b.cfg.ProducerExpiryCheck, run: b.producerStep},
		{every: offlineRetry, run: b.retryOffline},
		{every: strayCheck, run: b.strayStep},
		{every: flushEvery(b.cfg.TopicDefaults), run: b.flushStep},
	}
}

func flushEvery(defaults map[string]string) time.Duration {
	ms, err := strconv.ParseInt(defaults["log.flush.scheduler.interval.ms"], 10, 64)
	if err != nil || ms > flushCheck.Milliseconds() {
		return flushCheck
	}
	return time.Duration(max(ms, 1)) * time.Millisecond
}

// flushStep syncs what has waited for as long as its topic allows.
func (b *Broker) flushStep() {
	now := b.cfg.Now()
	for _, p := range b.partitions.All() {
		if p.FlushDue(now) {
			p.WantFlush()
		}
	}
}

// runSteps runs each step when it is due, one at a time, until ctx ends.
func runSteps(ctx context.Context, steps []*step) {
	start := time.Now()
	for _, s := range steps {
		s.due = start.Add(s.every)
	}
	for {
		next := steps[0]
		for _, s := range steps {
			if s.due.Before(next.due) {
				next = s
			}
		}
		timer := time.NewTimer(time.Until(next.due))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		next.run()
		next.due = time.Now().Add(next.every)
	}
}

// forAll calls fn for every partition, and logs the first of its errors, since
// what ails one often ails all.
func (b *Broker) forAll(what string, fn func(*replica.Partition) error) {
	failed := 0
	var first error
	for _, p := range b.partitions.All() {
		err := fn(p)
		if err == nil || errors.Is(err, commitlog.ErrClosed) || errors.Is(err, commitlog.ErrOffline) {
			continue // deleted meanwhile, or known to be offline
		}
		if failed++; failed == 1 {
			first = err
		}
	}
	if failed > 0 {
		b.log.Error(what+" failed", "partitions", failed, "first_error", first)
	}
}

func (b *Broker) rollStep() {
	now := b.cfg.Now()
	b.forAll("closing old segments", func(p *replica.Partition) error {
		if _, err := p.Log().RollIfDue(now); err != nil {
			return err
		}
		if p.Log().ClosedUnsynced() {
			b.flusher.notify(p)
		}
		_, err := p.Log().RemoveDeleted(now)
		return err
	})
}

func (b *Broker) retentionStep() {
	now := b.cfg.Now()
	held := b.readHolds()
	b.forAll("retention", func(p *replica.Partition) error {
		gone, err := p.Log().Retain(now, held.limit(p))
		if len(gone) > 0 {
			b.log.Info("retention removed segments", "topic", p.Topic(), "partition", p.Index(),
				"segments", len(gone), "bytes", bytesOf(gone), "log_start", p.Log().StartOffset())
		}
		if err != nil {
			return err
		}
		return held.count(p, now)
	})
	b.held.Store(&held.bytes)
}

func (b *Broker) producerStep() {
	now := b.cfg.Now()
	b.forAll("forgetting idle producers", func(p *replica.Partition) error {
		p.Log().ExpireProducers(now)
		return nil
	})
}
