package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// fromFileToRow measures from a write to a file on the host until the row is visible: `sluice run` on one pipeline, agent, embedded broker and sink in one
// process, 1,000 lines/s into four partitions, batches of 100 ms.
func (r *sinkRig) fromFileToRow(name string) {
	const rate, tick, seconds, warmUp = 1000, 5 * time.Millisecond, 20, 3
	r.server.Query(r, "CREATE TABLE latency (n UInt64, sent UInt64, pad String"+ownSinkColumns+") ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 1000")
	dir := r.TempDir()
	path, file := filepath.Join(dir, "app.log"), filepath.Join(dir, "latency.yaml")
	log, err := os.Create(path)
	if err != nil {
		r.Fatal(err)
	}
	defer log.Close()
	text := fmt.Sprintf("pipeline: latency\ncollect: {file: {include: [%q]}}\nprocess: [{parse: json}]\ntopic: {name: latency, partitions: 4, spread: round_robin}\n"+
		"sink:\n  clickhouse: {addr: [%q], table: latency}\n  batch: {age: 100ms}\n", path, r.server.Addr)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
	p := testenv.Start(r, testenv.Command{Name: "run", Path: r.worker(), Args: []string{"run", file, "--data", filepath.Join(dir, "data"), "--metrics", ""}})
	defer p.Kill()
	pad := strings.Repeat("x", 170)
	var all sync.WaitGroup
	all.Go(func() {
		t := time.NewTicker(tick)
		defer t.Stop()
		perTick := int(rate * tick / time.Second)
		for n := 0; n < rate*seconds; n += perTick {
			var b []byte
			for i := range perTick {
				b = fmt.Appendf(b, "{\"n\":%d,\"sent\":%d,\"pad\":%q}\n", n+i, time.Now().UnixNano(), pad)
			}
			if _, err := log.Write(b); err != nil {
				r.Error(err)
				return
			}
			<-t.C
		}
	})
	seen := r.watchOffsets("latency", rate*seconds)
	all.Wait()
	var took []time.Duration
	for row := range strings.Lines(r.server.Query(r, fmt.Sprintf("SELECT sent, _partition, _offset FROM latency WHERE n >= %d", rate*warmUp))) {
		var sent int64
		var partition int
		var offset int64
		if _, err := fmt.Sscan(row, &sent, &partition, &offset); err != nil {
			r.Fatal(err)
		}
		i, _ := slices.BinarySearchFunc(seen[partition], offset, func(s sighting, o int64) int { return int(s.offset - o) })
		took = append(took, seen[partition][i].at.Sub(time.Unix(0, sent)))
	}
	slices.Sort(took)
	at := func(part int) float64 {
		return float64(took[min(len(took)*part/1000, len(took)-1)].Microseconds()) / 1e3
	}
	fmt.Printf("\n%s: p50 %.0f ms, p90 %.0f, p99 %.0f, p99.9 %.0f, most %.0f ms (target: p99 250), %d lines; CPU of the process %.2f of a core, %s MB\n",
		name, at(500), at(900), at(990), at(999), at(1000), len(took), cpuOf(r.T, p.PID()).Seconds()/seconds, mostMemory(p.PID()))
}

// sighting is the largest offset that a partition's rows had when the table was asked.
type sighting struct {
	at     time.Time
	offset int64
}

// watchOffsets asks the table every few milliseconds until it has all rows.
func (r *sinkRig) watchOffsets(table string, rows int) map[int][]sighting {
	seen := map[int][]sighting{}
	for deadline := time.Now().Add(90 * time.Second); ; <-time.After(5 * time.Millisecond) {
		answer := r.server.Query(r, "SELECT _partition, max(_offset), count() FROM "+table+" GROUP BY _partition")
		now, total := time.Now(), 0
		for row := range strings.Lines(answer) {
			var partition, n int
			var offset int64
			if _, err := fmt.Sscan(row, &partition, &offset, &n); err != nil {
				r.Fatal(err)
			}
			total += n
			if s := seen[partition]; len(s) == 0 || s[len(s)-1].offset < offset {
				seen[partition] = append(s, sighting{now, offset})
			}
		}
		if total >= rows {
			return seen
		}
		if now.After(deadline) {
			r.Fatalf("table %s has %d of %d rows after 90 s", table, total, rows)
		}
	}
}

