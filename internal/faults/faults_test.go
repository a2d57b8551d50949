// Package faults breaks real clusters: three broker processes and a ZooKeeper,
// each in network and mount namespaces of its own, while clients write and read.
// What the clients were told must stay true.
//
//	go test ./internal/faults -run 'TestFaults$' -v -args -rounds 200 -seed 7
//
// A round draws a kind of fault and its details from the seed, does it, waits
// until all replicas are in sync again, and reads all partitions whole. Times
// differ between two runs of a seed, the faults do not.
package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/anishathalye/porcupine"
)

var (
	rounds   = flag.Int("rounds", 3, "faults that TestFaults does")
	seed     = flag.Uint64("seed", 0, "draws the faults; 0: any")
	only     = flag.String("only", "", "do only the kinds of faults whose name has this in it")
	ensemble = flag.Int("ensemble", 1, "ZooKeeper servers: 1 or 3")
	nodes    = flag.Int("nodes", 3, "brokers: 3 to 5")
	// What is promised is the session timeout and 5 s more, which make test-faults
	// demands. Beside other tests on a few cores ZooKeeper itself may take longer.
	within = flag.Duration("within", 30*time.Second, "how long after a fault, or after its end where it leaves too few brokers, each partition takes records again at the latest")
	keep   = flag.String("keep", "", "copy the brokers' logs and data to this directory after a failure")
	clock  = flag.Bool("clock", false, "have faults of the wall clock too, for which a build of the broker is made that takes minutes")
	kafka  = flag.Bool("kafka", false, "break three nodes of Apache Kafka instead, to prove the harness")
)

const (
	roundsEachTopic = 12 // whole logs are read in each round, so that they must not grow for ever
	readWithin      = 30 * time.Second
	beforeFault     = time.Second // of undisturbed work, at least
)

func TestFaults(t *testing.T) {
	s := drawnSeed()
	run(t, newCluster(t, s), s)
}

func newCluster(t *testing.T, seed uint64) *world {
	t.Helper()
	if *kafka {
		return newKafka(t, seed)
	}
	return newSluice(t, seed, *ensemble)
}

func drawnSeed() uint64 {
	if *seed != 0 {
		return *seed
	}
	return rand.Uint64N(1<<32) + 1
}

func run(t *testing.T, w *world, s uint64) {
	t.Logf("faults drawn by -seed %d", s)
	drawn := w.possible()
	if len(drawn) == 0 {
		t.Fatalf("no kind of fault is possible here: -only %q", *only)
	}
	if *keep != "" {
		t.Cleanup(func() { w.keepOnFailure(*keep) })
	}
	results := map[string]*result{}
	var deck []kind
	for done := 0; done < *rounds; {
		w.makeTopic(fmt.Sprintf("faults-%d", done))
		work := startWorkload(t, w.cluster.Addrs(), w.topic)
		for range min(roundsEachTopic, *rounds-done) {
			if len(deck) == 0 { // every kind comes once before any comes again
				deck = slices.Clone(drawn)
				w.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			}
			done++
			w.round(work, done, deck[0], results)
			deck = deck[1:]
			if t.Failed() {
				return
			}
		}
		w.finish(work)
	}
	t.Logf("%d rounds on %s, nothing lost, moved or doubled\n%s", *rounds, w.cluster.Name, table(results))
}

// possible are the kinds of faults that this world can have.
func (w *world) possible() []kind {
	var have need
	if w.net.CanCut() {
		have |= namespaces
	}
	if len(w.zooKeeper) > 0 {
		have |= zooKeeper
	}
	if len(w.cluster.Nodes) > replicas {
		have |= spare
	}
	if w.cluster.Name == "sluice" {
		have |= ours
		if *clock {
			have |= wallClock
		}
	}
	return slices.DeleteFunc(kinds(), func(k kind) bool {
		return k.needs&^have != 0 || !strings.Contains(k.name, *only)
	})
}

