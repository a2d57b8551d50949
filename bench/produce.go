package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// payloadVariants is how many different values a producer cycles through.
const payloadVariants = 512

// bufferedRecordsMax bounds the records that wait in a producing client, and so its memory.
const bufferedRecordsMax = 50_000

// paceInterval is how often a rate limit hands out its share.
const paceInterval = time.Millisecond

// ProduceConfig says how to load a topic.
type ProduceConfig struct {
	Topic       string
	Records     int64         // stop after so many; 0 means no limit
	Duration    time.Duration // stop after so long; 0 means no limit. One of the two must be set
	RecordBytes int           // value size, at least 20
	Rate        int64         // records per second; 0 means as fast as it goes
	Payload     Payload       // "" means PayloadLog
}

func (c *ProduceConfig) validate() error {
	if c.Topic == "" {
		return fmt.Errorf("no topic: name one")
	}
	if c.RecordBytes < stampBytes {
		return fmt.Errorf("record size %d: must be at least %d bytes, which hold the time stamp", c.RecordBytes, stampBytes)
	}
	if c.Records <= 0 && c.Duration <= 0 {
		return fmt.Errorf("endless run: give a number of records or a duration")
	}
	if c.Payload == "" {
		c.Payload = PayloadLog
	}
	return nil
}

// ProduceOptions are the client options a load needs beside the seeds: its bound on memory, for one.
func ProduceOptions(opts ...kgo.Opt) []kgo.Opt {
	return append(opts, kgo.MaxBufferedRecords(bufferedRecordsMax), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.RecordRetries(10))
}

// Produce loads the topic through the client until the configured end or until ctx ends, and waits for what is under way.
// progress, if not nil, is called about once a second from another goroutine with what was acknowledged so far.
func Produce(ctx context.Context, client *kgo.Client, cfg ProduceConfig, progress func(Stats)) (Stats, error) {
	if err := cfg.validate(); err != nil {
		return Stats{}, err
	}
	values, err := payloads(cfg.Payload, payloadVariants, cfg.RecordBytes)
	if err != nil {
		return Stats{}, err
	}
	t := newTally()
	stop := t.report(progress)
	defer stop()
	send(ctx, client, cfg, values, t)
	if err := client.Flush(context.WithoutCancel(ctx)); err != nil {
		return t.stats(), fmt.Errorf("flush: %w", err)
	}
	s := t.stats()
	if s.Records == 0 && t.firstErr != nil {
		return s, fmt.Errorf("produce to %s: %w", cfg.Topic, t.firstErr)
	}
	return s, nil
}

func send(ctx context.Context, client *kgo.Client, cfg ProduceConfig, values [][]byte, t *tally) {
	if cfg.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Duration)
		defer cancel()
	}
	pace := newPacer(cfg.Rate)
	// A record that is buffered still counts when the run's time is up: it is sent, not cancelled.
	recordCtx := context.WithoutCancel(ctx)
	for n := int64(0); (cfg.Records <= 0 || n < cfg.Records) && ctx.Err() == nil; n++ {
		if !pace.wait(ctx) {
			return
		}
		value := append([]byte(nil), values[n%int64(len(values))]...)
		start := time.Now()
		stamp(value, start)
		client.Produce(recordCtx, &kgo.Record{Topic: cfg.Topic, Value: value}, func(r *kgo.Record, err error) {
			t.add(len(r.Value), time.Since(start), err)
		})
	}
}

// A pacer spreads records evenly over time.
type pacer struct {
	perTick float64
	credit  float64
	last    time.Time
}

func newPacer(rate int64) *pacer {
	return &pacer{perTick: float64(rate) / float64(time.Second), last: time.Now()}
}

// wait blocks until one more record may go; false means that ctx ended.
func (p *pacer) wait(ctx context.Context) bool {
	if p.perTick == 0 {
		return true
	}
	for p.credit < 1 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(paceInterval):
		}
		now := time.Now()
		p.credit += float64(now.Sub(p.last)) * p.perTick
		p.last = now
	}
	p.credit--
	return true
}

// A tally counts a run. Its mutex guards every field.
type tally struct {
	mu       sync.Mutex
	start    time.Time
	last     time.Time
	records  int64
	bytes    int64
	errors   int64
	firstErr error
	latency  *hdrhistogram.Histogram
}

func newTally() *tally {
	now := time.Now()
	return &tally{start: now, last: now, latency: newHistogram()}
}

func (t *tally) add(bytes int, latency time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	if err != nil {
		t.errors++
		if t.firstErr == nil {
			t.firstErr = err
		}
		return
	}
	t.records++
	t.bytes += int64(bytes)
	observe(t.latency, latency)
}

func (t *tally) stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{Records: t.records, Bytes: t.bytes, Errors: t.errors, Elapsed: t.last.Sub(t.start), Latency: hdrhistogram.Import(t.latency.Export())}
}

// report calls progress once a second until the returned function is called.
func (t *tally) report(progress func(Stats)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				progress(t.stats())
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
