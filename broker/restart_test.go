package broker

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestCleanRestartKeepsEverything(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "kept", 3, map[string]*string{"retention.ms": ptr("3600000")})
	produce(t, n.client(t), "kept", 0, 300)
	id := n.metadata.Image().Topic("kept").ID
	cluster := n.identity.ClusterID
	n.stop(t)

	n = startNode(t, cfg)
	topic := n.metadata.Image().Topic("kept")
	if topic == nil || topic.ID != id || topic.Config["retention.ms"] != "3600000" || n.identity.ClusterID != cluster {
		t.Fatalf("topic after the restart is %+v", topic)
	}
	if epoch := topic.Partitions[0].LeaderEpoch; epoch != 0 {
		t.Errorf("a clean restart made leader epoch %d", epoch)
	}
	if n.recovered.unclean.Load() != 0 {
		t.Errorf("%d logs were checked after a clean stop", n.recovered.unclean.Load())
	}
	if got := consume(t, n.client(t, kgo.ConsumeTopics("kept")), 300); len(got) != 300 {
		t.Errorf("%d records", len(got))
	}
}

// An abort closes nothing and syncs nothing, like a kill; what was acknowledged
// stays, and every partition has a new leader epoch.
func TestAbortLosesNothingAcknowledged(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 2, nil)
	for round := range 3 {
		produce(t, n.client(t), "t", round*100, (round+1)*100)
		n.abort()
		n = startNode(t, cfg)
		for p, state := range n.metadata.Image().Topic("t").Partitions {
			if want := int32(round + 1); state.LeaderEpoch != want {
				t.Errorf("partition %d: leader epoch %d after %d unclean stops", p, state.LeaderEpoch, want)
			}
		}
	}
	seen := map[string]int{}
	for _, r := range consume(t, n.client(t, kgo.ConsumeTopics("t")), 300) {
		seen[string(r.Value)]++
	}
	if len(seen) != 300 {
		t.Errorf("%d different values of 300", len(seen))
	}
}

// A producer keeps its identity over a lost connection and a restarted broker,
// and nothing is doubled.
func TestIdempotenceOverReconnectAndRestart(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "once", 1, nil)
	cfg.Listen = []string{n.Addr()} // the clients come back to the same address
	cl := n.client(t, kgo.RecordRetries(100), kgo.ProducerLinger(0))
	produced, acknowledged := make(chan error, 2000), 0
	// The client gives up on a connection that is cut before its first answer, so every broker answers once before it goes.
	answered := func(records int) {
		t.Helper()
		for ; acknowledged < records; acknowledged++ {
			if err := <-produced; err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 2000 {
		cl.Produce(t.Context(), &kgo.Record{Topic: "once", Value: fmt.Appendf(nil, "%d", i)}, func(_ *kgo.Record, err error) { produced <- err })
		switch i {
		case 500, 1500:
			answered(i - 490) // of what was sent since the start before
			n.abort()
			n = startNode(t, cfg)
		case 1000:
			answered(i - 490)
			n.stop(t)
			n = startNode(t, cfg)
		}
	}
	answered(2000)
	for i, r := range consume(t, n.client(t, kgo.ConsumeTopics("once")), 2000) {
		if string(r.Value) != fmt.Sprint(i) {
			t.Fatalf("record %d at offset %d is %q", i, r.Offset, r.Value)
		}
	}
	if end := n.partitions.Get("once", 0).HighWatermark(); end != 2000 {
		t.Errorf("the log ends at %d", end)
	}
}

// childDirectory in the environment makes the test binary a broker over that
// directory, to be killed.
const childDirectory = "SLUICE_TEST_BROKER_DIRECTORY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDirectory); dir != "" {
		runChild(dir)
	}
	os.Exit(m.Run())
}

func runChild(dir string) {
	b, err := New(discardLog(), nil, EmbeddedConfig(dir, ""))
	if err == nil {
		err = b.Start(context.Background())
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("ready", b.Addr(), b.recovered.cutBytes.Load())
	select {} // until it is killed
}

// child is a broker in a process of its own.
type child struct {
	cmd  *exec.Cmd
	addr string
}

func startChild(t *testing.T, dir string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDirectory+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd}
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("child said %q: %v", line, err)
	}
	words := strings.Fields(line)
	if words[0] != "ready" {
		t.Fatalf("child said %q", line)
	}
	c.addr = words[1]
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Signal(syscall.SIGKILL) // it may be dead already
	_ = c.cmd.Wait()
}

// A broker is killed at random moments of a load; every acknowledged record is
// there once, in its producer's order, and nothing is there that was not sent.
func TestKill9KeepsEveryAcknowledgedRecord(t *testing.T) {
	dir := t.TempDir()
	acked := map[string]bool{}
	sent := 0
	for round := range 4 {
		c := startChild(t, dir)
		acked = load(t, c, acked, &sent, time.Duration(50+100*round)*time.Millisecond)
	}
	n := startNode(t, EmbeddedConfig(dir, ""))
	end := n.partitions.Get("killed", 0).HighWatermark()
	seen := map[string]int{}
	for _, r := range consume(t, n.client(t, kgo.ConsumeTopics("killed")), int(end)) {
		seen[string(r.Value)]++
	}
	for value := range acked {
		if seen[value] != 1 {
			t.Errorf("acknowledged record %s is there %d times", value, seen[value])
		}
	}
	t.Logf("%d sent, %d acknowledged, %d in the log", sent, len(acked), end)
	if len(acked) == 0 {
		t.Error("no record was acknowledged before a kill")
	}
}

// load produces until the child, killed after a while, answers no more.
func load(t *testing.T, c *child, acked map[string]bool, sent *int, alive time.Duration) map[string]bool {
	t.Helper()
	cl := (&node{Broker: brokerAt(c.addr)}).client(t, kgo.AllowAutoTopicCreation(), kgo.ProducerLinger(0))
	kill := time.AfterFunc(alive, func() {
		c.kill()
		cl.Close() // fails what is not acknowledged
	})
	defer kill.Stop()
	type result struct {
		value string
		err   error
	}
	results := make(chan result, 1<<16)
	pending := 0
	for failed := false; !failed; {
		for range 100 {
			value := fmt.Sprint(*sent)
			*sent++
			pending++
			cl.Produce(t.Context(), &kgo.Record{Topic: "killed", Value: []byte(value)}, func(r *kgo.Record, err error) { results <- result{string(r.Value), err} })
		}
		for pending > 0 {
			r := <-results
			pending--
			failed = failed || r.err != nil
			if r.err == nil {
				acked[r.value] = true
			}
		}
	}
	return acked
}
