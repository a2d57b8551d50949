package bench

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
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
	against      = flag.String("against", "", "measure against this binary of the broker instead of Kafka, such as one of an earlier commit")
	only         = flag.String("loads", "", "regular expression: measure the loads whose names it matches")
	runsEach     = flag.Int("runs", 3, "runs of each load on each broker, in turn; medians are printed")
	loadFor      = flag.Duration("load", 2*time.Second, "length of a load at the most")
)

// benchPartitions is the number of partitions of a load's topic, and loadBytes how much a load produces at the most: what fits into memory that is
// warm (see warmMemory) and below what the kernel writes out meanwhile.
const (
	benchPartitions = 4
	loadBytes       = 600_000_000
)

// A load is one kind of work on a topic that is made for each run and deleted after it, so that every run finds the page cache alike.
type load struct {
	name    string
	options []kgo.Opt                                // of the client
	prepare func(ctx context.Context, w *work) error // not measured; may be nil
	run     func(ctx context.Context, w *work) (sample, error)
}

// work is what a load works with.
type work struct {
	t      *testing.T
	rival  rival
	client *kgo.Client
	topic  string
}

// A sample is one run of a load on one broker.
type sample struct {
	stats    Stats
	consumed Stats // of a consumer beside, if the load has one: its latency is from end to end
	cpu      cpu
}

func TestAgainstKafka(t *testing.T) {
	if !*againstKafka && *against == "" {
		t.Skip("a measurement of minutes: make bench-broker")
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	rivals := startRivals(t)
	fmt.Printf("\n| load | figure | sluice | %s | ratio |\n|---|---|---|---|---|\n", rivals[1].name)
	row("start", "ready after, s", rivals[0].ready.Seconds(), rivals[1].ready.Seconds())
	row("idle", "resident MB", residentMB(t, rivals[0]), residentMB(t, rivals[1]))
	compareLoads(t, rivals, func(l load) bool { return wanted.MatchString(l.name) })
	row("after all", "resident MB", residentMB(t, rivals[0]), residentMB(t, rivals[1]))
	for _, m := range measurements() {
		if wanted.MatchString(m.name) {
			t.Run(m.name, func(t *testing.T) { m.run(t, rivals) })
		}
	}
}

func startRivals(t *testing.T) [2]rival {
	ours := startOurs(t, "sluice", testenv.Sluice(t), false)
	if *against != "" {
		return [2]rival{ours, startOurs(t, "other", *against, false)}
	}
	return [2]rival{ours, startKafka(t)}
}

func compareLoads(t *testing.T, rivals [2]rival, wanted func(load) bool) {
	warm := false
	for _, l := range loads() {
		if !wanted(l) {
			continue
		}
		if !warm {
			warmUp(t, rivals)
			warm = true
		}
		t.Run(l.name, func(t *testing.T) { l.compare(t, rivals) })
	}
}

// warmUp gives Kafka's compiler the time it has had on a server that runs for days, and both brokers the same work.
func warmUp(t *testing.T, rivals [2]rival) {
	for _, l := range []load{franzLoad(100, -1, "none"), franzLoad(1024, 1, "lz4"), rawLoad(100, -1, "none"), rawFetchLoad()} {
		for _, r := range rivals {
			l.measure(t, r)
		}
	}
}

// compare runs the load in turn on both: first a run that is not counted.
func (l load) compare(t *testing.T, rivals [2]rival) {
	var samples [2][]sample
	for n := range *runsEach + 1 {
		for _, i := range []int{n % 2, 1 - n%2} {
			s := l.measure(t, rivals[i])
			if n > 0 {
				samples[i] = append(samples[i], s)
			}
		}
	}
	l.print(samples)
}

func (l load) measure(t *testing.T, r rival) sample {
	t.Helper()
	client, err := kgo.NewClient(ProduceOptions(append([]kgo.Opt{kgo.SeedBrokers(r.addr), kgo.ProducerBatchCompression(kgo.NoCompression())}, l.options...)...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	w := &work{t, r, client, "load-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	s, err := l.on(w)
	if err != nil {
		t.Fatalf("%s on %s: %v", l.name, r.name, err)
	}
	r.removed(t, w.topic)
	return s
}

func (l load) on(w *work) (s sample, err error) {
	ctx := w.t.Context()
	warmMemory(w.t, w.rival)
	if err := EnsureTopic(ctx, w.client, w.topic, benchPartitions, 1); err != nil {
		return s, err
	}
	if l.prepare != nil {
		if err := l.prepare(ctx, w); err != nil {
			return s, err
		}
	}
	before := w.rival.cpu(w.t)
	if s, err = l.run(ctx, w); err != nil {
		return s, err
	}
	s.cpu = w.rival.cpu(w.t).since(before)
	return s, deleteTopic(ctx, w.client, w.topic)
}

func deleteTopic(ctx context.Context, client *kgo.Client, topic string) error {
	admin := kadm.NewClient(client)
	admin.SetTimeoutMillis(int32(time.Minute.Milliseconds())) // a repeat would be told that the topic is unknown
	deleted, err := admin.DeleteTopics(ctx, topic)
	if err != nil {
		return err
	}
	return deleted[topic].Err
}

func (l load) print(samples [2][]sample) {
	l.figure("records/s", samples, func(s sample) float64 { return s.stats.RecordsPerSecond() })
	l.figure("MB/s", samples, func(s sample) float64 { return s.stats.MegabytesPerSecond() })
	l.figure("broker CPU s/GB", samples, func(s sample) float64 { return s.cpu.perGB(s.stats.Bytes) })
	l.figure("of that in the kernel", samples, func(s sample) float64 { return s.cpu.systemShare() })
	l.figure("broker CPU, cores", samples, func(s sample) float64 { return s.cpu.total().Seconds() / s.stats.Elapsed.Seconds() })
	l.printLatency("ack", samples, func(s sample) Stats { return s.stats })
	l.printLatency("end to end", samples, func(s sample) Stats { return s.consumed })
}

func (l load) printLatency(of string, samples [2][]sample, timed func(sample) Stats) {
	if h := timed(samples[0][0]).Latency; h == nil || h.TotalCount() == 0 {
		return
	}
	for _, q := range []float64{.5, .99} {
		l.figure(fmt.Sprintf("%s p%.0f ms", of, 100*q), samples, func(s sample) float64 { return ms(timed(s).Quantile(q)) })
	}
}

func (l load) figure(what string, samples [2][]sample, of func(sample) float64) {
	ours, theirs := median(values(samples[0], of)), median(values(samples[1], of))
	fmt.Printf("| %s | %s | %.4g | %.4g | %.2f |\n", l.name, what, ours, theirs, median(ratios(samples, of)))
}

// ratios are those of the runs that were made in turn: what disturbs the machine for some seconds is in both.
func ratios(samples [2][]sample, of func(sample) float64) []float64 {
	ours, theirs := values(samples[0], of), values(samples[1], of)
	for i := range ours {
		ours[i] /= theirs[i]
	}
	return ours
}

func values(samples []sample, of func(sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	return values
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func row(load, figure string, ours, theirs float64) {
	fmt.Printf("| %s | %s | %.4g | %.4g | %.2f |\n", load, figure, ours, theirs, ours/theirs)
}
