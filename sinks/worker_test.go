package sinks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// topicNo makes the topics of tests that share a broker different.
var topicNo atomic.Int64

// rig is a topic of its own on a real Kafka, and a pipeline that reads it.
type rig struct {
	*testing.T
	addr   string
	topic  string
	pipe   *pipelines.Pipeline
	client *kgo.Client
	admin  *kadm.Client
	log    *slog.Logger // of the workers; nil: none
}

func newRig(t *testing.T, partitions int32, sink string) *rig {
	t.Helper()
	return newRigOn(t, testenv.Kafka(t).Addr, partitions, sink)
}

func newRigOn(t *testing.T, addr string, partitions int32, sink string) *rig {
	t.Helper()
	r := &rig{T: t, addr: addr, topic: fmt.Sprintf("sinks-%d-%d", os.Getpid(), topicNo.Add(1))}
	client, err := kgo.NewClient(kgo.SeedBrokers(r.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r.client, r.admin = client, kadm.NewClient(client)
	if _, err := r.admin.CreateTopic(t.Context(), partitions, 1, nil, r.topic); err != nil {
		t.Fatal(err)
	}
	r.pipe = parsePipeline(t, fmt.Sprintf("pipeline: %s\ntopic: {name: %s}\nsink:\n  directory: {path: unused}\n  batch: {rows: 1000, age: 200ms}\n%s",
		r.topic, r.topic, sink))
	return r
}

// produce writes n records with the values PREFIX-NUMBER, round the partitions.
func (r *rig) produce(prefix string, n int, partitions int32) {
	r.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: r.topic, Partition: int32(i) % partitions, Value: fmt.Appendf(nil, "%s-%d", prefix, i)}
	}
	if err := r.client.ProduceSync(r.Context(), records...).FirstErr(); err != nil {
		r.Fatal(err)
	}
}

// worker makes a worker of the pipeline.
func (r *rig) worker(sink Sink, cfg Config) *Worker {
	r.Helper()
	cfg.Brokers = []string{r.addr}
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = 6 * time.Second
	}
	log := quiet()
	if r.log != nil {
		log = r.log
	}
	if os.Getenv("SINKS_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	w, err := NewWorker(log, prometheus.NewRegistry(), r.pipe, r.pipe.Sinks[0], sink, cfg)
	if err != nil {
		r.Fatal(err)
	}
	return w
}

// running is a worker at work; stop cancels it and waits.
type running struct {
	*Worker
	cancel context.CancelFunc
	done   chan error
}

func (r *rig) start(sink Sink, cfg Config) *running {
	ctx, cancel := context.WithCancel(context.Background())
	w := &running{Worker: r.worker(sink, cfg), cancel: cancel, done: make(chan error, 1)}
	go func() { w.done <- w.Run(ctx) }()
	r.Cleanup(func() { cancel(); <-w.done; w.done <- nil })
	return w
}

func (r *rig) stop(w *running) {
	r.Helper()
	w.cancel()
	err := <-w.done
	w.done <- nil
	if err != nil {
		r.Fatal(err)
	}
}

// await polls until ok says so.
func (r *rig) await(what string, ok func() bool) {
	r.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			r.Fatalf("waited a minute for: %s", what)
		}
	}
}

// once runs a worker over what is there.
func (r *rig) once(sink Sink) *Worker {
	r.Helper()
	w := r.worker(sink, Config{Once: true})
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	if err := w.Run(ctx); err != nil {
		r.Fatal(err)
	}
	if ctx.Err() != nil {
		r.Fatal("not done within a minute")
	}
	return w
}

// commits are the group's offsets and metadata.
func (r *rig) commits() map[int32]kadm.OffsetResponse {
	r.Helper()
	offsets, err := r.admin.FetchOffsets(r.Context(), r.pipe.Sinks[0].Group())
	if err != nil {
		r.Fatal(err)
	}
	return offsets[r.topic]
}

