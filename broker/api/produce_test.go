package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

func expectCode(t testing.TB, got int16, want *kerr.Error) {
	t.Helper()
	code := int16(0)
	if want != nil {
		code = want.Code
	}
	if got != code {
		t.Errorf("error %v, want %v", kerr.ErrorForCode(got), want)
	}
}

func TestProduceAndFetchInAllVersions(t *testing.T) {
	n := newNode(t)
	w := n.dial()
	for pv := int16(3); pv <= 13; pv++ {
		n.topic(fmt.Sprint("t", pv), topicOptions{})
		for i, value := range []string{"first", "second"} {
			p := w.produce(fmt.Sprint("t", pv), pv, n.batchOf(record.BuildOptions{}, value))
			if p.ErrorCode != 0 || p.BaseOffset != int64(i) || p.LogAppendTime != -1 || pv >= 5 && p.LogStartOffset != 0 {
				t.Fatalf("produce version %d: %+v", pv, p)
			}
		}
		for fv := int16(4); fv <= 18; fv++ {
			p := w.fetch(fmt.Sprint("t", pv), fv, 0)
			if p.ErrorCode != 0 || p.HighWatermark != 2 || p.LastStableOffset != 2 {
				t.Fatalf("fetch version %d: %+v", fv, p)
			}
			if got := valuesOf(t, p.RecordBatches); !slices.Equal(got, []string{"first", "second"}) {
				t.Fatalf("fetch version %d: %q", fv, got)
			}
		}
	}
}

func TestProduceSeveralPartitions(t *testing.T) {
	n := newNode(t)
	n.topic("a", topicOptions{partitions: 2})
	n.topic("b", topicOptions{})
	req := produceTo("a", 0, 9, n.batchOf(record.BuildOptions{}, "a0"))
	more := kmsg.NewProduceRequestTopicPartition()
	more.Partition, more.Records = 1, n.batchOf(record.BuildOptions{}, "a1", "a1")
	missing := more
	missing.Partition = 7
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, more, missing)
	req.Topics = append(req.Topics, produceTo("b", 0, 9, n.batchOf(record.BuildOptions{}, "b0")).Topics[0],
		produceTo("absent", 0, 9, n.batchOf(record.BuildOptions{}, "x")).Topics[0])
	w := n.dial()
	resp := w.ask(req).(*kmsg.ProduceResponse)
	var got []string
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			got = append(got, fmt.Sprintf("%s-%d %d %d", topic.Topic, p.Partition, p.ErrorCode, p.BaseOffset))
		}
	}
	want := []string{"a-0 0 0", "a-1 0 0", "a-7 3 -1", "b-0 0 0", "absent-0 3 -1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := n.partitions.Get("a", 1).HighWatermark(); got != 2 {
		t.Errorf("high watermark %d", got)
	}
}

func TestProduceUnknownTopicID(t *testing.T) {
	n := newNode(t)
	expectCode(t, n.dial().produce("absent", 13, n.batchOf(record.BuildOptions{}, "x")).ErrorCode, kerr.UnknownTopicID)
}

func TestProduceIdempotence(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	batch := func(epoch int16, seq int32) record.Batch {
		return n.batchOf(record.BuildOptions{Idempotent: true, ProducerID: 7, ProducerEpoch: epoch, BaseSequence: seq}, "x", "y")
	}
	w := n.dial()
	for i := range 7 {
		if p := w.produce("t", 9, batch(1, int32(2*i))); p.ErrorCode != 0 || p.BaseOffset != int64(2*i) {
			t.Fatalf("batch %d: %+v", i, p)
		}
	}
	// The last five come back with their offsets, on another connection too.
	other := n.dial()
	for i := 2; i < 7; i++ {
		if p := other.produce("t", 9, batch(1, int32(2*i))); p.ErrorCode != 0 || p.BaseOffset != int64(2*i) {
			t.Errorf("batch %d again: %+v", i, p)
		}
	}
	expectCode(t, w.produce("t", 9, batch(1, 0)).ErrorCode, kerr.OutOfOrderSequenceNumber)
	expectCode(t, w.produce("t", 9, batch(1, 16)).ErrorCode, kerr.OutOfOrderSequenceNumber)
	expectCode(t, w.produce("t", 9, batch(0, 14)).ErrorCode, kerr.InvalidProducerEpoch)
	if end := n.partitions.Get("t", 0).Log().EndOffset(); end != 14 {
		t.Errorf("log end %d", end)
	}
}

