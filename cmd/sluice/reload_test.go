package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// A liveAgent is an agent as a process, on a broker of ours, that follows DIR/app.log.
type liveAgent struct {
	t       *testing.T
	dir     string
	broker  *part
	addr    string
	metrics string
	file    string
	args    []string
	now     *testenv.Process
}

func newLiveAgent(t *testing.T, args ...string) *liveAgent {
	t.Helper()
	b := ownBroker(t)
	dir := t.TempDir()
	return &liveAgent{t: t, dir: dir, broker: b.part, addr: b.addr, file: filepath.Join(dir, "p.yaml"), args: args,
		metrics: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))}
}

func (a *liveAgent) start() {
	a.t.Helper()
	a.now = testenv.Start(a.t, testenv.Command{Name: "agent", Path: testenv.Sluice(a.t), Dir: a.dir,
		Args:  append([]string{"agent", a.file, "--state", a.state(), "--brokers", a.addr, "--metrics", a.metrics}, a.args...),
		Ready: func(ctx context.Context) error { return getOK(ctx, "http://"+a.metrics+"/healthz") }})
}

func (a *liveAgent) state() string { return filepath.Join(a.dir, "state") }

func getOK(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

func getText(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// configure writes the pipeline file; DIR stands for the directory.
func (a *liveAgent) configure(yaml string) {
	a.t.Helper()
	if err := os.WriteFile(a.file, []byte(strings.ReplaceAll(yaml, "DIR", a.dir)), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *liveAgent) hangUp() {
	a.t.Helper()
	if err := syscall.Kill(a.now.PID(), syscall.SIGHUP); err != nil {
		a.t.Fatal(err)
	}
}

func (a *liveAgent) write(from, to int) {
	a.t.Helper()
	f, err := os.OpenFile(filepath.Join(a.dir, "app.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %06d\n", i)
	}
	if _, err := f.WriteString(b.String()); err != nil {
		a.t.Fatal(err)
	}
}

// metric is the sum of a metric's series.
func (a *liveAgent) metric(name string) (sum float64) {
	body := getText(a.t, "http://"+a.metrics+"/metrics")
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, name); ok && strings.ContainsAny(rest[:1], " {") {
			var v float64
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err != nil {
				a.t.Fatalf("%s: %v", line, err)
			}
			sum += v
		}
	}
	return sum
}

// checkOnce waits until topics hold lines 0 to n-1, and says whether each is there once.
func (a *liveAgent) checkOnce(n int, topics ...string) {
	a.t.Helper()
	times := map[string]int{}
	total := 0
	for _, v := range readTopics(a.t, a.addr, n, topics...) {
		times[v]++
		total++
	}
	missing, doubled := 0, 0
	for i := range n {
		switch k := times[fmt.Sprintf("line %06d", i)]; {
		case k == 0:
			missing++
		case k > 1:
			doubled++
		}
	}
	if missing+doubled > 0 || total != n {
		a.t.Errorf("%d records for %d lines: %d missing, %d more than once", total, n, missing, doubled)
	}
}

// readTopics waits until topics hold n records, and reads them.
func readTopics(t *testing.T, addr string, n int, topics ...string) (out []string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), settleFor)
	defer cancel()
	left := int64(0)
	waitUntil(t, fmt.Sprintf("%d records in %q", n, topics), func() bool {
		ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topics...)
		left = 0
		ends.Each(func(o kadm.ListedOffset) { left += max(o.Offset, 0) })
		return err == nil && left >= int64(n)
	})
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records cannot be read", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			out = append(out, string(r.Value))
			left--
		})
	}
	return out
}

func toTopic(topic string) string {
	return fmt.Sprintf("pipeline: p\ncollect: {file: {include: ['DIR/app.log'], headers: false}}\ntopic: {name: %s, partitions: 2, key: '_raw', batch: {bytes: 4KiB}}\n", topic)
}

// The agent is killed while it reloads, again and again, under load; the topic is another each time.
func TestReloadAndKill(t *testing.T) {
	a := newLiveAgent(t, "--drain-timeout", "2s")
	a.broker.up()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	topics := []string{"first", "second"}
	a.configure(toTopic(topics[0]))
	a.start()
	end, written := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				written <- n
				return
			case <-tick.C:
				a.write(n, n+20)
				n += 20
			}
		}
	}()
	for round := range 10 {
		<-time.After(time.Duration(rng.IntN(200)) * time.Millisecond)
		a.configure(toTopic(topics[(round+1)%2]))
		a.hangUp()
		<-time.After(time.Duration(rng.IntN(60)) * time.Millisecond)
		if rng.IntN(3) > 0 {
			a.now.Kill()
			a.start()
		}
	}
	close(end)
	a.checkOnce(<-written, topics...)
}

// Files that are wrong are refused with line and column, and nothing changes; what is right after that is taken. It shows in the metrics.
func TestReloadRefusesABrokenFile(t *testing.T) {
	a := newLiveAgent(t, "--watch-config")
	a.broker.up()
	a.configure(toTopic("one"))
	a.start()
	a.write(0, 10)
	a.configure(strings.Replace(toTopic("one"), "partitions: 2", "partitions: many", 1))
	a.hangUp()
	waitUntil(t, "the file is refused", func() bool { return a.metric(`sluice_config_reloads_total{result="failure"}`) >= 1 })
	if log := a.now.Output(); !strings.Contains(log, "p.yaml:3:") || !strings.Contains(log, "partitions") {
		t.Errorf("the log does not say where the file is wrong:\n%s", log)
	}
	if a.metric("sluice_config_last_reload_successful") != 0 {
		t.Error("the metrics say that all is well")
	}
	a.write(10, 20)
	a.checkOnce(20, "one")

	a.configure(toTopic("two")) // no signal: the file is watched
	waitUntil(t, "the file is taken", func() bool { return a.metric(`sluice_config_reloads_total{result="success"}`) >= 1 })
	if a.metric("sluice_config_last_reload_successful") != 1 {
		t.Error("the metrics say that the file is refused")
	}
	a.write(20, 30)
	a.checkOnce(30, "one", "two")
}

// SIGHUPs that come while a reload is under way lead to one more.
func TestSecondHangUpDuringAReload(t *testing.T) {
	file := writeFile(t, "p.yaml", "pipeline: p\ncollect: {file: {include: [a.log]}}\n")
	hup := hangups{make(chan os.Signal, 1)}
	begun, goOn := make(chan struct{}), make(chan struct{})
	times := 0
	r := newReloader(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), []string{file}, false, func([]*pipelines.Pipeline) error {
		times++
		begun <- struct{}{}
		<-goOn
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.run(ctx, hup) }()
	hup.c <- syscall.SIGHUP
	<-begun
	hup.c <- syscall.SIGHUP
	goOn <- struct{}{}
	<-begun
	goOn <- struct{}{}
	cancel()
	<-ended
	if times != 2 {
		t.Errorf("%d reloads", times)
	}
}
