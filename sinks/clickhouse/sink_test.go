package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// ownDDL are the columns by which rows are known.
const ownDDL = "_topic LowCardinality(String), _partition UInt32, _offset UInt64"

// rig is a table of its own on a real server, and a sink that writes to it.
type rig struct {
	*testing.T
	server *testenv.ClickHouseServer
	table  string
	pipe   *pipelines.Pipeline
	sink   *Sink
	block  sinks.Block
	offset int64
}

var tableNo atomic.Int64

// newRig makes the table with the columns ddl beside its own, and checks the sink. columns is YAML under `columns:`; "" is the default mapping.
func newRig(t *testing.T, server *testenv.ClickHouseServer, ddl, engine, columns string) *rig {
	t.Helper()
	return newRigOver(t, server, pipelines.ProtocolNative, ddl, engine, columns)
}

func newRigOver(t *testing.T, server *testenv.ClickHouseServer, protocol pipelines.Protocol, ddl, engine, columns string) *rig {
	t.Helper()
	r := &rig{T: t, server: server, table: fmt.Sprintf("t%d", tableNo.Add(1))}
	if ddl != "" {
		ddl += ", "
	}
	server.Query(t, "CREATE TABLE "+r.table+" ("+ddl+ownDDL+") ENGINE = "+engine)
	r.pipe = pipeline(t, server.Addr, r.table, columns)
	if spec := r.pipe.Sinks[0].ClickHouse; protocol == pipelines.ProtocolHTTP {
		spec.Addr, spec.Protocol = []string{server.HTTPAddr}, protocol
	}
	r.restart()
	return r
}

// protocols are the ways to a server, each with another compression.
var protocols = []pipelines.Protocol{pipelines.ProtocolNative, pipelines.ProtocolHTTP}

const window = "MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 100"

func pipeline(t testing.TB, addr, table, columns string) *pipelines.Pipeline {
	t.Helper()
	text := fmt.Sprintf("pipeline: p\ncollect: {file: {include: [/x]}}\nprocess: [{parse: json}]\nsink:\n  clickhouse:\n    addr: [%q]\n    table: %s\n", addr, table)
	if columns != "" {
		text += "    columns:\n" + columns
	}
	pipes, err := pipelines.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return pipes[0]
}

// restart makes the sink again.
func (r *rig) restart() sinks.Destination {
	r.Helper()
	var err error
	if r.sink, err = New(quiet(), r.pipe.Sinks[0]); err != nil {
		r.Fatal(err)
	}
	d, err := r.sink.Check(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	if r.block, err = r.sink.NewBlock(); err != nil {
		r.Fatal(err)
	}
	return d
}

// add appends a record's value as a row.
func (r *rig) add(value string) error {
	r.Helper()
	var e pipelines.Event
	meta := pipelines.Meta{Topic: "p", Partition: 3, Offset: r.offset, Time: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)}
	if err := r.pipe.ReadRecord(&e, meta, []byte(value)); err != nil {
		r.Fatal(err)
	}
	r.offset++
	return r.block.Append(&e)
}

// write inserts the block under the claim [lo, offset-1].
func (r *rig) write(lo int64) error {
	c := sinks.Claim{Pipeline: "p", Topic: "p", Partition: 3, Lo: lo, Hi: r.offset - 1}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	err := r.sink.Write(ctx, &sinks.Batch{Claim: c, Block: r.block, Identity: c.Identity()})
	r.block.Reset()
	return err
}

func (r *rig) mustWrite(lo int64) {
	r.Helper()
	if err := r.write(lo); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) query(what string) string {
	r.Helper()
	return r.server.Query(r, "SELECT "+what+" FROM "+r.table)
}

