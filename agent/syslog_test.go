package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

var listensAt = regexp.MustCompile(`msg="listening for syslog messages" pipeline=\S+ at=(\w+)\S* address=(\S+)`)

// dial connects to the syslog input of the running agent.
func (r *rig) dial(network string) net.Conn {
	r.t.Helper()
	var at string
	r.eventually("listening", func() bool {
		for _, m := range listensAt.FindAllStringSubmatch(r.log.String(), -1) {
			if m[1] == network {
				at = m[2]
			}
		}
		return at != ""
	})
	c, err := net.Dial(network, at)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) send(c net.Conn, text string) {
	r.t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		r.t.Fatal(err)
	}
}

const syslogPipeline = `
pipeline: test
collect:
  syslog: {listen: ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"], zone: UTC, line_bytes_max: 64B}
  labels: {site: shop}
process:
  - drop: severity == "debug"
topic: {name: lines, partitions: 3, key: app}
`

func TestSyslogBecomesEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, syslogPipeline)
	r.start()
	c := r.dial("tcp")
	r.send(c, "<34>2026-12-31T23:59:59Z web su: to root\n<7>Dec 31 23:59:59 web su: dropped\nwhat is this\n")
	r.send(r.dial("udp"), `<165>1 - h app - - [a@1 b="c"] m`)
	r.eventually("three records", func() bool { return r.store.count() >= 3 })
	for _, x := range r.store.all() {
		switch {
		case x.value == "what is this":
			if x.headers["sluice_raw"] != "1" || x.headers["peer"] != "127.0.0.1" || x.headers["site"] != "shop" {
				t.Errorf("what does not parse: %+v", x)
			}
		case x.key == "su":
			want := `{"time":"2026-12-31T23:59:59Z","host":"web","app":"su","procid":null,"msgid":null,"facility":"auth","severity":"crit","priority":34,"data":null,"message":"to root","site":"shop"}`
			if x.value != want || x.headers["peer"] != "127.0.0.1" || x.headers["host"] != "web-1" {
				t.Errorf("%+v", x)
			}
		case x.key == "app":
			if !strings.Contains(x.value, `"data":{"a@1":{"b":"c"}},"message":"m"`) || !strings.Contains(x.value, `"time":"2`) {
				t.Errorf("%+v", x)
			}
		default:
			t.Errorf("%+v", x)
		}
	}
	r.send(c, "<1>"+strings.Repeat("x", 100)+"\n")
	r.eventually("the long one", func() bool { return r.store.count() == 4 })
	if x := r.store.all()[3]; x.headers["truncated"] != "true" {
		t.Errorf("%+v", x)
	}
	if acc := r.account(); acc.Dropped["drop"].Lines != 1 || acc.Read.Lines != 5 {
		t.Errorf("account %+v", acc)
	}
}

const rawSyslogPipeline = `
pipeline: test
collect: {syslog: {listen: ["tcp://127.0.0.1:0"], format: raw}}
topic: {name: lines, partitions: 3}
`

// Messages go on to be taken while the brokers acknowledge nothing, since the journal has them.
func TestSyslogWhileNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t, rawSyslogPipeline)
	journal := uint64(0)
	r.store.written = func(b *producer.Bundle) {
		journal++
		b.Written(journal)
	}
	r.store.hold()
	r.start()
	c := r.dial("tcp")
	var want []string
	for i := range 2000 {
		line := fmt.Sprintf("<1>line %d", i)
		want = append(want, line)
		r.send(c, line+"\n")
	}
	r.eventually("all are taken", func() bool { return r.account().InFlight.Lines == 2000 })
	r.store.letGo()
	r.wants(want...)
}

func TestSyslogHasNoEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, rawSyslogPipeline)
	r.cfg.Once = true
	if _, err := r.open(); err == nil || !strings.Contains(err.Error(), "has no end") {
		t.Errorf("once: %v", err)
	}
}

// What is in the journal need not be in memory: batches are read back when it is their turn.
func TestSpilledBatchesAreSentFromTheJournal(t *testing.T) {
	run := newJournalRun(t, startBroker(t, testenv.Sluice(t)))
	pipes, err := pipelines.Parse("test.yaml", fmt.Appendf(nil, "pipeline: spill\ncollect: {exec: {command: [seq, '100000', '150000'], interval: 1h, headers: false}}\ntopic: {name: %s, partitions: 2, key: _raw, batch: {bytes: 4KiB}}\n", run.topic))
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(slog.New(slog.DiscardHandler), nil, pipes, Config{StateDir: run.state, Brokers: []string{run.addr}, InFlightBytesMax: 1, DrainTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r := &rig{t: t, agent: a, store: &store{}}
	r.eventuallyOf("all is acknowledged", 3*patience, func() bool { return a.Accounts()[0].Acked.Lines == 50_001 })
	x := a.list()[0].runner
	x.mu.Lock()
	if x.memory != 0 {
		t.Errorf("%d bytes of memory are in flight in the end", x.memory)
	}
	x.mu.Unlock()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got := run.stored()
	slices.Sort(got)
	if len(got) != 50_001 || len(slices.Compact(got)) != 50_001 {
		t.Errorf("%d records, %d different", len(got), len(slices.Compact(got)))
	}
}
