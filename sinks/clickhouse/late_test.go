package clickhouse

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// supply is a topic of one partition, and a worker that stores it through a proxy.
type supply struct {
	*testing.T
	topic  string
	client *kgo.Client
	proxy  *testenv.Proxy
	w      *sinks.Worker
	n      int
}

var supplyNo atomic.Int64

// writeDeadline is that of the supplies' workers.
const writeDeadline = 2 * time.Second

func newSupply(t *testing.T, addr, table string, edit func(*pipelines.Pipeline)) *supply {
	t.Helper()
	broker := testenv.Kafka(t).Addr
	s := &supply{T: t, topic: fmt.Sprintf("late-%d-%d", os.Getpid(), supplyNo.Add(1)), proxy: testenv.StartProxy(t, addr)}
	var err error
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic(s.topic)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	if _, err := kadm.NewClient(s.client).CreateTopic(t.Context(), 1, 1, nil, s.topic); err != nil {
		t.Fatal(err)
	}
	pipe := pipeline(t, s.proxy.Addr(), table, "")
	pipe.Name, pipe.Topic.Name = s.topic, s.topic
	spec := pipe.Sinks[0]
	spec.Pipeline, spec.Batch.Age = s.topic, 50*time.Millisecond
	if edit != nil {
		edit(pipe)
	}
	sink, err := New(quiet(), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.w, err = sinks.NewWorker(quiet(), nil, pipe, spec, sink, sinks.Config{Brokers: []string{broker}, SessionTimeout: 6 * time.Second,
		WriteDeadline: writeDeadline, BackoffMax: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *supply) produce(n int) {
	s.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Value: fmt.Appendf(nil, `{"n":%d}`, s.n)}
		s.n++
	}
	if err := s.client.ProduceSync(s.Context(), records...).FirstErr(); err != nil {
		s.Fatal(err)
	}
}

// until polls until ok says so.
func (s *supply) until(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); pause(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited for: %s; %+v, ready: %v", what, s.w.Account(), s.w.Ready())
		}
	}
}

// passed waits until the worker has passed all that was produced.
func (s *supply) passed() {
	s.Helper()
	s.until("all records to be passed", func() bool { return s.w.Account().Consumed == int64(s.n) })
}

// losesAnswer cuts the connections of an insert that is muted when its deadline has passed, and waits until the worker has passed what it was about.
func (s *supply) losesAnswer() {
	s.Helper()
	s.until("the deadline of the insert", func() bool { return s.w.Ready() != nil })
	s.proxy.Cut()
	s.proxy.Flow()
	s.passed()
}

// TestLostAnswerPastTheWindow: an insert is stored, its answer is lost, and until it is repeated other inserts have pushed it out of what the table remembers. Nothing may
// be doubled, on no kind of table.
func TestLostAnswerPastTheWindow(t *testing.T) {
	server := testenv.StartClickHouse(t, testenv.ClickHouseConfig{})
	shard := testenv.StartClickHouse(t, testenv.ClickHouseConfig{Shards: []string{server.Addr}})
	for _, c := range []struct{ name, engine, views string }{
		{"plain", "MergeTree ORDER BY _offset", ""},
		{"window", "MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 2", ""},
		{"view", "MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 2", "MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 2"},
		{"plainview", "MergeTree ORDER BY _offset", "MergeTree ORDER BY n"},
		{"distributed", "Distributed('shards', 'default', 'behind', _offset)", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			on := server
			if c.name == "distributed" {
				on = shard
				for _, s := range []*testenv.ClickHouseServer{server, shard} {
					s.Query(t, "CREATE TABLE behind (n Int64, _topic_id String, "+ownDDL+") ENGINE = MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 2")
				}
			}
			query := func(statement string) string { return on.Query(t, statement) }
			query("CREATE TABLE " + c.name + " (n Int64, _topic_id String, " + ownDDL + ") ENGINE = " + c.engine)
			if c.views != "" {
				query("CREATE MATERIALIZED VIEW " + c.name + "_mv ENGINE = " + c.views + " AS SELECT * FROM " + c.name)
			}
			tables := []string{c.name}
			if c.views != "" {
				tables = append(tables, c.name+"_mv")
			}
			lostAnswerPastTheWindow(t, on.Addr, tables, query, func(i int) {
				query(fmt.Sprintf("INSERT INTO %s SELECT %d, '', 'other', 0, %d SETTINGS insert_deduplication_token = 'other-%d', distributed_foreground_insert = 1", c.name, i, i, i))
			})
		})
	}
}

