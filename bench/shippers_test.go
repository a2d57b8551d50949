package bench

import (
	"bufio"
	"context"
	"embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestAgainstShippers measures the agent, rsyslog and the OpenTelemetry Collector in one run, each in turn with the same files and the same real
// Apache Kafka, and prints the table of bench/README.md. It takes minutes and asserts nothing about speed: make bench-agent.
var (
	againstShippers = flag.Bool("against-shippers", false, "measure the agent against other log shippers")
	shippersOnly    = flag.String("shippers", "", "regular expression: measure only the shippers and settings whose names it matches")
	measuresOnly    = flag.String("measures", "", "regular expression: make only the measurements whose names it matches")
	bulkLines       = flag.Int("bulk-lines", 5_000_000, "lines of the file that is sent in bulk, of 200 bytes")
	latencyLines    = flag.Int("latency-lines", 1200, "lines of the measurement of latency, 20 a second")
)

//go:embed shippers
var shipperConfigs embed.FS

// shipper is a log shipper with one setting.
type shipper struct {
	name    string
	kind    string // sluice, rsyslog, otelcol
	codec   string
	headers bool
	stages  string
}

func shippersToMeasure() []shipper {
	out := []shipper{{name: "rsyslog lz4", kind: "rsyslog", codec: "lz4"}, {name: "otelcol lz4", kind: "otelcol", codec: "lz4"}}
	for _, codec := range []string{"none", "snappy", "lz4", "zstd", "auto"} {
		out = append(out, shipper{name: "sluice " + codec, kind: "sluice", codec: codec})
	}
	return append(out, shipper{name: "sluice auto, headers", kind: "sluice", codec: "auto", headers: true},
		shipper{name: "sluice auto, nginx to JSON", kind: "sluice", codec: "auto", stages: "process: [{parse: nginx}]\n"})
}

// shipment is a shipper at work.
type shipment struct {
	t     *testing.T
	of    shipper
	addr  string
	dir   string // configuration and state
	glob  string
	topic string
	run   testenv.Command
	*testenv.Process
}

func ship(t *testing.T, of shipper, addr, glob, topic string) *shipment {
	t.Helper()
	s := &shipment{t: t, of: of, addr: addr, dir: t.TempDir(), glob: glob, topic: topic}
	state := filepath.Join(s.dir, "state")
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	file := map[string]string{"sluice": "sluice.yaml", "rsyslog": "rsyslog.conf", "otelcol": "otelcol.yaml"}[of.kind]
	text, err := shipperConfigs.ReadFile("shippers/" + file)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(s.dir, file)
	filled := strings.NewReplacer("STATE", state, "BROKER", addr, "TOPIC", topic, "GLOB", glob, "CODEC", of.codec, "LINGER", "10", "HEADERS", strconv.FormatBool(of.headers)).Replace(string(text))
	if err := os.WriteFile(config, []byte(filled+of.stages), 0o644); err != nil {
		t.Fatal(err)
	}
	switch of.kind {
	case "sluice":
		s.run = testenv.Command{Name: "sluice", Path: testenv.Sluice(t), Args: []string{"agent", config, "--state", state, "--brokers", addr, "--metrics", ""}}
	case "rsyslog":
		s.run = testenv.Rsyslog(t, config, filepath.Join(s.dir, "pid"))
	default:
		s.run = testenv.OTelCollector(t, config)
	}
	s.start()
	return s
}

func (s *shipment) start() { s.Process = testenv.Start(s.t, s.run) }

func (s *shipment) peakMB() float64 { return statusMB(s.t, s.PID(), "VmHWM:") }
func (s *shipment) nowMB() float64  { return statusMB(s.t, s.PID(), "VmRSS:") }

func statusMB(t *testing.T, pid int, key string) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), key)
	kb, _ := strconv.Atoi(strings.Fields(rest)[0])
	return float64(kb) / 1e3
}

// arrived waits until a topic holds so many records, or no more come for a while, and returns how many it holds.
func arrived(t *testing.T, adm *kadm.Client, topic string, records int64, quiet time.Duration) int64 {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	last, since := int64(-1), time.Now()
	for {
		n := int64(0)
		if ends, err := adm.ListEndOffsets(t.Context(), topic); err == nil {
			ends.Each(func(o kadm.ListedOffset) { n += max(o.Offset, 0) })
		}
		if n != last {
			last, since = n, time.Now()
		}
		if n >= records || time.Since(since) > quiet {
			return n
		}
		<-tick.C
	}
}