func TestProduceSequenceWraps(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	w := n.dial()
	for i, seq := range []int32{math.MaxInt32 - 1, 0} {
		opts := record.BuildOptions{Idempotent: true, ProducerID: 7, BaseSequence: seq}
		if p := w.produce("t", 9, n.batchOf(opts, "x", "y")); p.ErrorCode != 0 || p.BaseOffset != int64(2*i) {
			t.Errorf("sequence %d: %+v", seq, p)
		}
	}
}

// sealed renews the CRC of a batch that a test has tampered with.
func sealed(b record.Batch) record.Batch {
	crc := crcOf(b[21:])
	binary.BigEndian.PutUint32(b[17:], crc)
	return b
}

func TestProduceRefusesBadBatches(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{config: func(c *replica.TopicConfig) { c.MaxMessageBytes = 2000 }})
	w := n.dial()
	good := func() record.Batch { return n.batchOf(record.BuildOptions{}, "x", "y") }
	zstd := n.batchOf(record.BuildOptions{Codec: record.Zstd}, "x")
	for _, tc := range []struct {
		name    string
		version int16
		records []byte
		want    *kerr.Error
	}{
		{"null", 9, nil, kerr.InvalidRecord},
		{"empty", 9, []byte{}, kerr.InvalidRecord},
		{"wrong CRC", 9, edit(good(), func(b record.Batch) { b[len(b)-1] ^= 1 }), kerr.CorruptMessage},
		{"two batches", 9, append(good(), good()...), kerr.InvalidRecord},
		{"trailing bytes", 9, append(good(), 0, 0, 0), kerr.InvalidRecord},
		{"cut short", 9, good()[:70], kerr.InvalidRecord},
		{"count too large", 9, sealed(edit(good(), func(b record.Batch) { b[60] = 3; b[26] = 2 })), kerr.InvalidRecord},
		{"count too small", 9, sealed(edit(good(), func(b record.Batch) { b[60] = 1; b[26] = 0 })), kerr.InvalidRecord},
		{"count and last offset disagree", 9, sealed(edit(good(), func(b record.Batch) { b[26] = 5 })), kerr.InvalidRecord},
		{"negative count", 9, sealed(edit(good(), func(b record.Batch) { b[57] = 0xff })), kerr.InvalidRecord},
		{"offsets not dense", 9, sealed(edit(good(), func(b record.Batch) { b[len(b)-6] = 4 })), kerr.InvalidRecord},
		{"base offset", 9, edit(good(), func(b record.Batch) { b.SetBaseOffset(5) }), kerr.InvalidRecord},
		{"control", 9, n.batchOf(record.BuildOptions{Control: true}, "x"), kerr.InvalidRecord},
		{"transactional", 9, n.batchOf(record.BuildOptions{Transactional: true, Idempotent: true, ProducerID: 1}, "x"), kerr.InvalidTxnState},
		{"too large", 9, n.batchOf(record.BuildOptions{}, strings.Repeat("x", 2000)), kerr.MessageTooLarge},
		{"magic 1", 9, edit(good(), func(b record.Batch) { b[16] = 1 }), kerr.InvalidRecord},
		{"magic 0", 9, edit(good(), func(b record.Batch) { b[16] = 0 }), kerr.InvalidRecord},
		{"magic 3", 9, edit(good(), func(b record.Batch) { b[16] = 3 }), kerr.CorruptMessage},
		{"zstd too early", 6, zstd, kerr.UnsupportedCompressionType},
		{"zstd", 7, zstd, nil},
		{"unknown codec", 9, sealed(edit(good(), func(b record.Batch) { b[22] = 5 })), kerr.InvalidRecord},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := w.produce("t", tc.version, tc.records)
			expectCode(t, p.ErrorCode, tc.want)
			if tc.want == nil {
				return
			}
			if p.BaseOffset != -1 || tc.version >= 8 && (p.ErrorMessage == nil || *p.ErrorMessage == "") {
				t.Errorf("%+v", p)
			}
		})
	}
}

func edit(b record.Batch, fn func(record.Batch)) record.Batch {
	fn(b)
	return b
}