// afterCrash measures how long claims stay open whose worker was killed: two workers take a load from Apache Kafka, one is killed while claims of its partitions are
// open, and the other closes them.
func (r *sinkRig) afterCrash(name string) {
	const partitions, session = 8, 6 * time.Second // the least that Kafka's defaults allow
	topic := topicName("crash")
	admin := kadm.NewClient(r.client)
	if _, err := admin.CreateTopic(r.Context(), partitions, 1, nil, topic); err != nil {
		r.Fatal(err)
	}
	table, file := r.sinkTable(topic, "[{parse: json}]", ", batch: {age: 100ms}", "")
	ctx, cancel := context.WithCancel(r.Context())
	var produced sync.WaitGroup
	defer func() { cancel(); produced.Wait() }()
	produced.Go(func() { r.produceSteadily(ctx, topic, partitions) })
	var workers []*testenv.Process
	for i := range 2 {
		workers = append(workers, testenv.Start(r, testenv.Command{Name: fmt.Sprintf("crash-%d", i), Path: r.worker(),
			Args: []string{"sink", file, "--brokers", r.broker, "--metrics", "", "--session-timeout", session.String()}}))
	}
	r.awaitMembers(admin, topic, 2)
	for deadline := time.Now().Add(10 * time.Second); r.rowsOf(table) < 50_000; <-time.After(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal("the load does not flow")
		}
	}
	workers[0].Kill()
	killed := time.Now()
	open := r.openClaims(admin, topic) // of the living worker too: those are closed in a moment
	var closed []time.Duration
	for deadline := killed.Add(session + 20*time.Second); len(open) > 0; <-time.After(20 * time.Millisecond) {
		r.rowsOf(table) // starts the test's server again should it have died of its client's end
		now := r.openClaims(admin, topic)
		for p, lo := range open {
			if at, ok := now[p]; !ok || at != lo {
				closed = append(closed, time.Since(killed))
				delete(open, p)
			}
		}
		if time.Now().After(deadline) {
			r.Fatalf("claims of %v are open still", open)
		}
	}
	late := slices.DeleteFunc(slices.Clone(closed), func(d time.Duration) bool { return d < time.Second })
	last := time.Duration(0)
	if len(late) > 0 {
		last = slices.Max(late)
	}
	fmt.Printf("\n%s: %d claims were open in the killed worker's partitions; all closed by the other %.1f s after the kill, with a session timeout of %.0f s (target: %.0f)\n",
		name, len(late), last.Seconds(), session.Seconds(), (session + 2*time.Second).Seconds())
}

func (r *sinkRig) rowsOf(table string) int {
	n, _ := strconv.Atoi(r.server.Query(r, "SELECT count() FROM "+table))
	return n
}

// produceSteadily produces some 40,000 values a second.
func (r *sinkRig) produceSteadily(ctx context.Context, topic string, partitions int32) {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for i := 0; ctx.Err() == nil; <-t.C {
		for range 200 {
			r.client.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(i) % partitions, Value: jsonValue(i)}, nil)
			i++
		}
	}
}

// awaitMembers waits until the group has so many members and is stable.
func (r *sinkRig) awaitMembers(admin *kadm.Client, group string, n int) {
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(100 * time.Millisecond) {
		groups, err := admin.DescribeGroups(r.Context(), group)
		if g := groups[group]; err == nil && g.Err == nil && g.State == "Stable" && len(g.Members) == n {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("group %s has no %d members after 30 s: %v", group, n, err)
		}
	}
}

// openClaims are the partitions whose commit is an open claim, and where that begins.
func (r *sinkRig) openClaims(admin *kadm.Client, group string) map[int32]int64 {
	offsets, err := admin.FetchOffsets(r.Context(), group)
	if err != nil {
		r.Fatal(err)
	}
	open := map[int32]int64{}
	for _, partitions := range offsets {
		for p, o := range partitions {
			if note, ok := sinks.ParseCommitNote(o.Metadata); ok && note.Claim {
				open[p] = o.At
			}
		}
	}
	return open
}
