package broker

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/internal/record"
)

// leaderOf is who leads the one partition of a topic, and how its broker is reached.
func (bs *brokers) leaderOf(topic string) (p cluster.Partition, leader cluster.Broker) {
	bs.t.Helper()
	im := bs.running()[0].metadata.Image()
	p, _ = im.Partition(topic, 0)
	leader, live := im.Broker(p.Leader)
	if !live {
		bs.t.Fatalf("%s is led by %d", topic, p.Leader)
	}
	return p, leader
}

// follower is a broker that has a replica of the one partition of a topic and does not lead it.
func (bs *brokers) follower(topic string) *node {
	bs.t.Helper()
	st, _ := bs.leaderOf(topic)
	for _, id := range st.Replicas {
		if n := bs.nodes[id-1]; id != st.Leader && n != nil {
			return n
		}
	}
	bs.t.Fatalf("%s has no follower: %+v", topic, st)
	return nil
}

// Where nothing more is written, a follower learns that the last record is committed
// with the answer to the fetch that waits for more, as in Kafka: within the time that a
// fetch waits.
func TestIdleFollowerLearnsTheHighWatermark(t *testing.T) {
	const wait = time.Second
	bs := startBrokers(t, 2, func(cfg *Config) { cfg.ReplicaFetchWaitMax = wait })
	bs.createTopic("t", 1, 2, nil)
	bs.await("in sync", inSync("t", 2))
	p := bs.follower("t").partitions.Get("t", 0)
	produce(t, bs.client(), "t", 0, 1)
	begun := time.Now()
	for p.HighWatermark() < 1 {
		if time.Since(begun) > wait+2*time.Second {
			t.Fatalf("after %v the follower's high watermark is %d", time.Since(begun), p.HighWatermark())
		}
		<-time.After(time.Millisecond)
	}
	t.Logf("after %v", time.Since(begun))
}

