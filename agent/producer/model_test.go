package producer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/internal/testenv"
)

// The simulation is worth what its model of a broker is: random batches of random producers must get the same answers from real ones,
// repeats within and beyond five batches, gaps, first sequences that are not 0, and sequences that go on from 2147483647 with 0.
func TestModelAgainstBrokers(t *testing.T) {
	t.Run("kafka", func(t *testing.T) { modelAgainst(t, testenv.Kafka(t).Addr) })
	t.Run("sluice", func(t *testing.T) {
		addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
		file := filepath.Join(t.TempDir(), "broker.yaml")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		testenv.Start(t, testenv.Command{Name: "broker", Path: testenv.Sluice(t),
			Args:  []string{"broker", "--config", file, "--data", t.TempDir(), "--listen", addr, "--metrics", ""},
			Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) }})
		modelAgainst(t, addr)
	})
}

func modelAgainst(t *testing.T, addr string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topic := fmt.Sprintf("model-%d", time.Now().UnixNano())
	adm := kadm.NewClient(client)
	if made, err := adm.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil || made.Err != nil {
		t.Fatal(err, made.Err)
	}
	meta, err := adm.Metadata(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	id, leader := TopicID(meta.Topics[topic].ID), meta.Topics[topic].Partitions[0].Leader
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	model := newModelPartition(1)
	var sent []modelBatch
	for i := range 400 {
		b := nextOfModel(rng, model, sent)
		sent = append(sent, b)
		want, base := model.append(b)
		got := produceOne(t, client, leader, topic, id, b)
		if got.verdict != want || want == stored && got.base != base {
			t.Fatalf("batch %d, producer %d sequence %d records %d: the broker says %d at %d (%v), the model %d at %d", i, b.of.id, b.base, b.n, got.verdict, got.base, got.err, want, base)
		}
		if i%20 == 0 {
			compareStates(t, adm, topic, model)
		}
	}
}

// nextOfModel is a batch that is due, a repeat, or one with a gap.
func nextOfModel(rng *rand.Rand, model *modelPartition, sent []modelBatch) modelBatch {
	of := identity{id: 1_000_000 + int64(rng.IntN(3)), known: true}
	b := modelBatch{of: of, n: 1 + int32(rng.IntN(3)), base: []int32{0, 17, 1<<31 - 4}[of.id%3]}
	known := model.producers[of]
	if len(known) > 0 {
		last := known[len(known)-1]
		b.base = sequenceAfter(last.base, last.n)
	}
	switch rng.IntN(6) {
	case 0:
		if len(sent) > 0 {
			return sent[max(len(sent)-1-rng.IntN(20), 0)]
		}
	case 1:
		if len(known) > 0 {
			b.base = sequenceAfter(b.base, 1+int32(rng.IntN(5)))
		}
	}
	return b
}

func produceOne(t *testing.T, client *kgo.Client, leader int32, topic string, id TopicID, b modelBatch) answer {
	t.Helper()
	var build record.Builder
	for i := range b.n {
		build.Append(time.Now().UnixMilli(), nil, fmt.Appendf(nil, "%d %d %d", b.of.id, b.base, i), nil)
	}
	data, err := build.Build(record.BuildOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	data.SetProducer(b.of.id, b.of.epoch, b.base)
	r := newOutgoing(leader)
	r.add(nil, &Batch{Topic: topic, TopicID: id, Data: data, Size: len(data)})
	var resp kmsg.Response
	resp, err = client.Broker(int(leader)).Request(t.Context(), r)
	return r.answers(resp, err)[0]
}

func compareStates(t *testing.T, adm *kadm.Client, topic string, model *modelPartition) {
	t.Helper()
	got, err := adm.DescribeProducers(t.Context(), kadm.TopicsSet{topic: {0: {}}})
	if err != nil {
		t.Fatal(err)
	}
	have := map[int64]int32{}
	got.EachProducer(func(p kadm.DescribedProducer) { have[p.ProducerID] = p.LastSequence })
	for of := range model.producers {
		if present, last := model.describe(of); !present || have[of.id] != last {
			t.Fatalf("producer %d: the broker has sequence %d, the model %d", of.id, have[of.id], last)
		}
	}
}
