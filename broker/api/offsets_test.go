package api

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/internal/record"
)

func TestApiVersionsAboveOursFallsBack(t *testing.T) {
	n := newNode(t)
	w := n.dial()
	// Version 9, which nobody has defined, with a body that nobody can read.
	in, _ := hex.DecodeString("0000000f" + "0012" + "0009" + "00000001" + "0001" + "61" + "00" + "ffffff")
	if _, err := w.Write(in); err != nil {
		t.Fatal(err)
	}
	b := w.receiveBytes()
	// Version 0: correlation id, error 35, the list; no header tags, no throttle time.
	want, _ := hex.DecodeString("00000001" + "0023" + "000000" + hex.EncodeToString([]byte{byte((len(b) - 10) / 6)}) + "0000" + "0000" + "000d")
	if !bytes.HasPrefix(b, want) || (len(b)-10)%6 != 0 {
		t.Errorf("answer %x, want it to begin %x", b, want)
	}
	// The connection lives on, and the client asks again.
	again := kmsg.NewPtrApiVersionsRequest()
	w.ask(again)
}

func TestApiVersionsAdvertisesKafkas(t *testing.T) {
	n := newNode(t)
	kafka := map[int16][2]int16{ // Apache Kafka 4.4.0
		0: {0, 13}, 1: {4, 18}, 2: {1, 11}, 3: {0, 13}, 8: {2, 10}, 9: {1, 10}, 10: {0, 6}, 11: {0, 9}, 12: {0, 4},
		13: {0, 5}, 14: {0, 5}, 15: {0, 6}, 16: {0, 5}, 18: {0, 5}, 19: {2, 7}, 20: {1, 6}, 22: {0, 5}, 23: {2, 4},
		32: {1, 4}, 37: {0, 3}, 42: {0, 3}, 60: {0, 2},
	}
	for version := int16(0); version <= 5; version++ {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version = version
		req.ClientSoftwareName, req.ClientSoftwareVersion = "franz-go", "1.0"
		resp := n.dial().ask(req).(*kmsg.ApiVersionsResponse)
		expectCode(t, resp.ErrorCode, nil)
		if len(resp.ApiKeys) < len(kafka) {
			t.Errorf("%d keys, at least %d are due", len(resp.ApiKeys), len(kafka))
		}
		for _, k := range resp.ApiKeys {
			if want, ok := kafka[k.ApiKey]; ok && want != [2]int16{k.MinVersion, k.MaxVersion} {
				t.Errorf("%s: versions %d to %d, Kafka has %v", Name(k.ApiKey), k.MinVersion, k.MaxVersion, want)
			}
		}
	}
}

func TestApiVersionsChecksTheClient(t *testing.T) {
	n := newNode(t)
	for _, tc := range []struct {
		name    string
		cluster *string
		node    int32
		want    *kerr.Error
	}{
		{"franz-go", nil, -1, nil},
		{"a", nil, -1, nil},
		{"", nil, -1, kerr.InvalidRequest},
		{"-x", nil, -1, kerr.InvalidRequest},
		{"x-", nil, -1, kerr.InvalidRequest},
		{"a b", nil, -1, kerr.InvalidRequest},
		{"a", kmsg.StringPtr("test-cluster"), 1, nil},
		{"a", kmsg.StringPtr("other"), 1, kerr.RebootstrapRequired},
		{"a", kmsg.StringPtr("test-cluster"), 2, kerr.RebootstrapRequired},
		{"a", kmsg.StringPtr("test-cluster"), -1, kerr.InvalidRequest},
		{"a", nil, 1, kerr.InvalidRequest},
	} {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 5, tc.name, "1.0"
		req.ClusterID, req.NodeID = tc.cluster, tc.node
		expectCode(t, n.dial().ask(req).(*kmsg.ApiVersionsResponse).ErrorCode, tc.want)
	}
}

func TestUnknownRequestsCloseTheirConnectionOnly(t *testing.T) {
	n := newNode(t)
	good := n.dial()
	for _, head := range []string{
		"0063" + "0000", // no such key
		"7fff" + "0000",
		"8000" + "0000",
		"0018" + "0000", // AddPartitionsToTxn, not served
		"0001" + "0003", // Fetch, before ours
		"0001" + "0013", // Fetch, after ours
		"0003" + "ffff", // Metadata version -1
		"0012" + "ffff",
	} {
		w := n.dial()
		in, _ := hex.DecodeString("0000000c" + head + "00000001" + "ffff" + "0000")
		if _, err := w.Write(in); err != nil {
			t.Fatal(err)
		}
		w.expectClosed()
	}
	good.ask(kmsg.NewPtrApiVersionsRequest())
}