// TestLostAnswerPastTheWindowOfReplicas is the same on a real old server with ZooKeeper.
func TestLostAnswerPastTheWindowOfReplicas(t *testing.T) {
	old := testenv.ClickHouseReplicas(t, testenv.ZooKeeper(t).Addr, 1)[0]
	query := func(statement string) string {
		columns := 0
		if strings.HasPrefix(statement, "SELECT") {
			columns = 1
		}
		rows := ask(t, old.Addr, statement, columns)
		if len(rows) == 0 {
			return ""
		}
		return strings.Join(rows[0], "\t")
	}
	query("CREATE TABLE default.old (n Int32, _topic_id String, _topic String, _partition UInt32, _offset UInt64) " +
		"ENGINE = ReplicatedMergeTree('/tables/old', '{replica}') PARTITION BY tuple() ORDER BY _offset SETTINGS replicated_deduplication_window = 2")
	query("CREATE TABLE default.others (n Int32, _topic_id String, _topic String, _partition UInt32, _offset UInt64) ENGINE = Memory")
	lostAnswerPastTheWindow(t, old.Addr, []string{"old"}, query, func(i int) {
		query(fmt.Sprintf("INSERT INTO default.old SELECT toInt32(%d), '', 'other', toUInt32(0), toUInt64(%d)", i, i))
	})
}

func lostAnswerPastTheWindow(t *testing.T, addr string, tables []string, query func(string) string, other func(i int)) {
	s := newSupply(t, addr, tables[0], nil)
	count := func(table string) string {
		return query("SELECT concat(toString(count()), ' ', toString(uniqExact(_offset))) FROM default." + table + " WHERE _topic = '" + s.topic + "'")
	}
	s.produce(100)
	s.passed()
	s.proxy.MuteAfter("INSERT INTO")
	s.produce(100)
	for _, table := range tables {
		s.until("the rows at the server", func() bool { return count(table) == "200 200" })
	}
	for i := range 6 {
		other(i)
	}
	if s.w.Account().Consumed != 100 {
		t.Fatal("the worker has heard of the insert")
	}
	s.losesAnswer()
	s.produce(100)
	s.passed()
	for _, table := range tables {
		if got := count(table); got != "300 300" {
			t.Errorf("%s holds %s", table, got)
		}
	}
	if a := s.w.Account(); a.Found != 100 || a.Stored != 200 {
		t.Errorf("%+v", a)
	}
}

