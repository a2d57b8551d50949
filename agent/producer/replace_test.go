package producer

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/agent/producer/brokermodel"
	"github.com/sluice-io/sluice/internal/record"
)

// modelTransport asks a model at once.
type modelTransport struct{ cluster *brokermodel.Cluster }

func (m modelTransport) Ask(broker int32, req kmsg.Request) (kmsg.Response, error) {
	return m.cluster.Handle(max(broker, 0), req), nil
}

func (m modelTransport) Produce(broker int32, req *kmsg.ProduceRequest, then func(kmsg.Response, error)) {
	then(m.cluster.Handle(broker, req), nil)
}
func (m modelTransport) Go(run func()) { run() }

// watchedLog keeps batches, and notes how many bytes were written at once and how many of a lane were in memory then.
type watchedLog struct {
	data              map[ID]record.Batch
	entry             uint64
	sender            *Sender
	written, inMemory int // at most
}

func (w *watchedLog) Write([]*Bundle) (uint64, error)   { return 0, errNoTopic }
func (w *watchedLog) Acknowledge([]Ack) error           { return nil }
func (w *watchedLog) Floor(TopicID, int32, int64) error { return nil }
func (w *watchedLog) Read(id ID) ([]byte, error)        { return w.data[id], nil }
func (w *watchedLog) add(index int, b *Batch, data []byte) {
	b.ID = ID{w.entry, uint32(index)}
	w.data[b.ID] = data
}

func (w *watchedLog) Replace(olds []ID, news []*Batch) error {
	w.entry++
	written, inMemory := 0, 0
	for i, b := range news {
		written += len(b.Data)
		w.add(i, b, b.Data)
	}
	for _, l := range w.sender.core.order {
		for _, b := range l.queue {
			inMemory += len(b.Data)
		}
	}
	for _, id := range olds {
		delete(w.data, id)
	}
	w.written, w.inMemory = max(w.written, written), max(w.inMemory, inMemory)
	return nil
}

// A partition whose batches are to be written anew may have more of them than there is memory for: here those of a topic that was made
// again, and of an identity that another one must follow.
func TestReplacedInParts(t *testing.T) {
	for _, made := range []bool{true, false} {
		replaceMany(t, made)
	}
}

func replaceMany(t *testing.T, made bool) {
	const batches, size = 40, 1 << 20
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	batch := func(base int32, key string) record.Batch {
		var build record.Builder
		build.Append(now.UnixMilli(), []byte(key), make([]byte, size-1000), nil)
		data, err := build.Build(record.BuildOptions{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		data.SetProducer(7, 0, base)
		return data
	}
	cluster := brokermodel.New("cluster")
	cluster.Replicated = true
	topic := cluster.Make("lines", 1)
	log := &watchedLog{data: map[ID]record.Batch{}}
	bundle := &Bundle{}
	for i := range batches {
		data := batch(int32(i), fmt.Sprint(i))
		b := &Batch{Topic: "lines", TopicID: topic.ID, Cluster: "cluster", Producer: 7, BaseSequence: int32(i), Records: 1, Size: len(data)}
		log.add(i, b, data)
		bundle.Batches = append(bundle.Batches, b)
	}
	if made {
		topic = cluster.Make("lines", 1)
	} else if _, _, refused := topic.Partitions[0].Append(topic, batch(1<<30, "long before")); refused != nil { // what was acknowledged after it is gone
		t.Fatal(refused)
	}

	settled := 0
	log.sender = NewSender(slog.New(slog.DiscardHandler), log, modelTransport{cluster}, []*Bundle{bundle}, nil,
		SenderConfig{Owner: Owner{OnSettled: func(*Batch) { settled++ }}}, nil)
	for until := now.Add(time.Minute); now.Before(until) && settled < batches; now = now.Add(10 * time.Millisecond) {
		log.sender.Turn(now)
	}
	if settled != batches {
		t.Fatalf("made again %v: %d of %d settled", made, settled, batches)
	}
	if log.written == 0 || log.written > replaceBytesMax || log.inMemory > replaceBytesMax {
		t.Errorf("made again %v: %d bytes written at once, %d in memory", made, log.written, log.inMemory)
	}
	var got, want []string
	for _, b := range topic.Partitions[0].Log {
		_ = b.Each(nil, func(r *record.Record) error {
			got = append(got, string(r.Key))
			return nil
		})
	}
	if !made {
		want = append(want, "long before")
	}
	for i := range batches {
		want = append(want, fmt.Sprint(i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("made again %v: stored %q", made, got)
	}
}
