package agent

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// patience bounds what a test waits for.
const patience = 20 * time.Second

// testsAtOnce run beside each other whatever the cores: they mostly wait.
const testsAtOnce = "16"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", testsAtOnce)
	}
	os.Exit(m.Run())
}

// stored is a record that the store took.
type stored struct {
	topic   string
	value   string
	key     string
	headers map[string]string
}

// store is a destination that keeps what it is sent. Held, it acknowledges
// nothing until it is let go.
type store struct {
	mu      sync.Mutex
	records []stored
	held    bool
	discard bool // acknowledge and keep nothing
	waiting []*producer.Bundle
	down    error
	// topicBytes is what the topic takes of a record; 0 is 1 MiB.
	topicBytes int
	refuse     func(topic, value string) error
	owner      producer.Owner
	made       []producer.TopicSpec
	closed     bool
	sent       func()                 // called at every Send; may be nil
	written    func(*producer.Bundle) // writes to a journal; may be nil
	batch      func(*producer.Batch)  // called with every batch that is stored; may be nil
}

func (s *store) Prepare(_ context.Context, spec producer.TopicSpec) (producer.Topic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return producer.Topic{}, s.down
	}
	s.made = append(s.made, spec)
	return producer.Topic{Partitions: max(spec.Partitions, 1), RecordBytesMax: cmp.Or(s.topicBytes, 1<<20)}, nil
}

func (s *store) Send(b *producer.Bundle) {
	if s.sent != nil {
		s.sent()
	}
	if s.written != nil {
		s.written(b)
	}
	s.mu.Lock()
	if s.held || s.closed {
		s.waiting = append(s.waiting, b)
		s.mu.Unlock()
		return
	}
	batches := s.take(b)
	s.mu.Unlock()
	s.done(b, batches)
}

// done acknowledges a bundle.
func (s *store) done(b *producer.Bundle, batches []*producer.Batch) {
	for _, x := range batches {
		s.owner.OnSettled(x)
	}
	b.Done()
}

// take stores a bundle and returns its batches as they are acknowledged.
func (s *store) take(b *producer.Bundle) (acked []*producer.Batch) {
	for todo := b.Batches; len(todo) > 0; todo = todo[1:] {
		x := todo[0]
		if s.batch != nil {
			s.batch(x)
		}
		if !s.discard {
			todo = append(todo, s.takeBatch(b, x)...)
		}
		acked = append(acked, x)
	}
	return acked
}

// takeBatch stores a batch but for what is refused, and returns the dead letters for that.
func (s *store) takeBatch(b *producer.Bundle, x *producer.Batch) []*producer.Batch {
	i := -1
	var refused []producer.Refused
	err := x.Data.Each(nil, func(r *record.Record) error {
		i++
		if s.refuse != nil {
			if err := s.refuse(x.Topic, string(r.Value)); err != nil {
				refused = append(refused, producer.Refused{Mark: x.Marks[i], Known: true, Value: slices.Clone(r.Value), Err: err})
				return nil
			}
		}
		h := map[string]string{}
		for _, y := range r.Headers {
			h[strings.Clone(y.Key)] = string(y.Value)
		}
		s.records = append(s.records, stored{topic: x.Topic, value: string(r.Value), key: string(r.Key), headers: h})
		return nil
	})
	if err != nil {
		panic(err)
	}
	if len(refused) == 0 {
		return nil
	}
	for _, r := range refused {
		x.Lines--
		x.SourceBytes -= int64(r.Mark.Bytes)
	}
	return s.owner.OnRefused(x.In(b), refused)
}

func (s *store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
}

func (s *store) hold() {
	s.mu.Lock()
	s.held = true
	s.mu.Unlock()
}

// letGo acknowledges what waits, in an order that is not that of sending.
func (s *store) letGo() {
	s.mu.Lock()
	waiting := s.waiting
	s.waiting, s.held = nil, false
	acked := make([][]*producer.Batch, len(waiting))
	for i, b := range waiting {
		acked[i] = s.take(b)
	}
	s.mu.Unlock()
	for i, b := range slices.Backward(waiting) {
		s.done(b, acked[i])
	}
}

// keepUnanswered stores what waits and never acknowledges it.
func (s *store) keepUnanswered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.waiting {
		s.take(c)
	}
	s.waiting = nil
}

func (s *store) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}

func (s *store) heldLines() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, b := range s.waiting {
		for _, x := range b.Batches {
			n += int(x.Records)
		}
	}
	return n
}

func (s *store) values() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, len(s.records))
	for i, r := range s.records {
		out[i] = r.value
	}
	return out
}

func (s *store) all() []stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.records)
}

// bench is a directory with an agent that follows it.
type rig struct {
	t     *testing.T
	dir   string // logs
	state string
	yaml  string
	cfg   Config
	store *store
	log   *testenv.Buffer

	agent *Agent
	stop  func() error
}