// TestTypes writes a value of each type and reads it back; and what does not fit must be refused, not wrapped or clamped.
func TestTypes(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, c := range []struct {
		typ  string
		good map[string]string // JSON to what the server prints
		bad  []string          // JSON
	}{
		{"Int8", map[string]string{"-128": "-128", "127": "127", `"5"`: "5", "3.0": "3"}, []string{"128", "-129", "1.5", `"x"`, "null"}},
		{"UInt8", map[string]string{"0": "0", "255": "255", "true": "1"}, []string{"300", "-1", "[1]"}},
		{"Int16", map[string]string{"-32768": "-32768"}, []string{"32768"}},
		{"UInt16", map[string]string{"65535": "65535"}, []string{"65536"}},
		{"Int32", map[string]string{"2147483647": "2147483647"}, []string{"1099511627776"}},
		{"UInt32", map[string]string{"4294967295": "4294967295"}, []string{"-1", "4294967296"}},
		{"Int64", map[string]string{"-9223372036854775808": "-9223372036854775808"}, []string{"9223372036854775808", "1e19"}},
		{"UInt64", map[string]string{"18446744073709551615": "18446744073709551615"}, []string{"-1", "18446744073709551616"}},
		{"Float32", map[string]string{"1.5": "1.5"}, []string{"1e39", `"x"`}},
		{"Float64", map[string]string{"-1.25e10": "-12500000000", "7": "7"}, []string{"1e400"}},
		{"Bool", map[string]string{"true": "true", "0": "false"}, []string{"2", `"maybe"`}},
		{"String", map[string]string{`"ä"`: "ä", "12": "12", `{"a":[1]}`: `{"a":[1]}`, `""`: ""}, []string{"null"}},
		{"LowCardinality(String)", map[string]string{`"x"`: "x"}, []string{"null"}},
		{"Nullable(String)", map[string]string{`"x"`: "x", "null": `\N`}, nil},
		{"LowCardinality(Nullable(String))", map[string]string{`"x"`: "x", "null": `\N`}, nil},
		{"Nullable(UInt8)", map[string]string{"7": "7", "null": `\N`}, []string{"300"}},
		{"FixedString(3)", map[string]string{`"abc"`: "abc", `"a"`: `a\0\0`}, []string{`"abcd"`}},
		{"Date", map[string]string{`"2026-11-30"`: "2026-11-30", `"2149-06-06"`: "2149-06-06", `"2026-11-30T23:00:00-05:00"`: "2026-12-01"},
			[]string{`"1950-01-01"`, `"2150-01-01"`, `"never"`}},
		{"Date32", map[string]string{`"1900-01-01"`: "1900-01-01", `"2299-12-31"`: "2299-12-31"}, []string{`"1899-12-31"`, `"2300-01-01"`}},
		{"DateTime('UTC')", map[string]string{`"2026-11-30T10:00:00+01:00"`: "2026-11-30 09:00:00", "0": "1970-01-01 00:00:00", `"2106-02-07T06:28:15Z"`: "2106-02-07 06:28:15"},
			[]string{`"2150-01-01T00:00:00Z"`, `"1969-12-31T23:59:59Z"`, `"2106-02-07T06:28:16Z"`}},
		{"DateTime64(3, 'UTC')", map[string]string{`"2026-11-30T10:00:00.123456Z"`: "2026-11-30 10:00:00.123", `"1900-01-01T00:00:00Z"`: "1900-01-01 00:00:00.000"},
			[]string{`"1899-12-31T23:59:59Z"`, `"2300-01-01T00:00:00Z"`}},
		{"DateTime64(9, 'UTC')", map[string]string{`"2026-11-30T10:00:00.123456789Z"`: "2026-11-30 10:00:00.123456789"}, []string{`"2270-01-01T00:00:00Z"`}},
		{"Nullable(DateTime64(6, 'UTC'))", map[string]string{"null": `\N`, `"1969-12-31T23:59:59.5Z"`: "1969-12-31 23:59:59.500000"}, nil},
		{"UUID", map[string]string{`"12345678-9abc-def0-1234-56789abcdef0"`: "12345678-9abc-def0-1234-56789abcdef0"}, []string{`"x"`, "1"}},
		{"IPv4", map[string]string{`"192.168.0.1"`: "192.168.0.1"}, []string{`"::1"`, `"300.1.1.1"`}},
		{"IPv6", map[string]string{`"2001:db8::1"`: "2001:db8::1", `"10.0.0.1"`: "::ffff:10.0.0.1"}, []string{`"x"`}},
		{"Enum8('a' = 1, 'b\\'c' = -2)", map[string]string{`"a"`: "a", `"b'c"`: `b\'c`, "1": "a"}, []string{`"z"`, "7"}},
		{"Enum16('x' = 300)", map[string]string{`"x"`: "x"}, []string{"299"}},
		{"Decimal(9, 2)", map[string]string{"12.5": "12.5", "-0.01": "-0.01", "7": "7", `"9999999.99"`: "9999999.99"}, []string{"10000000", "1.005", `"x"`, `"-"`, `""`, `"."`, `"+1"`, `"1_0"`}},
		{"Decimal(18, 4)", map[string]string{"99999999999999.9999": "99999999999999.9999"}, []string{"100000000000000"}},
		{"Decimal(38, 10)", map[string]string{`"-1234567890123456789012345678.0123456789"`: "-1234567890123456789012345678.0123456789"}, []string{"1e30"}},
		{"Decimal(76, 1)", map[string]string{"-5.5": "-5.5"}, nil},
		{"Array(UInt8)", map[string]string{"[1,2,255]": "[1,2,255]", "[]": "[]"}, []string{"[1,256]", "1", "null"}},
		{"Array(LowCardinality(String))", map[string]string{`["a","b"]`: "['a','b']"}, nil},
		{"Array(Nullable(Int32))", map[string]string{`[1,null]`: "[1,NULL]"}, nil},
		{"Array(Array(String))", map[string]string{`[["a"],[]]`: "[['a'],[]]"}, nil},
		{"Map(String, Int64)", map[string]string{`{"b":2,"a":1}`: "{'a':1,'b':2}", "{}": "{}"}, []string{`{"a":"x"}`, "[]"}},
		{"JSON", map[string]string{`{"a":{"b":1}}`: `{"a":{"b":1}}`}, []string{"1"}},
		{"Int128", map[string]string{`"-170141183460469231731687303715884105728"`: "-170141183460469231731687303715884105728", "5": "5"}, []string{`"170141183460469231731687303715884105728"`, "1.5", "null"}},
		{"UInt256", map[string]string{`"115792089237316195423570985008687907853269984665640564039457584007913129639935"`: "115792089237316195423570985008687907853269984665640564039457584007913129639935"}, []string{"-1", `"x"`}},
		{"Nullable(UInt128)", map[string]string{"null": `\N`, "7": "7"}, []string{"-1"}},
		{"Tuple(Int32, String)", map[string]string{`[1,"a"]`: "(1,'a')"}, []string{"[1]", `[1,"a",2]`, "1", `["x","a"]`, "null"}},
		{"Tuple(a UInt8, `b c` Nullable(String))", map[string]string{`{"a":1,"b c":"x"}`: "(1,'x')", `{"a":2}`: "(2,NULL)", "[3,null]": "(3,NULL)"},
			[]string{`{"a":300}`, `{"b c":"x"}`, `{"a":1,"z":2}`}},
		{"Array(Tuple(String, Array(UInt8)))", map[string]string{`[["a",[1,2]],["b",[]]]`: "[('a',[1,2]),('b',[])]"}, []string{`[["a",[256]]]`}},
		{"Array(Tuple(k LowCardinality(String), v Int8))", map[string]string{`[{"k":"x","v":-1}]`: "[('x',-1)]"}, []string{`[{"k":"x","v":200}]`}},
		{"Map(String, Tuple(a Int8))", map[string]string{`{"x":{"a":1}}`: "{'x':(1)}"}, []string{`{"x":{"a":1000}}`}},
		{"Map(UInt16, Array(Map(String, Nullable(Float64))))", map[string]string{`{"1":[{"a":1.5,"b":null}]}`: "{1:[{'a':1.5,'b':NULL}]}"}, []string{`{"x":[]}`}},
		{"Point", map[string]string{"[1.5,2]": "(1.5,2)"}, []string{"[1]"}},
	} {
		for _, protocol := range protocols {
			testType(t, server, protocol, c.typ, c.good, c.bad)
		}
	}
}

