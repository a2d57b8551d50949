package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	clientsSteady = 100 // records that each client has had acknowledged before and after
	clientsEnd    = 90 * time.Second
	classProducer = "org.apache.kafka.tools.VerifiableProducer"
	classConsumer = "org.apache.kafka.tools.VerifiableConsumer"
)

// TestClientsThroughRollingRestart restarts three brokers one after the other
// while clients that others wrote produce with idempotence and read as groups.
// None may see an error, and none may lose a record or get one twice in the log.
func TestClientsThroughRollingRestart(t *testing.T) {
	w := newCluster(t, drawnSeed())
	brokers := strings.Join(w.cluster.Addrs(), ",")
	var all []*foreign
	for _, c := range []struct {
		name string
		cmd  func(topic string) *exec.Cmd
	}{
		{"librdkafka", func(topic string) *exec.Cmd { return testenv.Python(t, "testdata/confluent.py", brokers, topic) }},
		{"kafkajs", func(topic string) *exec.Cmd { return testenv.Kafkajs(t, "testdata/kafkajs.js", brokers, topic) }},
		{"sarama", func(topic string) *exec.Cmd {
			return exec.CommandContext(t.Context(), testenv.GoClients(t), "restarts", brokers, topic)
		}},
	} {
		w.makeTopic("restarts-" + c.name)
		all = append(all, startForeign(t, c.name, w.topic, c.cmd(w.topic)))
	}
	w.makeTopic("restarts-java")
	// Left alone it gives up at the first error, so as to count them.
	config := filepath.Join(t.TempDir(), "producer.properties")
	if err := os.WriteFile(config, []byte("retries=2147483647\nenable.idempotence=true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	all = append(all, startForeign(t, "java producer", w.topic, testenv.KafkaTool(t, classProducer, "--bootstrap-server", brokers,
		"--topic", w.topic, "--throughput", "100", "--acks", "-1", "--command-config", config)))
	reader := startForeign(t, "java consumer", w.topic, testenv.KafkaTool(t, classConsumer, "--bootstrap-server", brokers,
		"--topic", w.topic, "--group-id", w.topic+"-readers", "--verbose"))

	steady := func(when string) {
		for _, f := range all {
			want := f.count("acked") + clientsSteady
			w.await(clientsEnd, f.name+" goes on "+when, func(context.Context) error { return f.reached("acked", want) })
		}
	}
	steady("before the restarts")
	rollingRestart(w)
	steady("after the restarts")
	for _, f := range all {
		f.end(t)
	}
	java := all[len(all)-1]
	w.await(clientsEnd, "the java consumer has read all", func(context.Context) error { return reader.reached("got", java.count("acked")) })
	reader.end(t)
	for _, f := range append(all, reader) {
		w.checkForeign(f)
	}
	missing := without(java.values("acked"), reader.values("got"))
	if len(missing) > 0 {
		t.Errorf("the java consumer did not get %d records, such as %s", len(missing), missing[0])
	}
}

// foreign is a running program of another client.
type foreign struct {
	name, topic string
	cmd         *exec.Cmd
	stdin       io.Closer
	done        chan error

	mu     sync.Mutex
	rest   []byte // of a line that has not ended
	said   map[string][]string
	stderr bytes.Buffer
}

func startForeign(t *testing.T, name, topic string, cmd *exec.Cmd) *foreign {
	t.Helper()
	f := &foreign{name: name, topic: topic, cmd: cmd, done: make(chan error, 1), said: map[string][]string{}}
	cmd.Stdout, cmd.Stderr = f, &f.stderr
	var err error
	if f.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { f.done <- cmd.Wait() }()
	return f
}

// Write takes what the program prints, line by line.
func (f *foreign) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest = append(f.rest, p...)
	for {
		line, rest, ok := bytes.Cut(f.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		f.rest = rest
		if what, detail := reading(string(line)); what != "" {
			f.said[what] = append(f.said[what], detail)
		}
	}
}

// reading is what a line of output means: of our programs, or of Kafka's
// verifiable ones, which print JSON.
func reading(line string) (what, detail string) {
	if !strings.HasPrefix(line, "{") {
		what, detail, _ = strings.Cut(line, " ")
		return what, detail
	}
	var event struct{ Name, Value, Message, Exception string }
	if err := json.Unmarshal([]byte(line), &event); err != nil {
		return "error", err.Error()
	}
	switch event.Name {
	case "producer_send_success":
		return "acked", event.Value
	case "producer_send_error":
		return "error", event.Exception + ": " + event.Message
	case "record_data":
		return "got", event.Value
	}
	return "", ""
}

func (f *foreign) values(what string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.said[what])
}

func (f *foreign) count(what string) int { return len(f.values(what)) }

func (f *foreign) reached(what string, want int) error {
	select {
	case err := <-f.done:
		f.done <- err
		return fmt.Errorf("%s has ended: %v: %s", f.name, err, f.stderr.String())
	default:
	}
	if n := f.count(what); n < want {
		return fmt.Errorf("%s: %d of %d", what, n, want)
	}
	return nil
}

// end lets the program finish: ours at the end of their input, Java's by SIGTERM.
func (f *foreign) end(t *testing.T) {
	t.Helper()
	f.stdin.Close()
	java := strings.HasPrefix(f.name, "java")
	if java {
		_ = f.cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case err := <-f.done:
		f.done <- err
		if err != nil && !java {
			t.Errorf("%s: %v\n%s", f.name, err, f.stderr.String())
		}
	case <-time.After(clientsEnd):
		_ = f.cmd.Process.Kill()
		t.Errorf("%s does not end\n%s", f.name, f.stderr.String())
	}
}

// checkForeign compares what a client was told with what its topic holds.
func (w *world) checkForeign(f *foreign) {
	w.t.Helper()
	for _, e := range f.values("error") {
		w.t.Errorf("%s: %s", f.name, e)
	}
	stored := w.stored(f.topic)
	acked := f.values("acked")
	if lost := without(acked, stored); len(lost) > 0 {
		w.t.Errorf("%s: %d acknowledged records are lost, such as %s", f.name, len(lost), lost[0])
	}
	if twice := len(stored) - len(slices.Compact(slices.Sorted(slices.Values(stored)))); twice > 0 {
		w.t.Errorf("%s: %d records are doubled", f.name, twice)
	}
	if f.count("got") > 0 && !strings.HasPrefix(f.name, "java") {
		if unread := without(acked, f.values("got")); len(unread) > 0 {
			w.t.Errorf("%s: its group did not get %d records, such as %s", f.name, len(unread), unread[0])
		}
	}
	w.say("%s: %d acknowledged, %d got, %d stored", f.name, len(acked), f.count("got"), len(stored))
}

// without returns what is in all and not in some.
func without(all, some []string) (rest []string) {
	have := make(map[string]bool, len(some))
	for _, s := range some {
		have[s] = true
	}
	for _, s := range all {
		if !have[s] {
			rest = append(rest, s)
		}
	}
	return rest
}

// stored reads a whole topic.
func (w *world) stored(topic string) (values []string) {
	w.t.Helper()
	ends, err := w.admin.ListEndOffsets(w.t.Context(), topic)
	if err != nil {
		w.t.Fatal(err)
	}
	want := 0
	ends.Each(func(o kadm.ListedOffset) { want += int(o.Offset) })
	c, err := kgo.NewClient(clientOptions(w.cluster.Addrs(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	w.await(readWithin, "topic "+topic+" is read", func(ctx context.Context) error {
		fetches := c.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
		if len(values) < want {
			return fmt.Errorf("%d of %d records", len(values), want)
		}
		return nil
	})
	return values
}
