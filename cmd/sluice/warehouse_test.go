package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// What an operator does with a sink into ClickHouse by hand, against our broker and against Apache Kafka: make the table, ask what it gives, look at dead letters,
// store them and ranges again, ask why a group does not move.
func TestWarehouseByHand(t *testing.T) {
	t.Run("sluice", func(t *testing.T) { testWarehouse(t, startTestBroker(t)) })
	t.Run("kafka", func(t *testing.T) { testWarehouse(t, testenv.Kafka(t).Addr) })
}

type warehouseRig struct {
	*testing.T
	addr, name, file string
	server           *testenv.ClickHouseServer
	client           *kgo.Client
}

func testWarehouse(t *testing.T, addr string) {
	server := testenv.ClickHouse(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r := &warehouseRig{T: t, addr: addr, name: fmt.Sprintf("wh%d", time.Now().UnixNano()), server: server, client: client}
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 2, 1, nil, r.name); err != nil {
		t.Fatal(err)
	}
	r.file = filepath.Join(t.TempDir(), "pipeline.yaml")
	text := fmt.Sprintf(`pipeline: %[1]s
brokers: {addr: [%[2]q]}
collect: {file: {include: [/nowhere]}}
process: [{parse: json}]
sink:
  process: [{set: {n: 'int(n)'}}]
  clickhouse: {addr: [%[3]q], table: %[1]s, columns: {ts: _time, n: n, host: host}}
  batch: {age: 50ms}
errors: {dead_letter: %[1]s-dlq}
`, r.name, addr, server.Addr)
	if err := os.WriteFile(r.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r.makesTheTable()
	r.storesAndLooksAtLetters()
	r.storesAgain()
	r.explains()
}

func (r *warehouseRig) query(statement string) string { return r.server.Query(r.T, statement) }

func (r *warehouseRig) makesTheTable() {
	statement := sluice(r.T, "table", "create", r.file, "--apply")
	for _, want := range []string{"`ts` DateTime64(3, 'UTC') CODEC", "`n` Nullable(Int64)", "_offset", "TTL", "non_replicated_deduplication_window = 10000"} {
		if !strings.Contains(statement, want) {
			r.Errorf("%s\nlacks %s", statement, want)
		}
	}
	r.query("ALTER TABLE " + r.name + " MODIFY COLUMN n Nullable(UInt8), ADD COLUMN untouched String")
	r.query("CREATE TABLE " + r.name + "_t (n Nullable(Int64)) ENGINE = MergeTree ORDER BY tuple()")
	r.query("CREATE MATERIALIZED VIEW " + r.name + "_v TO " + r.name + "_t AS SELECT n FROM " + r.name)
	for _, command := range [][]string{{"table", "create", r.file, "--check"}, {"validate", r.file, "--online"}} {
		said := sluice(r.T, command...)
		for _, want := range []string{"exactly once: the table remembers the last 10000 inserts", "column untouched is not filled", r.name + "_v fills", "remembers no inserts"} {
			if !strings.Contains(said, want) {
				r.Errorf("%v says\n%s\nand not %q", command, said, want)
			}
		}
	}
}

func (r *warehouseRig) produce(values ...string) {
	var records []*kgo.Record
	for _, v := range values {
		records = append(records, &kgo.Record{Topic: r.name, Value: []byte(v), Headers: []kgo.RecordHeader{{Key: "host", Value: []byte("web-1")}}})
	}
	if err := r.client.ProduceSync(r.Context(), records...).FirstErr(); err != nil {
		r.Fatal(err)
	}
}

// sink runs the pipeline's sink once over what is there.
func (r *warehouseRig) sink() {
	c := r.choice()
	sink, err := newSinkOf(quietLog(), c.spec)
	if err != nil {
		r.Fatal(err)
	}
	w, err := sinks.NewWorker(quietLog(), nil, c.pipe, c.spec, sink, sinks.Config{Once: true, SessionTimeout: 6 * time.Second})
	if err != nil {
		r.Fatal(err)
	}
	if err := w.Run(r.Context()); err != nil {
		r.Fatal(err)
	}
}

func (r *warehouseRig) choice() sinkChoice {
	pipes, err := pipelines.Load(r.file)
	if err != nil {
		r.Fatal(err)
	}
	return sinkChoice{pipes[0], pipes[0].Sinks[0]}
}

func (r *warehouseRig) storesAndLooksAtLetters() {
	for n := range 30 {
		r.produce(fmt.Sprintf(`{"n":%d}`, n))
	}
	r.produce(`{"n":300}`, `{"n":-1}`)
	r.sink()
	var groups []letterGroup
	if err := json.Unmarshal([]byte(sluice(r.T, "dlq", "list", r.name+"-dlq", "--brokers", r.addr, "--json")), &groups); err != nil {
		r.Fatal(err)
	}
	if len(groups) != 1 || groups[0].Records != 2 || groups[0].Kind != "range" || groups[0].Topic != r.name {
		r.Errorf("%+v", groups)
	}
	shown := sluice(r.T, "dlq", "show", r.name+"-dlq", "--brokers", r.addr, "--reason", "300")
	for _, want := range []string{`value "{\"n\":300}"`, "column n", "origin " + r.name + ":", `header "host=web-1"`} {
		if !strings.Contains(shown, want) {
			r.Errorf("%s\nlacks %s", shown, want)
		}
	}
}

func (r *warehouseRig) storesAgain() {
	count := "SELECT count(), uniqExact(_partition, _offset) FROM "
	replayed := func(args ...string) (out sinks.Replayed) {
		if err := json.Unmarshal([]byte(sluice(r.T, append(args, r.file, "--brokers", r.addr, "--json")...)), &out); err != nil {
			r.Fatal(err)
		}
		return out
	}
	r.query("ALTER TABLE " + r.name + " MODIFY COLUMN n Nullable(Int32) SETTINGS mutations_sync = 1")
	if got := replayed("dlq", "replay"); got.Records != 2 || got.Stored != 2 {
		r.Errorf("%+v", got)
	}
	if got := replayed("dlq", "replay"); got.Records != 2 || got.Found != 2 {
		r.Errorf("%+v", got)
	}
	if got := replayed("groups", "replay"); got.Records != 32 || got.Found != 32 || got.Stored != 0 {
		r.Errorf("%+v", got)
	}
	if got := replayed("groups", "replay", "--table", r.name+"_new", "--create", "--from-time", "2020-01-01T00:00:00Z"); got.Stored != 32 {
		r.Errorf("%+v", got)
	}
	for _, table := range []string{r.name, r.name + "_new"} {
		if got := r.query(count + table); got != "32\t32" {
			r.Errorf("%s has %s", table, got)
		}
	}
	if got := r.query("SELECT groupArray(_offset) = (SELECT groupArray(_offset) FROM (SELECT _offset FROM " + r.name + "_new WHERE n IN (300, -1) ORDER BY n)) FROM (SELECT _offset FROM " +
		r.name + " WHERE n IN (300, -1) ORDER BY n)"); got != "1" {
		r.Error("a replayed letter lost its offset")
	}
}

func (r *warehouseRig) explains() {
	r.query("RENAME TABLE " + r.name + " TO " + r.name + "_gone")
	r.produce(`{"n":1}`)
	said := sluice(r.T, "explain", "group", r.name, "--brokers", r.addr, "--workers", "")
	if !strings.Contains(said, "no worker") || !strings.Contains(said, "start `sluice sink`") {
		r.Error(said)
	}
	r.query("RENAME TABLE " + r.name + "_gone TO " + r.name)
	c := r.choice()
	sink, err := newSinkOf(quietLog(), c.spec)
	if err != nil {
		r.Fatal(err)
	}
	w, err := sinks.NewWorker(quietLog(), nil, c.pipe, c.spec, sink, sinks.Config{SessionTimeout: 6 * time.Second, BackoffMax: 200 * time.Millisecond})
	if err != nil {
		r.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(r.Context())
	go func() { done <- w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	await(r.T, "the row", func() bool { return w.Account().Stored == 1 })
	r.query("RENAME TABLE " + r.name + " TO " + r.name + "_gone")
	r.produce(`{"n":2}`)
	page := httptest.NewServer(operatorMux(newRegistry(), nil, []page{{statusPath, workers{w}.statuses}}))
	defer page.Close()
	await(r.T, "the reason", func() bool {
		said = sluice(r.T, "explain", "group", r.name, "--brokers", r.addr, "--workers", page.URL)
		return strings.Contains(said, "retrying") && strings.Contains(said, "there is no table") && strings.Contains(said, "mend the destination")
	})
	r.query("RENAME TABLE " + r.name + "_gone TO " + r.name)
	await(r.T, "the other row", func() bool { return w.Account().Stored == 2 })
}

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// await polls until ok says so.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited a minute for: %s", what)
		}
	}
}
