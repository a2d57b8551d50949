package clickhouse

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// TestTypeChangedWhileRunning: the server would convert what was made for the former type, and wrap what the new one cannot hold.
func TestTypeChangedWhileRunning(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, types := range [][2]string{{"UInt16", "UInt8"}, {"UInt8", "UInt16"}, {"String", "Nullable(String)"}, {"DateTime", "DateTime64(3)"}} {
		t.Run(types[0]+" to "+types[1], func(t *testing.T) {
			r := newRig(t, server, "n "+types[0], window, "")
			if err := r.add(`{"n":200}`); err != nil {
				t.Fatal(err)
			}
			r.mustWrite(0)
			server.Query(t, "ALTER TABLE "+r.table+" MODIFY COLUMN n "+types[1])
			if err := r.add(`{"n":201}`); err != nil {
				t.Fatal(err)
			}
			if err := r.write(1); !errors.Is(err, sinks.ErrSchemaChanged) {
				t.Fatalf("%v", err)
			}
			before, err := r.sink.current()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.sink.Check(t.Context()); err != nil { // as the worker does
				t.Fatal(err)
			}
			if after, _ := r.sink.current(); after == before {
				t.Error("Check took the table for unchanged")
			}
			if r.block, err = r.sink.NewBlock(); err != nil {
				t.Fatal(err)
			}
			r.offset = 1
			if err := r.add(`{"n":201}`); err != nil {
				t.Fatal(err)
			}
			for err := r.write(1); err != nil; err = r.write(1) { // the server takes a moment to see that the first try was cut off
				if !strings.Contains(err.Error(), "QUERY_WITH_SAME_ID") {
					t.Fatal(err)
				}
				r.offset = 1
				if err := r.add(`{"n":201}`); err != nil {
					t.Fatal(err)
				}
			}
			if got := r.query("count()"); got != "2" {
				t.Error(got)
			}
		})
	}
}

func TestCheckOfAnUnchangedTableKeepsItsBlocks(t *testing.T) {
	r := newRig(t, testenv.ClickHouse(t), "n Int32", window, "")
	if _, err := r.sink.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.add(`{"n":1}`); err != nil {
		t.Fatal(err)
	}
	r.mustWrite(0)
}

// TestStoredKnowsTopicsByTheirID: rows of an earlier topic of the same name have the same offsets.
func TestStoredKnowsTopicsByTheirID(t *testing.T) {
	server := testenv.ClickHouse(t)
	former, now := sinks.TopicID{1, 2}, sinks.TopicID{0xab, 0xcd}
	for _, typ := range []string{"String", "LowCardinality(String)", "UUID"} {
		t.Run(typ, func(t *testing.T) {
			r := newRig(t, server, "n Int32", window, "")
			stored := func(id sinks.TopicID) string {
				t.Helper()
				s, err := r.sink.Stored(t.Context(), sinks.Claim{Topic: "p", TopicID: id, Partition: 3, Lo: 0, Hi: 9})
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(s.Present, s.Max, s.MaxUnknown)
			}
			write := func(id sinks.TopicID, lo int64) {
				t.Helper()
				r.offset = lo
				for range 2 {
					if err := r.add(`{"n":1}`); err != nil {
						t.Fatal(err)
					}
				}
				c := sinks.Claim{Pipeline: "p", Topic: "p", TopicID: id, Partition: 3, Lo: lo, Hi: lo + 1}
				if err := r.sink.Write(t.Context(), &sinks.Batch{Claim: c, Block: r.block, Identity: c.Identity()}); err != nil {
					t.Fatal(err)
				}
				r.block.Reset()
			}
			write(now, 0)
			if got := stored(former); got != "[{0 1}] 1 1" { // without the column nothing tells
				t.Error(got)
			}
			server.Query(t, "ALTER TABLE "+r.table+" ADD COLUMN _topic_id "+typ)
			r.restart()
			write(former, 4)
			write(now, 6)
			if got := stored(former); got != "[{0 1} {4 5}] 5 1" {
				t.Error(got)
			}
			if got := stored(now); got != "[{0 1} {6 7}] 7 1" {
				t.Error(got)
			}
			server.Query(t, "ALTER TABLE "+r.table+" UPDATE _topic_id = '"+former.String()[:8]+"-0000-0000-0000-000000000000' WHERE _topic = 'p' AND _partition = 3 AND empty(_topic_id) SETTINGS mutations_sync = 1")
			if got := stored(now); got != "[{6 7}] 7 -1" {
				t.Error(got)
			}
		})
	}
}

// TestMendOfUnknownRows runs the statement that is proposed for a table without the column.
func TestMendOfUnknownRows(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "n Int32", window, "")
	if err := r.add(`{"n":1}`); err != nil {
		t.Fatal(err)
	}
	r.mustWrite(0)
	c := sinks.Claim{Topic: "p", TopicID: sinks.TopicID{7}, Partition: 3, Lo: 0, Hi: 9}
	stored, err := r.sink.Stored(t.Context(), c)
	if err != nil || stored.MaxUnknown != 0 {
		t.Fatalf("%+v %v", stored, err)
	}
	_, rest, _ := strings.Cut(stored.Mend, "if the rows are of an earlier topic, ")
	statement, _, _ := strings.Cut(rest, ";")
	server.Query(t, statement)
	if _, err := r.sink.Check(t.Context()); err != nil { // as the worker does before it asks
		t.Fatal(err)
	}
	if stored, err = r.sink.Stored(t.Context(), c); err != nil || stored.Max != -1 || stored.MaxUnknown != -1 {
		t.Errorf("after %s: %+v %v", statement, stored, err)
	}
}
