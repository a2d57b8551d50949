package clickhouse

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/storm"
)

// chaos is a topic that is written to while workers die.
type chaos struct {
	*testing.T
	broker   string
	topic    string
	file     string // of the pipeline
	client   *kgo.Client
	admin    *kadm.Client
	produced int
	server   *testenv.ClickHouseServer // nil for a directory
}

// heal starts the server again if it is gone: this build of it does not survive a client that is killed while it says hello.
func (c *chaos) heal() {
	c.Helper()
	if c.server == nil {
		return
	}
	select {
	case <-c.server.Done():
		c.server.Restart(c.T)
	default:
	}
}

const chaosPartitions = 4

func newChaos(t *testing.T, name, sink string) *chaos {
	t.Helper()
	c := &chaos{T: t, broker: testenv.Kafka(t).Addr, topic: fmt.Sprintf("chaos-%s-%d", name, os.Getpid())}
	var err error
	if c.client, err = kgo.NewClient(kgo.SeedBrokers(c.broker), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	c.admin = kadm.NewClient(c.client)
	if _, err := c.admin.CreateTopic(t.Context(), chaosPartitions, 1, nil, c.topic); err != nil {
		t.Fatal(err)
	}
	c.file = filepath.Join(t.TempDir(), "pipeline.yaml")
	text := fmt.Sprintf("pipeline: %s\ncollect: {file: {include: [/x]}}\nprocess: [{parse: json}]\ntopic: {name: %s}\nsink:\n%s  batch: {rows: 500, age: 50ms}\n", c.topic, c.topic, sink)
	if err := os.WriteFile(c.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chaos) produce(n int) {
	c.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: c.topic, Partition: int32(c.produced % chaosPartitions), Value: fmt.Appendf(nil, `{"n":%d}`, c.produced)}
		c.produced++
	}
	if err := c.client.ProduceSync(c.Context(), records...).FirstErr(); err != nil {
		c.Fatal(err)
	}
}

// start runs a worker process.
func (c *chaos) start(instance string) *exec.Cmd {
	c.Helper()
	cmd := storm.WorkerCommand(c.Context(), c.file, c.broker, instance)
	if os.Getenv("SINKS_LOG") != "" {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	return cmd
}

func (c *chaos) signal(cmd *exec.Cmd, s syscall.Signal) {
	c.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		c.Fatal(err)
	}
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		cmd.Wait()
	}
}

// await polls until the group has committed the topic's end, less than a number of records.
func (c *chaos) await(lag int64) {
	c.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for {
		var committed int64
		if offsets, err := c.admin.FetchOffsets(c.Context(), c.topic); err == nil {
			for _, o := range offsets[c.topic] {
				committed += o.At
			}
		}
		c.heal()
		if committed >= int64(c.produced)-lag {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%d of %d committed", committed, c.produced)
		}
		pause(20 * time.Millisecond)
	}
}

// pause lets a real process run for a while.
func pause(d time.Duration) { <-time.After(d) }

// TestWorkersKilledAndFrozen kills worker processes at random moments and lets others go on; freezes one past its session, while another takes its
// partitions, and wakes it. Each record is stored once.
func TestWorkersKilledAndFrozen(t *testing.T) {
	for name, settings := range map[string]string{"window": " SETTINGS non_replicated_deduplication_window = 10000", "nowindow": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			server := testenv.ClickHouse(t)
			server.Query(t, "CREATE TABLE "+name+" (n UInt64, "+ownDDL+") ENGINE = MergeTree ORDER BY _offset"+settings)
			c := newChaos(t, name, fmt.Sprintf("  clickhouse: {addr: [%q], table: %s}\n", server.Addr, name))
			c.server = server
			c.run()
			c.heal()
			want := fmt.Sprintf("%d\t%d\t%d", c.produced, c.produced, c.produced)
			if got := server.Query(t, "SELECT count(), uniqExact(n), uniqExact(_partition, _offset) FROM "+name); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		c := newChaos(t, "directory", "  directory: {path: "+dir+"}\n")
		c.run()
		seen := map[any]int{}
		if err := directory.Read(dir, func(row directory.Row) error { seen[row.Fields["n"]]++; return nil }); err != nil {
			t.Fatal(err)
		}
		for n := range c.produced {
			if seen[int64(n)] != 1 {
				t.Fatalf("%d is stored %d times", n, seen[int64(n)])
			}
		}
		leftovers, err := filepath.Glob(filepath.Join(dir, "."+c.topic+"*"))
		if err != nil || len(leftovers) > 0 {
			t.Errorf("left over: %s", strings.Join(leftovers, " "))
		}
	})
}

func (c *chaos) run() {
	c.Helper()
	for range 4 {
		worker := c.start("static") // gets its partitions back at once
		for range 10 {
			c.produce(1000)
		}
		c.await(9000)
		pause(time.Duration(rand.IntN(300)) * time.Millisecond)
		c.signal(worker, syscall.SIGKILL)
	}
	frozen := c.start("static")
	c.await(2000)
	c.produce(10_000)
	pause(time.Duration(rand.IntN(100)) * time.Millisecond)
	c.signal(frozen, syscall.SIGSTOP)
	other := c.start("other")
	c.produce(1000)
	c.await(0)
	c.signal(frozen, syscall.SIGCONT)
	c.produce(10_000)
	c.await(0)
	c.signal(frozen, syscall.SIGTERM)
	c.signal(other, syscall.SIGTERM)
}
