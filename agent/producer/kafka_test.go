package producer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/internal/testenv"
)

const patience = 30 * time.Second

// eachBroker runs a test against a real Apache Kafka and against ours.
func eachBroker(t *testing.T, run func(t *testing.T, addr string)) {
	t.Run("kafka", func(t *testing.T) { run(t, testenv.Kafka(t).Addr) })
	t.Run("sluice", func(t *testing.T) { run(t, startSluice(t, nil)) })
}

func startSluice(t *testing.T, config map[string]string) string {
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	var text strings.Builder
	for name, value := range config {
		fmt.Fprintf(&text, "%s: %s\n", name, value)
	}
	file := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, testenv.Command{Name: "broker", Path: testenv.Sluice(t),
		Args:  []string{"broker", "--config", file, "--data", t.TempDir(), "--listen", addr, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) }})
	return addr
}

func topicName(t *testing.T) string {
	return strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + "-" + uuid.NewString()[:8]
}

// memoryLog is a journal in memory. It survives producers, as a journal survives processes.
type memoryLog struct {
	mu      sync.Mutex
	next    uint64
	batches map[producer.ID]*producer.Batch // unsettled, with their bytes
	order   []producer.ID
	floors  map[string]producer.Floor
	fail    error
	writes  int
}

func newMemoryLog() *memoryLog {
	return &memoryLog{next: 1, batches: map[producer.ID]*producer.Batch{}, floors: map[string]producer.Floor{}}
}

func (m *memoryLog) put(at int, batches []*producer.Batch) {
	for i, b := range batches {
		b.ID = producer.ID{Entry: m.next, Index: uint32(i)}
		kept := producer.Batch{ID: b.ID, Topic: b.Topic, Partition: b.Partition, Data: slices.Clone(b.Data), Lines: b.Lines, Cluster: b.Cluster,
			TopicID: b.TopicID, Producer: b.Producer, Epoch: b.Epoch, BaseSequence: b.BaseSequence, Records: b.Records, Size: b.Size}
		m.batches[b.ID] = &kept
		m.order = slices.Insert(m.order, at+i, b.ID)
	}
	m.next++
	m.writes++
}

func (m *memoryLog) Write(bundles []*producer.Bundle) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return 0, m.fail
	}
	first := m.next
	for _, b := range bundles {
		m.put(len(m.order), b.Batches)
	}
	return first, nil
}

func (m *memoryLog) Replace(olds []producer.ID, news []*producer.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	at := slices.Index(m.order, olds[0])
	for _, id := range olds {
		delete(m.batches, id)
	}
	m.put(at, news)
	return nil
}

func (m *memoryLog) Acknowledge(acks []producer.Ack) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	for _, a := range acks {
		for _, id := range a.IDs {
			delete(m.batches, id)
		}
		if a.Next >= 0 {
			m.floor(producer.Floor{Topic: a.Last.TopicID, Partition: a.Last.Partition, Offset: a.Next})
		}
	}
	return nil
}

func (m *memoryLog) floor(f producer.Floor) { m.floors[fmt.Sprint(f.Topic, f.Partition)] = f }

func (m *memoryLog) Floor(topic producer.TopicID, partition int32, offset int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.floor(producer.Floor{Topic: topic, Partition: partition, Offset: offset})
	return nil
}

func (m *memoryLog) Read(id producer.ID) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.batches[id]; b != nil {
		return slices.Clone(b.Data), nil
	}
	return nil, errors.New("no such batch")
}

// copy is a backup of the log.
func (m *memoryLog) copy() *memoryLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := newMemoryLog()
	c.next = m.next
	for _, id := range m.order {
		if b := m.batches[id]; b != nil {
			kept := *b
			c.batches[id], c.order = &kept, append(c.order, id)
		}
	}
	for k, f := range m.floors {
		c.floors[k] = f
	}
	return c
}

func (m *memoryLog) unsettled() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.batches)
}

// load is what a new producer finds.
func (m *memoryLog) load() (bundles []*producer.Bundle, floors []producer.Floor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.order {
		if b := m.batches[id]; b != nil {
			found := *b
			found.Data = nil
			bundles = append(bundles, &producer.Bundle{Batches: []*producer.Batch{&found}})
		}
	}
	for _, f := range m.floors {
		floors = append(floors, f)
	}
	return bundles, floors
}

