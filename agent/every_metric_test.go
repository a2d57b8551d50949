package agent

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/kubernetes/apifake"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/stream"
	"github.com/sluice-io/sluice/internal/testenv"
)

// movements are the metrics that were seen above 0, by name.
type movements map[string]bool

func (m movements) look(t *testing.T, a *Agent) {
	t.Helper()
	for name, value := range gathered(t, a) {
		if name, _, _ = strings.Cut(name, " "); value > 0 {
			m[name] = true
		}
	}
}

// until looks until all of some metrics have moved.
func (m movements) until(r *rig, names ...string) {
	r.t.Helper()
	r.eventually("metrics move: "+strings.Join(names, ", "), func() bool {
		m.look(r.t, r.agent)
		for _, name := range names {
			if !m[name] {
				return false
			}
		}
		return true
	})
}

var metricName = regexp.MustCompile(`[^.\w]desc\("([a-z_]+)"`)

// declared are the names of the agent's metrics, as its source has them.
func declared(t *testing.T) (names []string) {
	t.Helper()
	for file, prefix := range map[string]string{"metrics.go": "", "metrics_files.go": "file_", "stream_metrics.go": "", "pods_metrics.go": ""} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range metricName.FindAllStringSubmatch(string(text), -1) {
			names = append(names, prefix+m[1])
		}
	}
	if len(names) < 50 {
		t.Fatalf("only %d metrics are found", len(names))
	}
	return names
}

// Each metric that the agent has moves when there is reason to, and is documented.
func TestEveryMetricMoves(t *testing.T) {
	m := movements{}
	m.ofFiles(t)
	m.ofForms(t)
	m.ofTheJournal(t)
	m.ofPods(t)
	m.ofStreams(t)
	docs, err := os.ReadFile("../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range declared(t) {
		if !m[name] {
			t.Errorf("%s never moved", name)
		}
		if short := strings.TrimPrefix(name, "file_"); !strings.Contains(string(docs), short+"`") {
			t.Errorf("docs/agent.md does not tell of %s", name)
		}
	}
}

// ofFiles are those of reading, delivery and rotation, in all and of single files.
func (m movements) ofFiles(t *testing.T) {
	r := newRig(t, strings.Replace(linesPipeline("line_bytes_max: 64B"), "topic:", "process:\n  - drop: _raw startsWith \"no\"\ntopic:", 1))
	r.cfg.CheckpointInterval, r.cfg.RotateGrace = time.Hour, 300*time.Millisecond
	r.write("a.log", "one\nno\n"+strings.Repeat("x", 100)+"\n")
	r.store.written = written()
	r.store.hold()
	r.start()
	m.until(r, "in_flight_lines", "oldest_unacked_seconds", "lag_bytes", "memory_bytes", "files_open", "files_followed", "file_lag_bytes", "file_oldest_unacked_seconds",
		"lines_sent_total", "file_lines_sent_total", "cut_lines_total", "lines_dropped_total", "file_lines_dropped_total", "checkpoint_age_seconds", "memory_limit_bytes")
	r.store.letGo()
	m.until(r, "lines_acked_total", "bytes_acked_total", "file_position_bytes", "file_lines_settled_total")
	r.rename("a.log", "a.log.1")
	m.until(r, "rotations_total", "file_rotations_total")
	r.write("b.log", strings.Repeat("copied line\n", 20))
	r.eventually("it is read", func() bool { return r.account().LagBytes == 0 && r.store.count() >= 22 })
	copyFile(t, r.path("b.log"), r.path("b.log.1"))
	r.rewrite("b.log", "")
	m.until(r, "copies_total", "truncations_total", "file_truncations_total")
	r.halt()

	r = newRig(t, linesPipeline("rate_limit: {bytes: 100KiB}"))
	r.write("c.log", strings.Repeat("a line that is not read\n", 50_000))
	r.start()
	r.eventually("its beginning is read", func() bool { a := r.account(); return a.Read.Lines > 0 && a.LagBytes > 0 })
	r.rewrite("c.log", "new\n")
	m.until(r, "truncated_bytes_total", "file_truncated_bytes_total")
	r.write("d.log", strings.Repeat("a line that is not read\n", 50_000))
	r.eventually("it is followed", func() bool { return r.account().FilesFollowed == 2 })
	r.remove("d.log")
	m.until(r, "deleted_bytes")
	r.halt()

	r = newRig(t, linesPipeline("rate_limit: {bytes: 100KiB}, deleted_bytes_max: 2MiB"))
	line := strings.Repeat("x", 99) + "\n"
	for i := range 3 {
		r.write(fmt.Sprintf("%d.log", i), strings.Repeat(line, 10_000))
	}
	r.start()
	r.eventually("all are followed", func() bool { return r.account().FilesFollowed == 3 })
	for i := range 3 {
		r.remove(fmt.Sprintf("%d.log", i))
	}
	m.until(r, "abandoned_bytes_total")
	r.eventually("two are held on", func() bool { a := r.account(); return a.FilesOpen == 2 && a.DeletedBytes == 2_000_000 })
}