func TestAgainstShippers(t *testing.T) {
	if !*againstShippers {
		t.Skip("a measurement of minutes: make bench-agent")
	}
	testenv.Sluice(t) // it is built now, not on the first shipper's clock
	kafka := startKafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	wanted, picked := regexp.MustCompile(*shippersOnly), regexp.MustCompile(*measuresOnly)
	var all []shipper
	for _, s := range shippersToMeasure() {
		if wanted.MatchString(s.name) {
			all = append(all, s)
		}
	}
	x := &shipping{kafka: kafka, adm: kadm.NewClient(client), dir: t.TempDir()}
	for _, m := range []struct {
		name string
		run  func(*testing.T, shipper)
	}{{"bulk", x.bulk}, {"latency", x.latency}, {"10000 files", x.manyFiles}, {"rename", x.rotations(false, false)}, {"copytruncate", x.rotations(true, false)}, {"kill -9", x.rotations(false, true)}} {
		if !picked.MatchString(m.name) {
			continue
		}
		for _, s := range all {
			if m.name != "bulk" && s.kind == "sluice" && s.name != "sluice auto" {
				continue
			}
			t.Run(m.name+"/"+s.name, func(t *testing.T) { m.run(t, s) })
		}
	}
}

// shipping is the measurements.
type shipping struct {
	kafka rival
	adm   *kadm.Client
	dir   string // for the bulk file
	file  string // that, once it is written
	bytes int64
	warm  bool // Kafka has had the bulk file
}

func (x *shipping) topic(t *testing.T) string {
	t.Helper()
	name := topicName("ship")
	made, err := x.adm.CreateTopic(t.Context(), 1, 1, nil, name)
	if err != nil || made.Err != nil {
		t.Fatal(err, made.Err)
	}
	t.Cleanup(func() {
		_, _ = x.adm.DeleteTopics(context.Background(), name)
	})
	return name
}

