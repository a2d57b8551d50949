package api

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

func crcOf(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// fill appends one batch a value to partition 0.
func (n *node) fill(topic string, values ...string) {
	n.t.Helper()
	w := n.dial()
	defer w.Close()
	for _, v := range values {
		if p := w.produce(topic, 9, n.batchOf(record.BuildOptions{}, v)); p.ErrorCode != 0 {
			n.t.Fatalf("%+v", p)
		}
	}
}

func TestFetchReturnsTheFirstBatchWhole(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	n.fill("t", strings.Repeat("x", 5000), "second")
	w := n.dial()
	for _, limits := range [][2]int32{{1, 1 << 20}, {1 << 20, 1}, {0, 0}, {1, 1}} {
		req := fetchFrom("t", 0, 12, 0)
		req.MaxBytes, req.Topics[0].Partitions[0].PartitionMaxBytes = limits[0], limits[1]
		p := onlyFetched(t, w.ask(req))
		if got := valuesOf(t, p.RecordBatches); len(got) != 1 || len(got[0]) != 5000 {
			t.Errorf("limits %v: %d batches", limits, len(got))
		}
	}
	if got := valuesOf(t, w.fetch("t", 12, 0).RecordBatches); len(got) != 2 {
		t.Errorf("%d batches", len(got))
	}
}

func TestFetchFromTheMiddleOfABatch(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	w := n.dial()
	w.produce("t", 9, n.batchOf(record.BuildOptions{}, "a", "b", "c"))
	if got := valuesOf(t, w.fetch("t", 12, 1).RecordBatches); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("%q", got)
	}
}

func TestFetchOffsetOutOfRange(t *testing.T) {
	n := newNode(t)
	p := n.topic("t", topicOptions{})[0]
	n.fill("t", "a", "b", "c")
	if err := p.Log().SetStartOffset(1); err != nil {
		t.Fatal(err)
	}
	w := n.dial()
	for offset, want := range map[int64]*kerr.Error{-1: kerr.OffsetOutOfRange, 0: kerr.OffsetOutOfRange, 1: nil, 3: nil, 4: kerr.OffsetOutOfRange} {
		got := w.fetch("t", 12, offset)
		expectCode(t, got.ErrorCode, want)
		if got.LogStartOffset != 1 || got.HighWatermark != 3 {
			t.Errorf("%+v", got)
		}
	}
}

func TestFetchSeesNothingAboveTheHighWatermark(t *testing.T) {
	n := newNode(t)
	p := n.topic("t", topicOptions{groupFsync: true})[0]
	n.fill("t", "a", "b")
	w := n.dial()
	if got := w.fetch("t", 12, 0); got.HighWatermark != 0 || len(got.RecordBatches) != 0 || got.ErrorCode != 0 {
		t.Errorf("%+v", got)
	}
	// Between the high watermark and the log end there is nothing yet, and no error.
	expectCode(t, w.fetch("t", 12, 1).ErrorCode, nil)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	n.fill("t", "c")
	got := w.fetch("t", 12, 0)
	if values := valuesOf(t, got.RecordBatches); got.HighWatermark != 2 || !slices.Equal(values, []string{"a", "b"}) {
		t.Errorf("high watermark %d, %q", got.HighWatermark, values)
	}
}

// waitingFetch sends a fetch that waits at the end of partition 0.
func (n *node) waitingFetch(w *wire, req *kmsg.FetchRequest) int32 {
	n.t.Helper()
	before := n.clock.waiting()
	id := w.send(req)
	waitFor(n.t, func() bool { return n.clock.waiting() == before+1 })
	return id
}

func TestFetchWaitsForRecords(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{partitions: 3})
	req := fetchFrom("t", 0, 12, 0)
	req.MaxWaitMillis = 500
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchPartition(1, 0), fetchPartition(2, 0))
	w := n.dial()
	id := n.waitingFetch(w, req)
	n.dial().ask(produceTo("t", 2, 9, n.batchOf(record.BuildOptions{}, "x")))
	got := w.receive(req, id).(*kmsg.FetchResponse).Topics[0].Partitions
	if values := valuesOf(t, got[2].RecordBatches); !slices.Equal(values, []string{"x"}) {
		t.Errorf("%q", values)
	}
	if n.clock.waiting() != 0 || len(n.api.fetches.set) != 0 {
		t.Error("the wait was left")
	}
}

