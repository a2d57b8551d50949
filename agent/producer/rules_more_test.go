package producer_test

import (
	"context"
	"errors"
	"flag"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/internal/testenv"
)

var leaderChanges = flag.Bool("kafka-cluster", false, "change leaders three times, and on three nodes of Apache Kafka, too (a minute)")

// headers are the batches of a topic's partition 0, without their records.
func headers(t *testing.T, addr, topic string) (out []record.Batch) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	meta, err := adm.Metadata(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	for next := int64(0); next < end.Offset; {
		req := kmsg.NewPtrFetchRequest()
		req.MaxBytes, req.MinBytes, req.MaxWaitMillis, req.SessionEpoch = 1<<20, 1, 100, -1
		p := kmsg.NewFetchRequestTopicPartition()
		p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = next, 1<<20, -1
		req.Topics = append(req.Topics, kmsg.FetchRequestTopic{Topic: topic, TopicID: meta.Topics[topic].ID, Partitions: []kmsg.FetchRequestTopicPartition{p}})
		resp, err := client.Broker(int(meta.Topics[topic].Partitions[0].Leader)).Request(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		got := &resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
			t.Fatal(err)
		}
		for raw := got.RecordBatches; len(raw) > 0; {
			b, rest, err := record.Next(raw)
			if err != nil {
				break
			}
			raw, next = rest, b.LastOffset()+1
			out = append(out, slices.Clone(b))
		}
	}
	return out
}

// leaveUnsent has batches in the journal that never reach a broker.
func leaveUnsent(t *testing.T, addr, topic string, log *memoryLog, values ...string) {
	t.Helper()
	var mute atomic.Bool
	w := &wire{refuse: mute.Load}
	s := through(t, addr, topic, log, w).open()
	s.prepare(producer.TopicSpec{})
	s.send("acked")
	s.wait()
	mute.Store(true)
	s.send(values...)
	s.until("it is in the journal", func() bool { return log.written() == 2 })
	s.k.Close()
	if log.unsettled() != 1 {
		t.Fatalf("%d batches unsettled", log.unsettled())
	}
}

// What a forgetful broker does not have is sent under the identity that it has in the journal: a request of the old process that still comes
// is then a repeat. New batches have one of their own.
func unsentAndForgotten(t *testing.T, addr string) {
	topic, log := topicName(t), newMemoryLog()
	leaveUnsent(t, addr, topic, log, numbers(0, 10)...)
	waitForgotten(t, addr, topic)
	s := newSender(t, addr, topic, log).open()
	s.wait()
	s.prepare(producer.TopicSpec{})
	s.sendNumbers(10, 20, 10)
	s.wait()
	if s.unknown > 0 {
		t.Errorf("%d unknown", s.unknown)
	}
	s.wants(addr, slices.Concat([]string{"acked"}, numbers(0, 20)))
	got := headers(t, addr, topic)
	if len(got) != 3 || got[0].ProducerID() != got[1].ProducerID() || got[1].BaseSequence() != 1 || got[2].ProducerID() == got[1].ProducerID() || got[2].BaseSequence() != 0 {
		for _, b := range got {
			t.Errorf("producer %d sequence %d records %d", b.ProducerID(), b.BaseSequence(), b.Count())
		}
	}
}

// Every start has a producer ID of its own for what is new: the same sequence with other content would be taken for a repeat, and lost.
func TestEachStartHasItsOwnProducer(t *testing.T) {
	eachBroker(t, func(t *testing.T, addr string) {
		topic, log := topicName(t), newMemoryLog()
		for run := range 3 {
			s := newSender(t, addr, topic, log).open()
			s.prepare(producer.TopicSpec{})
			s.sendNumbers(run*20, run*20+20, 10)
			s.wait()
			s.k.Close()
		}
		seen := map[int64]int{}
		for _, b := range headers(t, addr, topic) {
			seen[b.ProducerID()]++
		}
		if len(seen) != 3 {
			t.Errorf("batches by producer: %v", seen)
		}
	})
}

// The epoch of a journalled batch's producer was raised meanwhile, so that brokers refuse the batch, stored or not.
func TestEpochRaised(t *testing.T) {
	for _, stored := range []bool{true, false} {
		t.Run(map[bool]string{true: "stored", false: "not-stored"}[stored], func(t *testing.T) {
			eachBroker(t, func(t *testing.T, addr string) {
				topic, log := topicName(t), newMemoryLog()
				want := []string{"acked"}
				if stored {
					leaveUnanswered(t, addr, topic, log, 1, numbers(0, 10), nil)
					want = slices.Concat([]string{"acked a"}, numbers(0, 10), []string{"raised"}, numbers(10, 20))
				} else {
					leaveUnsent(t, addr, topic, log, numbers(0, 10)...)
					want = slices.Concat(want, []string{"raised"}, numbers(0, 20))
				}
				raiseEpoch(t, addr, topic)
				s := newSender(t, addr, topic, log).open()
				s.wait()
				s.prepare(producer.TopicSpec{})
				s.sendNumbers(10, 20, 10)
				s.wait()
				if s.unknown > 0 || len(s.refused) > 0 {
					t.Errorf("%d unknown, %d refused", s.unknown, len(s.refused))
				}
				s.wants(addr, want)
			})
		})
	}
}

