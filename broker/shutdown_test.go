package broker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Shutdown answers at once what waits for records or for other members, and
// acknowledges what waits for the disk.
func TestShutdownAnswersWhatWaits(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	produce(t, n.client(t), "t", 0, 10)

	fetch := kmsg.NewPtrFetchRequest()
	fetch.MaxWaitMillis, fetch.MinBytes, fetch.MaxBytes = 60_000, 1<<20, 1<<20
	ft := kmsg.NewFetchRequestTopic()
	ft.Topic, ft.TopicID = "t", n.metadata.Image().Topic("t").ID
	fp := kmsg.NewFetchRequestTopicPartition()
	fp.FetchOffset, fp.PartitionMaxBytes = 10, 1<<20
	ft.Partitions = append(ft.Partitions, fp)
	fetch.Topics = append(fetch.Topics, ft)

	waiting := n.client(t)
	if err := waiting.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := waiting.Broker(1).Request(t.Context(), fetch)
		answered <- err
	}()
	member := n.client(t, kgo.ConsumeTopics("t"), kgo.ConsumerGroup("g"))
	consume(t, member, 10)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begun := time.Now()
	if err := n.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if err := <-answered; err != nil {
		t.Logf("the fetch that waited ended with %v", err)
	}
	if n = startNode(t, cfg); n.recovered.unclean.Load() != 0 {
		t.Error("the stop was not clean")
	}
}

// Every record that a stop acknowledged is there, and only those that were sent.
func TestShutdownUnderLoad(t *testing.T) {
	cfg := testConfig(t)
	n := startNode(t, cfg)
	n.createTopic(t, "t", 1, nil)
	cl := n.client(t, kgo.ProducerLinger(0))
	var mu sync.Mutex
	acked := 0
	var promised sync.WaitGroup
	promised.Add(5000)
	for range 5000 {
		cl.Produce(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}, func(_ *kgo.Record, err error) {
			defer promised.Done()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				acked++
			}
		})
	}
	eventually(t, "some acknowledged", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return acked > 0
	})
	n.stop(t)
	cl.Close() // fails the rest
	promised.Wait()
	n = startNode(t, cfg)
	end := n.partitions.Get("t", 0).HighWatermark()
	if end < int64(acked) || end > 5000 {
		t.Errorf("%d acknowledged, %d in the log", acked, end)
	}
	if n.recovered.unclean.Load() != 0 {
		t.Error("the stop was not clean")
	}
}
