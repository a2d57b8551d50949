package broker

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

// cleanerBytesPerSecondMin is the lowest limit of the cleaner's reads and
// writes: stopping and deleting topics wait for the piece under way, of some
// hundred KiB.
const cleanerBytesPerSecondMin = 1 << 20

// cleanerRetry is how long a log whose compaction failed waits for the next
// try, so that others get their turn.
const cleanerRetry = time.Minute

// cleaner compacts the logs of compacted topics. Each of its threads takes the
// log that has the largest share of uncompacted bytes, of those that are due and
// no other thread has, and waits when there is none.
type cleaner struct {
	b       *Broker
	metrics *cleanerMetrics
	pace    pacer

	mu      sync.Mutex      // guards what follows; taken before the locks of logs
	ctx     context.Context // of the threads; nil: there are none
	threads sync.WaitGroup
	running map[int]bool // the threads that have not stopped, by number
	busy    map[*replica.Partition]bool
	// failed tells when a compaction failed last, for want of room for example.
	failed map[*replica.Partition]time.Time
	// damaged are partitions with a batch that cannot be read. They are left
	// alone until the next start, as in Kafka.
	damaged map[*replica.Partition]bool
}

func newCleaner(b *Broker) *cleaner {
	return &cleaner{b: b, metrics: newCleanerMetrics(), running: map[int]bool{}, busy: map[*replica.Partition]bool{},
		failed: map[*replica.Partition]time.Time{}, damaged: map[*replica.Partition]bool{}}
}

// start runs the threads until ctx ends; wait returns when they have stopped.
func (c *cleaner) start(ctx context.Context) (wait func()) {
	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()
	c.resize()
	return func() {
		c.mu.Lock()
		c.ctx = nil
		c.mu.Unlock()
		c.threads.Wait()
	}
}

// resize starts the threads that are wanted and missing. Those that are too many
// stop by themselves, when their log is done.
func (c *cleaner) resize() {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx := c.ctx
	if ctx == nil {
		return
	}
	for i := range c.b.live.Load().cfg.CleanerThreads {
		if !c.running[i] {
			c.running[i] = true
			c.threads.Go(func() { c.run(ctx, i) })
		}
	}
}

// run is the thread of number i.
func (c *cleaner) run(ctx context.Context, i int) {
	for !c.ends(ctx, i) {
		if !c.step(ctx) {
			sleep(ctx, c.b.live.Load().cfg.CleanerBackoff)
		}
	}
}

// ends tells a thread whether it is to stop.
func (c *cleaner) ends(ctx context.Context, i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() == nil && i < c.b.live.Load().cfg.CleanerThreads {
		return false
	}
	delete(c.running, i)
	return true
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// step compacts one log; false when none was due, or it failed.
func (c *cleaner) step(ctx context.Context) bool {
	p := c.take()
	if p == nil {
		return false
	}
	err := c.clean(ctx, p)
	c.done(p, err)
	return err == nil
}

// take picks a log and keeps it from other threads.
func (c *cleaner) take() *replica.Partition {
	now := c.b.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var best *replica.Partition
	dirtiest := -1.0
	all := c.b.partitions.All()
	for _, p := range all {
		if !p.Log().Config().Compact || c.busy[p] || c.damaged[p] || now.Sub(c.failed[p]) < cleanerRetry {
			continue
		}
		state, err := p.Log().Cleanable(p.HighWatermark(), now)
		if err == nil && state.Due && state.Ratio() > dirtiest {
			best, dirtiest = p, state.Ratio()
		}
	}
	c.metrics.dirtiest.Set(max(dirtiest, 0))
	if best != nil {
		c.busy[best] = true
	}
	return best
}

// clean compacts a log, in as many rounds as the map of keys needs, and stores
// how far it came.
func (c *cleaner) clean(ctx context.Context, p *replica.Partition) error {
	defer c.b.storeCleaned()
	live := &c.b.live.Load().cfg
	work := commitlog.NewCleaner(commitlog.CleanerConfig{
		DedupeBytes: live.CleanerDedupeBytes / int64(live.CleanerThreads),
		Pace:        func(bytes int) error { return c.pace.wait(ctx, bytes, c.b.live.Load().cfg.CleanerBytesPerSecond) },
	})
	for {
		begun := time.Now()
		out, err := work.Clean(p.Log(), p.HighWatermark(), c.b.cfg.Now())
		took := time.Since(begun)
		c.metrics.note(out, took)
		if err != nil {
			return err
		}
		c.b.log.Info("compacted", "topic", p.Topic(), "partition", p.Index(), "from", out.From, "to", out.To,
			"records", out.RecordsRead, "kept", out.RecordsKept, "segments", out.SegmentsBefore, "segments_left", out.SegmentsAfter,
			"took", took.Round(time.Millisecond))
		if !out.More {
			return nil
		}
	}
}

// done gives a log back, and says what failed.
func (c *cleaner) done(p *replica.Partition, err error) {
	var damaged *commitlog.CorruptionError
	unreadable := errors.As(err, &damaged)
	c.mu.Lock()
	delete(c.busy, p)
	delete(c.failed, p)
	switch {
	case unreadable:
		c.damaged[p] = true
	case err != nil && !errors.Is(err, commitlog.ErrCleaningStopped):
		c.failed[p] = c.b.cfg.Now()
	}
	c.forgetClosed()
	c.metrics.damaged.Set(float64(len(c.damaged)))
	c.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, commitlog.ErrCleaningStopped), errors.Is(err, commitlog.ErrClosed), errors.Is(err, context.Canceled):
	case unreadable:
		c.b.log.Error("a log is damaged and is not compacted until the broker restarts", "topic", p.Topic(), "partition", p.Index(), "error", err)
	default:
		c.b.log.Error("compaction failed and is tried again", "topic", p.Topic(), "partition", p.Index(), "error", err)
	}
}

