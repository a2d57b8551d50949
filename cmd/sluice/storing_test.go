package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// fakeStore is a table in memory which destinations of several workers write to, one after the other: a second one at the same time is noted.
type fakeStore struct {
	mu       sync.Mutex
	rows     map[string]int // how often each record is stored, as TOPIC/PARTITION/OFFSET
	open     int            // destinations that were written to and not closed
	overlaps int
	writing  chan struct{} // told when a write has begun, if not nil
	goOn     chan struct{} // a write waits for it, if not nil
	closeErr error
}

type fakeDestination struct {
	store *fakeStore
	used  bool
}

type fakeBlock struct{ offsets []int64 }

func (b *fakeBlock) Append(e *pipelines.Event) error {
	b.offsets = append(b.offsets, e.Meta.Offset)
	return nil
}
func (b *fakeBlock) Rows() int    { return len(b.offsets) }
func (b *fakeBlock) Bytes() int64 { return int64(8 * len(b.offsets)) }
func (b *fakeBlock) Reset()       { b.offsets = b.offsets[:0] }

func (d *fakeDestination) Check(context.Context) (sinks.Destination, error) {
	return sinks.Destination{Server: "fake", Schema: "s"}, nil
}
func (d *fakeDestination) NewBlock() (sinks.Block, error) { return &fakeBlock{}, nil }

func rowName(c sinks.Claim, offset int64) string {
	return fmt.Sprintf("%s/%d/%d", c.Topic, c.Partition, offset)
}

func (d *fakeDestination) Stored(_ context.Context, c sinks.Claim) (sinks.Stored, error) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	out := sinks.Stored{Max: -1, MaxUnknown: -1}
	for offset := c.Lo; offset <= c.Hi; offset++ {
		if d.store.rows[rowName(c, offset)] > 0 {
			out.Present = append(out.Present, sinks.Range{Lo: offset, Hi: offset})
			out.Max = offset
		}
	}
	return out, nil
}

