package broker

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/broker/cluster"
)

// eventually polls a condition that another process or goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// Three members share six partitions evenly; every record comes to one of them.
func TestGroupOfThreeIsBalanced(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "shared", 6, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	assigned := make([]int, 3)
	var members sync.WaitGroup
	for m := range 3 {
		count := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
			return func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
				mu.Lock()
				defer mu.Unlock()
				assigned[m] += by * len(got["shared"])
			}
		}
		cl := n.client(t, kgo.ConsumeTopics("shared"), kgo.ConsumerGroup("three"),
			kgo.OnPartitionsAssigned(count(1)), kgo.OnPartitionsRevoked(count(-1)), kgo.OnPartitionsLost(count(-1)))
		members.Go(func() {
			for ctx.Err() == nil {
				fetches := cl.PollFetches(ctx)
				mu.Lock()
				fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
				mu.Unlock()
			}
		})
	}
	eventually(t, "two partitions for each member", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return assigned[0] == 2 && assigned[1] == 2 && assigned[2] == 2
	})
	producer := n.client(t, kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	produce(t, producer, "shared", 0, 3000)
	eventually(t, "all records consumed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == 3000
	})
	for value, times := range seen {
		if times != 1 {
			t.Errorf("%s came %d times", value, times)
		}
	}
	described, err := n.admin(t).DescribeGroups(t.Context(), "three")
	if err != nil || len(described["three"].Members) != 3 || described["three"].State != "Stable" {
		t.Errorf("%+v, %v", described, err)
	}
	cancel()
	members.Wait()
}

// Committed offsets are there after a clean stop and after a kill, and a group
// goes on from them.
func TestCommittedOffsetsSurvive(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 100)
	commit(t, n, "g", "t", 40)
	for _, stop := range []func(){func() { n.stop(t) }, func() { n.abort() }} {
		stop()
		n = startNode(t, cfg)
		offsets, err := n.admin(t).FetchOffsets(t.Context(), "g")
		if o, ok := offsets.Lookup("t", 0); err != nil || !ok || o.At != 40 {
			t.Fatalf("%+v, %v", offsets, err)
		}
	}
	first := consume(t, n.client(t, kgo.ConsumeTopics("t"), kgo.ConsumerGroup("g")), 60)[0]
	if first.Offset != 40 {
		t.Errorf("the group goes on at %d", first.Offset)
	}
	if partitions := len(n.metadata.Image().Topic(cluster.OffsetsTopic).Partitions); partitions != embeddedOffsetsPartitions {
		t.Errorf("%d partitions of the offsets topic", partitions)
	}
}

func commit(t *testing.T, n *node, group, topic string, offset int64) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, offset, -1)
	if err := n.admin(t).CommitAllOffsets(t.Context(), group, offsets); err != nil {
		t.Fatal(err)
	}
}

// series returns the values of a metric by one of its labels' values.
func series(t *testing.T, reg *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			out[labels(m)] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func labels(m *dto.Metric) (out string) {
	for _, l := range m.GetLabel() {
		out += l.GetName() + "=" + l.GetValue() + " "
	}
	return out
}

func TestLagIsTrueOrAbsent(t *testing.T) {
	cfg := testConfig(t)
	now := time.Now()
	cfg.Now = func() time.Time { return now.Add(30 * time.Second) }
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	n.createTopic(t, "empty", 1, nil)
	want := func(what string, records, seconds map[string]float64) {
		t.Helper()
		gotRecords, gotSeconds := series(t, n.reg, "sluice_group_lag_records"), series(t, n.reg, "sluice_group_lag_seconds")
		if fmt.Sprint(gotRecords) != fmt.Sprint(records) || fmt.Sprint(gotSeconds) != fmt.Sprint(seconds) {
			t.Errorf("%s: lag is %v records, %v seconds; want %v, %v", what, gotRecords, gotSeconds, records, seconds)
		}
	}
	cl := n.client(t)
	timed := func(ago time.Duration) *kgo.Record {
		return &kgo.Record{Topic: "t", Value: []byte("x"), Timestamp: now.Add(-ago).Truncate(time.Millisecond)}
	}
	if err := cl.ProduceSync(t.Context(), timed(60*time.Second)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), timed(10*time.Second)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	now = now.Truncate(time.Millisecond)
	series := "group=g partition=0 topic=t "
	want("never committed", nil, nil)
	commit(t, n, "g", "t", 0)
	want("nothing consumed", map[string]float64{series: 2}, map[string]float64{series: 90})
	commit(t, n, "g", "t", 1)
	want("one consumed", map[string]float64{series: 1}, map[string]float64{series: 40})
	commit(t, n, "g", "t", 2)
	want("all consumed", map[string]float64{series: 0}, map[string]float64{series: 0})
	commit(t, n, "g", "t", 7)
	want("committed ahead", nil, nil)
	commit(t, n, "g", "empty", 0)
	want("empty topic", map[string]float64{"group=g partition=0 topic=empty ": 0}, map[string]float64{"group=g partition=0 topic=empty ": 0})
	commit(t, n, "g", "t", 1)
	if _, err := n.admin(t).DeleteTopics(t.Context(), "t", "empty"); err != nil {
		t.Fatal(err)
	}
	want("topics deleted", nil, nil)
	n.createTopic(t, "t", 1, nil)
	if err := n.client(t).ProduceSync(t.Context(), timed(0)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	want("topic made again", nil, nil)
}