func TestProduceNullKeyToCompactedTopic(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{config: func(c *replica.TopicConfig) { c.Compacted = true }})
	var b record.Builder
	for i := range 4 {
		key := []byte("k")
		if i%2 == 1 {
			key = nil
		}
		b.Append(n.clock.now().UnixMilli(), key, nil, nil)
	}
	p := n.dial().produce("t", 9, n.build(&b, record.BuildOptions{}))
	expectCode(t, p.ErrorCode, kerr.InvalidRecord)
	var bad []int32
	for _, r := range p.ErrorRecords {
		bad = append(bad, r.RelativeOffset)
	}
	if !slices.Equal(bad, []int32{1, 3}) {
		t.Errorf("bad records %v", bad)
	}
}

func TestProduceTimestampLimits(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{config: func(c *replica.TopicConfig) {
		c.TimestampBeforeMax, c.TimestampAfterMax = time.Minute, time.Hour
	}})
	w := n.dial()
	now := n.clock.now()
	for _, tc := range []struct {
		offset time.Duration
		want   *kerr.Error
	}{
		{0, nil}, {-time.Minute, nil}, {time.Hour, nil},
		{-time.Minute - time.Millisecond, kerr.InvalidTimestamp}, {time.Hour + time.Millisecond, kerr.InvalidTimestamp},
	} {
		var b record.Builder
		b.Append(now.UnixMilli(), nil, nil, nil)
		b.Append(now.Add(tc.offset).UnixMilli(), nil, nil, nil)
		p := w.produce("t", 9, n.build(&b, record.BuildOptions{}))
		expectCode(t, p.ErrorCode, tc.want)
		if tc.want != nil && (len(p.ErrorRecords) != 1 || p.ErrorRecords[0].RelativeOffset != 1) {
			t.Errorf("%v: bad records %+v", tc.offset, p.ErrorRecords)
		}
	}
}

func TestProduceLogAppendTime(t *testing.T) {
	n := newNode(t)
	opt := topicOptions{config: func(c *replica.TopicConfig) { c.LogAppendTime, c.TimestampBeforeMax = true, time.Millisecond }}
	opt.log.LogAppendTime = true
	n.topic("t", opt)
	w := n.dial()
	var b record.Builder
	b.Append(5, nil, []byte("x"), nil) // long ago: nobody cares
	p := w.produce("t", 9, n.build(&b, record.BuildOptions{}))
	now := n.clock.now().UnixMilli()
	if p.ErrorCode != 0 || p.LogAppendTime != now {
		t.Errorf("%+v", p)
	}
	got := record.Batch(w.fetch("t", 12, 0).RecordBatches)
	if !got.IsLogAppendTime() || got.MaxTimestamp() != now || got.CheckCRC() != nil {
		t.Errorf("log append time %v, %d, CRC %v", got.IsLogAppendTime(), got.MaxTimestamp(), got.CheckCRC())
	}
}

func TestProduceConvertsCompression(t *testing.T) {
	n := newNode(t)
	for _, codec := range []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
		name := codec.String()
		n.topic(name, topicOptions{config: func(c *replica.TopicConfig) { c.Compress, c.Codec = true, codec }})
		w := n.dial()
		for i, from := range []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
			opts := record.BuildOptions{Codec: from, Idempotent: true, ProducerID: 9, ProducerEpoch: 2, BaseSequence: int32(2 * i)}
			if p := w.produce(name, 9, n.batchOf(opts, "x", "y")); p.ErrorCode != 0 || p.BaseOffset != int64(2*i) {
				t.Fatalf("%s from %s: %+v", name, from, p)
			}
			got := record.Batch(w.fetch(name, 12, int64(2*i)).RecordBatches)
			if got.Codec() != codec || got.ProducerID() != 9 || got.ProducerEpoch() != 2 || got.BaseSequence() != int32(2*i) {
				t.Errorf("%s from %s: stored as %s of producer %d", name, from, got.Codec(), got.ProducerID())
			}
			if values := valuesOf(t, got); !slices.Equal(values, []string{"x", "y"}) {
				t.Errorf("%s from %s: %q", name, from, values)
			}
		}
	}
}