// sender is a producer with its log, and counts what becomes of records.
type sender struct {
	t     *testing.T
	k     *producer.Kafka
	log   *memoryLog
	topic string
	cfg   producer.KafkaConfig

	mu      sync.Mutex
	left    int // bundles
	acked   int64
	refused []string
	unknown int
	changed chan struct{}
}

func newSender(t *testing.T, addr, topic string, log *memoryLog) *sender {
	t.Helper()
	s := &sender{t: t, log: log, topic: topic, changed: make(chan struct{}, 1)}
	s.cfg = producer.KafkaConfig{Dial: (&net.Dialer{}).DialContext, Client: []kgo.Opt{kgo.SeedBrokers(addr)}, SenderConfig: producer.SenderConfig{Owner: producer.Owner{
		OnSettled: func(b *producer.Batch) { s.note(func() { s.acked += int64(b.Records) }) },
		OnRefused: func(_ *producer.Batch, rs []producer.Refused) []*producer.Batch {
			s.note(func() {
				for _, r := range rs {
					s.refused = append(s.refused, string(r.Value))
				}
			})
			return nil
		},
		OnUnknown: func(b []*producer.Batch) { s.note(func() { s.unknown += len(b) }) },
	}}}
	return s
}

func (s *sender) note(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// open starts the producer with what the log holds.
func (s *sender) open() *sender {
	s.t.Helper()
	bundles, floors := s.log.load()
	s.left = len(bundles)
	for _, b := range bundles {
		b.Done = func() { s.note(func() { s.left-- }) }
	}
	var err error
	if s.k, err = producer.NewKafka(slog.New(slog.NewTextHandler(io.Discard, nil)), s.log, bundles, floors, s.cfg); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.k.Close)
	return s
}

func (s *sender) prepare(spec producer.TopicSpec) producer.Topic {
	s.t.Helper()
	spec.Name, spec.Replicas = s.topic, 1
	if spec.Partitions == 0 {
		spec.Partitions = 1
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for {
		topic, err := s.k.Prepare(ctx, spec)
		if err == nil {
			return topic
		}
		if ctx.Err() != nil {
			s.t.Fatal(err)
		}
	}
}

// send sends records as one bundle of one batch.
func (s *sender) send(values ...string) {
	s.t.Helper()
	p := producer.NewPacker(&producer.Memory{}, 4<<20, func() record.Codec { return record.Snappy })
	to := p.To(s.topic, 0, 0)
	for i, v := range values {
		var key []byte
		if strings.HasPrefix(v, "k") {
			key = []byte(v)
		}
		if err := to.Add(time.Now().UnixMilli(), key, []byte(v), nil, producer.Mark{Bytes: int32(len(v)), Offset: int64(i)}); err != nil {
			s.t.Fatal(err)
		}
	}
	batches, err := p.Take()
	if err != nil {
		s.t.Fatal(err)
	}
	s.note(func() { s.left++ })
	s.k.Send(&producer.Bundle{Batches: batches, Done: func() { s.note(func() { s.left-- }) }})
}

// sendNumbers sends the numbers from from to to, so many to a batch.
func (s *sender) sendNumbers(from, to, each int) {
	for ; from < to; from += each {
		s.send(numbers(from, min(from+each, to))...)
	}
}

func numbers(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%06d", i))
	}
	return out
}

func (s *sender) wait() {
	s.t.Helper()
	s.until("all bundles are settled", func() bool { return s.left == 0 })
}

func (s *sender) until(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond) // for what the log and the wire do
	defer look.Stop()
	for {
		s.mu.Lock()
		done := ok()
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.changed:
		case <-look.C:
		case <-deadline.C:
			s.mu.Lock()
			defer s.mu.Unlock()
			s.t.Fatalf("never: %s (%d bundles left, %d records acknowledged, %d refused)", what, s.left, s.acked, len(s.refused))
		}
	}
}

// wants reads the topic and compares.
func (s *sender) wants(addr string, want []string) {
	s.t.Helper()
	got := read(s.t, addr, s.topic)
	if !slices.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		s.t.Errorf("%d records, want %d; the first difference is at %d: %.60q and %.60q", len(got), len(want), i, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
	}
	if n := s.log.unsettled(); n > 0 {
		s.t.Errorf("%d batches are unsettled in the log", n)
	}
}

// read returns the values of a topic's partition 0 from its beginning to its end.
func read(t *testing.T, addr, topic string) []string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	var out []string
	for next := int64(0); next < end.Offset; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			out = append(out, string(r.Value))
			next = r.Offset + 1
		})
	}
	return out
}

