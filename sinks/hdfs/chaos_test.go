package hdfs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks/directory"
)

const (
	chaosRecords    = 60_000
	chaosPartitions = 4
	chaosFor        = 40 * time.Second
	chaosSettle     = 3 * time.Minute
)

// TestWorkersDie runs two `sluice sink` processes on a real HDFS, kills one or the other every few seconds, stops one past its session and wakes it, and kills the
// DataNode once. Then each record of the topic is in one file, once, in the directory it belongs to.
func TestWorkersDie(t *testing.T) {
	if !*everyStep {
		t.Skip("takes a minute or two: make test-files")
	}
	server := testenv.StartHDFS(t, testenv.HDFSConfig{DataNodes: 2, Replication: 2})
	broker := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "broker.yaml"), "group.initial.rebalance.delay.ms: 0\n")
	testenv.Start(t, testenv.Command{Name: "broker", Path: testenv.Sluice(t),
		Args:  []string{"broker", "--config", filepath.Join(dir, "broker.yaml"), "--data", filepath.Join(dir, "broker"), "--listen", broker, "--metrics", ""},
		Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, broker) }})
	write(t, filepath.Join(dir, "p.yaml"), fmt.Sprintf(`pipeline: chaos
sink:
  process: [{parse: json}]
  hdfs:
    namenodes: [%q]
    path: /chaos
    user: %s
    format: json
    timeout: 3s
    partition: {path: 'dt=%%Y-%%m-%%d/hour=%%H/k={k}', time: t, success: true, lateness: 1m}
  batch: {age: 300ms, rows: 700}
`, server.Addr, server.User))

	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), chaosPartitions, 1, nil, "chaos"); err != nil {
		t.Fatal(err)
	}
	sink := func(i int) *testenv.Process {
		return testenv.Start(t, testenv.Command{Name: fmt.Sprintf("sink%d", i), Path: testenv.Sluice(t), Dir: dir,
			Args: []string{"sink", "p.yaml", "--brokers", broker, "--metrics", "", "--session-timeout", "6s"}})
	}
	workers := []*testenv.Process{sink(0), sink(1)}
	produced := make(chan error, 1)
	go func() { produced <- produce(t.Context(), client) }()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	for round := 0; time.Since(began) < chaosFor; round++ {
		pause(t, time.Duration(1+rng.IntN(3))*time.Second)
		i := rng.IntN(len(workers))
		switch {
		case round == 2: // frozen past its session, and woken when another has its partitions
			if err := workers[i].Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			pause(t, 9*time.Second)
			if err := workers[i].Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		case round == 5:
			server.DataNodes[0].Kill()
			server.DataNodes[0].Restart(t)
		default:
			workers[i].Kill()
			workers[i] = sink(i)
		}
	}
	if err := <-produced; err != nil {
		t.Fatal(err)
	}
	awaitCommitted(t, admin)
	f, err := open(server.Addr, server.User, "/chaos")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	err = directory.ReadFrom(f, func(row directory.Row) error {
		n, _ := row.Fields["n"].(int64)
		key := fmt.Sprint(row.Partition, "/", row.Offset)
		if seen[key] {
			return fmt.Errorf("%s is there twice, the second time in %s", key, row.File)
		}
		seen[key] = true
		if want := chaosTime(n).Format("dt=2006-01-02/hour=15/k=") + fmt.Sprint(n%3); filepath.ToSlash(filepath.Dir(row.File)) != want || int64(row.Partition) != n%chaosPartitions {
			return fmt.Errorf("%s, record %d, is in %s, want %s", key, n, row.File, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != chaosRecords {
		t.Errorf("%d records are stored, want %d", len(seen), chaosRecords)
	}
}

// chaosTime is the event time of a record.
func chaosTime(n int64) time.Time {
	return time.Date(2026, 11, 30, 8+int(n/20_000), 0, 0, 0, time.UTC)
}

// produce writes the records over most of the chaos.
func produce(ctx context.Context, client *kgo.Client) error {
	tick := time.NewTicker(chaosFor / 80)
	defer tick.Stop()
	for n := int64(0); n < chaosRecords; {
		var records []*kgo.Record
		for range chaosRecords / 60 {
			records = append(records, &kgo.Record{Topic: "chaos", Partition: int32(n % chaosPartitions),
				Value: fmt.Appendf(nil, `{"n":%d,"k":%d,"t":%q}`, n, n%3, chaosTime(n).Format(time.RFC3339))})
			n++
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// awaitCommitted waits until the group has committed all that is in the topic.
func awaitCommitted(t *testing.T, admin *kadm.Client) {
	t.Helper()
	var done int64
	for deadline := time.Now().Add(chaosSettle); ; {
		offsets, err := admin.FetchOffsets(t.Context(), "chaos")
		if err == nil {
			done = 0
			offsets.Each(func(o kadm.OffsetResponse) { done += o.At })
		}
		if done == chaosRecords {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d records are committed (%v)", done, chaosRecords, err)
		}
		pause(t, 200*time.Millisecond)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
