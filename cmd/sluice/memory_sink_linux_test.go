package main

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// A backlog over 64 partitions, whose batches expand to many times what is fetched, is many times the worker's memory: the process stays below its limit until all
// of it is stored.
func TestSinkMemoryLimit(t *testing.T) {
	const limit, partitions, records = 192 << 20, 64, 256_000 // of some 400 bytes
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	dir := t.TempDir()
	testenv.Start(t, testenv.Command{Name: "broker", Path: testenv.Sluice(t), Args: []string{"broker", "--data", filepath.Join(dir, "broker"), "--listen", addr, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) }})
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerBatchMaxBytes(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), partitions, 1, nil, "backlog"); err != nil {
		t.Fatal(err)
	}
	for i := range records {
		client.Produce(t.Context(), &kgo.Record{Topic: "backlog", Partition: int32(i/1000) % partitions, Value: fmt.Appendf(nil, `{"n":%d,"text":"%0380d"}`, i, i%7)}, nil)
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, "p.yaml", fmt.Sprintf("pipeline: backlog\ntopic: {name: backlog}\nsink: {process: [{parse: json}], directory: {path: %q, format: parquet, sync: false}, batch: {age: 1s}}\n", filepath.Join(dir, "out")))
	worker := testenv.Start(t, testenv.Command{Name: "sink", Path: testenv.Sluice(t), Args: []string{"sink", file, "--brokers", addr, "--metrics", "", "--memory-max", "192MiB"}})
	waitUntil(t, "everything is stored", func() bool {
		offsets, err := admin.FetchOffsets(t.Context(), "backlog")
		var stored int64
		for _, o := range offsets["backlog"] {
			stored += max(o.At, 0)
		}
		return err == nil && stored == records
	})
	peak := peakMemory(t, worker.PID())
	t.Logf("resident at most: %d MiB of %d", peak>>20, limit>>20)
	if peak > limit {
		t.Errorf("the process took %d MiB of %d", peak>>20, limit>>20)
	}
}