func admin(t *testing.T, addr string) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

func setConfig(t *testing.T, addr, topic, name, value string) {
	t.Helper()
	if _, err := admin(t, addr).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: name, Value: &value}}, topic); err != nil {
		t.Fatal(err)
	}
}

func TestBundlesInOrder(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		s := newSender(t, addr, topicName(t), newMemoryLog()).open()
		if got := s.prepare(producer.TopicSpec{Partitions: 3}); got.Partitions != 3 || got.RecordBytesMax < 1<<20 {
			t.Errorf("topic %+v", got)
		}
		if got := s.prepare(producer.TopicSpec{Partitions: 8}); got.Partitions != 3 {
			t.Errorf("an existing topic: %+v", got)
		}
		s.sendNumbers(0, 20_000, 100)
		s.wait()
		s.wants(addr, numbers(0, 20_000))
	})
}

func TestRefusedRecordsDoNotTakeOthersDown(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		s := newSender(t, addr, topicName(t), newMemoryLog()).open()
		// A compacted topic refuses records without a key, whole batches of them.
		s.prepare(producer.TopicSpec{Config: map[string]string{"cleanup.policy": "compact"}})
		bad := map[int]bool{0: true, 41: true, 42: true, 777: true, 999: true}
		var want, refused []string
		for at := 0; at < 1000; at += 100 {
			var values []string
			for i := at; i < at+100; i++ {
				v := fmt.Sprintf("k%06d", i)
				if bad[i] {
					v = fmt.Sprintf("x%06d", i)
					refused = append(refused, v)
				} else {
					want = append(want, v)
				}
				values = append(values, v)
			}
			s.send(values...)
		}
		s.wait()
		if !slices.Equal(s.refused, refused) {
			t.Errorf("refused %q", s.refused)
		}
		s.wants(addr, want)
	})
}

func TestTooLargeRecord(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		s := newSender(t, addr, topicName(t), newMemoryLog()).open()
		if got := s.prepare(producer.TopicSpec{Config: map[string]string{"max.message.bytes": "2000", "compression.type": "producer"}}); got.RecordBytesMax != 2000 {
			t.Errorf("topic %+v", got)
		}
		values := numbers(0, 1000)
		var long strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&long, "%x", i*i*7919)
		}
		values[500] = long.String()
		s.send(values...)
		s.sendNumbers(1000, 2000, 100)
		s.wait()
		if !slices.Equal(s.refused, []string{long.String()}) {
			t.Errorf("%d refused", len(s.refused))
		}
		s.wants(addr, slices.Delete(numbers(0, 2000), 500, 501))
	})
}

func TestTopicDeletedAndMadeAgain(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		s := newSender(t, addr, topicName(t), newMemoryLog()).open()
		s.prepare(producer.TopicSpec{})
		s.sendNumbers(0, 10, 10)
		s.wait()
		adm := admin(t, addr)
		if _, err := adm.DeleteTopics(t.Context(), s.topic); err != nil {
			t.Fatal(err)
		}
		for gone := false; !gone; { // the deletion takes a moment to be seen
			topics, err := adm.ListTopics(t.Context(), s.topic)
			if err != nil {
				t.Fatal(err)
			}
			gone = topics[s.topic].Err != nil
		}
		s.send(numbers(10, 20)...)
		s.send(numbers(20, 30)...)
		s.prepare(producer.TopicSpec{})
		s.wait()
		s.wants(addr, numbers(10, 30))
	})
}

func TestBrokerKilledAndBack(t *testing.T) {
	server := testenv.StartKafka(t, testenv.KafkaConfig{})
	s := newSender(t, server.Addr, topicName(t), newMemoryLog()).open()
	s.prepare(producer.TopicSpec{})
	s.sendNumbers(0, 5000, 50)
	server.Kill()
	s.sendNumbers(5000, 10_000, 50)
	server.Restart(t)
	s.wait()
	s.wants(server.Addr, numbers(0, 10_000))
}

func TestDownBrokerIsAnError(t *testing.T) {
	s := newSender(t, "127.0.0.1:1", "x", newMemoryLog()).open()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := s.k.Prepare(ctx, producer.TopicSpec{Name: "x"}); err == nil {
		t.Error("no error")
	} else {
		t.Log(err)
	}
}