// writeBulk writes the file that is sent in bulk: access-log lines of about 200 bytes.
func (x *shipping) writeBulk(t *testing.T) {
	t.Helper()
	x.file = filepath.Join(x.dir, "access.log")
	f, err := os.Create(x.file)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	for i := range *bulkLines {
		n, _ := fmt.Fprintf(w, "10.%d.%d.%d - - [30/Nov/2026:10:%02d:%02d +0000] \"GET /products/%d?session=%08x HTTP/1.1\" 200 %d \"https://shop.example/search?q=%d\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/131.0\"\n",
			i>>16&255, i>>8&255, i&255, i/60%60, i%60, i%997, i*2654435761&0xffffffff, i%50000, i%101)
		x.bytes += int64(n)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// warmKafka sends the bulk file in each way once, uncounted: Kafka's compiler takes seconds of the first loads of their kind.
func (x *shipping) warmKafka(t *testing.T) {
	if x.warm {
		return
	}
	x.warm = true
	for _, codec := range []string{"none", "lz4", "snappy"} {
		topic := x.topic(t)
		s := ship(t, shipper{name: "warm", kind: "sluice", codec: codec}, x.kafka.addr, x.file, topic)
		arrived(t, x.adm, topic, int64(*bulkLines)/2, 10*time.Second)
		s.Kill()
	}
}

// bulk sends one large file that is there.
func (x *shipping) bulk(t *testing.T, of shipper) {
	if x.file == "" {
		x.writeBulk(t)
	}
	x.warmKafka(t)
	warmMemory(t, x.kafka)
	topic := x.topic(t)
	begun := time.Now()
	s := ship(t, of, x.kafka.addr, x.file, topic)
	n := arrived(t, x.adm, topic, int64(*bulkLines), 10*time.Second)
	took := time.Since(begun)
	spent := processCPU(t, s.PID()).total()
	fmt.Printf("| bulk | %s | CPU %.2f s/GB | %.0f k lines/s | peak %.0f MB | %d of %d lines |\n",
		of.name, spent.Seconds()/(float64(x.bytes)/1e9), float64(n)/took.Seconds()/1e3, s.peakMB(), n, *bulkLines)
	s.Kill()
}

// latency is from a write to a consumer, at 20 lines/s.
func (x *shipping) latency(t *testing.T, of shipper) {
	lines := *latencyLines
	topic := x.topic(t)
	path := filepath.Join(t.TempDir(), "a.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintln(f, "0 first")
	s := ship(t, of, x.kafka.addr, path, topic)
	defer s.Kill()
	arrived(t, x.adm, topic, 1, 20*time.Second)
	client, err := kgo.NewClient(kgo.SeedBrokers(x.kafka.addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(lines)*50*time.Millisecond+30*time.Second)
	defer cancel()
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for range lines {
			<-tick.C
			fmt.Fprintln(f, time.Now().UnixNano(), "line")
		}
	}()
	var took []time.Duration
	for seen := 0; seen <= lines && ctx.Err() == nil; {
		fetches := client.PollFetches(ctx)
		now := time.Now().UnixNano()
		fetches.EachRecord(func(r *kgo.Record) {
			seen++
			if at, err := strconv.ParseInt(digits.FindString(string(r.Value)), 10, 64); err == nil && at > 0 {
				took = append(took, time.Duration(now-at))
			}
		})
	}
	if len(took) == 0 {
		t.Fatal("nothing came")
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	fmt.Printf("| latency | %s | p50 %.1f ms | p99 %.1f ms | max %.1f ms | %d lines |\n", of.name, ms(took[len(took)/2]), ms(took[len(took)*99/100]), ms(took[len(took)-1]), len(took))
}

var digits = regexp.MustCompile(`[0-9]+`)

// manyFiles are 10,000 that appear at once, and then are idle.
func (x *shipping) manyFiles(t *testing.T, of shipper) {
	const files, idle = 10_000, 15 * time.Second
	topic := x.topic(t)
	dir := t.TempDir()
	s := ship(t, of, x.kafka.addr, filepath.Join(dir, "*.log"), topic)
	defer s.Kill()
	begun := time.Now()
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d.log", i)), fmt.Appendf(nil, "%d line\n%d line\n", 2*i, 2*i+1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	made := time.Since(begun)
	n := arrived(t, x.adm, topic, 2*files, 10*time.Second)
	took := time.Since(begun) - made
	<-time.After(3 * time.Second)
	before := processCPU(t, s.PID()).total()
	<-time.After(idle)
	used := processCPU(t, s.PID()).total() - before
	open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID()))
	fmt.Printf("| 10,000 files | %s | %d of %d lines %.1f s after the last was made | %.0f MB, peak %.0f | %.2f %% of a core idle | %d descriptors |\n",
		of.name, n, 2*files, took.Seconds(), s.nowMB(), s.peakMB(), 100*used.Seconds()/idle.Seconds(), len(open))
}

// rotations writes 200,000 numbered lines in 10 s, rotates every 500 ms and keeps five, and kills the shipper at 3 and 6 s if it is to.
// Nothing is written within a rotation: each line is in a file until it is rotated out.
func (x *shipping) rotations(copyTruncate, kill bool) func(*testing.T, shipper) {
	return func(t *testing.T, of shipper) {
		const lines, rounds, kept = 200_000, 20, 5
		topic := x.topic(t)
		path := filepath.Join(t.TempDir(), "app.log")
		glob := path
		if of.kind == "sluice" {
			glob += "*" // the others would send rotated files again
		}
		s := ship(t, of, x.kafka.addr, glob, topic)
		next := 0
		for round := range rounds {
			next = writeRound(t, path, next, lines/rounds)
			rotate(t, path, kept, copyTruncate)
			if kill && (round == 6 || round == 12) {
				s.Kill()
				s.start()
			}
		}
		arrived(t, x.adm, topic, lines+100_000_000, 8*time.Second)
		s.Kill()
		lost, doubled, disorder := account(t, x.kafka.addr, topic, lines)
		what := "rename"
		switch {
		case copyTruncate:
			what = "copytruncate"
		case kill:
			what = "rename, kill -9"
		}
		fmt.Printf("| %s | %s | lost %d | doubled %d | out of order %d |\n", what, of.name, lost, doubled, disorder)
	}
}

// writeRound writes lines over half a second.
func writeRound(t *testing.T, path string, next, lines int) int {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 50 {
		var b strings.Builder
		for range lines / 50 {
			fmt.Fprintf(&b, "%08d a line of some length, as lines are\n", next)
			next++
		}
		if _, err := f.WriteString(b.String()); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	return next
}

func rotate(t *testing.T, path string, kept int, copyTruncate bool) {
	t.Helper()
	_ = os.Remove(fmt.Sprintf("%s.%d", path, kept))
	for n := kept - 1; n >= 1; n-- {
		_ = os.Rename(fmt.Sprintf("%s.%d", path, n), fmt.Sprintf("%s.%d", path, n+1))
	}
	if !copyTruncate {
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path+".1", data, 0o644)
	}
	if err == nil {
		err = os.Truncate(path, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// account reads a topic of numbered lines.
func account(t *testing.T, addr, topic string, lines int) (lost, doubled, disorder int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	times := make([]int, lines)
	last := -1
	for left > 0 {
		client.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
			left--
			n, err := strconv.Atoi(digits.FindString(string(r.Value)))
			if err != nil || n >= lines {
				return
			}
			if times[n]++; times[n] == 1 && n < last {
				disorder++
			}
			last = max(last, n)
		})
	}
	for _, n := range times {
		switch {
		case n == 0:
			lost++
		case n > 1:
			doubled += n - 1
		}
	}
	return lost, doubled, disorder
}