// written writes to no journal, and says that it did.
func written() func(b *producer.Bundle) {
	sequence := uint64(0)
	return func(b *producer.Bundle) {
		sequence++
		b.Written(sequence)
	}
}

// ofForms are those of lines and records that are not whole.
func (m movements) ofForms(t *testing.T) {
	r := newRig(t, linesPipeline("multiline: {start: '^x', lines_max: 2}"))
	r.write("a.log", "x\n1\n2\n3\n")
	r.write("b.log.gz", "\x1f\x8b\x08\x00 this is none")
	r.start()
	m.until(r, "split_records_total", "damaged_files_total")
	r.halt()
	r = newRig(t, containerPipeline("container: {}"))
	r.write(r.pod(), "what is this\n")
	r.start()
	m.until(r, "malformed_lines_total")
}

// ofTheJournal are those of a kill, and of brokers that fail.
func (m movements) ofTheJournal(t *testing.T) {
	addr := startBroker(t, testenv.Sluice(t))
	admin := adminOf(t, addr)
	var x *journalRun
	var a *Agent
	var stop func()
	for step := 1; !m["recovered_lines_total"] || !m["unknown_lines_total"]; step++ { // at which batches are on their way
		if stop != nil {
			stop()
		}
		x = killedAt(t, addr, step, 3000)
		_, _ = admin.DeleteTopic(t.Context(), x.topic) // there may be none yet
		a, stop = x.mustStart()
		waitDelivered(t, a, 0)
		m.look(t, a)
	}
	x.write(3000, 4000)
	waitDelivered(t, a, 0)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := 4000; !m["produce_errors_total"] || !m["journal_unsettled_batches"]; i += 100 {
		if _, err := admin.DeleteTopic(ctx, x.topic); err != nil {
			t.Fatal(err)
		}
		x.write(i, i+100)
		for range 100 {
			m.look(t, a)
		}
		if ctx.Err() != nil {
			t.Fatal("no failure to produce was counted")
		}
	}
	stop()
}

// ofPods are those of what the API server tells.
func (m movements) ofPods(t *testing.T) {
	r, api := podsRig(t, "kubernetes: {API, wait: 0s, pods_max: 1}", "")
	api.Set(cart())
	api.Set(apifake.Pod{Namespace: "shop", Name: "b", UID: "2", Node: "n1"})
	r.podLog("shop_other_77/app", "other")
	r.start()
	m.until(r, "kubernetes_pods", "kubernetes_watching", "kubernetes_pods_refused_total", "unlabelled_lines_total", "kubernetes_lists_total", "kubernetes_watches_total")
	api.Forget(true)
	api.Cut()
	api.Refuse(http.StatusServiceUnavailable)
	m.until(r, "kubernetes_failures_total")
	api.Refuse(0)
	m.until(r, "kubernetes_gone_total")
}

// told is a feed that does nothing and tells what it is made of.
type told stream.Stats

// Run implements stream.Feed.
func (f told) Run(ctx context.Context, _ stream.Taker) { <-ctx.Done() }

// Stats implements stream.Feed.
func (f told) Stats() stream.Stats { return stream.Stats(f) }

// ofStreams are those of inputs that are not files; that these count right is tested where they are.
func (m movements) ofStreams(t *testing.T) {
	all := told{Connections: 1, Refused: 1, Idle: 1, KernelDrops: 1, Starts: 1, Exits: map[string]int64{"0": 1}}
	for _, yaml := range []string{rawSyslogPipeline, "pipeline: test\ncollect: {exec: {command: [sh]}}\ntopic: {name: lines}\n"} {
		r := newRig(t, yaml)
		a, err := r.open()
		if err != nil {
			t.Fatal(err)
		}
		a.list()[0].input.(*streams).feed = all
		m.look(t, a)
		if err := a.release(); err != nil {
			t.Fatal(err)
		}
	}
}
