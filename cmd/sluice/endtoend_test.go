package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// The end-to-end tests run the binary as a user does, a process for each role, from a log that is renamed every second into a
// real ClickHouse, and kill the processes meanwhile. The numbers of the lines are the test's own; what is stored is read from the table.

const (
	numberedLines = 300_000
	writeFor      = 15 * time.Second // how long the log takes to grow to its lines
	renameEvery   = time.Second
	settleFor     = 90 * time.Second
)

// Every role can be killed and started again with the same state.
func TestKillEveryRoleInTurn(t *testing.T) {
	p := newPath(t, ownBroker(t))
	p.chaos = p.inTurn(3, p.broker, p.sink, p.agent)
	got := p.run()
	got.mustHoldEveryLineOnce(t)
}

func TestKillBrokerAndSink(t *testing.T) {
	p := newPath(t, ownBroker(t))
	p.chaos = p.inTurn(3, p.broker, p.sink)
	got := p.run()
	got.mustHoldEveryLineOnce(t)
}

func TestApacheKafkaInTheMiddle(t *testing.T) {
	p := newPath(t, apacheKafka(t))
	p.chaos = p.inTurn(3, p.sink, p.agent)
	got := p.run()
	got.mustHoldEveryLineOnce(t)
}

// A part is one process of the path that can be killed and started again.
type part struct {
	name  string
	start func() *testenv.Process
	now   *testenv.Process
}

func (p *part) up() { p.now = p.start() }

func (p *part) killAndRestart() {
	p.now.Kill()
	p.up()
}

// A pathUnderTest is the whole way of a line, with the table at its end.
type pathUnderTest struct {
	t                   *testing.T
	dir, addr           string
	clickhouse          *testenv.ClickHouseServer
	broker, agent, sink *part
	chaos               func(ctx context.Context)
}

// A brokerUnderTest is our broker or another Kafka.
type brokerUnderTest struct {
	addr string
	part *part
}

func ownBroker(t *testing.T) brokerUnderTest {
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	data := filepath.Join(t.TempDir(), "broker")
	// Without the wait for more members a worker is at work again at once after a kill, and is killed at work.
	config := writeFile(t, "broker.yaml", "group.initial.rebalance.delay.ms: 0\n")
	return brokerUnderTest{addr, &part{name: "broker", start: func() *testenv.Process {
		return testenv.Start(t, testenv.Command{Name: "broker", Path: testenv.Sluice(t),
			Args:  []string{"broker", "--config", config, "--data", data, "--listen", addr, "--metrics", ""},
			Ready: func(ctx context.Context) error { return testenv.PingKafka(ctx, addr) }})
	}}}
}

func apacheKafka(t *testing.T) brokerUnderTest {
	server := testenv.StartKafka(t, testenv.KafkaConfig{})
	return brokerUnderTest{server.Addr, &part{name: "kafka", start: func() *testenv.Process { return server.Process }}}
}

func newPath(t *testing.T, b brokerUnderTest) *pathUnderTest {
	p := &pathUnderTest{t: t, dir: t.TempDir(), addr: b.addr, broker: b.part, clickhouse: testenv.ClickHouse(t)}
	p.clickhouse.Query(t, `CREATE TABLE numbered (n UInt64, file_id String, file_offset UInt64, _topic LowCardinality(String), _partition Int32, _offset Int64)
		ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 10000`)
	file := p.writePipeline()
	role := func(name string, args ...string) *part {
		return &part{name: name, start: func() *testenv.Process {
			return testenv.Start(t, testenv.Command{Name: name, Path: testenv.Sluice(t), Dir: p.dir,
				Args: append([]string{name, file, "--brokers", p.addr, "--metrics", ""}, args...)})
		}}
	}
	p.agent = role("agent", "--state", filepath.Join(p.dir, "state"))
	p.sink = role("sink", "--session-timeout", "6s", "--instance-id", "the-worker")
	return p
}

