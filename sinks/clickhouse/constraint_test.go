package clickhouse

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// letters are the dead letters of the supply: offset and reason, once each.
func (s *supply) letters() map[int64]string {
	s.Helper()
	out := map[int64]string{}
	err := sinks.ReadLetters(s.Context(), s.client, s.topic+"-dlq", func(l sinks.Letter) error {
		out[l.Record.Offset] = l.Kind + ": " + l.Reason
		return nil
	})
	if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		s.Fatal(err)
	}
	return out
}

// TestConstraint: rows that break a CONSTRAINT go to the dead-letter topic, each once and no other, and all others are stored once, in the table and in what its views fill, whether
// or not the table remembers inserts, in one piece or several.
func TestConstraint(t *testing.T) {
	server := testenv.StartClickHouse(t, testenv.ClickHouseConfig{})
	shard := testenv.StartClickHouse(t, testenv.ClickHouseConfig{Shards: []string{server.Addr}})
	const few = "CONSTRAINT `few, (or less)` CHECK NOT has([110, 112], n), CONSTRAINT it CHECK name != 'it''s (', CONSTRAINT far CHECK n < 250 OR n > 250, CONSTRAINT sure ASSUME n != 114, "
	bad := []int64{110, 112, 116, 250} // all of one shard, while the other has stored its rows; 250 is in a later piece than the others
	for _, c := range []struct {
		name, columns, engine string
		view, shards          bool
		over                  []pipelines.Protocol
	}{
		{name: "plain", columns: few, engine: "MergeTree ORDER BY _offset", over: protocols},
		{name: "window", columns: few, engine: window, over: protocols[:1]},
		{name: "view", columns: few, engine: window, view: true, over: protocols[:1]},
		{name: "pieces", columns: few, engine: "MergeTree PARTITION BY n ORDER BY _offset", over: protocols},
		{name: "shards", columns: few, engine: "MergeTree ORDER BY _offset", shards: true, over: protocols},
		{name: "shardswindow", columns: few, engine: window, shards: true, over: protocols[:1]},
	} {
		for _, protocol := range c.over {
			name := c.name + string(protocol)
			t.Run(name, func(t *testing.T) {
				on, holds := server, []*testenv.ClickHouseServer{server}
				if c.shards {
					on, holds = shard, []*testenv.ClickHouseServer{server, shard}
				}
				table := name
				if c.shards {
					table += "_local"
				}
				for _, s := range holds {
					s.Query(t, "CREATE TABLE "+table+" (n Int64, name String DEFAULT if(m = 117, 'it''s (', 'x'), m Int64 MATERIALIZED n + 1, "+c.columns+"_topic_id String, "+ownDDL+") ENGINE = "+c.engine)
				}
				if c.shards {
					on.Query(t, "CREATE TABLE "+name+" (n Int64, _topic_id String, "+ownDDL+") ENGINE = Distributed('shards', 'default', '"+table+"', _offset)")
				}
				if c.view {
					on.Query(t, "CREATE MATERIALIZED VIEW "+name+"_mv ENGINE = "+window+" AS SELECT n, _offset FROM "+name)
				}
				addr := on.Addr
				if protocol == pipelines.ProtocolHTTP {
					addr = on.HTTPAddr
				}
				s := newSupply(t, addr, name, func(p *pipelines.Pipeline) { p.Sinks[0].ClickHouse.Protocol = protocol })
				s.produce(100)
				s.passed()
				s.produce(200)
				s.passed()
				want := fmt.Sprintf("%d\t%d", 300-len(bad), 300-len(bad))
				if got := on.Query(t, "SELECT count(), uniqExact(_offset) FROM "+name); got != want {
					t.Errorf("the table has %s, want %s", got, want)
				}
				if c.view {
					if got := on.Query(t, "SELECT count(), uniqExact(_offset) FROM "+name+"_mv"); got != want {
						t.Errorf("the view has %s, want %s", got, want)
					}
				}
				letters := s.letters()
				for _, offset := range bad {
					if why := letters[offset]; !strings.HasPrefix(why, "constraint: it breaks the constraint") {
						t.Errorf("offset %d: %q", offset, why)
					}
				}
				if a := s.w.Account(); len(letters) != len(bad) || a.DeadLettered["constraint"] != int64(len(bad)) || a.Stored+a.Found != 300-int64(len(bad)) {
					t.Errorf("%d letters, %+v", len(letters), a)
				}
			})
		}
	}
}