// Who asks the wrong broker is told the right one and how to reach it (KIP-951), so
// that it need not ask for metadata.
func TestTheLeaderIsNamedInAnswers(t *testing.T) {
	bs := startBrokers(t, 2)
	bs.createTopic("t", 1, 1, nil)
	bs.await("known", inSync("t", 1))
	st, leader := bs.leaderOf("t")
	other := bs.nodes[2-st.Leader] // brokers 1 and 2
	cl := other.client(t, kgo.DisableIdempotentWrite())
	ask := func(req kmsg.Request) kmsg.Response {
		t.Helper()
		resp, err := cl.Broker(int(other.cfg.NodeID)).Request(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	check := func(what string, code int16, id, epoch int32, at map[int32]string) {
		t.Helper()
		if want := fmt.Sprintf("%s:%d", leader.Host, leader.Port); code != kerr.NotLeaderForPartition.Code || id != st.Leader || epoch != st.LeaderEpoch || at[id] != want {
			t.Errorf("%s is answered with code %d, leader %d in epoch %d, brokers %v; want %+v at %s", what, code, id, epoch, at, st, want)
		}
	}

	var b record.Builder
	b.Append(time.Now().UnixMilli(), nil, []byte("v"), nil)
	batch, err := b.Build(record.BuildOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := bs.nodes[0].metadata.Image().Topic("t").ID
	produce := kmsg.NewPtrProduceRequest()
	produce.Acks, produce.TimeoutMillis = -1, 1000
	pt := kmsg.NewProduceRequestTopic()
	pt.Topic, pt.TopicID = "t", id
	pp := kmsg.NewProduceRequestTopicPartition()
	pp.Records = batch
	pt.Partitions = append(pt.Partitions, pp)
	produce.Topics = append(produce.Topics, pt)
	produced := ask(produce).(*kmsg.ProduceResponse)
	at := map[int32]string{}
	for _, b := range produced.Brokers {
		at[b.NodeID] = fmt.Sprintf("%s:%d", b.Host, b.Port)
	}
	one := produced.Topics[0].Partitions[0]
	check("a produce", one.ErrorCode, one.CurrentLeader.LeaderID, one.CurrentLeader.LeaderEpoch, at)

	fetch := kmsg.NewPtrFetchRequest()
	fetch.MaxBytes, fetch.ReplicaID = 1<<20, -1
	ft := kmsg.NewFetchRequestTopic()
	ft.Topic, ft.TopicID = "t", id
	fp := kmsg.NewFetchRequestTopicPartition()
	fp.CurrentLeaderEpoch, fp.PartitionMaxBytes = st.LeaderEpoch, 1<<20
	ft.Partitions = append(ft.Partitions, fp)
	fetch.Topics = append(fetch.Topics, ft)
	fetched := ask(fetch).(*kmsg.FetchResponse)
	clear(at)
	for _, b := range fetched.Brokers {
		at[b.NodeID] = fmt.Sprintf("%s:%d", b.Host, b.Port)
	}
	got := fetched.Topics[0].Partitions[0]
	check("a fetch", got.ErrorCode, got.CurrentLeader.LeaderID, got.CurrentLeader.LeaderEpoch, at)
}

// An idempotent producer writes on while a follower dies, is taken out of the in-sync
// replicas, comes back and is let in again: each record is there once and in order, on
// all replicas.
func TestIdempotentProducerOverISRChanges(t *testing.T) {
	bs := startBrokers(t, 3)
	bs.createTopic("t", 1, 3, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")})
	bs.await("in sync", inSync("t", 3))
	cl := bs.client(kgo.RequiredAcks(kgo.AllISRAcks()), kgo.MaxBufferedRecords(100), kgo.ProducerLinger(0))
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	sent := 0
	writing.Go(func() {
		for ; ctx.Err() == nil; sent++ {
			cl.Produce(t.Context(), &kgo.Record{Topic: "t", Value: fmt.Appendf(nil, "%06d", sent)}, func(r *kgo.Record, err error) {
				if err != nil {
					t.Errorf("%s: %v", r.Value, err)
				}
			})
		}
	})
	dying := bs.follower("t").cfg.NodeID
	bs.nodes[dying-1].abort()
	bs.nodes[dying-1] = nil
	bs.await("taken out", inSync("t", 2))
	bs.start(dying)
	bs.await("let in", inSync("t", 3))
	cancel()
	writing.Wait()
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	records := consume(t, bs.client(kgo.ConsumeTopics("t")), sent)
	for i, r := range records {
		if string(r.Value) != fmt.Sprintf("%06d", i) {
			t.Fatalf("record %d is %s", i, r.Value)
		}
	}
	if len(records) != sent {
		t.Errorf("%d records of %d", len(records), sent)
	}
}

// A replica that is moved comes at the rate that was set, not faster and not much slower.
func TestReassignmentIsThrottled(t *testing.T) {
	const rate, size = 1 << 20, 4 << 20
	bs := startBrokers(t, 2, func(cfg *Config) { cfg.ReplicaFetchPartitionBytesMax, cfg.ReplicaFetchBytesMax = 64<<10, 64<<10 })
	bs.createTopic("t", 1, 1, map[string]*string{
		"leader.replication.throttled.replicas":   kadm.StringPtr("*"),
		"follower.replication.throttled.replicas": kadm.StringPtr("*"),
	})
	cl := bs.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	admin := kadm.NewClient(cl)
	set := []kadm.AlterConfig{
		{Name: leaderThrottleProperty, Value: kadm.StringPtr(fmt.Sprint(rate))},
		{Name: followerThrottleProperty, Value: kadm.StringPtr(fmt.Sprint(rate))},
	}
	if done, err := admin.AlterBrokerConfigs(t.Context(), set); err != nil || done[0].Err != nil {
		t.Fatalf("%v, %+v", err, done)
	}
	value := bytes.Repeat([]byte("x"), 16<<10)
	for range size / len(value) {
		cl.Produce(t.Context(), &kgo.Record{Topic: "t", Value: value}, nil)
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	st, _ := bs.leaderOf("t")
	to := 3 - st.Leader
	var asked kadm.AlterPartitionAssignmentsReq
	asked.Assign("t", 0, []int32{to})
	begun := time.Now()
	if done, err := admin.AlterPartitionAssignments(t.Context(), asked); err != nil || done.Error() != nil {
		t.Fatal(err, done.Error())
	}
	bs.await("moved", func(im *cluster.Image) bool {
		p, _ := im.Partition("t", 0)
		return p.Leader == to && len(p.Replicas) == 1 && !p.Reassigning()
	})
	took := time.Since(begun)
	t.Logf("%d bytes in %v", size, took)
	// A second's worth may come at once.
	if least := time.Duration(float64(size-rate-128<<10) / rate * float64(time.Second)); took < least || took > 3*least {
		t.Errorf("%d bytes at %d a second took %v", size, rate, took)
	}
	if end := bs.nodes[to-1].partitions.Get("t", 0).Log().EndOffset(); end != size/int64(len(value)) {
		t.Errorf("the new replica has %d records", end)
	}
}

// A leader that stays while another replica of its partition is moved takes out the
// old one, also where the controller is another broker: it learns who is to go with the
// answer that lets the new one in.
func TestALeaderOutlivesAReassignment(t *testing.T) {
	bs := startBrokers(t, 3)
	bs.createTopic("t", 6, 2, nil)
	bs.await("in sync", inSync("t", 2))
	produce(t, bs.client(), "t", 0, 600)
	was := bs.nodes[0].metadata.Image()
	var asked kadm.AlterPartitionAssignmentsReq
	elsewhere := 0
	for i, p := range was.Topic("t").Partitions {
		asked.Assign("t", int32(i), []int32{p.Leader, 6 - p.Replicas[0] - p.Replicas[1]})
		if p.Leader != was.ControllerID {
			elsewhere++
		}
	}
	if elsewhere == 0 {
		t.Fatal("the controller leads all")
	}
	if done, err := kadm.NewClient(bs.client()).AlterPartitionAssignments(t.Context(), asked); err != nil || done.Error() != nil {
		t.Fatal(err, done.Error())
	}
	bs.await("moved", func(im *cluster.Image) bool {
		for i, p := range im.Topic("t").Partitions {
			before := was.Topic("t").Partitions[i]
			if p.Reassigning() || len(p.Replicas) != 2 || p.Leader != before.Leader || p.LeaderEpoch != before.LeaderEpoch {
				return false
			}
		}
		return true
	})
	bs.await("in sync", inSync("t", 2))
	if got := consume(t, bs.client(kgo.ConsumeTopics("t")), 600); len(got) != 600 {
		t.Errorf("%d records", len(got))
	}
}

// All brokers may be stopped at once: none waits for another that stops as well.
func TestAllBrokersStopAtOnce(t *testing.T) {
	bs := startBrokers(t, 3, func(cfg *Config) { cfg.ControlledShutdownBackoff = 0 }) // Kafka's 5 s
	bs.createTopic("t", 6, 3, nil)
	bs.await("in sync", inSync("t", 3))
	produce(t, bs.client(), "t", 0, 100)
	begun := time.Now()
	var stopping sync.WaitGroup
	for i, n := range bs.nodes {
		bs.nodes[i] = nil
		stopping.Go(func() { n.stop(t) })
	}
	stopping.Wait()
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	for id := int32(1); id <= 3; id++ {
		if n := bs.start(id); n.recovered.unclean.Load() != 0 {
			t.Errorf("broker %d did not stop cleanly", id)
		}
	}
	bs.await("in sync again", inSync("t", 3))
	if got := consume(t, bs.client(kgo.ConsumeTopics("t")), 100); len(got) != 100 {
		t.Errorf("%d records", len(got))
	}
}