func (r *rig) verify(sink *memSink, prefix string, n int) {
	r.Helper()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for i := range n {
		if got := sink.value[fmt.Sprintf("%s-%d", prefix, i)]; got != 1 {
			r.Fatalf("%s-%d is stored %d times", prefix, i, got)
		}
	}
}

func TestOnceStoresWhatIsThere(t *testing.T) {
	r := newRig(t, 3, "")
	r.produce("a", 5000, 3)
	sink := newMemSink(true)
	w := r.once(sink)
	r.verify(sink, "a", 5000)
	if a := w.Account(); a.Consumed != 5000 || a.Stored != 5000 || a.Found != 0 {
		t.Errorf("account %+v", a)
	}
	for id, c := range r.commits() {
		if note, ok := ParseCommitNote(c.Metadata); c.At < 1666 || !ok || note.Claim {
			t.Errorf("partition %d: commit %d %q", id, c.At, c.Metadata)
		}
	}
	again := r.once(sink)
	if a := again.Account(); a.Consumed != 0 {
		t.Errorf("the second run consumed again: %+v", a)
	}
}

func TestOnceWaitsForItsProducer(t *testing.T) {
	r := newRig(t, 1, "")
	done := make(chan struct{})
	sink := newMemSink(true)
	w := r.start(sink, Config{Once: true, ProducerDone: done})
	r.produce("a", 100, 1)
	r.await("first rows", func() bool { return sink.total() == 100 })
	r.produce("b", 50, 1)
	close(done)
	if err := <-w.done; err != nil {
		t.Error(err)
	}
	w.done <- nil
	r.verify(sink, "b", 50)
}

func TestIdlePartitionClosesItsClaimWithinTheBatchAge(t *testing.T) {
	r := newRig(t, 1, "")
	sink := newMemSink(true)
	w := r.start(sink, Config{})
	r.produce("a", 10, 1)
	r.await("the closing commit", func() bool {
		c, ok := r.commits()[0]
		note, ours := ParseCommitNote(c.Metadata)
		return ok && c.At == 10 && ours && !note.Claim
	})
	if err := w.Ready(); err != nil {
		t.Error(err)
	}
	r.stop(w)
}

// TestWorkersComeAndGo adds, stops and cuts off workers while records keep coming: each is stored once.
func TestWorkersComeAndGo(t *testing.T) {
	const partitions, rounds, each = 6, 6, 1500
	for _, drops := range []bool{true, false} {
		t.Run(fmt.Sprintf("drops=%t", drops), func(t *testing.T) {
			r := newRig(t, partitions, "")
			sink := newMemSink(drops)
			var n atomic.Int64
			sink.fail = func(b *Batch, stored bool) error { // in the lock of the sink
				if n.Add(1)%11 == 0 {
					return errors.New("trouble")
				}
				return nil
			}
			var workers []*running
			for round := range rounds {
				r.produce(fmt.Sprintf("r%d", round), each, partitions)
				workers = append(workers, r.start(sink, Config{BackoffMin: time.Millisecond}))
				if len(workers) > 2 {
					r.stop(workers[0])
					workers = workers[1:]
				}
				want := (round + 1) * each * 3 / 4
				r.await("most rows", func() bool { return sink.total() >= want })
			}
			r.await("all rows", func() bool { return sink.total() >= rounds*each })
			for _, w := range workers {
				r.stop(w)
			}
			r.once(sink)
			for round := range rounds {
				r.verify(sink, fmt.Sprintf("r%d", round), each)
			}
		})
	}
}

// TestExpelledWorkerDropsItsBatch holds a write of one worker until the group has given its partition to another, which writes the claim again; the
// held write then has to be dropped, or was never sent.
func TestExpelledWorkerDropsItsBatch(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("a", 100, 1)
	sink := newMemSink(true)
	var once sync.Once
	entered := make(chan struct{})
	hold := &holdingSink{memSink: sink, hold: func(ctx context.Context) {
		once.Do(func() { close(entered) })
		<-ctx.Done()
	}}
	frozen := r.start(hold, Config{})
	<-entered
	r.expelAll()
	other := r.start(sink, Config{})
	r.await("the rows", func() bool { return sink.total() == 100 })
	r.stop(other)
	frozen.cancel()
	<-frozen.done
	frozen.done <- nil
	r.verify(sink, "a", 100)
}

