package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ConsumeConfig says how much of a topic to read.
type ConsumeConfig struct {
	Records  int64         // stop after so many; 0 means no limit
	Duration time.Duration // stop after so long; 0 means no limit
	Idle     time.Duration // stop when nothing has come for so long; 0 means wait
}

// Consume reads from a client that already knows its topics until the configured end or until ctx ends. The latency is
// the end-to-end one, from the stamp in the value to its arrival here; values without a stamp have none.
func Consume(ctx context.Context, client *kgo.Client, cfg ConsumeConfig, progress func(Stats)) (Stats, error) {
	if cfg.Records <= 0 && cfg.Duration <= 0 && cfg.Idle <= 0 {
		return Stats{}, errors.New("endless run: give a number of records, a duration or an idle time")
	}
	if cfg.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Duration)
		defer cancel()
	}
	t := newTally()
	stop := t.report(progress)
	defer stop()
	for n := int64(0); cfg.Records <= 0 || n < cfg.Records; {
		fetches, idle := poll(ctx, client, cfg.Idle)
		if idle || ctx.Err() != nil {
			break
		}
		if err := fetches.Err0(); err != nil {
			return t.stats(), fmt.Errorf("fetch: %w", err)
		}
		t.addFetched(fetches, time.Now())
		n += int64(fetches.NumRecords())
	}
	return t.stats(), nil
}

// addFetched counts all records of one poll under one hold of the lock.
func (t *tally) addFetched(fetches kgo.Fetches, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = now
	fetches.EachRecord(func(r *kgo.Record) {
		t.records++
		t.bytes += int64(len(r.Value))
		if at, ok := stamped(r.Value); ok {
			observe(t.latency, now.Sub(at))
		}
	})
}

// poll waits for records; idle says that none came within the limit.
func poll(ctx context.Context, client *kgo.Client, limit time.Duration) (fetches kgo.Fetches, idle bool) {
	pollCtx := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		pollCtx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	fetches = client.PollFetches(pollCtx)
	return fetches, pollCtx.Err() != nil && ctx.Err() == nil && fetches.NumRecords() == 0
}
