package clickhouse

import (
	"flag"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/storm"
)

// Flags of `make test-sink-chaos`.
var (
	stormFlags  = storm.DefineFlags()
	stormTables = flag.String("storm.tables", "window", "tables, comma-separated: window, nowindow (which remembers no inserts)")
)

// TestWorkerProcess is not a test: it is the worker that others kill.
func TestWorkerProcess(t *testing.T) {
	storm.RunWorker(t, func(log *slog.Logger, spec *pipelines.SinkSpec) (sinks.Sink, error) {
		if spec.ClickHouse != nil {
			return New(log, spec)
		}
		return directory.New(log, spec)
	})
}

// stormTable is a table under a storm.
type stormTable struct {
	server  *testenv.ClickHouseServer
	name    string
	forgets bool // it remembers no inserts
}

// stormDisk is the size of the server's disk.
const stormDisk = 256 << 20

// TestSinkChaos is `make test-sink-chaos`, and its short form in `make test`.
func TestSinkChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	for _, on := range strings.Split(stormFlags.On, ",") {
		for _, table := range strings.Split(*stormTables, ",") {
			t.Run(on+"/"+table, func(t *testing.T) {
				p := newStormTable(t, table)
				s := storm.New(t, stormFlags, on, table)
				s.Place = p
				s.Run(stormFlags, p.faults())
			})
		}
	}
}

func newStormTable(t *testing.T, name string) *stormTable {
	t.Helper()
	p := &stormTable{name: name, forgets: name != "window"}
	cfg := testenv.ClickHouseConfig{Users: []testenv.ClickHouseUser{{Name: "loader"}}}
	if testenv.CanMount() {
		cfg.DiskBytes = stormDisk
	}
	p.server = testenv.StartClickHouse(t, cfg)
	settings := ""
	if !p.forgets {
		settings = " SETTINGS non_replicated_deduplication_window = 10000"
	}
	p.server.Query(t, "CREATE TABLE "+name+" (n Int64, m Nullable(Int64), _topic_id String, "+ownDDL+") ENGINE = MergeTree ORDER BY (_partition, _offset)"+settings)
	return p
}

// Sink is a sink into the table by a proxy of the worker's own.
func (p *stormTable) Sink(s *storm.Storm, w *storm.Worker, mapping int) string {
	w.Proxy = testenv.StartProxy(s, p.server.Addr)
	return fmt.Sprintf("  clickhouse: {addr: [%q], table: %s, username: loader, columns: {n: n, m: n * %d}}\n", w.Proxy.Addr(), p.name, mapping)
}

// Heal starts a server again that died by itself, as chdb does when a client is killed while it connects.
func (p *stormTable) Heal(s *storm.Storm) {
	select {
	case <-p.server.Done():
		p.server.Restart(s.T)
	default:
	}
}

// Rows reads the whole table.
func (p *stormTable) Rows(s *storm.Storm, each func(storm.Row)) {
	for _, line := range strings.Split(p.server.Query(s, "SELECT _topic_id, _partition, _offset, n FROM "+p.name), "\n") {
		fields := strings.Split(line, "\t")
		if len(fields) != 4 {
			continue
		}
		topic, err := sinks.ParseTopicID(fields[0])
		if err != nil {
			s.Fatal(err)
		}
		var numbers [3]int64
		for i := range numbers {
			if numbers[i], err = strconv.ParseInt(fields[i+1], 10, 64); err != nil {
				s.Fatal(err)
			}
		}
		each(storm.Row{Topic: topic, Partition: int32(numbers[0]), Offset: numbers[1], N: numbers[2]})
	}
}