func TestFetchWaitsForTheHighWatermark(t *testing.T) {
	n := newNode(t)
	p := n.topic("t", topicOptions{groupFsync: true})[0]
	req := fetchFrom("t", 0, 12, 0)
	req.MaxWaitMillis = 500
	w := n.dial()
	id := n.waitingFetch(w, req)
	n.fill("t", "x")
	if n.clock.waiting() != 1 {
		t.Error("answered before the sync")
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := onlyFetched(t, w.receive(req, id)); got.HighWatermark != 1 || len(valuesOf(t, got.RecordBatches)) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestFetchWaitsForMinBytes(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{partitions: 2})
	one := len(n.batchOf(record.BuildOptions{}, "x"))
	req := fetchFrom("t", 0, 12, 0)
	req.MaxWaitMillis, req.MinBytes = 500, int32(3*one)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchPartition(1, 0))
	n.fill("t", "a") // there before
	w, producer := n.dial(), n.dial()
	id := n.waitingFetch(w, req)
	producer.ask(produceTo("t", 1, 9, n.batchOf(record.BuildOptions{}, "b")))
	if n.clock.waiting() != 1 {
		t.Fatal("answered with too little")
	}
	producer.ask(produceTo("t", 1, 9, n.batchOf(record.BuildOptions{}, "c")))
	got := w.receive(req, id).(*kmsg.FetchResponse).Topics[0].Partitions
	values := append(valuesOf(t, got[0].RecordBatches), valuesOf(t, got[1].RecordBatches)...)
	if !slices.Equal(values, []string{"a", "b", "c"}) {
		t.Errorf("%q", values)
	}
}

func TestFetchMaxWait(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	n.fill("t", "a")
	req := fetchFrom("t", 0, 12, 0)
	req.MaxWaitMillis, req.MinBytes = 500, 1<<20
	w := n.dial()
	id := n.waitingFetch(w, req)
	n.clock.advance(499 * time.Millisecond)
	if n.clock.waiting() != 1 {
		t.Error("answered too early")
	}
	n.clock.advance(time.Millisecond)
	if values := valuesOf(t, onlyFetched(t, w.receive(req, id)).RecordBatches); !slices.Equal(values, []string{"a"}) {
		t.Errorf("%q", values)
	}
}

func TestFetchWaitEndsWithThePartition(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*replica.Partition)
		want *kerr.Error
	}{
		{"resigned", func(p *replica.Partition) { p.Resign(4) }, kerr.NotLeaderForPartition},
		{"deleted", func(p *replica.Partition) { p.Fail(replica.ErrDeleted) }, kerr.UnknownTopicOrPartition},
		{"offline", func(p *replica.Partition) { p.Fail(replica.ErrOffline) }, kerr.KafkaStorageError},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			p := n.topic("t", topicOptions{})[0]
			req := fetchFrom("t", 0, 12, 0)
			req.MaxWaitMillis = 500
			w := n.dial()
			id := n.waitingFetch(w, req)
			tc.end(p)
			expectCode(t, onlyFetched(t, w.receive(req, id)).ErrorCode, tc.want)
		})
	}
}

// The leader may change while a fetch waits: the answer names the new one.
func TestLeadershipLostWhileAFetchWaitsNamesTheLeader(t *testing.T) {
	for version := int16(15); version <= 18; version++ {
		n := newNode(t)
		p := n.topic("t", topicOptions{})[0]
		req := fetchFrom("t", 0, version, 0)
		req.MaxWaitMillis = 500
		w := n.dial()
		id := n.waitingFetch(w, req)
		n.leads("t", 0, 2, 7)
		p.Resign(7)
		resp := w.receive(req, id).(*kmsg.FetchResponse)
		got := resp.Topics[0].Partitions[0]
		expectCode(t, got.ErrorCode, kerr.NotLeaderForPartition)
		if got.CurrentLeader.LeaderID != 2 || got.CurrentLeader.LeaderEpoch != 7 || len(resp.Brokers) != 2 && version >= 16 {
			t.Errorf("version %d: %+v, %d brokers", version, got.CurrentLeader, len(resp.Brokers))
		}
	}
}