// raiseEpoch stores a batch of the topic's first producer under the next epoch.
func raiseEpoch(t *testing.T, addr, topic string) {
	t.Helper()
	of := headers(t, addr, topic)[0]
	var build record.Builder
	build.Append(time.Now().UnixMilli(), nil, []byte("raised"), nil)
	b, err := build.Build(record.BuildOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.SetProducer(of.ProducerID(), of.ProducerEpoch()+1, 0)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	meta, err := kadm.NewClient(client).Metadata(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 5000
	req.Topics = append(req.Topics, kmsg.ProduceRequestTopic{Topic: topic, TopicID: meta.Topics[topic].ID, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: b}}})
	resp, err := client.Broker(int(meta.Topics[topic].Partitions[0].Leader)).Request(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode); err != nil {
		t.Fatal(err)
	}
}

// The addresses lead to another cluster, which has a topic of the same name: whether the first one had stored the batches cannot be known.
func TestOtherCluster(t *testing.T) {
	kafka, ours := testenv.Kafka(t).Addr, startSluice(t, nil)
	for name, way := range map[string][2]string{"to sluice": {kafka, ours}, "to kafka": {ours, kafka}} {
		t.Run(name, func(t *testing.T) {
			topic, log := topicName(t), newMemoryLog()
			leaveUnanswered(t, way[0], topic, log, 1, numbers(0, 10), nil)
			s := newSender(t, way[1], topic, log)
			made, err := admin(t, way[1]).CreateTopic(t.Context(), 1, 1, nil, topic)
			if err != nil || made.Err != nil {
				t.Fatal(err, made.Err)
			}
			s.open()
			s.wait()
			s.prepare(producer.TopicSpec{})
			s.sendNumbers(10, 20, 10)
			s.wait()
			if s.unknown != 1 {
				t.Errorf("%d unknown", s.unknown)
			}
			s.wants(way[1], numbers(0, 20))
		})
	}
}

// The producer is forgotten, and the log was compacted: that a batch is not found says nothing.
func forgottenAndCompacted(t *testing.T, addr string) {
	topic, log := topicName(t), newMemoryLog()
	var answers atomic.Int32
	w := &wire{cut: func() bool { return answers.Add(1) > 1 }}
	s := through(t, addr, topic, log, w).open()
	s.prepare(producer.TopicSpec{Config: map[string]string{"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}})
	s.send("k-acked")
	s.wait()
	s.send("k-a", "k-b")
	s.until("the answer was cut off", func() bool { return answers.Load() > 1 })
	s.k.Close()
	waitForgotten(t, addr, topic) // while it is remembered its last batch stays, if without records
	compactAway(t, addr, topic, "k-a", "k-b")
	r := newSender(t, addr, topic, log).open()
	r.wait()
	if r.unknown != 1 {
		t.Errorf("%d unknown", r.unknown)
	}
}

// compactAway writes newer records of keys until the older ones are gone.
func compactAway(t *testing.T, addr, topic string, keys ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DisableIdempotentWrite(), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, k := range keys {
			if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte(k), Value: []byte("newer")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if got := headers(t, addr, topic); !slices.ContainsFunc(got, func(b record.Batch) bool { return b.BaseOffset() <= 2 && b.LastOffset() >= 1 }) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the log is not compacted")
		}
	}
}

// Leaders are killed and come back while batches are on their way, on three nodes.
func TestLeaderChanges(t *testing.T) {
	t.Run("sluice", func(t *testing.T) {
		changeLeaders(t, testenv.StartCluster(t, testenv.ZooKeeper(t).Addr, testenv.ClusterConfig{Properties: map[string]string{"zookeeper.session.timeout.ms": "2000"}}))
	})
	t.Run("kafka", func(t *testing.T) {
		if !*leaderChanges {
			t.Skip("with -args -kafka-cluster only: three JVMs")
		}
		changeLeaders(t, testenv.StartKafkaCluster(t, testenv.ClusterConfig{Properties: map[string]string{"broker.session.timeout.ms": "2000"}}))
	})
}

func changeLeaders(t *testing.T, c *testenv.Cluster) {
	topic, log := topicName(t), newMemoryLog()
	adm := adminOf(t, c.Addrs()...)
	made, err := adm.CreateTopic(t.Context(), 1, 3, map[string]*string{"min.insync.replicas": kadm.StringPtr("2")}, topic)
	if err != nil || made.Err != nil {
		t.Fatal(err, made.Err)
	}
	s := newSender(t, c.Addrs()[0], topic, log)
	s.cfg.Client = []kgo.Opt{kgo.SeedBrokers(c.Addrs()...)}
	s.open()
	next, rounds := 0, 1
	if *leaderChanges {
		rounds = 3
	}
	for range rounds {
		s.sendNumbers(next, next+500, 10)
		killed := c.Node(leaderOf(t, adm, topic))
		killed.Kill()
		s.sendNumbers(next+500, next+1000, 10)
		next += 1000
		s.wait()
		if rounds > 1 {
			if err := killed.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			waitInSync(t, adm, topic, 3)
		}
	}
	if s.unknown > 0 {
		t.Errorf("%d unknown", s.unknown)
	}
	s.wants(c.Node(leaderOf(t, adm, topic)).Addr, numbers(0, next))
}

func adminOf(t *testing.T, addrs ...string) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

func leaderOf(t *testing.T, adm *kadm.Client, topic string) int32 {
	t.Helper()
	meta, err := adm.Metadata(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return meta.Topics[topic].Partitions[0].Leader
}

func waitInSync(t *testing.T, adm *kadm.Client, topic string, replicas int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		meta, err := adm.Metadata(ctx, topic)
		if err == nil && len(meta.Topics[topic].Partitions[0].ISR) == replicas {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(errors.Join(err, errors.New("the replicas are not in sync")))
		}
	}
}