// TestConstraintThatMostRowsBreak: then it is the constraint that is wrong. Nothing goes to the dead-letter topic, the partition says why it is held, and goes on
// when the constraint is gone.
func TestConstraintThatMostRowsBreak(t *testing.T) {
	server := testenv.ClickHouse(t)
	server.Query(t, "CREATE TABLE most (n Int64, CONSTRAINT most CHECK n < 100, _topic_id String, "+ownDDL+") ENGINE = "+window)
	s := newSupply(t, server.Addr, "most", nil)
	s.produce(100)
	s.passed()
	s.produce(200)
	s.until("a reason", func() bool {
		err := s.w.Ready()
		return err != nil && strings.Contains(err.Error(), "dead_letter_share")
	})
	if letters := s.letters(); len(letters) > 0 {
		t.Errorf("%d letters", len(letters))
	}
	server.Query(t, "ALTER TABLE most DROP CONSTRAINT most")
	s.passed()
	if got := server.Query(t, "SELECT count(), uniqExact(_offset) FROM most"); got != "300\t300" {
		t.Error(got)
	}
}

func TestConstraintsAreReadFromTheirTable(t *testing.T) {
	for create, want := range map[string][]constraint{
		"CREATE TABLE `a(b`.t (`x y` Int8 DEFAULT ')', `n` Array(UInt8), CONSTRAINT c CHECK (n = [1, 2]) OR (x = '\\'('), INDEX i n TYPE minmax GRANULARITY 1) ENGINE = Log": {{"c", "(n = [1, 2]) OR (x = '\\'(')"}},
		"CREATE TABLE d.t (`a` Int8, CONSTRAINT `c d` CHECK a > 1, CONSTRAINT e ASSUME a > 2) ENGINE = MergeTree ORDER BY tuple()":                                           {{"c d", "a > 1"}},
		"CREATE TABLE d.t (`a` Int8) ENGINE = Log": nil,
	} {
		if got, err := constraintsOf(create); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", create, got, err)
		}
	}
	if _, err := constraintsOf("CREATE TABLE t (a"); err == nil {
		t.Error("a list without an end was read")
	}
}

// TestRefusedRowsAreForgotten: another topic of the name, the end of the batch, and time end what was said of rows.
func TestRefusedRowsAreForgotten(t *testing.T) {
	now := time.Now()
	c := sinks.Claim{Topic: "t", TopicID: sinks.TopicID{1}, Partition: 2, Lo: 10, Hi: 20}
	other := c
	other.TopicID = sinks.TopicID{2}
	next := c
	next.Lo, next.Hi = 16, 30
	for _, x := range []struct {
		name string
		then func(r *refusedRows)
		want []int64
	}{
		{"the batch again", func(r *refusedRows) { r.pass(c, false, now) }, []int64{15, 25}},
		{"and again", func(r *refusedRows) { r.pass(c, false, now); r.pass(c, false, now) }, nil},
		{"it is stored", func(r *refusedRows) { r.pass(c, true, now) }, []int64{25}},
		{"the next", func(r *refusedRows) { r.pass(next, false, now) }, []int64{25}},
		{"another topic", func(r *refusedRows) { r.pass(other, false, now) }, nil},
		{"later", func(r *refusedRows) { r.pass(c, false, now.Add(refusedKept)) }, nil},
	} {
		r := &refusedRows{}
		r.put(c, map[int64]string{15: "x", 25: "x"}, now)
		x.then(r)
		var got []int64
		for offset := range int64(40) {
			if r.reason(2, offset) != "" {
				got = append(got, offset)
			}
		}
		if !slices.Equal(got, x.want) || r.some.Load() != (len(x.want) > 0) {
			t.Errorf("%s: %v are refused", x.name, got)
		}
	}
}