// expelAll has the group's coordinator remove the members, as after their session timeout.
func (r *rig) expelAll() {
	r.Helper()
	members, err := r.admin.DescribeGroups(r.Context(), r.pipe.Sinks[0].Group())
	if err != nil {
		r.Fatal(err)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = r.pipe.Sinks[0].Group()
	for _, m := range members[leave.Group].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID, member.InstanceID = m.MemberID, m.InstanceID
		leave.Members = append(leave.Members, member)
	}
	if _, err := leave.RequestWith(r.Context(), r.client); err != nil {
		r.Fatal(err)
	}
}

// TestHangingWriteIsBoundedAndTriedAgain: the member keeps its place in the group meanwhile.
func TestHangingWriteIsBoundedAndTriedAgain(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("a", 100, 1)
	sink := newMemSink(true)
	var writes atomic.Int64
	hanging := &holdingSink{memSink: sink, hold: func(ctx context.Context) {
		if writes.Add(1) == 1 {
			<-ctx.Done()
		}
	}}
	w := r.start(hanging, Config{WriteDeadline: 2 * time.Second})
	r.await("the rows", func() bool { return sink.total() == 100 && w.Ready() == nil })
	r.stop(w)
	r.verify(sink, "a", 100)
	if n := writes.Load(); n < 2 {
		t.Errorf("%d writes", n)
	}
}

// TestBrokerGone stops a worker whose broker is gone, and lets another go on when it is back.
func TestBrokerGone(t *testing.T) {
	server := testenv.StartKafka(t, testenv.KafkaConfig{})
	r := newRigOn(t, server.Addr, 1, "")
	r.produce("a", 100, 1)
	sink := newMemSink(true)
	w := r.start(sink, Config{DrainTimeout: time.Second})
	r.await("the rows", func() bool { return sink.total() == 100 })
	server.Kill()
	r.stop(w)
	server.Restart(t)
	r.once(sink)
	r.verify(sink, "a", 100)
}

// holdingSink blocks its writes.
type holdingSink struct {
	*memSink
	hold func(ctx context.Context)
}

func (s *holdingSink) Write(ctx context.Context, b *Batch) error {
	s.hold(ctx)
	return s.memSink.Write(ctx, b)
}

