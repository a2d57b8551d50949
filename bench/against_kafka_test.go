package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestAgainstKafka measures this broker and Apache Kafka in one run, the same load in turn on each, and prints the table of bench/README.md. It
// takes minutes and asserts nothing about speed, so it runs only when asked for: make bench-broker.
var (
	againstKafka = flag.Bool("against-kafka", false, "measure the broker against Apache Kafka")
	runsEach     = flag.Int("runs", 3, "runs of each load on each broker; the median is printed")
	loadFor      = flag.Duration("load", 4*time.Second, "length of a load")
)

const benchPartitions = 4

// A rival is one running broker.
type rival struct {
	name  string
	addr  string
	pid   int
	ready time.Duration // from start to the first answer
}

// A load is one kind of work on a topic that is made for each run and deleted after it, so that every run finds the page cache alike.
type load struct {
	name    string
	prepare func(ctx context.Context, c *kgo.Client, topic string) error // not measured; may be nil
	run     func(ctx context.Context, c *kgo.Client, topic string) (Stats, error)
}

// A sample is one run of a load on one broker.
type sample struct {
	stats Stats
	cpu   time.Duration
}

func (s sample) cpuPerGB() float64 { return s.cpu.Seconds() / (float64(s.stats.Bytes) / 1e9) }

func TestAgainstKafka(t *testing.T) {
	if !*againstKafka {
		t.Skip("a measurement of minutes: make bench-broker")
	}
	rivals := []rival{startOurs(t), startKafka(t)}
	fmt.Println("| load | figure | sluice | Kafka | ratio |\n|---|---|---|---|---|")
	row("start", "ready after, s", rivals[0].ready.Seconds(), rivals[1].ready.Seconds())
	row("idle", "resident MB", residentMB(t, rivals[0]), residentMB(t, rivals[1]))
	for _, l := range loads() {
		samples := [2][]sample{}
		for range *runsEach {
			for i, r := range rivals {
				samples[i] = append(samples[i], measure(t, l, r))
			}
		}
		l.print(samples)
	}
	row("after all", "resident MB", residentMB(t, rivals[0]), residentMB(t, rivals[1]))
}

func loads() []load {
	raw := func(name string, cfg RawConfig) load {
		cfg.Duration = *loadFor
		return load{name: name, run: func(ctx context.Context, c *kgo.Client, topic string) (Stats, error) {
			cfg.Topic = topic
			return RawProduce(ctx, c, cfg, nil)
		}}
	}
	produce := func(name string, cfg ProduceConfig) load {
		cfg.Duration = *loadFor
		return load{name: name, run: func(ctx context.Context, c *kgo.Client, topic string) (Stats, error) {
			cfg.Topic = topic
			return Produce(ctx, c, cfg, nil)
		}}
	}
	return []load{
		raw("raw produce 100 B acks=1", RawConfig{RecordBytes: 100, Acks: 1, Codec: "none"}),
		raw("raw produce 100 B acks=all", RawConfig{RecordBytes: 100, Acks: -1, Codec: "none"}),
		raw("raw produce 100 B acks=all lz4", RawConfig{RecordBytes: 100, Acks: -1, Codec: "lz4"}),
		raw("raw produce 1 KiB acks=1", RawConfig{RecordBytes: 1024, Acks: 1, Codec: "none"}),
		raw("raw produce 1 KiB acks=all", RawConfig{RecordBytes: 1024, Acks: -1, Codec: "none"}),
		{name: "raw fetch", prepare: fill, run: func(ctx context.Context, c *kgo.Client, topic string) (Stats, error) {
			return RawConsume(ctx, c, topic, *loadFor, nil)
		}},
		produce("franz-go produce 100 B acks=all", ProduceConfig{RecordBytes: 100}),
		produce("franz-go produce 1 KiB acks=all", ProduceConfig{RecordBytes: 1024}),
		produce("5,000/s of 1 KiB, linger 0, acks=all", ProduceConfig{RecordBytes: 1024, Rate: 5000}),
	}
}

// fill makes something to fetch.
func fill(ctx context.Context, c *kgo.Client, topic string) error {
	_, err := RawProduce(ctx, c, RawConfig{Topic: topic, Duration: time.Second, RecordBytes: 100, Acks: 1, Codec: "none"}, nil)
	return err
}

func measure(t *testing.T, l load, r rival) sample {
	t.Helper()
	client, err := kgo.NewClient(ProduceOptions(kgo.SeedBrokers(r.addr), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := l.on(t, client, r)
	if err != nil {
		t.Fatalf("%s on %s: %v", l.name, r.name, err)
	}
	return s
}

func (l load) on(t *testing.T, client *kgo.Client, r rival) (s sample, err error) {
	topic := strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := EnsureTopic(t.Context(), client, topic, benchPartitions, 1); err != nil {
		return s, err
	}
	if l.prepare != nil {
		if err := l.prepare(t.Context(), client, topic); err != nil {
			return s, err
		}
	}
	before := cpuOf(t, r.pid)
	if s.stats, err = l.run(t.Context(), client, topic); err != nil {
		return s, err
	}
	s.cpu = cpuOf(t, r.pid) - before
	_, err = kadm.NewClient(client).DeleteTopics(t.Context(), topic)
	return s, err
}

func (l load) print(samples [2][]sample) {
	figure := func(what string, of func(sample) float64) {
		row(l.name, what, median(samples[0], of), median(samples[1], of))
	}
	figure("records/s", func(s sample) float64 { return s.stats.RecordsPerSecond() })
	figure("MB/s", func(s sample) float64 { return s.stats.MegabytesPerSecond() })
	figure("broker CPU s/GB", sample.cpuPerGB)
	if samples[0][0].stats.Latency.TotalCount() > 0 {
		figure("p50 ms", func(s sample) float64 { return ms(s.stats.Quantile(.5)) })
		figure("p99 ms", func(s sample) float64 { return ms(s.stats.Quantile(.99)) })
	}
}

func median(samples []sample, of func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func row(load, figure string, ours, theirs float64) {
	fmt.Printf("| %s | %s | %.4g | %.4g | %.2f |\n", load, figure, ours, theirs, ours/theirs)
}

// startOurs starts the binary with the flush left to the kernel, as Kafka leaves it.
func startOurs(t *testing.T) rival {
	dir := t.TempDir()
	config := filepath.Join(dir, "broker.yaml")
	if err := os.WriteFile(config, []byte("log.group.fsync.enable: false\nlog.segment.delete.delay.ms: 100\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	binary := testenv.Sluice(t)
	start := time.Now()
	p := testenv.Start(t, testenv.Command{Name: "broker", Path: binary,
		Args:  []string{"broker", "--config", config, "--data", filepath.Join(dir, "data"), "--listen", addr, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) }})
	return rival{"sluice", addr, p.PID(), time.Since(start)}
}

func startKafka(t *testing.T) rival {
	start := time.Now()
	k := testenv.StartKafka(t, testenv.KafkaConfig{Measured: true, Properties: map[string]string{"log.segment.delete.delay.ms": "100", "file.delete.delay.ms": "100"}})
	return rival{"kafka", k.Addr, k.PID(), time.Since(start)}
}

// clockTick is the unit of the CPU times in /proc (USER_HZ), the same on all Linux systems Go runs on.
const clockTick = 10 * time.Millisecond

func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("CPU times are read from /proc: ", err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * clockTick
}

func residentMB(t *testing.T, r rival) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		t.Skip("memory is read from /proc: ", err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kb, _ := strconv.Atoi(strings.Fields(rest)[0])
	return float64(kb) / 1e3
}
