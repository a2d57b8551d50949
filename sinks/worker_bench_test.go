package sinks

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// BenchmarkWorker moves a backlog of records of 220 bytes over eight partitions from Apache Kafka into a destination that keeps nothing: fetch, seal, claim and
// encode, without a warehouse's own work.
func BenchmarkWorker(b *testing.B) {
	const partitions, records = 8, 400_000
	addr := testenv.Kafka(b).Addr
	topic := fmt.Sprintf("bench-%d", topicNo.Add(1))
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(b.Context(), partitions, 1, nil, topic); err != nil {
		b.Fatal(err)
	}
	value := strings.Repeat("x", 210)
	batch := make([]*kgo.Record, 0, 10_000)
	for i := range records {
		batch = append(batch, &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: fmt.Append(nil, value, i)})
		if len(batch) == cap(batch) {
			if err := client.ProduceSync(b.Context(), batch...).FirstErr(); err != nil {
				b.Fatal(err)
			}
			batch = batch[:0]
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuSeconds()
	for n := range b.N {
		pipe := parsePipeline(b, fmt.Sprintf("pipeline: %s-%d\ntopic: {name: %s}\nsink: {directory: {path: unused}, batch: {rows: 20000, age: 1s}}\n", topic, n, topic))
		sink := discard{newMemSink(true)}
		w, err := NewWorker(quiet(), prometheus.NewRegistry(), pipe, pipe.Sinks[0], sink, Config{Brokers: []string{addr}, Once: true})
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Run(b.Context()); err != nil {
			b.Fatal(err)
		}
		if a := w.Account(); a.Stored != records {
			b.Fatalf("%+v", a)
		}
	}
	b.ReportMetric(records*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric((cpuSeconds()-before)/float64(records*b.N)*1e6, "cpu-s/Mrow")
}

// discard counts rows and keeps nothing.
type discard struct{ *memSink }

func (discard) NewBlock() (Block, error)            { return new(countBlock), nil }
func (discard) Write(context.Context, *Batch) error { return nil }

type countBlock int

func (b *countBlock) Append(*pipelines.Event) error { *b++; return nil }
func (b *countBlock) Rows() int                     { return int(*b) }
func (b *countBlock) Bytes() int64                  { return 0 }
func (b *countBlock) Reset()                        { *b = 0 }

// cpuSeconds is what this process has used: on a shared machine the honest figure.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