func testType(t *testing.T, server *testenv.ClickHouseServer, protocol pipelines.Protocol, typ string, good map[string]string, bad []string) {
	t.Run(string(protocol)+" "+typ, func(t *testing.T) {
		r := newRigOver(t, server, protocol, "c "+typ, window, "")
		want := map[string]string{}
		for in, out := range good {
			for _, bad := range bad { // between good ones, so that a torn row would show
				if err := r.add(`{"c":` + bad + `}`); err == nil {
					t.Errorf("%s was taken", bad)
				} else if reject := (*sinks.RejectError)(nil); !errors.As(err, &reject) || reject.Column != "c" {
					t.Errorf("%s: %v", bad, err)
				}
			}
			want[fmt.Sprint(r.offset)] = out
			if err := r.add(`{"c":` + in + `}`); err != nil {
				t.Errorf("%s: %v", in, err)
			}
		}
		r.mustWrite(0)
		for _, line := range strings.Split(r.query("_offset, c"), "\n") {
			offset, got, _ := strings.Cut(line, "\t")
			if got != want[offset] {
				t.Errorf("offset %s is %q, want %q", offset, got, want[offset])
			}
			delete(want, offset)
		}
		if len(want) > 0 {
			t.Errorf("not stored: %v", want)
		}
	})
}