// round does one fault and checks what the clients know.
func (w *world) round(work *workload, number int, k kind, results map[string]*result) {
	w.t.Helper()
	w.say("round %d: %s", number, k.name)
	w.awaitAcks(work, time.Now(), "before the fault")
	w.hold(w.between(beforeFault, 2*beforeFault))
	start := time.Now()
	w.outageOver = time.Time{}
	k.run(w)
	from := start
	if k.outage {
		from = w.outageOver
	}
	w.awaitAcks(work, time.Now(), "after "+k.name)
	silent := work.longestSilence(from, time.Now())
	w.say("round %d: nothing was acknowledged for %s", number, silent.Round(time.Millisecond))
	if silent > *within && w.cluster.Name == "sluice" { // how soon Kafka is back only serves to compare
		w.t.Errorf("round %d, %s: no service for %s, more than %s", number, k.name, silent, *within)
	}
	w.awaitWhole()
	w.verify(work)
	note(results, k, silent)
}

// awaitAcks waits until each partition has taken a record that was sent now.
func (w *world) awaitAcks(work *workload, since time.Time, when string) {
	w.t.Helper()
	w.await(2*(*within), "each partition takes records "+when, func(context.Context) error {
		if !work.ackedSince(since) {
			return fmt.Errorf("%d records are acknowledged in all", work.acks())
		}
		return nil
	})
}

// verify reads each partition whole and compares it with what was known before.
func (w *world) verify(work *workload) {
	w.t.Helper()
	ends := work.ends()
	ctx, cancel := context.WithTimeout(w.t.Context(), readWithin)
	defer cancel()
	for p := range partitions {
		before := work.snapshot(p)
		log, err := work.readLog(ctx, p)
		if err != nil {
			w.t.Errorf("read %s: %v", work.topic, err)
			continue
		}
		for _, c := range check(before, work.snapshot(p).sent, log) {
			w.t.Errorf("partition %d: %s", p, c)
		}
		if got := linearizable(work.began, before, log); got != porcupine.Ok {
			w.t.Errorf("partition %d is not linearizable: porcupine says %s", p, got)
		}
	}
	if err := w.until(groupWithin, func(context.Context) error {
		if !work.groupAt(ends) {
			return fmt.Errorf("the group has not read and committed to %v", ends)
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	for _, c := range work.complained() {
		w.t.Error(c)
	}
}

// finish ends the work on a topic, and compares its replicas byte for byte.
func (w *world) finish(work *workload) {
	w.t.Helper()
	if err := work.drain(2 * *within); err != nil {
		w.t.Error(err)
		return
	}
	w.awaitWhole()
	w.verify(work)
	work.end()
	// The end of the log reaches the followers' disks at once, the high watermark
	// does not matter.
	w.await(*within, "replicas are the same", func(context.Context) error { return w.sameReplicas(work.topic) })
	w.say("topic %s: %d records, all where they were acknowledged, and the same on all replicas", work.topic, work.acks())
}

// say tells the story of a run as it goes, with -v.
func (w *world) say(format string, args ...any) {
	w.t.Helper()
	w.t.Logf("%s "+format, append([]any{time.Now().Format("15:04:05.000")}, args...)...)
}

// result is what the rounds of one kind of fault cost.
type result struct {
	rounds  int
	longest time.Duration
	outage  bool
}

func note(results map[string]*result, k kind, silent time.Duration) {
	r := results[k.name]
	if r == nil {
		r = &result{outage: k.outage}
		results[k.name] = r
	}
	r.rounds++
	r.longest = max(r.longest, silent)
}

func table(results map[string]*result) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "fault\trounds\tlongest without an acknowledgement\tcounted from")
	for _, k := range kinds() {
		if r := results[k.name]; r != nil {
			since := "its begin"
			if r.outage {
				since = "its end"
			}
			fmt.Fprintf(tw, "%s\t%d\t%.2f s\t%s\n", k.name, r.rounds, r.longest.Seconds(), since)
		}
	}
	_ = tw.Flush()
	return b.String()
}

// keepOnFailure copies what may tell why, before it is removed.
func (w *world) keepOnFailure(dir string) {
	if !w.t.Failed() {
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		w.t.Log(err)
	}
	for _, n := range w.cluster.Nodes {
		n.Kill()
		for from, to := range map[string]string{n.Logs(): "logs", n.Host.Path(n.DataDir): "data"} {
			if err := os.CopyFS(filepath.Join(dir, fmt.Sprintf("node-%d", n.ID), to), os.DirFS(from)); err != nil {
				w.t.Logf("keep %s: %v", from, err)
			}
		}
	}
	w.t.Logf("logs and data of the brokers are in %s", dir)
}