// TestSlowInsertIsWaitedFor: an insert takes longer than its deadline, and the server still has it in hand. It is not repeated while it may end, on a table that remembers
// no inserts either; and when the server is quick again it goes through.
func TestSlowInsertIsWaitedFor(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, protocol := range protocols {
		for _, c := range []struct{ name, settings string }{{"plain", ""}, {"window", " SETTINGS non_replicated_deduplication_window = 100"}} {
			name := c.name + string(protocol)
			t.Run(name, func(t *testing.T) {
				server.Query(t, "CREATE TABLE "+name+" (n Int64, _topic_id String, "+ownDDL+") ENGINE = MergeTree ORDER BY _offset"+c.settings)
				server.Query(t, "SYSTEM STOP MERGES "+name)
				addr := server.Addr
				if protocol == pipelines.ProtocolHTTP {
					addr = server.HTTPAddr
				}
				s := newSupply(t, addr, name, func(p *pipelines.Pipeline) { p.Sinks[0].ClickHouse.Protocol = protocol })
				s.produce(100)
				s.passed()
				server.Query(t, "ALTER TABLE "+name+" MODIFY SETTING parts_to_delay_insert = 1, min_delay_to_insert_ms = 3500, max_delay_to_insert = 4") // longer than the deadline
				s.produce(100)
				s.until("the end of the insert to be waited for", func() bool { err := s.w.Ready(); return err != nil && strings.Contains(err.Error(), "still runs") })
				server.Query(t, "ALTER TABLE "+name+" RESET SETTING parts_to_delay_insert, min_delay_to_insert_ms, max_delay_to_insert")
				s.passed()
				s.until("the end of all inserts", func() bool {
					return server.Query(t, "SELECT count() FROM system.processes WHERE query_id LIKE 'sluice:%'") == "0"
				})
				if got := server.Query(t, "SELECT count(), uniqExact(_offset) FROM "+name); got != "200\t200" {
					t.Error(got)
				}
			})
		}
	}
}

// TestViewThatFails: a materialised view refuses rows that the table has taken. When it is mended it gets them, once, and the table has them once.
func TestViewThatFails(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, c := range []struct{ name, settings string }{{"soon", ""}, {"much later", ""}} {
		t.Run(c.name, func(t *testing.T) {
			name := strings.ReplaceAll(c.name, " ", "")
			const remembers = " SETTINGS non_replicated_deduplication_window = 100"
			server.Query(t, "CREATE TABLE "+name+" (n Int64, _topic_id String, "+ownDDL+") ENGINE = MergeTree ORDER BY _offset"+remembers)
			server.Query(t, "CREATE TABLE "+name+"_to (n Int64, _offset UInt64, CONSTRAINT few CHECK n < 100) ENGINE = MergeTree ORDER BY _offset"+remembers)
			server.Query(t, "CREATE MATERIALIZED VIEW "+name+"_mv TO "+name+"_to AS SELECT n, _offset FROM "+name)
			s := newSupply(t, server.Addr, name, nil)
			s.produce(100)
			s.passed()
			s.produce(100)
			s.until("a refusal", func() bool { err := s.w.Ready(); return err != nil && strings.Contains(err.Error(), "few") })
			if c.name != "soon" { // longer than a write may be repeated after it was sent
				ended := time.After(writeDeadline + 7*time.Second)
				<-ended
			}
			server.Query(t, "ALTER TABLE "+name+"_to DROP CONSTRAINT few")
			s.passed()
			for _, table := range []string{name, name + "_to"} {
				if got := server.Query(t, "SELECT count(), uniqExact(_offset) FROM "+table); got != "200\t200" {
					t.Errorf("%s holds %s", table, got)
				}
			}
		})
	}
}

// TestNoRowIsSentPastTheDeadline: a process that was stopped after the INSERT's first packet and wakes past the claim's deadline sends no row, and ends the connection.
func TestNoRowIsSentPastTheDeadline(t *testing.T) {
	r := newRig(t, testenv.ClickHouse(t), "n Int32", "MergeTree ORDER BY _offset", "")
	r.fill(1)
	b := r.block.(*block)
	column := b.input[0].Data.(wire)
	for _, c := range []struct {
		until time.Time
		ends  bool
	}{{time.Time{}, false}, {time.Now().Add(time.Minute), false}, {time.Now().Add(-time.Millisecond), true}} {
		aborted := false
		end := b.begin(func() { aborted = true }, c.until)
		err := column.Infer(column.Type())
		if changed := end(); (err != nil) != c.ends || aborted != c.ends || (changed != nil) != c.ends {
			t.Errorf("until %s: %v, aborted %t, %v", c.until, err, aborted, changed)
		}
	}
}