func TestFetchClientGone(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	req := fetchFrom("t", 0, 12, 0)
	req.MaxWaitMillis = 500
	w := n.dial()
	n.waitingFetch(w, req)
	w.Close()
	waitFor(t, func() bool { return n.clock.waiting() == 0 })
	n.fill("t", "x") // nobody waits any more
}

func TestDrainEndsWaits(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	req := fetchFrom("t", 0, 12, 0)
	req.MaxWaitMillis = 500
	w := n.dial()
	id := n.waitingFetch(w, req)
	n.api.Drain()
	onlyFetched(t, w.receive(req, id))
	onlyFetched(t, w.ask(req)) // does not wait either
}

func TestFetchLeaderEpochs(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	w := n.dial()
	for epoch, want := range map[int32]*kerr.Error{-1: nil, 3: nil, 2: kerr.FencedLeaderEpoch, 4: kerr.UnknownLeaderEpoch} {
		req := fetchFrom("t", 0, 12, 0)
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = epoch
		expectCode(t, onlyFetched(t, w.ask(req)).ErrorCode, want)
	}
}

func TestFetchUnknown(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	w := n.dial()
	expectCode(t, w.fetch("absent", 12, 0).ErrorCode, kerr.UnknownTopicOrPartition)
	expectCode(t, w.fetch("absent", 13, 0).ErrorCode, kerr.UnknownTopicID)
	expectCode(t, onlyFetched(t, w.ask(fetchFrom("t", 5, 12, 0))).ErrorCode, kerr.UnknownTopicOrPartition)
}

// A topic that was made again under its name is another topic.
func TestFetchByTheIDOfADeletedTopic(t *testing.T) {
	n := newNode(t)
	p := n.topic("t", topicOptions{})[0]
	n.fill("t", "secret")
	req := fetchFrom("t", 0, 13, 0)
	req.Topics[0].TopicID[15] = 'x'
	expectCode(t, onlyFetched(t, n.dial().ask(req)).ErrorCode, kerr.UnknownTopicID)
	n.partitions.Remove(p)
	n.mu.Lock()
	n.image = n.image.Without("t")
	n.mu.Unlock()
	expectCode(t, n.dial().fetch("t", 13, 0).ErrorCode, kerr.UnknownTopicID)
}

func TestFetchFromAnotherLeaderNamesIt(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{elsewhere: true})
	w := n.dial()
	for version := int16(11); version <= 18; version++ {
		resp := w.ask(fetchFrom("t", 0, version, 0)).(*kmsg.FetchResponse)
		p := resp.Topics[0].Partitions[0]
		expectCode(t, p.ErrorCode, kerr.NotLeaderForPartition)
		leader, brokers := int32(-1), 0
		if version >= 12 {
			leader = 2
		}
		if version >= 16 {
			brokers = 2
		}
		if p.CurrentLeader.LeaderID != leader || len(resp.Brokers) != brokers {
			t.Errorf("version %d: leader %d, %d brokers", version, p.CurrentLeader.LeaderID, len(resp.Brokers))
		}
	}
}

func TestFetchDoesNotStarveAPartition(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{partitions: 3})
	w := n.dial()
	for i := range int32(3) {
		w.ask(produceTo("t", i, 9, n.batchOf(record.BuildOptions{}, strings.Repeat("x", 1000))))
	}
	req := fetchFrom("t", 0, 12, 0)
	req.MaxBytes = 1
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchPartition(1, 0), fetchPartition(2, 0))
	seen := map[int32]int{}
	for range 200 {
		for _, p := range w.ask(req).(*kmsg.FetchResponse).Topics[0].Partitions {
			if len(p.RecordBatches) > 0 {
				seen[p.Partition]++
			}
		}
	}
	if len(seen) != 3 || seen[0]+seen[1]+seen[2] != 200 {
		t.Errorf("answers by partition: %v", seen)
	}
}