// newRig makes directories; DIR in the pipeline stands for that of the logs.
func newRig(t *testing.T, yaml string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), state: t.TempDir(), yaml: yaml, store: &store{}, log: &testenv.Buffer{}}
	r.cfg = Config{
		CheckpointInterval: 20 * time.Millisecond, DrainTimeout: 200 * time.Millisecond,
		ScanInterval: 50 * time.Millisecond, RotateGrace: 200 * time.Millisecond, LineIdle: 100 * time.Millisecond,
		Hostname: "web-1",
	}
	t.Cleanup(func() {
		if r.agent != nil {
			r.halt()
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log.String())
		}
	})
	return r
}

const plainPipeline = `
pipeline: test
collect:
  file: {include: ["DIR/*.log*"]}
topic: {name: lines, partitions: 3}
`

func (r *rig) pipes() []*pipelines.Pipeline {
	r.t.Helper()
	pipes, err := pipelines.Parse("test.yaml", []byte(strings.ReplaceAll(r.yaml, "DIR", r.dir)))
	if err != nil {
		r.t.Fatal(err)
	}
	return pipes
}

func (r *rig) open() (*Agent, error) {
	cfg := r.cfg
	cfg.StateDir = r.state
	cfg.Destination = func(_ *pipelines.Pipeline, o producer.Owner, _ *producer.Memory) (Destination, error) {
		r.store.mu.Lock()
		defer r.store.mu.Unlock()
		r.store.owner = o
		return r.store, nil
	}
	var out io.Writer = r.log
	return New(slog.New(slog.NewTextHandler(out, nil)), nil, r.pipes(), cfg)
}

func (r *rig) start() {
	r.t.Helper()
	a, err := r.open()
	if err != nil {
		r.t.Fatal(err)
	}
	r.store.mu.Lock()
	r.store.closed = false
	r.store.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r.agent = a
	r.stop = func() error {
		cancel()
		return <-done
	}
}

// halt drains and stops.
func (r *rig) halt() {
	r.t.Helper()
	if err := r.stop(); err != nil {
		r.t.Error(err)
	}
	r.checkAccount()
	r.agent = nil
}

// once runs an agent that reads what is there.
func (r *rig) once() Account {
	r.t.Helper()
	r.cfg.Once = true
	a, err := r.open()
	if err != nil {
		r.t.Fatal(err)
	}
	r.store.closed = false
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := a.Run(ctx); err != nil {
		r.t.Fatal(err)
	}
	if ctx.Err() != nil {
		r.t.Fatal("the agent did not end by itself")
	}
	r.agent = a
	acc := r.account()
	r.agent = nil
	r.cfg.Once = false
	return acc
}

func (r *rig) checkAccount() {
	r.t.Helper()
	for _, a := range r.agent.Accounts() {
		if !a.Balanced() {
			r.t.Errorf("account does not add up: %+v", a)
		}
	}
}

func (r *rig) account() Account {
	r.t.Helper()
	a := r.agent.Accounts()[0]
	if !a.Balanced() {
		r.t.Errorf("account does not add up: %+v", a)
	}
	return a
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// write appends to a file.
func (r *rig) write(name, text string) {
	r.t.Helper()
	f, err := os.OpenFile(r.path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		r.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// rewrite truncates and writes, as a shell's > does.
func (r *rig) rewrite(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path(name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) rename(from, to string) {
	r.t.Helper()
	if err := os.Rename(r.path(from), r.path(to)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(name string) {
	r.t.Helper()
	if err := os.Remove(r.path(name)); err != nil {
		r.t.Fatal(err)
	}
}

// eventually waits for a condition on what a running agent does.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	r.eventuallyOf(what, patience, ok)
}

func (r *rig) eventuallyOf(what string, limit time.Duration, ok func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			r.t.Fatalf("not in %s: %s; stored %d: %.2000q%s", limit, what, r.store.count(), r.store.values(), r.accounts())
		case <-tick.C:
		}
	}
}

func (r *rig) accounts() string {
	if r.agent == nil {
		return ""
	}
	return fmt.Sprintf("; accounts %+v", r.agent.Accounts())
}

// steady says that something holds for a while.
func (r *rig) steady(what string, d time.Duration, ok func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if !ok() {
			r.t.Fatalf("no longer: %s; stored %.2000q", what, r.store.values())
		}
		select {
		case <-deadline.C:
			return
		case <-tick.C:
		}
	}
}

// wants waits until exactly these lines are stored, in whatever order between
// files.
func (r *rig) wants(lines ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d lines", len(lines)), func() bool { return r.store.count() >= len(lines) })
	got := r.store.values()
	want := slices.Clone(lines)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Fatalf("stored %.4000q, want %.4000q", got, want)
	}
}

func (r *rig) settled() {
	r.t.Helper()
	r.eventually("a checkpoint of all", func() bool {
		a := r.account()
		if a.InFlight.Lines > 0 || a.LagBytes > 0 {
			return false
		}
		for _, x := range r.agent.list() {
			x.mu.Lock()
			dirty := x.dirty
			x.mu.Unlock()
			if dirty {
				return false
			}
		}
		return true
	})
	// dirty is cleared before the file is written: wait for the write.
	before := r.agent.written.Load()
	r.eventually("the checkpoint is written", func() bool { return r.agent.written.Load() > before })
}

// passed says when a time has passed.
func passed(d time.Duration) func() bool {
	until := time.Now().Add(d)
	return func() bool { return time.Now().After(until) }
}