func TestMissingFieldsAndDefaults(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "a String, b Nullable(Int32), d DateTime DEFAULT now(), m UInt64 MATERIALIZED length(a), l UInt64 ALIAS length(a), _time DateTime64(3, 'UTC')", window, "")
	if err := r.add(`{"a":"x","d":"not a date"}`); err != nil {
		t.Fatal(err)
	}
	if err := r.add(`{"b":1}`); !errors.Is(err, pipelines.ErrNull) {
		t.Errorf("a missing field became an empty string: %v", err)
	}
	r.mustWrite(0)
	if got := r.query("a, b, d > now() - 60, m, _topic, _partition, _offset, _time"); got != `x	\N	1	1	p	3	0	2026-11-30 10:00:00.000` {
		t.Error(got)
	}
}

func TestMappedColumnsInAnyOrder(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "b String, a Int32, untouched Int8 DEFAULT 7", window, "      a: x + 1\n      b: y\n      _offset: _offset\n")
	if err := r.add(`{"x":1,"y":"why"}`); err != nil {
		t.Fatal(err)
	}
	r.mustWrite(0)
	if got := r.query("a, b, untouched"); got != "2\twhy\t7" {
		t.Error(got)
	}
}

// TestRepeatedWrites writes a claim again with the same connection and another, and as another process, on tables of each kind.
func TestRepeatedWrites(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, partitioned := range []string{"", " PARTITION BY n % 3"} {
		r := newRig(t, server, "n Int32", "MergeTree"+partitioned+" ORDER BY _offset SETTINGS non_replicated_deduplication_window = 100", "")
		server.Query(t, "CREATE MATERIALIZED VIEW "+r.table+"_mv (n Int32, _offset UInt64) ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 100 AS SELECT n, _offset FROM "+r.table)
		server.Query(t, "CREATE TABLE "+r.table+"_same AS "+r.table)
		for attempt := range 3 {
			r.offset = 0
			for i := range 100 {
				if err := r.add(fmt.Sprintf(`{"n":%d}`, i)); err != nil {
					t.Fatal(err)
				}
			}
			r.mustWrite(0)
			if attempt == 1 {
				r.restart()
			}
		}
		// The same content at other offsets is other rows.
		for i := range 100 {
			if err := r.add(fmt.Sprintf(`{"n":%d}`, i)); err != nil {
				t.Fatal(err)
			}
		}
		r.mustWrite(100)
		if got := r.query("count(), uniqExact(_offset)"); got != "200\t200" {
			t.Errorf("%s: %s", partitioned, got)
		}
		if got := server.Query(t, "SELECT count(), uniqExact(_offset) FROM "+r.table+"_mv"); got != "200\t200" {
			t.Errorf("the view has %s", got)
		}
	}
}

func TestStoredReadsBack(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "n Int32", window, "")
	c := sinks.Claim{Topic: "p", Partition: 3, Lo: 2, Hi: 11}
	stored, err := r.sink.Stored(t.Context(), c)
	if err != nil || stored.Max != -1 || stored.MaxUnknown != -1 || stored.Present != nil {
		t.Errorf("%+v %v", stored, err)
	}
	server.Query(t, "INSERT INTO "+r.table+" SELECT number, 'p', 3, number FROM numbers(20) WHERE number NOT IN (5, 6)")
	server.Query(t, "INSERT INTO "+r.table+" SELECT number, 'p', 4, number FROM numbers(50)")
	stored, err = r.sink.Stored(t.Context(), c)
	if got := fmt.Sprint(stored.Present, stored.Max, stored.MaxUnknown); err != nil || got != "[{2 4} {7 11}] 19 19" {
		t.Errorf("%s %v", got, err)
	}
}

func TestGuaranteeIsSaid(t *testing.T) {
	server := testenv.ClickHouse(t)
	for engine, want := range map[string]string{window: "exactly once: ", "MergeTree ORDER BY _offset": "ALTER TABLE", "Memory": "none: ", "StripeLog": "unless",
		"ReplacingMergeTree ORDER BY _offset": "none: ", "Buffer('', '', 1, 10, 100, 100, 1000, 100, 1000)": "none: "} {
		r := newRig(t, server, "n Int32", engine, "")
		d := r.restart()
		if d.DropsRepeats != (engine == window) || !strings.Contains(d.Guarantee, want) || d.Server != server.Addr {
			t.Errorf("%s: %+v", engine, d)
		}
	}
}

