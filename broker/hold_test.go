package broker

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker/coordinator/group"
)

// Retention keeps what a group that is waited for has not committed, and all of
// it while the group has committed nothing.
func TestRetentionWaitsForGroups(t *testing.T) {
	cfg := testConfig(t)
	cfg.HoldFor = map[string][]string{"held": {"a", "b"}}
	var offset atomic.Int64
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	n := startNode(t, cfg)
	small := map[string]*string{"segment.bytes": ptr("1048576"), "retention.ms": ptr("3600000"), "retention.bytes": ptr("1")}
	for _, topic := range []string{"held", "free"} {
		n.createTopic(t, topic, 1, small)
		cl := n.client(t, kgo.ProducerBatchCompression(kgo.NoCompression()))
		for range 6 { // each fills a segment
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: bytes.Repeat([]byte("x"), 600_000)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	offset.Store(int64(2 * time.Hour))
	held := n.partitions.Get("held", 0)
	commit := func(group string, at int64) {
		t.Helper()
		offsets := kadm.Offsets{}
		offsets.AddOffset("held", 0, at, -1)
		if err := n.admin(t).CommitAllOffsets(t.Context(), group, offsets); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, wantStart int64) {
		t.Helper()
		n.retentionStep()
		if start := held.Log().StartOffset(); start != wantStart {
			t.Errorf("%s: the log starts at %d, want %d", what, start, wantStart)
		}
		expired, err := held.Log().Expired(n.cfg.Now(), held.HighWatermark())
		if err != nil {
			t.Fatal(err)
		}
		if got := series(t, n.reg, "sluice_broker_held_bytes")["topic=held "]; got != float64(bytesOf(expired)) || wantStart == 0 && got == 0 {
			t.Errorf("%s: %v bytes held, want %d; %v", what, got, bytesOf(expired), series(t, n.reg, "sluice_broker_held_bytes"))
		}
	}
	check("no offsets topic", 0)
	if start := n.partitions.Get("free", 0).Log().StartOffset(); start == 0 {
		t.Error("a topic that no group is waited for in keeps all")
	}
	commit("other", 6)
	check("other groups do not count", 0)
	commit("a", 4)
	check("one of the groups has not committed", 0)
	commit("b", 2)
	check("the slower group counts", 2)
	commit("b", 6)
	check("now the other one", 4)

	// After a restart the offsets are loaded first.
	n.abort()
	n = startNode(t, cfg)
	held = n.partitions.Get("held", 0)
	commit("a", 6)
	n.retentionStep()
	if start := held.Log().StartOffset(); start < 5 {
		t.Errorf("all is committed and the log starts at %d", start)
	}
}

// While the offsets cannot be told, because no coordinator has them, all stays.
func TestRetentionWaitsForOffsetsToLoad(t *testing.T) {
	cfg := testConfig(t)
	cfg.HoldFor = map[string][]string{"t": {"g"}}
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 10)
	offsets := kadm.Offsets{}
	offsets.AddOffset("t", 0, 10, -1)
	if err := n.admin(t).CommitAllOffsets(t.Context(), "g", offsets); err != nil {
		t.Fatal(err)
	}
	p := n.partitions.Get("t", 0)
	if limit := n.readHolds().limit(p); limit != 10 {
		t.Errorf("limit %d", limit)
	}
	epoch := n.partitions.Get("__consumer_offsets", group.PartitionFor("g", embeddedOffsetsPartitions)).LeaderEpoch()
	n.groups.Resign(group.PartitionFor("g", embeddedOffsetsPartitions), epoch+1)
	if limit := n.readHolds().limit(p); limit != 0 {
		t.Errorf("limit %d without a coordinator", limit)
	}
}