func TestFetchSessionWithoutRoom(t *testing.T) {
	n := newNode(t)
	n.api.sessions.max = 0
	n.topic("t", topicOptions{})
	w := n.dial()
	req := fetchFrom("t", 0, 12, 0)
	req.SessionEpoch = sessionInitial // asks for a session, and gets none
	onlyFetched(t, w.ask(req))
	for _, unknown := range [][2]int32{{7, 1}, {0, 1}} {
		req.SessionID, req.SessionEpoch = unknown[0], unknown[1]
		resp := w.ask(req).(*kmsg.FetchResponse)
		expectCode(t, resp.ErrorCode, kerr.FetchSessionIDNotFound)
		if len(resp.Topics) != 0 {
			t.Error("an error with topics")
		}
	}
}

func TestFetchIsolationAndForgottenTopics(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	n.fill("t", "a")
	w := n.dial()
	for _, version := range []int16{4, 7, 12, 13, 18} {
		req := fetchFrom("t", 0, version, 0)
		req.IsolationLevel = readCommitted
		forgotten := kmsg.NewFetchRequestForgottenTopic()
		forgotten.Topic, forgotten.Partitions = "gone", []int32{1, 2}
		req.ForgottenTopics = append(req.ForgottenTopics, forgotten)
		req.Rack = "r1"
		p := onlyFetched(t, w.ask(req))
		if len(valuesOf(t, p.RecordBatches)) != 1 || p.AbortedTransactions == nil || p.PreferredReadReplica != -1 {
			t.Errorf("version %d: %+v", version, p)
		}
	}
}

func TestFetchByAFollowerIsRefused(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	w := n.dial()
	for _, version := range []int16{12, 18} {
		req := fetchFrom("t", 0, version, 0)
		req.ReplicaID = 2
		req.ReplicaState.ID = 2
		expectCode(t, onlyFetched(t, w.ask(req)).ErrorCode, kerr.NotLeaderForPartition)
	}
}

func TestFetchZstdNeedsVersion10(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{config: func(c *replica.TopicConfig) { c.Compress, c.Codec = true, record.Zstd }})
	n.fill("t", "a")
	w := n.dial()
	expectCode(t, w.fetch("t", 9, 0).ErrorCode, kerr.UnsupportedCompressionType)
	expectCode(t, w.fetch("t", 10, 0).ErrorCode, nil)
}

// Many consumers and producers on many partitions at once.
func TestProduceAndFetchConcurrently(t *testing.T) {
	n := newNode(t)
	const partitions, perPartition = 4, 200
	n.topic("t", topicOptions{partitions: partitions})
	done := make(chan error, 2*partitions)
	for i := range int32(partitions) {
		producer, consumer := n.dial(), n.dial()
		batches := make([][]byte, perPartition)
		for j := range batches {
			batches[j] = n.batchOf(record.BuildOptions{}, fmt.Sprint(j))
		}
		go func() {
			for _, b := range batches {
				producer.ask(produceTo("t", i, 9, b))
			}
			done <- nil
		}()
		go func() { done <- consumeAll(t, consumer, i, perPartition) }()
	}
	for range 2 * partitions {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func consumeAll(t testing.TB, w *wire, partition int32, count int) error {
	for next := 0; next < count; {
		req := fetchFrom("t", partition, 12, int64(next))
		req.MaxWaitMillis = 100_000 // only records end the wait
		for _, v := range valuesOf(t, onlyFetched(t, w.ask(req)).RecordBatches) {
			if v != fmt.Sprint(next) {
				return fmt.Errorf("partition %d: %q at %d", partition, v, next)
			}
			next++
		}
	}
	return nil
}
