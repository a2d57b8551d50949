package compat

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var kills = flag.Int("kills", 5, "how often TestKilledUnderLoad kills the broker")

const (
	killProducers   = 4    // each with a partition of its own
	killRecordsMin  = 2000 // acknowledged between two kills, at least
	killRecordsSpan = 4000 // and so many more at random
	killRecordBytes = 200
	killBuffered    = 500 // records that a producer holds unacknowledged
)

// TestKilledUnderLoad kills the broker again and again while idempotent
// producers write with acks=all. In the end each partition must hold what its
// producer sent: every record once, in order, at the offset that it was
// acknowledged with.
func TestKilledUnderLoad(t *testing.T) {
	b := startBroker(t)
	makeTopic(t, b, "survivors", killProducers)
	var acknowledged atomic.Int64
	producing, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	sent := make([]int, killProducers)
	for p := range sent {
		client := killProducer(t, b)
		wg.Go(func() { sent[p] = produceUntil(producing, t, client, int32(p), &acknowledged) })
	}

	var down []time.Duration
	for range *kills {
		awaitMore(t, &acknowledged, killRecordsMin+rand.Int64N(killRecordsSpan))
		b.Kill()
		start := time.Now()
		b.restart(t)
		down = append(down, time.Since(start))
		if t.Failed() {
			break
		}
	}
	awaitMore(t, &acknowledged, killRecordsMin)
	stop()
	wg.Wait()

	slices.Sort(down)
	t.Logf("%d kills, %d records acknowledged; the broker served again after %s in the median, %s at most",
		len(down), acknowledged.Load(), down[len(down)/2].Round(time.Millisecond), down[len(down)-1].Round(time.Millisecond))
	for p, n := range sent {
		checkSequence(t, b, int32(p), n)
	}
}

func killProducer(t *testing.T, b *broker) *kgo.Client {
	return newClient(t, b,
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(killBuffered),
		kgo.ProducerLinger(0),
		kgo.UnknownTopicRetries(-1),
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }))
}

// produceUntil sends the numbers from 0 to its partition until ctx ends, waits
// until all are acknowledged, and returns how many there were.
func produceUntil(ctx context.Context, t *testing.T, client *kgo.Client, partition int32, acknowledged *atomic.Int64) int {
	padding := make([]byte, killRecordBytes)
	n := 0
	for ; ctx.Err() == nil; n++ {
		want := int64(n)
		record := &kgo.Record{Topic: "survivors", Partition: partition, Key: []byte(strconv.Itoa(n)), Value: padding}
		client.Produce(t.Context(), record, func(r *kgo.Record, err error) {
			if err != nil || r.Offset != want {
				t.Errorf("record %d of partition %d: offset %d, %v", want, partition, r.Offset, err)
			}
			acknowledged.Add(1)
		})
	}
	flush, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	if err := client.Flush(flush); err != nil {
		t.Errorf("partition %d: flush: %v", partition, err)
	}
	return n
}

func awaitMore(t *testing.T, acknowledged *atomic.Int64, n int64) {
	t.Helper()
	until := acknowledged.Load() + n
	eventually(t, fmt.Sprintf("%d more records acknowledged", n), func() bool { return acknowledged.Load() >= until })
}

func checkSequence(t *testing.T, b *broker, partition int32, n int) {
	t.Helper()
	client := newClient(t, b, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"survivors": {partition: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	next := 0
	for next < n {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("partition %d: %d of %d records: %v", partition, next, n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != int64(next) || string(r.Key) != strconv.Itoa(next) {
				t.Fatalf("partition %d: record %s at offset %d, want %d", partition, r.Key, r.Offset, next)
			}
			next++
		})
	}
	ends, err := newAdmin(t, b).ListEndOffsets(ctx, "survivors")
	if end, _ := ends.Lookup("survivors", partition); err != nil || end.Offset != int64(n) {
		t.Errorf("partition %d ends at %d, %d records were sent (%v)", partition, end.Offset, n, err)
	}
}
