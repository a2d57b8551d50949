package clickhouse

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
)

// Flags of `make test-sink-chaos`.
var (
	stormRounds = flag.Int("storm.rounds", 0, "faults in a row, on each kind of broker; 0: a few that take no session timeout")
	stormSeed   = flag.Uint64("storm.seed", 0, "draws the faults; 0: any")
	stormOn     = flag.String("storm.on", "kafka", "brokers, comma-separated: kafka, sluice (three nodes)")
	stormKinds  = flag.String("storm.kinds", "", "only faults whose name contains this")
)

const stormPartitions = 4

// storm is a topic that is written to while everything between it and a table breaks, one fault a round. After each round the table must hold every record
// that was produced, under its offset, once.
type storm struct {
	*testing.T
	rng    *rand.Rand
	server *testenv.ClickHouseServer
	nodes  []*testenv.Node // of our own cluster
	broker string
	topic  string
	dir    string
	client *kgo.Client
	admin  *kadm.Client

	want    map[int32]map[int64]int64 // value by offset
	removed map[int32]int64           // the log begins here: what lies below may be stored or not, and never twice
	n       int64
	rows    int
	mapping int
	workers []*stormWorker
}

// stormWorker is a worker process, and its own way to the server.
type stormWorker struct {
	cmd      *exec.Cmd
	instance string
	proxy    *testenv.Proxy
	stopped  bool
}

// TestSinkChaos is `make test-sink-chaos`, and its short form in `make test`.
func TestSinkChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	for _, on := range strings.Split(*stormOn, ",") {
		t.Run(on, func(t *testing.T) { newStorm(t, on).run(*stormRounds) })
	}
}

func newStorm(t *testing.T, on string) *storm {
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	s := &storm{T: t, rng: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), topic: fmt.Sprintf("storm-%s-%d", on, os.Getpid()), rows: 500,
		want: map[int32]map[int64]int64{}, removed: map[int32]int64{}}
	replicas := int16(1)
	if on == "sluice" {
		c := testenv.StartCluster(t, testenv.StartZooKeeper(t).Addr, testenv.ClusterConfig{})
		s.nodes, s.broker, replicas = c.Nodes, strings.Join(c.Addrs(), ","), 3
	} else {
		s.broker = testenv.Kafka(t).Addr
	}
	s.server = testenv.StartClickHouse(t, testenv.ClickHouseConfig{Users: []testenv.ClickHouseUser{{Name: "loader"}}})
	s.server.Query(t, "CREATE TABLE storm (n Int64, m Nullable(Int64), _topic_id String, "+ownDDL+") ENGINE = MergeTree ORDER BY (_partition, _offset) SETTINGS non_replicated_deduplication_window = 10000")
	var err error
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(strings.Split(s.broker, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	s.admin = kadm.NewClient(s.client)
	for deadline := time.Now().Add(time.Minute); ; pause(100 * time.Millisecond) {
		_, err := s.admin.CreateTopic(t.Context(), stormPartitions, replicas, nil, s.topic)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for p := range int32(stormPartitions) {
		s.want[p] = map[int64]int64{}
	}
	return s
}

// fault breaks something, and mends it.
type fault struct {
	name string
	run  func(*storm)
	only func(*storm) bool
	long bool // waits for a session to end
}

// shortRounds is how many faults the short form has.
const shortRounds = 5

var faults = []fault{
	{name: "server killed", run: (*storm).serverKilled},
	{name: "server frozen", run: (*storm).serverFrozen},
	{name: "disk full", run: (*storm).diskFull},
	{name: "read only", run: (*storm).readOnly},
	{name: "too many parts", run: (*storm).tooManyParts},
	{name: "connection dropped after the insert", run: (*storm).answerLost},
	{name: "slow", run: (*storm).slow},
	{name: "worker killed", run: (*storm).workerKilled},
	{name: "worker killed, another goes on", run: (*storm).workerReplaced, long: true},
	{name: "worker stopped past its session", run: (*storm).workerSlept, long: true},
	{name: "worker stopped before an insert", run: (*storm).workerSleptBefore, long: true},
	{name: "worker stopped in an insert", run: (*storm).workerSleptIn, long: true},
	{name: "workers come and go", run: (*storm).rebalanced, long: true},
	{name: "limits changed", run: (*storm).limitsChanged},
	{name: "mapping changed", run: (*storm).mappingChanged},
	{name: "group reset", run: (*storm).groupReset, long: true},
	{name: "commits expired", run: (*storm).commitsExpired, long: true},
	{name: "retention past an open claim", run: (*storm).retention},
	{name: "broker killed", run: (*storm).brokerKilled, only: func(s *storm) bool { return len(s.nodes) > 0 }},
}

func (s *storm) run(rounds int) {
	s.Helper()
	s.start("a")
	s.produce(500)
	s.settle("the beginning")
	short := rounds == 0
	if short {
		rounds = shortRounds
	}
	var drawn []int
	for round := 0; round < rounds; {
		if len(drawn) == 0 {
			drawn = s.rng.Perm(len(faults))
		}
		f := faults[drawn[0]]
		drawn = drawn[1:]
		if f.only != nil && !f.only(s) || !strings.Contains(f.name, *stormKinds) || short && f.long {
			continue
		}
		round++
		began := time.Now()
		f.run(s)
		s.settle(f.name)
		s.Logf("round %d: %s: %s, %d records", round, f.name, time.Since(began).Round(100*time.Millisecond), s.n)
	}
	for len(s.workers) > 0 {
		s.signal(s.workers[0], syscall.SIGTERM)
	}
}

// produce writes n records round the partitions and keeps what they were given.
func (s *storm) produce(n int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: s.topic, Partition: int32(s.n % stormPartitions), Value: fmt.Appendf(nil, `{"n":%d}`, s.n)}
		s.n++
	}
	first := s.n - int64(n)
	if err := s.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		s.Fatal(err)
	}
	for i, r := range records {
		s.want[r.Partition][r.Offset] = first + int64(i)
	}
}