func (p *pathUnderTest) writePipeline() string {
	yaml := fmt.Sprintf(`pipeline: numbered
collect:
  file: {include: ["%[1]s/app.log*"], identity: true}
process:
  - parse: json
topic: {name: numbered, partitions: 4}
sink:
  batch: {age: 200ms}
  clickhouse:
    addr: ["%[2]s"]
    table: numbered
    columns: {n: n, file_id: 'headers["file_id"]', file_offset: 'headers["file_offset"]'}
`, p.dir, p.clickhouse.Addr)
	file := filepath.Join(p.dir, "pipeline.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// inTurn kills and restarts the parts in turn, rounds times each, at random moments spread over the time that lines are written.
func (p *pathUnderTest) inTurn(rounds int, parts ...*part) func(context.Context) {
	seed := uint64(time.Now().UnixNano())
	p.t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mean := writeFor / time.Duration(rounds*len(parts)+1)
	return func(ctx context.Context) {
		for range rounds {
			for _, victim := range parts {
				wait := time.Duration((0.5 + rng.Float64()) * float64(mean))
				select {
				case <-ctx.Done():
					return
				case <-time.After(wait):
				}
				p.t.Logf("kill -9 %s after %s, with %s rows stored", victim.name, wait.Round(time.Millisecond), p.clickhouse.Query(p.t, "SELECT count() FROM numbered"))
				victim.killAndRestart()
			}
		}
	}
}

func (p *pathUnderTest) run() stored {
	p.broker.up()
	p.agent.up()
	p.sink.up()
	ctx, cancel := context.WithTimeout(p.t.Context(), writeFor+settleFor)
	defer cancel()
	written := make(chan error, 1)
	go func() { written <- writeNumbered(ctx, p.dir) }()
	p.chaos(ctx)
	if err := <-written; err != nil {
		p.t.Fatal(err)
	}
	p.waitStored(ctx)
	return p.readBack()
}

// writeNumbered writes the lines evenly over writeFor and renames the log every second.
func writeNumbered(ctx context.Context, dir string) error {
	path := filepath.Join(dir, "app.log")
	start := time.Now()
	n, renames := 0, 0
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n < numberedLines {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		out := bufio.NewWriter(f)
		for until := time.Duration(renames+1) * renameEvery; n < numberedLines && time.Since(start) < until; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			due := min(int(float64(numberedLines)*time.Since(start).Seconds()/writeFor.Seconds()), numberedLines)
			for ; n < due; n++ {
				fmt.Fprintf(out, `{"n":%d,"msg":"a line of some length, so that the file grows as a real one does"}`+"\n", n)
			}
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if err := f.Close(); err != nil {
			return err
		}
		renames++
		if err := os.Rename(path, fmt.Sprintf("%s.%d", path, renames)); err != nil {
			return err
		}
	}
	return nil
}

// waitStored waits until the sink's group has nothing left and the table holds every number.
func (p *pathUnderTest) waitStored(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		distinct := p.count("SELECT uniqExact(n) FROM numbered")
		if distinct == numberedLines && p.groupIsDone(ctx) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Errorf("after %s only %d of %d lines are stored", settleFor, distinct, numberedLines)
			return
		}
	}
}

func (p *pathUnderTest) groupIsDone(ctx context.Context) bool {
	client, err := kgo.NewClient(kgo.SeedBrokers(p.addr))
	if err != nil {
		p.t.Fatal(err)
	}
	defer client.Close()
	lags, err := kadm.NewClient(client).Lag(ctx, "numbered")
	if err != nil {
		return false
	}
	group := lags["numbered"]
	return group.Error() == nil && len(group.Lag["numbered"]) == 4 && group.Lag.Total() == 0
}

func (p *pathUnderTest) count(query string) int {
	n, err := strconv.Atoi(strings.TrimSpace(p.clickhouse.Query(p.t, query)))
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// stored is what the table holds.
type stored struct {
	rows     int // all
	distinct int // numbers
	records  int // places in the topic
	lines    int // places in files
	inTopic  int // records in the topic
}

func (p *pathUnderTest) readBack() stored {
	client, err := kgo.NewClient(kgo.SeedBrokers(p.addr))
	if err != nil {
		p.t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(p.t.Context(), "numbered")
	if err != nil {
		p.t.Fatal(err)
	}
	inTopic := 0
	ends.Each(func(o kadm.ListedOffset) { inTopic += int(o.Offset) })
	return stored{
		rows:     p.count("SELECT count() FROM numbered"),
		distinct: p.count("SELECT uniqExact(n) FROM numbered"),
		records:  p.count("SELECT uniqExact(_partition, _offset) FROM numbered"),
		lines:    p.count("SELECT uniqExact(file_id, file_offset) FROM numbered"),
		inTopic:  inTopic,
	}
}

// mustHoldEveryLineOnce is the whole promise: whatever was killed, each line of the files is one record of the topic and one row.
func (s stored) mustHoldEveryLineOnce(t *testing.T) {
	t.Helper()
	s.mustHoldEveryLine(t)
	s.mustHoldEveryRecordOnce(t)
	if s.rows != numberedLines {
		t.Errorf("%d rows for %d lines", s.rows, numberedLines)
	}
	if s.inTopic != numberedLines {
		t.Errorf("%d records in the topic for %d lines", s.inTopic, numberedLines)
	}
}

func (s stored) mustHoldEveryLine(t *testing.T) {
	t.Helper()
	if s.distinct != numberedLines {
		t.Errorf("%d of %d lines are in the table: %d are missing", s.distinct, numberedLines, numberedLines-s.distinct)
	}
	if s.lines != numberedLines {
		t.Errorf("the table names %d places in files for %d lines", s.lines, numberedLines)
	}
}

// mustHoldEveryRecordOnce is the sinks' part of the promise: each record of the topic is one row.
func (s stored) mustHoldEveryRecordOnce(t *testing.T) {
	t.Helper()
	if s.records != s.rows {
		t.Errorf("%d rows of %d records: %d records were stored more than once", s.rows, s.records, s.rows-s.records)
	}
	if s.inTopic != s.rows {
		t.Errorf("%d records in the topic and %d rows in the table", s.inTopic, s.rows)
	}
}