// forgetClosed drops what is known of partitions that are no more. Called with mu held.
func (c *cleaner) forgetClosed() {
	closed := func(p *replica.Partition) bool { return c.b.partitions.GetByID(p.TopicID(), p.Index()) != p }
	maps.DeleteFunc(c.damaged, func(p *replica.Partition, _ bool) bool { return closed(p) })
	maps.DeleteFunc(c.failed, func(p *replica.Partition, _ time.Time) bool { return closed(p) })
}

// pacer holds all threads to a number of bytes a second. Its zero value is
// ready; safe for concurrent use.
type pacer struct {
	mu   sync.Mutex
	free time.Time // when what was let through is paid for
}

// wait returns when so many more bytes are within the limit, or ctx ends.
func (p *pacer) wait(ctx context.Context, bytes int, perSecond float64) error {
	if err := ctx.Err(); err != nil || perSecond == defaultCleanerBytesPerSecond {
		return err
	}
	p.mu.Lock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(bytes) / perSecond * float64(time.Second)))
	due := p.free.Sub(now)
	p.mu.Unlock()
	sleep(ctx, due)
	return ctx.Err()
}

// cleanerMetrics implements prometheus.Collector.
type cleanerMetrics struct {
	read, written, removed prometheus.Counter
	seconds                prometheus.Histogram
	dirtiest, damaged      prometheus.Gauge
}

func newCleanerMetrics() *cleanerMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_broker_cleaner_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_broker_cleaner_" + name, Help: help})
	}
	return &cleanerMetrics{
		read:    counter("read_bytes_total", "Bytes of logs that compaction has read."),
		written: counter("written_bytes_total", "Bytes of logs that compaction has written."),
		removed: counter("removed_records_total", "Records that compaction has removed."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_broker_cleaner_seconds", Help: "Time that compacting a log once takes.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}),
		dirtiest: gauge("dirty_ratio_max", "The largest share of uncompacted bytes among the logs that were due when last looked at; 0 if none was."),
		damaged:  gauge("damaged_partitions", "Partitions that are not compacted because a batch cannot be read."),
	}
}

func (m *cleanerMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.read, m.written, m.removed, m.seconds, m.dirtiest, m.damaged}
}

// Describe implements prometheus.Collector.
func (m *cleanerMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *cleanerMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

// note counts what one compaction did.
func (m *cleanerMetrics) note(out commitlog.Cleaned, took time.Duration) {
	if out.BytesRead == 0 {
		return
	}
	m.read.Add(float64(out.BytesRead))
	m.written.Add(float64(out.BytesWritten))
	m.removed.Add(float64(out.RecordsRead - out.RecordsKept))
	m.seconds.Observe(took.Seconds())
}
