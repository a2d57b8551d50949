package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// node is a broker under test.
type node struct {
	*Broker
	reg *prometheus.Registry
}

// testConfig listens on a free port over a directory of the test.
func testConfig(t *testing.T) Config {
	return EmbeddedConfig(t.TempDir(), "")
}

func startNode(t *testing.T, cfg Config) *node {
	t.Helper()
	n, err := tryStart(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func tryStart(t *testing.T, cfg Config) (*node, error) {
	t.Helper()
	reg := prometheus.NewRegistry()
	b, err := New(testLog(t), reg, cfg)
	if err != nil {
		return nil, err
	}
	if err := b.Start(t.Context()); err != nil {
		return nil, err
	}
	n := &node{b, reg}
	t.Cleanup(func() {
		if b.Ready() == nil {
			n.stop(t)
		}
	})
	return n, nil
}

func (n *node) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// testLog shows the broker's log when the test fails or is verbose.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func (n *node) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(n.Addr()),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.WithLogger(kgo.BasicLogger(io.Discard, kgo.LogLevelNone, nil)),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func (n *node) admin(t *testing.T) *kadm.Client { return kadm.NewClient(n.client(t)) }

func (n *node) createTopic(t *testing.T, topic string, partitions int32, config map[string]*string) {
	t.Helper()
	if _, err := n.admin(t).CreateTopic(t.Context(), partitions, 1, config, topic); err != nil {
		t.Fatal(err)
	}
}

// produce writes values FROM to TO, numbered, and fails the test unless all are acknowledged.
func produce(t *testing.T, cl *kgo.Client, topic string, from, to int) {
	t.Helper()
	var records []*kgo.Record
	for i := from; i < to; i++ {
		records = append(records, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "value-%06d", i)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatalf("produce: %v", err)
	}
}

// consume reads n records of a client's subscription.
func consume(t *testing.T, cl *kgo.Client, n int) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("after %d of %d records: %v", len(out), n, err)
		}
		fetches.EachError(func(topic string, p int32, err error) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("fetch %s-%d: %v", topic, p, err)
			}
		})
		out = append(out, fetches.Records()...)
	}
	return out
}

func TestProduceAndConsumeInEveryCodec(t *testing.T) {
	n := startNode(t, testConfig(t))
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		t.Run(name, func(t *testing.T) {
			topic := "codec-" + name
			n.createTopic(t, topic, 1, nil)
			produce(t, n.client(t, kgo.ProducerBatchCompression(codec)), topic, 0, 1000)
			got := consume(t, n.client(t, kgo.ConsumeTopics(topic)), 1000)
			for i, r := range got {
				if want := fmt.Sprintf("value-%06d", i); string(r.Value) != want || r.Offset != int64(i) {
					t.Fatalf("record %d is %q at offset %d, want %q", i, r.Value, r.Offset, want)
				}
			}
		})
	}
}