func TestLargeRequestsWithoutRecordsAreRefused(t *testing.T) {
	n := newNode(t)
	w := n.dial()
	in, _ := hex.DecodeString("02000000" + "0003" + "0000")
	if _, err := w.Write(in); err != nil {
		t.Fatal(err)
	}
	w.expectClosed()
}

// askOffset asks for one partition's offset.
func (w *wire) askOffset(version int16, timestamp int64, change func(*kmsg.ListOffsetsRequest)) kmsg.ListOffsetsResponseTopicPartition {
	w.t.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = version
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = "t"
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Timestamp = timestamp
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	if change != nil {
		change(req)
	}
	return w.ask(req).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
}

func TestListOffsets(t *testing.T) {
	n := newNode(t)
	p := n.topic("t", topicOptions{groupFsync: true})[0]
	w := n.dial()
	if got := w.askOffset(11, maxTimestampOffset, nil); got.Offset != -1 || got.ErrorCode != 0 {
		t.Errorf("largest timestamp of nothing: %+v", got)
	}
	// Timestamps out of order, in batches of one.
	for _, ts := range []int64{100, 300, 200, 50, 400} {
		var b record.Builder
		b.Append(ts, nil, nil, nil)
		w.produce("t", 9, n.build(&b, record.BuildOptions{}))
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	// One more above the high watermark, which nobody is told of.
	var b record.Builder
	b.Append(900, nil, nil, nil)
	w.produce("t", 9, n.build(&b, record.BuildOptions{}))
	if err := p.Log().SetStartOffset(1); err != nil {
		t.Fatal(err)
	}
	for version := int16(1); version <= 11; version++ {
		for _, tc := range []struct {
			timestamp     int64
			since         int16
			offset, found int64
		}{
			{latestOffset, 1, 5, -1},
			{earliestOffset, 1, 1, -1},
			{maxTimestampOffset, 7, 4, 400},
			{earliestLocalOffset, 8, 1, -1},
			{latestTieredOffset, 9, -1, -1},
			{earliestPendingUpload, 11, -1, -1},
			{0, 1, 1, 300},
			{101, 1, 1, 300},
			{300, 1, 1, 300},
			{301, 1, 4, 400},
			{401, 1, -1, -1},
		} {
			got := w.askOffset(version, tc.timestamp, nil)
			if version < tc.since {
				expectCode(t, got.ErrorCode, kerr.UnsupportedVersion)
				continue
			}
			if got.ErrorCode != 0 || got.Offset != tc.offset || got.Timestamp != tc.found {
				t.Errorf("version %d, timestamp %d: %+v", version, tc.timestamp, got)
			}
			if version >= 4 && got.Offset >= 0 && got.LeaderEpoch != 3 {
				t.Errorf("version %d, timestamp %d: leader epoch %d", version, tc.timestamp, got.LeaderEpoch)
			}
		}
	}
}

func TestListOffsetsErrors(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	w := n.dial()
	for epoch, want := range map[int32]*kerr.Error{3: nil, 2: kerr.FencedLeaderEpoch, 4: kerr.UnknownLeaderEpoch} {
		got := w.askOffset(6, latestOffset, func(r *kmsg.ListOffsetsRequest) { r.Topics[0].Partitions[0].CurrentLeaderEpoch = epoch })
		expectCode(t, got.ErrorCode, want)
	}
	got := w.askOffset(6, latestOffset, func(r *kmsg.ListOffsetsRequest) { r.Topics[0].Partitions[0].Partition = 9 })
	expectCode(t, got.ErrorCode, kerr.UnknownTopicOrPartition)
	got = w.askOffset(6, latestOffset, func(r *kmsg.ListOffsetsRequest) {
		r.Topics[0].Partitions = append(r.Topics[0].Partitions, r.Topics[0].Partitions[0])
	})
	expectCode(t, got.ErrorCode, kerr.InvalidRequest)
}

func TestOffsetForLeaderEpoch(t *testing.T) {
	n := newNode(t)
	p := n.topic("t", topicOptions{})[0]
	n.fill("t", "a", "b")
	if err := p.Lead(ledHere(5), n.clock.now()); err != nil {
		t.Fatal(err)
	}
	n.fill("t", "c")
	w := n.dial()
	for version := int16(2); version <= 4; version++ {
		for _, tc := range []struct {
			current, asked, epoch int32
			end                   int64
			want                  *kerr.Error
		}{
			{5, 3, 3, 2, nil}, {-1, 4, 3, 2, nil}, {-1, 5, 5, 3, nil}, {-1, 9, -1, -1, nil}, {-1, 1, 1, 0, nil},
			{4, 3, -1, -1, kerr.FencedLeaderEpoch}, {6, 3, -1, -1, kerr.UnknownLeaderEpoch},
		} {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			req.Version = version
			topic := kmsg.NewOffsetForLeaderEpochRequestTopic()
			topic.Topic = "t"
			part := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			part.CurrentLeaderEpoch, part.LeaderEpoch = tc.current, tc.asked
			topic.Partitions = append(topic.Partitions, part)
			req.Topics = append(req.Topics, topic)
			got := w.ask(req).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
			expectCode(t, got.ErrorCode, tc.want)
			if got.LeaderEpoch != tc.epoch || got.EndOffset != tc.end {
				t.Errorf("version %d, epoch %d: %+v", version, tc.asked, got)
			}
		}
	}
}

// member joins a cluster over a store of its own.
func member(t *testing.T) *cluster.Member {
	t.Helper()
	store, _, err := cluster.OpenEmbedded(filepath.Join(t.TempDir(), "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	log := slog.New(slog.DiscardHandler)
	c := cluster.NewController(log, store, cluster.NewMetadata(), nil, cluster.ControllerConfig{BrokerID: 1})
	m := cluster.NewMember(log, store, c, cluster.MemberConfig{})
	self := cluster.Registration{ClusterID: "test-cluster", Broker: cluster.Broker{ID: 1, Host: "one", Port: 9092}}
	if err := m.Join(t.Context(), self); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Leave(context.Background()) })
	return m
}

func TestInitProducerID(t *testing.T) {
	n := newNode(t)
	n.api.ProducerIDs = member(t).AllocateProducerIDs
	w := n.dial()
	var ids []int64
	for version := int16(0); version <= 5; version++ {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.ProducerID, req.ProducerEpoch = version, -1, -1
		resp := w.ask(req).(*kmsg.InitProducerIDResponse)
		if resp.ErrorCode != 0 || resp.ProducerID < 0 || resp.ProducerEpoch != 0 || slices.Contains(ids, resp.ProducerID) {
			t.Errorf("version %d: %+v after %v", version, resp, ids)
		}
		ids = append(ids, resp.ProducerID)
	}
	for id, want := range map[string]*kerr.Error{"": kerr.InvalidRequest, "txn": kerr.UnsupportedVersion} {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.TransactionalID = 5, kmsg.StringPtr(id)
		resp := w.ask(req).(*kmsg.InitProducerIDResponse)
		expectCode(t, resp.ErrorCode, want)
		if resp.ProducerID != -1 {
			t.Errorf("producer id %d with an error", resp.ProducerID)
		}
	}
	// No id is given twice, also over the end of a block.
	seen := map[int64]bool{}
	for range 2500 {
		id, err := n.api.producers.next(n.api.ProducerIDs)
		if err != nil || seen[id] || slices.Contains(ids, id) {
			t.Fatalf("id %d, %v", id, err)
		}
		seen[id] = true
	}
}

func TestForgetTopic(t *testing.T) {
	n := newNode(t)
	n.topic("t", topicOptions{})
	n.fill("t", "a")
	n.api.ForgetTopic("t")
	n.fill("t", "b") // counts again
	if !strings.HasPrefix(Name(keyProduce), "Produce") {
		t.Error(Name(keyProduce))
	}
}

// A request that is wide for nothing must not take memory out of proportion.
func TestWideRequestsAreRefused(t *testing.T) {
	wide := make([]byte, 40<<20) // topics without a name and without partitions
	for _, tc := range []struct {
		name   string
		decode func() error
	}{
		{"Produce", func() error {
			return new(produceRequest).decode(9, append([]byte{0, 0, 1, 0, 0, 0, 0, 0x80, 0x80, 0x80, 0x01}, wide...))
		}},
		{"Fetch", func() error {
			f := fetch{a: new(API), version: 12}
			head := make([]byte, 4+4+4+4+1+4+4)
			return f.decode(append(append(head, 0x80, 0x80, 0x80, 0x01), wide...))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := tc.decode(); !errors.Is(err, errMalformed) {
				t.Errorf("decoded with %v", err)
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 3*uint64(len(wide)) {
				t.Errorf("%d bytes for a request of %d", took, len(wide))
			}
		})
	}
}