func (d *fakeDestination) Write(_ context.Context, b *sinks.Batch) error {
	d.store.mu.Lock()
	writing, goOn := d.store.writing, d.store.goOn
	if !d.used {
		d.used = true
		if d.store.open++; d.store.open > 1 {
			d.store.overlaps++
		}
	}
	d.store.mu.Unlock()
	if writing != nil {
		writing <- struct{}{}
		<-goOn
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	for _, offset := range b.Block.(*fakeBlock).offsets {
		d.store.rows[rowName(b.Claim, offset)]++
	}
	return nil
}

func (d *fakeDestination) Close() error {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	if d.used {
		d.store.open--
	}
	return d.store.closeErr
}

// storingRig runs sinks into fakeStores, by the path of their directory.
type storingRig struct {
	*testing.T
	addr   string
	client *kgo.Client
	sent   int
	stores map[string]*fakeStore
	all    *storing
	ended  chan error
	stop   func()
}

func newStoringRig(t *testing.T, yaml string) *storingRig {
	t.Helper()
	r := &storingRig{T: t, addr: startTestBroker(t), stores: map[string]*fakeStore{}, ended: make(chan error, 1)}
	var err error
	if r.client, err = kgo.NewClient(kgo.SeedBrokers(r.addr), kgo.DefaultProduceTopic("t")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	if _, err := kadm.NewClient(r.client).CreateTopic(t.Context(), 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		r.stores[name] = &fakeStore{rows: map[string]int{}}
	}
	r.all, err = newStoring(slog.New(slog.DiscardHandler), newRegistry(), storingConfig{
		worker: func(*pipelines.Pipeline) sinks.Config {
			return sinks.Config{Brokers: []string{r.addr}, InstanceID: "one", SessionTimeout: 6 * time.Second}
		},
		memory: func(workers int) int64 { return sinks.RecordMemory(64<<20, workers) },
		destination: func(_ *slog.Logger, spec *pipelines.SinkSpec) (sinks.Sink, error) {
			if store := r.stores[spec.Directory.Path]; store != nil {
				return &fakeDestination{store: store}, nil
			}
			return nil, errors.New("there is no such store")
		},
	}, r.parse(yaml))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { r.ended <- r.all.run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-r.ended; err != nil {
			t.Errorf("the sinks ended with %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *storingRig) parse(yaml string) []*pipelines.Pipeline {
	r.Helper()
	pipes, err := pipelines.Parse("p.yaml", []byte("pipeline: p\ntopic: {name: t}\nsinks:\n"+yaml))
	if err != nil {
		r.Fatal(err)
	}
	return pipes
}

func (r *storingRig) reload(yaml string) {
	r.Helper()
	if err := r.all.Reload(r.parse(yaml)); err != nil {
		r.Fatal(err)
	}
}

func (r *storingRig) produce(n int) {
	r.Helper()
	for range n {
		if err := r.client.ProduceSync(r.Context(), kgo.StringRecord("x")).FirstErr(); err != nil {
			r.Fatal(err)
		}
	}
	r.sent += n
}

// mustHoldAllOnce waits until a store has every record, and checks that it has it once and from one worker at a time.
func (r *storingRig) mustHoldAllOnce(name string) {
	r.Helper()
	store := r.stores[name]
	waitUntil(r.T, name+" has all records", func() bool {
		store.mu.Lock()
		defer store.mu.Unlock()
		return len(store.rows) == r.sent
	})
	store.mu.Lock()
	defer store.mu.Unlock()
	for row, n := range store.rows {
		if n != 1 {
			r.Errorf("%s: %s is stored %d times", name, row, n)
		}
	}
	if store.overlaps > 0 {
		r.Errorf("%s: two workers wrote at the same time", name)
	}
}

const (
	sinkOne        = "  one: {directory: {path: one}, batch: {age: 20ms}}\n"
	sinkOneChanged = "  one: {directory: {path: one}, batch: {age: 30ms}}\n"
	sinkTwo        = "  two: {directory: {path: two}, batch: {age: 20ms}}\n"
)

// A sink that changes finishes the write in hand before its successor writes; one that does not change goes on, also when others come and go.
func TestChangedSinkEndsBeforeItsSuccessorBegins(t *testing.T) {
	r := newStoringRig(t, sinkOne+sinkTwo)
	r.produce(10)
	r.mustHoldAllOnce("one")
	r.mustHoldAllOnce("two")
	one, two := r.all.at("p.one"), r.all.at("p.two")

	store := r.stores["one"]
	writing, goOn := make(chan struct{}, 1), make(chan struct{})
	store.mu.Lock()
	store.writing, store.goOn = writing, goOn
	store.mu.Unlock()
	r.produce(1)
	<-writing
	store.mu.Lock()
	store.writing, store.goOn = nil, nil
	store.mu.Unlock()
	reloaded := make(chan error, 1)
	go func() { reloaded <- r.all.Reload(r.parse(sinkOneChanged + sinkTwo)) }()
	waitUntil(t, "the old worker is told to leave", func() bool { return r.all.at("p.one") == nil })
	r.produce(5)
	select {
	case err := <-reloaded:
		t.Fatalf("the reload ended with the old write in hand: %v", err)
	default:
	}
	close(goOn)
	if err := <-reloaded; err != nil {
		t.Fatal(err)
	}
	r.mustHoldAllOnce("one")
	if r.all.at("p.one") == one || r.all.at("p.two") != two {
		t.Error("the changed sink is the old one, or the other was touched")
	}

	changed := r.all.at("p.one")
	r.reload(sinkOneChanged)
	r.produce(5)
	r.mustHoldAllOnce("one")
	if r.all.at("p.two") != nil || r.all.at("p.one") != changed {
		t.Error("the sink that was taken out is there, or the other was touched")
	}
	r.reload(sinkOneChanged + sinkTwo)
	r.mustHoldAllOnce("two")
	if r.all.at("p.one") != changed {
		t.Error("a sink that came touched another")
	}
	r.stop()
	for _, account := range r.all.accounts() {
		if account.Stored != int64(r.sent) {
			t.Errorf("the account of %s counts %d of %d", account.Sink, account.Stored, r.sent)
		}
	}
	if err := r.all.Reload(r.parse(sinkOne)); !errors.Is(err, errSinksStopping) {
		t.Errorf("a reload after the end: %v", err)
	}
}

// What cannot be made is refused and changes nothing, and a sink that ends badly when it is taken out does not end the others.
func TestSinkThatCannotBeMadeChangesNothing(t *testing.T) {
	r := newStoringRig(t, sinkOne+sinkTwo)
	one, two := r.all.at("p.one"), r.all.at("p.two")
	err := r.all.Reload(r.parse(sinkOneChanged + "  three: {directory: {path: nowhere}}\n"))
	if err == nil || !strings.Contains(err.Error(), "there is no such store") || !strings.Contains(err.Error(), "p.yaml:5") {
		t.Fatalf("refused with %v", err)
	}
	if r.all.at("p.one") != one || r.all.at("p.two") != two {
		t.Error("a refused reload changed the sinks")
	}
	r.produce(5)
	r.mustHoldAllOnce("one")
	r.mustHoldAllOnce("two")
	r.stores["two"].mu.Lock()
	r.stores["two"].closeErr = errors.New("cannot be closed")
	r.stores["two"].mu.Unlock()
	r.reload(sinkOne)
	r.produce(5)
	r.mustHoldAllOnce("one")
}

// What a process was not started for is refused by name.
func TestRunRefusesWhatItWasNotStartedFor(t *testing.T) {
	pipes, err := pipelines.Parse("p.yaml", []byte("pipeline: p\ncollect: {file: {include: [a.log]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := (&runner{}).reload(pipes); err == nil || !strings.Contains(err.Error(), "pipeline p names no `brokers:`") {
		t.Error(err)
	}
	pipes[0].Brokers = &pipelines.Brokers{}
	if err := (&runner{}).reload(pipes); err == nil || !strings.Contains(err.Error(), "pipeline p has a `collect:`") {
		t.Error(err)
	}
}