func TestRecordsComeBackAsSent(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	headers := make([]record.Header, 1000)
	for i := range headers {
		headers[i] = record.Header{Key: fmt.Sprint(i)}
		if i%2 == 0 {
			headers[i].Value = []byte{}
		}
	}
	var b record.Builder
	b.Append(1, nil, nil, nil)
	b.Append(2, []byte{}, []byte{}, headers)
	sent := n.build(&b, record.BuildOptions{})
	w := n.dial()
	if p := w.produce("t", 9, sent); p.ErrorCode != 0 {
		t.Fatalf("%+v", p)
	}
	got := w.fetch("t", 12, 0).RecordBatches
	// All but the base offset and the leader's epoch is as it was.
	if !slices.Equal(got[16:], []byte(sent[16:])) {
		t.Error("the batch differs from what was sent")
	}
}

func TestProduceAcksNone(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	w := n.dial()
	req := produceTo("t", 0, 9, n.batchOf(record.BuildOptions{}, "x"))
	req.Acks = acksNone
	w.send(req)
	// The next answer is that of the next request.
	if p := w.produce("t", 9, n.batchOf(record.BuildOptions{}, "y")); p.BaseOffset != 1 {
		t.Errorf("%+v", p)
	}
	bad := produceTo("absent", 0, 9, n.batchOf(record.BuildOptions{}, "x"))
	bad.Acks = acksNone
	w.send(bad)
	w.expectClosed()
}

func TestProduceInvalidAcks(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	for _, acks := range []int16{2, -2} {
		req := produceTo("t", 0, 9, n.batchOf(record.BuildOptions{}, "x"))
		req.Acks = acks
		p := onlyProduced(t, n.dial().ask(req))
		expectCode(t, p.ErrorCode, kerr.InvalidRequiredAcks)
	}
	if end := n.partitions.Get("t", 0).Log().EndOffset(); end != 0 {
		t.Errorf("log end %d", end)
	}
}

func TestProduceTransactionsAreRefused(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	req := produceTo("t", 0, 9, n.batchOf(record.BuildOptions{}, "x"))
	req.TransactionID = kmsg.StringPtr("txn")
	expectCode(t, onlyProduced(t, n.dial().ask(req)).ErrorCode, kerr.InvalidTxnState)
}

func TestProduceToInternalTopicIsRefused(t *testing.T) {
	n := newNode(t)
	n.topic("__consumer_offsets", topicOptions{})
	expectCode(t, n.dial().produce("__consumer_offsets", 9, n.batchOf(record.BuildOptions{}, "x")).ErrorCode, kerr.InvalidTopicException)
}

func TestProduceMinInSyncReplicas(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{config: func(c *replica.TopicConfig) { c.MinInSync = 2 }})
	w := n.dial()
	req := produceTo("t", 0, 9, n.batchOf(record.BuildOptions{}, "x"))
	req.Acks = acksAll
	expectCode(t, onlyProduced(t, w.ask(req)).ErrorCode, kerr.NotEnoughReplicas)
	if end := n.partitions.Get("t", 0).Log().EndOffset(); end != 0 {
		t.Errorf("log end %d", end)
	}
	expectCode(t, w.produce("t", 9, n.batchOf(record.BuildOptions{}, "x")).ErrorCode, nil)
}

// acksAllTo makes an acks=all request.
func (n *node) acksAllTo(topic string, partition int32) *kmsg.ProduceRequest {
	req := produceTo(topic, partition, 9, n.batchOf(record.BuildOptions{}, "x"))
	req.Acks = acksAll
	return req
}

