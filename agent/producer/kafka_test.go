package producer_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/testenv"
)

const patience = 60 * time.Second

func topicName(t *testing.T) string {
	return strings.ToLower(t.Name()) + "-" + uuid.NewString()[:8]
}

func open(t *testing.T, addr string) *producer.Kafka {
	t.Helper()
	k, err := producer.NewKafka(slog.New(slog.NewTextHandler(io.Discard, nil)), producer.KafkaConfig{Client: []kgo.Opt{kgo.SeedBrokers(addr)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func prepare(t *testing.T, k *producer.Kafka, spec producer.TopicSpec) producer.Topic {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		topic, err := k.Prepare(ctx, spec)
		if err == nil {
			return topic
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// sending sends chunks and knows when they are done.
type sending struct {
	k      *producer.Kafka
	wg     sync.WaitGroup
	chunks []*producer.Chunk
}

func (s *sending) send(records ...producer.Record) *producer.Chunk {
	c := &producer.Chunk{Records: records, Timestamp: time.Now()}
	s.wg.Add(1)
	c.Done = s.wg.Done
	s.chunks = append(s.chunks, c)
	s.k.Send(c)
	return c
}

func (s *sending) wait(t *testing.T) {
	t.Helper()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("not all chunks were answered")
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

func numbered(topic string, from, n int) []producer.Record {
	records := make([]producer.Record, n)
	for i := range records {
		records[i] = producer.Record{Topic: topic, Value: fmt.Appendf(nil, "%06d", from+i), Headers: []producer.Header{{Key: "host", Value: []byte("a")}}}
	}
	return records
}

func numbers(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%06d", i)
	}
	return out
}

func TestChunksInOrder(t *testing.T) {
	addr := testenv.Kafka(t).Addr
	k, topic := open(t, addr), topicName(t)
	if got := prepare(t, k, producer.TopicSpec{Name: topic, Partitions: 3, Replicas: 1}); got.Partitions != 3 || got.RecordBytesMax < 1<<20 {
		t.Errorf("topic %+v", got)
	}
	if got := prepare(t, k, producer.TopicSpec{Name: topic, Partitions: 8}); got.Partitions != 3 {
		t.Errorf("an existing topic: %+v", got)
	}
	s := sending{k: k}
	for i := range 100 {
		s.send(numbered(topic, i*100, 100)...)
	}
	s.wait(t)
	if got := read(t, addr, topic); !slices.Equal(got, numbers(10_000)) {
		t.Errorf("%d records, or out of order", len(got))
	}
}

func TestRefusedRecordsDoNotTakeOthersDown(t *testing.T) {
	addr := testenv.Kafka(t).Addr
	k, topic := open(t, addr), topicName(t)
	// A compacted topic refuses records without a key, whole batches of them.
	prepare(t, k, producer.TopicSpec{Name: topic, Partitions: 1, Replicas: 1, Config: map[string]string{"cleanup.policy": "compact"}})
	s := sending{k: k}
	var want []string
	bad := map[int]bool{0: true, 41: true, 42: true, 777: true, 999: true}
	for at := 0; at < 1000; at += 100 {
		records := numbered(topic, at, 100)
		for i := range records {
			if bad[at+i] {
				continue
			}
			records[i].Key = records[i].Value
			want = append(want, string(records[i].Value))
		}
		s.send(records...)
	}
	s.wait(t)
	for ci, c := range s.chunks {
		for i, r := range c.Records {
			if (r.Err != nil) != bad[ci*100+i] {
				t.Errorf("record %d: %v", ci*100+i, r.Err)
			}
		}
	}
	if got := read(t, addr, topic); !slices.Equal(got, want) {
		t.Errorf("%d records of %d, or out of order", len(got), len(want))
	}
}

func TestTooLargeRecord(t *testing.T) {
	addr := testenv.Kafka(t).Addr
	k, topic := open(t, addr), topicName(t)
	got := prepare(t, k, producer.TopicSpec{Name: topic, Partitions: 1, Replicas: 1, Config: map[string]string{"max.message.bytes": "2000"}})
	if got.RecordBytesMax != 2000 {
		t.Errorf("topic %+v", got)
	}
	s := sending{k: k}
	records := numbered(topic, 0, 1000)
	records[500].Value = []byte(strings.Repeat("x", 5000))
	c := s.send(records...)
	s.wait(t)
	for i, r := range c.Records {
		if (r.Err != nil) != (i == 500) {
			t.Fatalf("record %d: %v", i, r.Err)
		}
	}
	if got := read(t, addr, topic); !slices.Equal(got, slices.Delete(numbers(1000), 500, 501)) {
		t.Errorf("%d records, or out of order", len(got))
	}
}

// The limit is lowered while the producer goes on in the belief of the old one:
// its batches are refused as a whole, and each record is small enough.
func TestBatchesTooLargeAreSplit(t *testing.T) {
	addr := testenv.Kafka(t).Addr
	k, topic := open(t, addr), topicName(t)
	prepare(t, k, producer.TopicSpec{Name: topic, Partitions: 1, Replicas: 1, Config: map[string]string{"compression.type": "producer"}})
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	limit := "1000"
	if _, err := kadm.NewClient(client).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: &limit}}, topic); err != nil {
		t.Fatal(err)
	}
	s := sending{k: k}
	for i := range 10 {
		s.send(numbered(topic, i*200, 200)...)
	}
	s.wait(t)
	for _, c := range s.chunks {
		for i, r := range c.Records {
			if r.Err != nil {
				t.Fatalf("record %d: %v", i, r.Err)
			}
		}
	}
	if got := read(t, addr, topic); !slices.Equal(got, numbers(2000)) {
		t.Errorf("%d records, or out of order", len(got))
	}
}

func TestBrokerKilledAndBack(t *testing.T) {
	server := testenv.StartKafka(t, testenv.KafkaConfig{})
	k, topic := open(t, server.Addr), topicName(t)
	prepare(t, k, producer.TopicSpec{Name: topic, Partitions: 1, Replicas: 1})
	s := sending{k: k}
	for i := range 200 {
		s.send(numbered(topic, i*50, 50)...)
		if i == 100 {
			server.Kill()
		}
	}
	server.Restart(t)
	s.wait(t)
	if got := read(t, server.Addr, topic); !slices.Equal(got, numbers(10_000)) {
		t.Errorf("%d records, or out of order", len(got))
	}
}

func TestTopicDeletedAndMadeAgain(t *testing.T) {
	addr := testenv.Kafka(t).Addr
	k, topic := open(t, addr), topicName(t)
	spec := producer.TopicSpec{Name: topic, Partitions: 1, Replicas: 1}
	prepare(t, k, spec)
	s := sending{k: k}
	s.send(numbered(topic, 0, 10)...)
	s.wait(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	for gone := false; !gone; { // the deletion takes a moment to be seen
		topics, err := admin.ListTopics(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		gone = topics[topic].Err != nil
	}
	s.send(numbered(topic, 10, 10)...)
	s.send(numbered(topic, 20, 10)...)
	prepare(t, k, spec)
	s.wait(t)
	if got := read(t, addr, topic); !slices.Equal(got, numbers(30)[10:]) {
		t.Errorf("got %q", got)
	}
}

func TestDownBrokerIsAnError(t *testing.T) {
	k := open(t, "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := k.Prepare(ctx, producer.TopicSpec{Name: "x"}); err == nil {
		t.Error("no error")
	} else {
		t.Log(err)
	}
}
