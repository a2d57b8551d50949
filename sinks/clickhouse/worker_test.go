package clickhouse

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// TestTableChangesUnderAWorker narrows and widens a column, and drops the table and makes it again, while a worker runs: no value is wrapped, none is given up
// that fits the column as it is, and the worker is ready again without a restart.
func TestTableChangesUnderAWorker(t *testing.T) {
	server := testenv.ClickHouse(t)
	broker := testenv.Kafka(t).Addr
	topic := fmt.Sprintf("alter-%d", os.Getpid())
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	create := "CREATE TABLE alters (n UInt16, _topic_id String, " + ownDDL + ") ENGINE = " + window
	server.Query(t, create)
	pipe := pipeline(t, server.Addr, "alters", "")
	pipe.Name, pipe.Topic.Name = topic, topic
	spec := pipe.Sinks[0]
	spec.Pipeline, spec.Batch.Age = topic, 50*time.Millisecond
	sink, err := New(quiet(), spec)
	if err != nil {
		t.Fatal(err)
	}
	w, err := sinks.NewWorker(quiet(), nil, pipe, spec, sink, sinks.Config{Brokers: []string{broker}, SessionTimeout: 6 * time.Second, BackoffMax: time.Second,
		SchemaInterval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	produce := func(n int) {
		t.Helper()
		r := kgo.StringRecord(fmt.Sprintf(`{"n":%d}`, n))
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, stored, letters int64, ready bool) {
		t.Helper()
		deadline := time.Now().Add(40 * time.Second)
		for a := w.Account(); a.Stored != stored || a.DeadLettered["range"] != letters || (w.Ready() == nil) != ready; a = w.Account() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v, ready: %v", what, a, w.Ready())
			}
			pause(20 * time.Millisecond)
		}
	}
	produce(300)
	await("as made", 1, 0, true)
	server.Query(t, "ALTER TABLE alters MODIFY COLUMN n UInt8 SETTINGS mutations_sync = 1")
	produce(301)
	await("narrowed", 1, 1, true)
	server.Query(t, "ALTER TABLE alters MODIFY COLUMN n UInt32 SETTINGS mutations_sync = 1")
	produce(70_000)
	await("widened", 2, 1, true)
	if got := server.Query(t, "SELECT n FROM alters WHERE _offset = 2"); got != "70000" {
		t.Error(got)
	}
	server.Query(t, "ALTER TABLE alters ADD COLUMN extra Nullable(String) FIRST")
	for extra := int64(3); ; extra++ { // a column that came is filled without a restart, as soon as the worker has seen it
		r := kgo.StringRecord(`{"n":1,"extra":"yes"}`)
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		await("widened by a column", extra, 1, true)
		if server.Query(t, "SELECT count() FROM alters WHERE extra = 'yes'") != "0" {
			break
		}
	}
	before := w.Account().Stored
	server.Query(t, "DROP TABLE alters SYNC")
	produce(5)
	await("dropped", before, 1, false)
	server.Query(t, create)
	await("made again", before+1, 1, true)
	if got := server.Query(t, "SELECT n, length(_topic_id) FROM alters"); got != "5\t32" {
		t.Error(got)
	}
}
