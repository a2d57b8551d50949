package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// brokersToMeasure are a real Apache Kafka and ours.
var brokersToMeasure = []struct {
	name  string
	start func(testing.TB) string
}{
	{"kafka", func(t testing.TB) string { return testenv.Kafka(t).Addr }},
	{"sluice", func(t testing.TB) string { return startBroker(t, testenv.Sluice(t)) }},
}

func benchPipeline(b *testing.B, dir, topic, compression string) []*pipelines.Pipeline {
	b.Helper()
	pipes, err := pipelines.Parse("bench.yaml", []byte("pipeline: bench\ncollect:\n  file: {include: ['"+dir+"/*.log']}\ntopic: {name: "+topic+", partitions: 1, compression: "+compression+"}\n"))
	if err != nil {
		b.Fatal(err)
	}
	return pipes
}

// BenchmarkAgentToBroker sends a file of a million lines to a broker, and tells
// the agent's CPU time.
func BenchmarkAgentToBroker(b *testing.B) {
	for _, broker := range brokersToMeasure {
		b.Run(broker.name, func(b *testing.B) {
			addr := broker.start(b)
			for _, compression := range []string{"none", "snappy", "lz4", "zstd", "auto"} {
				b.Run(compression, func(b *testing.B) { benchmarkToBroker(b, addr, compression) })
			}
		})
	}
}

func benchmarkToBroker(b *testing.B, addr, compression string) {
	dir := b.TempDir()
	size := accessLog(b, filepath.Join(dir, "access.log"))
	b.SetBytes(size)
	b.ResetTimer()
	cpu := cpuTime(b)
	for range b.N {
		topic := fmt.Sprintf("bench-%s-%d", compression, time.Now().UnixNano())
		a, err := New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, benchPipeline(b, dir, topic, compression),
			Config{StateDir: b.TempDir(), Once: true, Brokers: []string{addr}})
		if err != nil {
			b.Fatal(err)
		}
		if err := a.Run(context.Background()); err != nil {
			b.Fatal(err)
		}
		if got := a.Accounts()[0].Acked.Lines; got != benchLines {
			b.Fatalf("%d lines acknowledged", got)
		}
	}
	used := float64(cpuTime(b)-cpu) / 1e9 / float64(b.N)
	b.ReportMetric(used/(float64(size)/1e9), "cpu-s/GB")
	b.ReportMetric(benchLines/used, "lines/cpu-s")
}

// BenchmarkLatency writes lines at a low rate and tells how long each takes from
// the write to a consumer.
func BenchmarkLatency(b *testing.B) {
	for _, broker := range brokersToMeasure {
		b.Run(broker.name, func(b *testing.B) { benchmarkLatency(b, broker.start(b)) })
	}
}

const (
	latencyLines    = 200
	latencyInterval = 50 * time.Millisecond
)

func benchmarkLatency(b *testing.B, addr string) {
	dir := b.TempDir()
	topic := fmt.Sprintf("latency-%d", time.Now().UnixNano())
	a, err := New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, benchPipeline(b, dir, topic, "auto"),
		Config{StateDir: b.TempDir(), Brokers: []string{addr}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	file, err := os.Create(filepath.Join(dir, "a.log"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()

	one := make([]byte, 0, 64)
	receive(b, client, func() { fmt.Fprintln(file, time.Now().UnixNano()) }) // all are connected
	took := make([]time.Duration, 0, latencyLines)
	tick := time.NewTicker(latencyInterval)
	defer tick.Stop()
	for range latencyLines {
		<-tick.C
		one = fmt.Appendln(one[:0], time.Now().UnixNano())
		took = append(took, receive(b, client, func() { _, _ = file.Write(one) }))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1e3, "max-ms")
}

// receive writes a line and waits for it.
func receive(b *testing.B, client *kgo.Client, write func()) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	write()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			b.Fatal("the line did not come")
		}
		if fetches.NumRecords() > 0 {
			return time.Since(begun)
		}
	}
}