func TestAcksAllWaitsForTheSyncInOrder(t *testing.T) {
	n := newNode(t)
	p := n.topic("t", topicOptions{groupFsync: true})[0]
	w := n.dial()
	req := n.acksAllTo("t", 0)
	first := w.send(req)
	next := kmsg.NewPtrApiVersionsRequest()
	second := w.send(next) // ready at once, and must not overtake
	waitFor(t, func() bool { return n.clock.waiting() == 1 })
	if p.HighWatermark() != 0 || p.Log().EndOffset() != 1 {
		t.Fatalf("high watermark %d, log end %d", p.HighWatermark(), p.Log().EndOffset())
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := onlyProduced(t, w.receive(req, first)); got.ErrorCode != 0 || got.BaseOffset != 0 {
		t.Errorf("%+v", got)
	}
	w.receive(next, second)
	if n.clock.waiting() != 0 {
		t.Error("the timer was left")
	}
}

func TestAcksAllWaitsForAllPartitions(t *testing.T) {
	n := newNode(t)
	parts := n.topic("t", topicOptions{groupFsync: true, partitions: 2})
	w := n.dial()
	req := n.acksAllTo("t", 0)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, n.acksAllTo("t", 1).Topics[0].Partitions...)
	id := w.send(req)
	waitFor(t, func() bool { return n.clock.waiting() == 1 })
	for _, p := range parts {
		if n.clock.waiting() != 1 {
			t.Error("answered too early")
		}
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range w.receive(req, id).(*kmsg.ProduceResponse).Topics[0].Partitions {
		expectCode(t, p.ErrorCode, nil)
	}
}

func TestAcksAllTimesOut(t *testing.T) {
	n := newNode(t)
	parts := n.topic("t", topicOptions{groupFsync: true, partitions: 2})
	w := n.dial()
	req := n.acksAllTo("t", 0)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, n.acksAllTo("t", 1).Topics[0].Partitions...)
	id := w.send(req)
	waitFor(t, func() bool { return n.clock.waiting() == 1 })
	if err := parts[1].Flush(); err != nil {
		t.Fatal(err)
	}
	n.clock.advance(30 * time.Second)
	got := w.receive(req, id).(*kmsg.ProduceResponse).Topics[0].Partitions
	expectCode(t, got[0].ErrorCode, kerr.RequestTimedOut)
	expectCode(t, got[1].ErrorCode, nil)
	// The wait is gone: the sync that comes at last answers nobody.
	if err := parts[0].Flush(); err != nil {
		t.Fatal(err)
	}
	w.ask(kmsg.NewPtrApiVersionsRequest())
}

func TestAcksAllEndsWithTheLeadership(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*replica.Partition)
		want *kerr.Error
	}{
		{"resigned", func(p *replica.Partition) { p.Resign(4) }, kerr.NotLeaderForPartition},
		{"deleted", func(p *replica.Partition) { p.Fail(replica.ErrDeleted) }, kerr.UnknownTopicOrPartition},
		{"offline", func(p *replica.Partition) { p.Fail(fmt.Errorf("%w: disk", replica.ErrOffline)) }, kerr.KafkaStorageError},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			p := n.topic("t", topicOptions{groupFsync: true})[0]
			w := n.dial()
			req := n.acksAllTo("t", 0)
			id := w.send(req)
			waitFor(t, func() bool { return n.clock.waiting() == 1 })
			tc.end(p)
			expectCode(t, onlyProduced(t, w.receive(req, id)).ErrorCode, tc.want)
			expectCode(t, onlyProduced(t, w.ask(n.acksAllTo("t", 0))).ErrorCode, tc.want)
		})
	}
}

func TestAcksAllClientGone(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{groupFsync: true})
	w := n.dial()
	w.send(n.acksAllTo("t", 0))
	waitFor(t, func() bool { return n.clock.waiting() == 1 })
	w.Close()
	waitFor(t, func() bool { return n.clock.waiting() == 0 })
}

func TestProduceToAnotherLeaderNamesIt(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{elsewhere: true})
	w := n.dial()
	for version := int16(9); version <= 13; version++ {
		req := produceTo("t", 0, version, n.batchOf(record.BuildOptions{}, "x"))
		resp := w.ask(req).(*kmsg.ProduceResponse)
		p := resp.Topics[0].Partitions[0]
		expectCode(t, p.ErrorCode, kerr.NotLeaderForPartition)
		want := kmsg.ProduceResponseTopicPartitionCurrentLeader{LeaderID: -1, LeaderEpoch: -1}
		brokers := 0
		if version >= 10 {
			want.LeaderID, want.LeaderEpoch, brokers = 2, 3, 2
		}
		if p.CurrentLeader.LeaderID != want.LeaderID || p.CurrentLeader.LeaderEpoch != want.LeaderEpoch || len(resp.Brokers) != brokers {
			t.Errorf("version %d: %+v, %+v", version, p.CurrentLeader, resp.Brokers)
		}
	}
}