func TestTroubleIsSaidWithItsMend(t *testing.T) {
	server := testenv.StartClickHouse(t, testenv.ClickHouseConfig{Users: []testenv.ClickHouseUser{{Name: "loader", Password: "right"}}})
	server.Query(t, "CREATE TABLE bare (n Int32) ENGINE = MergeTree ORDER BY n")
	server.Query(t, "CREATE TABLE odd (t BFloat16, "+ownDDL+") ENGINE = "+window)
	server.Query(t, "CREATE TABLE good (n Int32, m Int32 MATERIALIZED n, "+ownDDL+") ENGINE = "+window)
	for _, c := range []struct {
		name string
		edit func(*pipelines.ClickHouse)
		cols string
		want []string
	}{
		{"no server", func(c *pipelines.ClickHouse) { c.Addr = []string{"127.0.0.1:1"} }, "", []string{"127.0.0.1:1", "refused"}},
		{"database", func(c *pipelines.ClickHouse) { c.Database = "nowhere" }, "", []string{`no database "nowhere"`}},
		{"table", func(c *pipelines.ClickHouse) { c.Table = "nothing" }, "", []string{`no table "nothing"`}},
		{"own columns", func(c *pipelines.ClickHouse) { c.Table = "bare" }, "", []string{"ALTER TABLE `default`.`bare` ADD COLUMN _topic", "_partition", "_offset"}},
		{"type", func(c *pipelines.ClickHouse) { c.Table = "odd" }, "", []string{"column t", "BFloat16", "cannot be written yet"}},
		{"column", func(*pipelines.ClickHouse) {}, "      absent: n\n", []string{"no column absent", "ALTER TABLE"}},
		{"materialized", func(*pipelines.ClickHouse) {}, "      m: n\n", []string{"column m", "MATERIALIZED"}},
		// Last, for this build of the server does not survive a greeting that it refuses.
		{"password", func(c *pipelines.ClickHouse) { c.Username, c.Password = "loader", pipelines.NewSecret("wrong") }, "", []string{"loader", "check username and password"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := pipeline(t, server.Addr, "good", c.cols).Sinks[0]
			c.edit(spec.ClickHouse)
			s, err := New(quiet(), spec)
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Check(t.Context())
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nwant: %s", err, want)
				}
			}
		})
	}
}

func TestColumnsComeAndGoWhileRunning(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "a String, b String", window, "")
	add := func() {
		t.Helper()
		if err := r.add(`{"a":"1","b":"2","c":"3"}`); err != nil {
			t.Fatal(err)
		}
	}
	server.Query(t, "ALTER TABLE "+r.table+" ADD COLUMN c String AFTER a")
	add()
	r.mustWrite(0)
	if got := r.query("a, b, c"); got != "1\t2\t" {
		t.Error(got)
	}
	server.Query(t, "ALTER TABLE "+r.table+" DROP COLUMN b")
	add()
	if err := r.write(1); !errors.Is(err, sinks.ErrSchemaChanged) {
		t.Errorf("%v", err)
	}
	r.restart() // as the worker does
	add()
	r.mustWrite(2)
	if got := r.query("count(), countIf(c = '3')"); got != "2\t1" {
		t.Error(got)
	}
}

// TestServerTroubleIsNotTheRecords makes the server refuse an insert; it must be an error to wait for, and the same write must go through later.
func TestServerTroubleIsNotTheRecords(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "n Int32", "MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 100, parts_to_throw_insert = 1, parts_to_delay_insert = 1, max_delay_to_insert = 1", "")
	server.Query(t, "SYSTEM STOP MERGES "+r.table)
	add := func() {
		if err := r.add(`{"n":1}`); err != nil {
			t.Fatal(err)
		}
	}
	add()
	r.mustWrite(0)
	add()
	err := r.write(1)
	if err == nil || errors.Is(err, sinks.ErrSchemaChanged) || !strings.Contains(err.Error(), "Too many parts") {
		t.Fatalf("%v", err)
	}
	server.Query(t, "ALTER TABLE "+r.table+" MODIFY SETTING parts_to_throw_insert = 100, parts_to_delay_insert = 100")
	r.offset = 1
	add()
	r.mustWrite(1)
	if got := r.query("count()"); got != "2" {
		t.Error(got)
	}
}

func TestServerKilledAndBack(t *testing.T) {
	server := testenv.ClickHouse(t)
	r := newRig(t, server, "n Int32", window, "")
	add := func() {
		if err := r.add(`{"n":1}`); err != nil {
			t.Fatal(err)
		}
	}
	add()
	r.mustWrite(0)
	server.Kill()
	add()
	if err := r.write(1); err == nil {
		t.Fatal("written to a dead server")
	}
	server.Restart(t)
	r.offset = 0
	add()
	r.mustWrite(0) // remembered over the restart
	add()
	r.mustWrite(1)
	if got := r.query("count(), uniqExact(_offset)"); got != "2\t2" {
		t.Error(got)
	}
}
