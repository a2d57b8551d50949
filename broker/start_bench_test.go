package broker

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

// BenchmarkStartEmpty is the time from nothing to serving, over an empty
// directory, and the stop.
func BenchmarkStartEmpty(b *testing.B) {
	for b.Loop() {
		n := startBench(b, EmbeddedConfig(b.TempDir(), ""))
		stopBench(b, n)
	}
}

// BenchmarkStart2000Partitions is the start with 2,000 partitions of 3 segments,
// 60 KiB each, after a clean stop and after a kill; the kill comes when all is
// flushed and checkpointed, or with so many MiB in the last segments that are not.
func BenchmarkStart2000Partitions(b *testing.B) {
	b.Run("clean", func(b *testing.B) {
		cfg := filled(b, 0)
		var cpu cpuMeter
		for b.Loop() {
			n := cpu.start(b, cfg)
			b.StopTimer()
			reportChecked(b, n)
			stopBench(b, n)
			b.StartTimer()
		}
	})
	for _, unflushed := range []int{0, 64, 256} {
		b.Run(fmt.Sprintf("killed with %d MiB unflushed", unflushed), func(b *testing.B) {
			cfg := filled(b, unflushed<<20)
			var cpu cpuMeter
			for b.Loop() {
				n := cpu.start(b, cfg)
				b.StopTimer()
				reportChecked(b, n)
				n.abort()
				b.StartTimer()
			}
		})
	}
}

// cpuMeter counts the processor time of starts, which says more than the time on the clock where other
// work runs beside.
type cpuMeter struct {
	starts int
	used   time.Duration
}

func (m *cpuMeter) start(b *testing.B, cfg Config) *Broker {
	before := processorTime(b)
	n := startBench(b, cfg)
	m.starts++
	m.used += processorTime(b) - before
	b.ReportMetric(float64(m.used.Milliseconds())/float64(m.starts), "cpu-ms/op")
	return n
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reportChecked(b *testing.B, n *Broker) {
	b.ReportMetric(float64(n.recovered.segments.Load()), "segments-checked")
	b.ReportMetric(float64(n.recovered.checkedBytes.Load())/(1<<20), "MiB-checked")
}

// filled makes a broker's directory with 2,000 partitions of 3 segments, and
// stops it cleanly, or kills it after so many bytes that it had no time to flush.
func filled(b *testing.B, unflushed int) Config {
	cfg := EmbeddedConfig(b.TempDir(), "")
	cfg.NoGroupFsync = true // nothing is flushed unless asked for
	n := startBench(b, cfg)
	createMany(b, n, 0, 200, 10)
	fill(b, n, 3, 60<<10)
	if unflushed == 0 {
		stopBench(b, n)
		return cfg
	}
	n.forAll("flush", func(p *replica.Partition) error { return p.Flush() })
	n.checkpointStep()
	fill(b, n, 1, unflushed/2000)
	n.abort()
	return cfg
}

// fill appends so many segments, of a batch of so many bytes each, to every partition.
func fill(b *testing.B, n *Broker, segments, bytes int) {
	b.Helper()
	for range segments {
		next := n.partitions.All()[0].Log().EndOffset() // the same for all
		batch := batchOf(b, bytes, int32(next))
		for _, p := range n.partitions.All() {
			if next > 0 {
				if _, err := p.Log().RollIfDue(n.cfg.Now().Add(30 * 24 * time.Hour)); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := p.Append(batch, 0, n.cfg.Now()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkCreate1000Partitions makes 100 topics of 10 partitions in one request.
func BenchmarkCreate1000Partitions(b *testing.B) {
	n := startBench(b, EmbeddedConfig(b.TempDir(), ""))
	topics := 0
	for b.Loop() {
		createMany(b, n, topics, 100, 10)
		topics += 100
	}
	stopBench(b, n)
}

func createMany(b *testing.B, n *Broker, from, topics int, partitions int32) {
	b.Helper()
	var asked []cluster.NewTopic
	for i := range topics {
		asked = append(asked, cluster.NewTopic{Name: fmt.Sprintf("topic-%d", from+i), Partitions: partitions, ReplicationFactor: 1})
	}
	for _, done := range n.controller.CreateTopics(b.Context(), asked, false) {
		if done.Err != nil {
			b.Fatal(done.Err)
		}
	}
}

func startBench(b *testing.B, cfg Config) *Broker {
	b.Helper()
	n, err := New(discardLog(), nil, cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := n.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	return n
}

func stopBench(b *testing.B, n *Broker) {
	b.Helper()
	if err := n.Shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// batchOf is a batch of so many bytes, by one producer from a sequence number on; below zero
// it has no producer.
func batchOf(t testing.TB, bytes int, sequence int32) record.Batch {
	t.Helper()
	var builder record.Builder
	for builder.Bytes() < bytes {
		builder.Append(time.Now().UnixMilli(), nil, make([]byte, min(bytes, 1024)), nil)
	}
	var opts record.BuildOptions
	if sequence >= 0 {
		opts = record.BuildOptions{Idempotent: true, ProducerID: 7, BaseSequence: sequence}
	}
	batch, err := builder.Build(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}