// The leader may change while acks=all waits: the answer names the new one too.
func TestLeadershipLostWhileWaitingNamesTheLeader(t *testing.T) {
	for version := int16(9); version <= 13; version++ {
		n := newNode(t)
		parts := n.topic("t", topicOptions{partitions: 4, groupFsync: true})
		w := n.dial()
		req := produceTo("t", 0, version, n.batchOf(record.BuildOptions{}, "x"))
		req.Acks, req.TimeoutMillis = -1, 10_000
		for i := int32(1); i < 4; i++ {
			more := req.Topics[0].Partitions[0]
			more.Partition = i
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, more)
		}
		id := w.send(req)
		waitFor(t, func() bool { return n.clock.waiting() == 1 })
		n.leads("t", 1, 2, 7)
		n.leads("t", 3, 2, 8)
		parts[1].Resign(7)
		parts[3].Resign(8)
		for _, p := range []int{0, 2} {
			if err := parts[p].Flush(); err != nil {
				t.Fatal(err)
			}
		}
		resp := w.receive(req, id).(*kmsg.ProduceResponse)
		brokers := 0
		for i, want := range []int32{-1, 7, -1, 8} {
			p := resp.Topics[0].Partitions[i]
			leader := int32(2)
			if want < 0 {
				expectCode(t, p.ErrorCode, nil)
			} else {
				expectCode(t, p.ErrorCode, kerr.NotLeaderForPartition)
			}
			if want < 0 || version < 10 {
				leader, want = -1, -1
			} else {
				brokers = 2
			}
			if p.CurrentLeader.LeaderID != leader || p.CurrentLeader.LeaderEpoch != want {
				t.Errorf("version %d, partition %d: %+v", version, i, p.CurrentLeader)
			}
		}
		if len(resp.Brokers) != brokers {
			t.Errorf("version %d: %d brokers", version, len(resp.Brokers))
		}
	}
}

// A full disk is met at every try of every producer, and logged once in a while, with what helps.
func TestFullDiskIsLoggedOnce(t *testing.T) {
	n := newNode(t)
	part := &producePart{partition: n.topic("t", topicOptions{})[0]}
	for range 3 {
		n.api.logAppendError(part, fmt.Errorf("append: %w", commitlog.ErrNoSpace))
	}
	if got := n.log.String(); strings.Count(got, "disk is full") != 1 || !strings.Contains(got, "retention.bytes") || !strings.Contains(got, "topic=t") {
		t.Errorf("logged:\n%s", got)
	}
	n.clock.advance(fullDiskLogInterval)
	n.api.logAppendError(part, commitlog.ErrNoSpace)
	if got := n.log.String(); strings.Count(got, "disk is full") != 2 {
		t.Errorf("logged:\n%s", got)
	}
}

func TestOldProduceVersionsAreAdvertisedAndRefused(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	for version := int16(0); version < 3; version++ {
		w := n.dial()
		w.send(produceTo("t", 0, version, n.batchOf(record.BuildOptions{}, "x")))
		w.expectClosed()
	}
}

func TestProduceGarbageClosesTheConnection(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	whole := encodeRequest(produceTo("t", 0, 9, n.batchOf(record.BuildOptions{}, "x")), 1)
	for _, cut := range []int{1, 10, 60, 100} {
		w := n.dial()
		b := slices.Clone(whole[:len(whole)-cut])
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		w.expectClosed()
	}
	if end := n.partitions.Get("t", 0).Log().EndOffset(); end != 0 {
		t.Errorf("a malformed request appended up to %d", end)
	}
}

func TestProduceRequestErrorsAreLoggedOnce(t *testing.T) {
	n := newNode(t)
	w := n.dial()
	hello := kmsg.NewPtrApiVersionsRequest()
	hello.Version, hello.ClientSoftwareName, hello.ClientSoftwareVersion = 3, "librdkafka", "1.0"
	w.ask(hello)
	w.send(produceTo("t", 0, 1, nil))
	w.expectClosed()
	waitFor(t, func() bool { return strings.Contains(n.log.String(), "software=librdkafka") })
	if got := strings.Count(n.log.String(), "Produce version 1"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, n.log)
	}
}

func TestDataCodes(t *testing.T) {
	for err, want := range map[error]int16{
		errors.New("surprise"):                          kerr.UnknownServerError.Code,
		fmt.Errorf("wrapped: %w", replica.ErrNotLeader): kerr.NotLeaderForPartition.Code,
		nil: 0,
	} {
		if got := dataCode(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}