func TestBadRecordsBecomeDeadLetters(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("a", 10, 1)
	bad := &kgo.Record{Topic: r.topic, Value: []byte("bad"), Key: []byte("k"), Headers: []kgo.RecordHeader{{Key: "host", Value: []byte("h1")}}}
	if err := r.client.ProduceSync(t.Context(), bad).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.produce("b", 10, 1)
	sink := newMemSink(true)
	w := r.once(sink)
	r.verify(sink, "a", 10)
	r.verify(sink, "b", 10)
	if a := w.Account(); a.Consumed != 21 || a.Stored != 20 || a.DeadLettered["range"] != 1 {
		t.Errorf("account %+v", a)
	}
	letters, err := kgo.NewClient(kgo.SeedBrokers(r.addr), kgo.ConsumeTopics(r.topic+"-dlq"), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer letters.Close()
	fetches := letters.PollRecords(t.Context(), 1)
	records := fetches.Records()
	if len(records) != 1 {
		t.Fatal(fetches.Err())
	}
	got := records[0]
	topics, err := r.admin.ListTopics(t.Context(), r.topic)
	if err != nil {
		t.Fatal(err)
	}
	id := TopicID(topics[r.topic].ID).String()
	if string(got.Value) != "bad" || string(got.Key) != id+"/0/10" {
		t.Errorf("key %q value %q", got.Key, got.Value)
	}
	var headers []string
	for _, h := range got.Headers {
		headers = append(headers, h.Key+"="+string(h.Value))
	}
	want := "host=h1 dlq_reason=column c: it is bad: out of range dlq_kind=range dlq_stage=columns dlq_topic=" + r.topic + " dlq_topic_id=" + id +
		" dlq_partition=0 dlq_offset=10 dlq_timestamp=" + fmt.Sprint(bad.Timestamp.UnixMilli()) + " dlq_key=k"
	if strings.Join(headers, " ") != want {
		t.Errorf("headers %q\nwant    %q", strings.Join(headers, " "), want)
	}
}

func TestDestinationDownAtStartIsWaitedFor(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("a", 10, 1)
	sink := newMemSink(true)
	var up atomic.Bool
	sink.check = func() error {
		if !up.Load() {
			return errors.New("nobody is listening")
		}
		return nil
	}
	w := r.start(sink, Config{BackoffMin: 10 * time.Millisecond})
	r.await("a reason", func() bool {
		err := w.Ready()
		return err != nil && strings.Contains(err.Error(), "nobody is listening")
	})
	up.Store(true)
	r.await("the rows", func() bool { return sink.total() == 10 && w.Ready() == nil })
	r.stop(w)
}

func TestResetGroupStoresNothingTwice(t *testing.T) {
	r := newRig(t, 2, "")
	r.produce("a", 2500, 2)
	sink := newMemSink(true)
	r.once(sink)
	if _, err := r.admin.DeleteGroups(t.Context(), r.pipe.Sinks[0].Group()); err != nil {
		t.Fatal(err)
	}
	r.produce("b", 100, 2)
	w := r.once(sink)
	r.verify(sink, "a", 2500)
	r.verify(sink, "b", 100)
	if a := w.Account(); a.Found != 2500 || a.Stored != 100 {
		t.Errorf("account %+v", a)
	}
}

func TestRetentionPastThePosition(t *testing.T) {
	for _, policy := range []LostPolicy{LostStop, LostContinue} {
		t.Run(string(policy), func(t *testing.T) {
			r := newRig(t, 1, "")
			r.produce("a", 100, 1)
			sink := newMemSink(true)
			r.once(sink)
			r.produce("b", 100, 1)
			var offsets kadm.Offsets
			offsets.Add(kadm.Offset{Topic: r.topic, Partition: 0, At: 150})
			if _, err := r.admin.DeleteRecords(t.Context(), offsets); err != nil {
				t.Fatal(err)
			}
			w := r.start(sink, Config{OnLostOffsets: policy})
			r.await("the loss to be counted", func() bool { return w.Account().Lost == 50 })
			if policy == LostStop {
				r.await("a reason", func() bool { err := w.Ready(); return err != nil && strings.Contains(err.Error(), "50 records lost") })
			} else {
				r.await("the rest", func() bool { return sink.total() == 150 })
			}
			r.stop(w)
		})
	}
}

// TestHeldMemoryIsBounded reads a backlog of 40 MB under a limit of 4 MB.
func TestHeldMemoryIsBounded(t *testing.T) {
	const partitions, records, limit = 8, 4000, 4 << 20
	r := newRig(t, partitions, "")
	value := strings.Repeat("x", 10_000)
	for i := range records {
		r.client.Produce(t.Context(), &kgo.Record{Topic: r.topic, Partition: int32(i % partitions), Value: fmt.Append(nil, value, i)}, nil)
	}
	if err := r.client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	sink := newMemSink(true)
	most := 0.0
	sink.fail = func(*Batch, bool) error {
		most = max(most, gauge(t, reg, "sluice_sink_held_bytes"))
		return nil
	}
	w, err := NewWorker(quiet(), reg, r.pipe, r.pipe.Sinks[0], sink, Config{Brokers: []string{r.addr}, Once: true, MemoryBytesMax: limit, FetchBytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := sink.total(); n != records {
		t.Errorf("%d rows", n)
	}
	if most == 0 || most > limit*5/4 {
		t.Errorf("held %.0f bytes under a limit of %d", most, limit)
	}
}

func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	families, err := reg.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Errorf("no metric %s", name)
	return 0
}
