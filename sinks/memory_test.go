package sinks

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// produceMegabytes writes records of 10 kB round the partitions.
func (r *rig) produceMegabytes(n int, partitions int32) (records int) {
	r.Helper()
	value := strings.Repeat("x", 10_000)
	for i := range n * 100 {
		r.client.Produce(r.Context(), &kgo.Record{Topic: r.topic, Partition: int32(i) % partitions, Value: fmt.Appendf(nil, "%s-%d", value, i)}, nil)
	}
	if err := r.client.Flush(r.Context()); err != nil {
		r.Fatal(err)
	}
	return n * 100
}

// TestOneStuckPartitionLeavesTheOthersRoom fails all writes of one partition: the others' backlog, many times the memory, is stored all the same.
func TestOneStuckPartitionLeavesTheOthersRoom(t *testing.T) {
	const partitions = 4
	r := newRig(t, partitions, "")
	n := r.produceMegabytes(40, partitions)
	sink := newMemSink(true)
	var mended atomic.Bool
	sink.fail = func(b *Batch, _ bool) error {
		if b.Claim.Partition == 0 && !mended.Load() {
			return errors.New("stuck")
		}
		return nil
	}
	w := r.start(sink, Config{MemoryBytesMax: 4 << 20, FetchBytesMax: 1 << 20, BackoffMax: 200 * time.Millisecond})
	r.await("the others' rows", func() bool { return sink.total() == n/partitions*(partitions-1) })
	st, err := w.Status(t.Context())
	if err != nil || len(st.Partitions) != partitions {
		t.Fatalf("%+v %v", st, err)
	}
	stuck := st.Partitions[0]
	if stuck.Attempts == 0 || !strings.Contains(stuck.Why, "stuck") && stuck.State == StateRetrying || stuck.ClaimLo != 0 {
		t.Errorf("%+v", stuck)
	}
	mended.Store(true)
	r.await("all rows", func() bool { return sink.total() == n })
	r.stop(w)
}

// TestClaimsLargerThanTheMemoryAreReplayed leaves an open claim in each partition, together many times the next worker's memory: it fetches them one by one.
func TestClaimsLargerThanTheMemoryAreReplayed(t *testing.T) {
	const partitions = 6
	r := newRig(t, partitions, "")
	n := r.produceMegabytes(36, partitions)
	sink := newMemSink(true)
	down := errors.New("down")
	var failing atomic.Bool
	failing.Store(true)
	sink.fail = func(*Batch, bool) error {
		if failing.Load() {
			return down
		}
		return nil
	}
	spec := r.pipe.Sinks[0]
	spec.Batch.Rows, spec.Batch.Age = 550, time.Hour
	first := r.start(sink, Config{InstanceID: "one"})
	r.await("a claim in each partition", func() bool {
		open := 0
		offsets, err := r.admin.FetchOffsets(t.Context(), spec.Group())
		for _, c := range offsets[r.topic] {
			if note, ok := ParseCommitNote(c.Metadata); ok && note.Claim && note.Hi == 549 {
				open++
			}
		}
		return err == nil && open == partitions // the first answer may be that there is no coordinator yet
	})
	first.cancel()
	<-first.done
	first.done <- nil
	failing.Store(false)
	spec.Batch.Age = 200 * time.Millisecond
	second := r.start(sink, Config{InstanceID: "one", MemoryBytesMax: 2 << 20, FetchBytesMax: 1 << 20})
	r.await("all rows", func() bool { return sink.total() == n })
	r.stop(second)
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for p, rows := range sink.rows {
		for offset, times := range rows {
			if times != 1 {
				t.Fatalf("partition %d offset %d is stored %d times", p, offset, times)
			}
		}
	}
}

// TestTooManyDeadLettersStopThePartition: where most records do not fit, the mapping is wrong and not the records.
func TestTooManyDeadLettersStopThePartition(t *testing.T) {
	r := newRig(t, 1, "errors: {dead_letter_share: 20%}\n")
	var records []*kgo.Record
	for i := range 200 {
		value := fmt.Sprintf("a-%d", i)
		if i%4 == 0 {
			value = "bad"
		}
		records = append(records, &kgo.Record{Topic: r.topic, Value: []byte(value)})
	}
	if err := r.client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	sink := newMemSink(true)
	w := r.start(sink, Config{BackoffMax: 200 * time.Millisecond})
	r.await("the partition to stop", func() bool {
		st, err := w.Status(t.Context())
		return err == nil && len(st.Partitions) == 1 && st.Partitions[0].State == StateStopped
	})
	if err := w.Ready(); err == nil || !strings.Contains(err.Error(), "dead_letter_share") {
		t.Errorf("%v", err)
	}
	if sink.total() != 0 || w.Account().DeadLettered["range"] != 0 {
		t.Errorf("%d rows, %+v", sink.total(), w.Account())
	}
	r.stop(w)
	r.pipe.Errors.DeadLetterShare = 0.3
	r.once(sink)
	if sink.total() != 150 {
		t.Errorf("%d rows", sink.total())
	}
}
