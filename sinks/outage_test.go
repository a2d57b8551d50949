package sinks

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// logText collects what is logged.
type logText struct{ testenv.Buffer }

// lines are those that hold a text.
func (l *logText) lines(with string) (out []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, with) {
			out = append(out, line)
		}
	}
	return out
}

func TestOutageIsLoggedOnceAndCounted(t *testing.T) {
	var text logText
	reg := prometheus.NewRegistry()
	w := &Worker{log: slog.New(slog.NewTextHandler(&text, nil)), metrics: newMetrics(reg, "p", ""), waiting: map[string]error{}}
	now := time.Unix(1_700_000_000, 0)
	trouble := errors.New("disk full")
	for range 50 {
		w.destinationSaid(0, trouble, now)
		w.destinationSaid(1, trouble, now)
		now = now.Add(time.Second)
	}
	if got := text.lines("disk full"); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if w.Ready() == nil {
		t.Error("ready in an outage")
	}
	now = now.Add(outageReminder)
	w.destinationSaid(0, trouble, now)
	if got := text.lines("disk full"); len(got) != 2 {
		t.Errorf("no reminder: %q", got)
	}
	w.destinationSaid(0, nil, now)
	if got := text.lines("is over"); len(got) != 0 {
		t.Errorf("over for one partition: %q", got)
	}
	w.setWaiting("destination", errors.New("there is no table"))
	w.destinationSaid(1, nil, now)
	if got := text.lines("is over"); len(got) != 1 || !strings.Contains(got[0], "failures=101") {
		t.Errorf("%q", got)
	}
	if err := w.Ready(); err != nil {
		t.Errorf("a batch is stored and the worker is not ready: %v", err)
	}
	if n := counter(t, reg, "sluice_sink_write_errors_total"); n != 101 {
		t.Errorf("%v write errors", n)
	}
}

// TestFailedWriteIsLogged goes through a session: an error of a write must reach the log and the counter.
func TestFailedWriteIsLogged(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("a", 100, 1)
	sink := newMemSink(true)
	failures := 3
	sink.fail = func(_ *Batch, stored bool) error { // in the lock of the sink
		if failures > 0 && !stored {
			failures--
			return errors.New("too many parts")
		}
		return nil
	}
	var text logText
	reg := prometheus.NewRegistry()
	w, err := NewWorker(slog.New(slog.NewTextHandler(&text, nil)), reg, r.pipe, r.pipe.Sinks[0], sink,
		Config{Brokers: []string{r.addr}, Once: true, BackoffMin: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := counter(t, reg, "sluice_sink_write_errors_total"); n != 3 {
		t.Errorf("%v write errors", n)
	}
	if began, ended := text.lines("too many parts"), text.lines("is over"); len(began) != 1 || len(ended) != 1 {
		t.Errorf("%q %q", began, ended)
	}
	if got := text.lines("sink="); len(got) > 0 {
		t.Errorf("%q", got)
	}
	if got := text.lines("partition assigned"); len(got) != 1 || !strings.Contains(got[0], "committed=none") {
		t.Errorf("%q", got)
	}
}

func TestDeadLettersAreLogged(t *testing.T) {
	var text logText
	d := newDeadLetters(slog.New(slog.NewTextHandler(&text, nil)), nil, nil, "p-dlq")
	now := time.Unix(1_700_000_000, 0)
	send := func(kind string, offset int64) {
		r := &kgo.Record{Topic: "t", Partition: 2, Offset: offset}
		d.sentNow([]letter{{record: r, kind: kind, stage: stageColumns, reason: "column n: out of " + kind}}, now)
	}
	for i := range 1000 {
		send("range", int64(i))
		send("type", int64(i))
	}
	if got := text.lines("WARN"); len(got) != 2 || !strings.Contains(got[0], "origin=t/2/0") || !strings.Contains(got[1], "out of type") {
		t.Errorf("%q", got)
	}
	now = now.Add(letterReportInterval)
	d.tick(now)
	d.tick(now)
	got := text.lines("more records")
	if len(got) != 1 || !strings.Contains(got[0], "records.range=999 records.type=999") || !strings.Contains(got[0], "last_origin=t/2/999") {
		t.Errorf("%q", got)
	}
	send("range", 5000)
	d.flush()
	if got := text.lines("records.range=1 "); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

func counter(t *testing.T, reg *prometheus.Registry, name string) float64 {
	families, err := reg.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Errorf("no metric %s", name)
	return 0
}

func TestBrokerThatCannotBeReachedIsLoggedOnce(t *testing.T) {
	var text logText
	log := slog.New(slog.NewTextHandler(&text, nil))
	var shared clientTrouble
	watch, client := brokerWatch{log, &shared}, clientLogger{log, &shared}
	meta := kgo.BrokerMetadata{Host: "127.0.0.1", Port: 9092}
	for range 20 {
		watch.OnBrokerConnect(meta, 0, nil, errors.New("connection refused"))
		client.Log(kgo.LogLevelWarn, connectFailure, "err", "connection refused")
		client.Log(kgo.LogLevelWarn, "something it repeats")
	}
	watch.OnBrokerConnect(meta, 0, nil, nil)
	watch.OnBrokerConnect(meta, 0, nil, nil)
	if got := text.lines("level="); len(got) != 3 || !strings.Contains(got[0], "127.0.0.1:9092") || !strings.Contains(got[2], "can be reached again") {
		t.Errorf("%q", got)
	}
}

// TestCircuit: the gauge says that the destination does not take the batch of some partition, from the first refusal until it takes that.
func TestCircuit(t *testing.T) {
	r := newRig(t, 2, "")
	sink := newMemSink(true)
	var refuses atomic.Bool
	sink.fail = func(b *Batch, _ bool) error {
		if refuses.Load() && b.Claim.Partition == 1 {
			return errors.New("disk full")
		}
		return nil
	}
	reg := prometheus.NewRegistry()
	w, err := NewWorker(quiet(), reg, r.pipe, r.pipe.Sinks[0], sink, Config{Brokers: []string{r.addr}, SessionTimeout: 6 * time.Second, BackoffMax: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	is := func(circuit, retrying float64) func() bool {
		return func() bool {
			return gauge(t, reg, "sluice_sink_circuit_open") == circuit && stateGauge(t, reg, StateRetrying) == retrying
		}
	}
	r.produce("a", 100, 2)
	r.await("the rows", func() bool { return sink.total() == 100 })
	r.await("the circuit to be closed", is(0, 0))
	refuses.Store(true)
	r.produce("b", 100, 2)
	r.await("the circuit to be open", is(1, 1))
	r.await("the other partition's rows", func() bool { return sink.total() == 150 })
	refuses.Store(false)
	r.await("the circuit to be closed again", is(0, 0))
	r.await("all rows", func() bool { return sink.total() == 200 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.verify(sink, "b", 100)
}

// stateGauge is how many partitions are in a state.
func stateGauge(t *testing.T, reg *prometheus.Registry, state State) float64 {
	families, err := reg.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "sluice_sink_partition_states" && slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == string(state) }) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Errorf("no metric of the state %s", state)
	return 0
}