// start runs a worker with the limits and the mapping of now; "" makes it a dynamic member.
func (s *storm) start(instance string) *stormWorker {
	s.Helper()
	w := &stormWorker{instance: instance, proxy: testenv.StartProxy(s, s.server.Addr)}
	file := filepath.Join(s.dir, fmt.Sprintf("%s-%d.yaml", instance, time.Now().UnixNano()))
	text := fmt.Sprintf("pipeline: %s\ncollect: {file: {include: [/x]}}\nprocess: [{parse: json}]\nsink:\n  clickhouse: {addr: [%q], table: storm, username: loader, columns: {n: n, m: n * %d}}\n"+
		"  batch: {rows: %d, age: 50ms}\n  on_lost: continue\n", s.topic, w.proxy.Addr(), s.mapping, s.rows)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	w.cmd = exec.CommandContext(s.Context(), os.Args[0], "-test.run=^TestWorkerProcess$")
	w.cmd.Env = append(os.Environ(), envPipeline+"="+file, envBroker+"="+s.broker, envInstance+"="+instance)
	if os.Getenv("SINKS_LOG") != "" {
		w.cmd.Stderr = os.Stderr
	}
	if err := w.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.workers = append(s.workers, w)
	return w
}

func (s *storm) signal(w *stormWorker, sig syscall.Signal) {
	s.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
	w.stopped = sig == syscall.SIGSTOP
	if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
		return
	}
	_ = w.cmd.Wait()
	for i := range s.workers {
		if s.workers[i] == w {
			s.workers = append(s.workers[:i], s.workers[i+1:]...)
			return
		}
	}
}

// one is the worker of the round: the only one, with the static identity a.
func (s *storm) one() *stormWorker {
	s.Helper()
	for len(s.workers) > 1 {
		s.signal(s.workers[len(s.workers)-1], syscall.SIGTERM)
	}
	if len(s.workers) == 0 {
		return s.start("a")
	}
	return s.workers[0]
}

// someTime is up to so many milliseconds.
func (s *storm) someTime(ms int) time.Duration {
	return time.Duration(s.rng.IntN(ms)) * time.Millisecond
}

// settle waits until everything is committed, and compares the table with what was produced.
func (s *storm) settle(what string) {
	s.Helper()
	s.produce(20)
	deadline := time.Now().Add(2 * time.Minute)
	for !s.committed() {
		if time.Now().After(deadline) {
			s.Fatalf("%s: not everything is committed after two minutes", what)
		}
		s.heal()
		pause(50 * time.Millisecond)
	}
	s.compare(what)
}

func (s *storm) committed() bool {
	offsets, err := s.admin.FetchOffsets(s.Context(), s.topic)
	if err != nil {
		return false
	}
	for p, want := range s.want {
		if o, ok := offsets.Lookup(s.topic, p); !ok || o.At < int64(len(want)) {
			return false
		}
	}
	return true
}

// heal starts a server again that died by itself, as chdb does when a client is killed while it connects.
func (s *storm) heal() {
	select {
	case <-s.server.Done():
		s.server.Restart(s.T)
	default:
	}
}

func (s *storm) compare(what string) {
	s.Helper()
	found := map[int32]map[int64]bool{}
	for p := range s.want {
		found[p] = map[int64]bool{}
	}
	for _, line := range strings.Split(s.server.Query(s, "SELECT _partition, _offset, n FROM storm"), "\n") {
		fields := strings.Split(line, "\t")
		p, _ := strconv.ParseInt(fields[0], 10, 32)
		o, _ := strconv.ParseInt(fields[1], 10, 64)
		n, _ := strconv.ParseInt(fields[2], 10, 64)
		want, ok := s.want[int32(p)][o]
		switch {
		case found[int32(p)][o]:
			s.Fatalf("%s: partition %d offset %d is stored twice", what, p, o)
		case !ok || want != n:
			s.Fatalf("%s: partition %d offset %d holds %d, want %d", what, p, o, n, want)
		}
		found[int32(p)][o] = true
	}
	for p, want := range s.want {
		for o := range want {
			if !found[p][o] && o >= s.removed[p] {
				s.Fatalf("%s: partition %d offset %d is missing", what, p, o)
			}
		}
	}
}
