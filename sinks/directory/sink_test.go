package directory

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// pipeline parses a pipeline whose sink is a directory at path.
func pipeline(t testing.TB, path, before, sink string) *pipelines.Pipeline {
	t.Helper()
	text := fmt.Sprintf("pipeline: p\n%ssink:\n  directory:\n    path: %s\n%s", before, path, sink)
	pipes, err := pipelines.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return pipes[0]
}

const jsonTopic = "collect: {file: {include: [/x]}}\nprocess: [{parse: json}]\n"

// rig is a sink on a directory, with the events of its pipeline.
type rig struct {
	testing.TB
	pipe *pipelines.Pipeline
	sink *Sink
	dir  string
}

func newRig(t testing.TB, before, sink string) *rig {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "table")
	r := &rig{TB: t, pipe: pipeline(t, dir, before, sink), dir: dir}
	r.restart()
	return r
}

// restart makes the sink again, as another process would.
func (r *rig) restart() {
	r.Helper()
	var err error
	if r.sink, err = New(quiet(), r.pipe.Sinks[0]); err != nil {
		r.Fatal(err)
	}
	if _, err := r.sink.Check(r.Context()); err != nil {
		r.Fatal(err)
	}
}

var recordTime = time.Date(2026, 11, 30, 10, 0, 0, 123_456_000, time.UTC)

// event is a record of the topic.
func (r *rig) event(offset int64, value string, headers ...pipelines.Header) *pipelines.Event {
	r.Helper()
	var e pipelines.Event
	meta := pipelines.Meta{Topic: "p", Partition: 3, Offset: offset, Time: recordTime, Headers: headers}
	if err := r.pipe.ReadRecord(&e, meta, []byte(value)); err != nil {
		r.Fatal(err)
	}
	return &e
}

// block makes a block of values with offsets from lo on; it returns how many were refused.
func (r *rig) block(lo int64, values ...string) (sinks.Block, []error) {
	r.Helper()
	b, err := r.sink.NewBlock()
	if err != nil {
		r.Fatal(err)
	}
	var refused []error
	for i, v := range values {
		if err := b.Append(r.event(lo+int64(i), v)); err != nil {
			refused = append(refused, err)
		}
	}
	return b, refused
}

var topicID = sinks.TopicID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

func claim(lo, hi int64) sinks.Claim {
	return sinks.Claim{Pipeline: "p", Topic: "p", TopicID: topicID, Partition: 3, Lo: lo, Hi: hi}
}

func (r *rig) write(lo int64, values ...string) {
	r.Helper()
	b, refused := r.block(lo, values...)
	if len(refused) > 0 {
		r.Fatal(refused)
	}
	r.store(b, lo, lo+int64(len(values))-1)
}

// store writes a block as the worker does: it asks what is stored first.
func (r *rig) store(b sinks.Block, lo, hi int64) {
	r.Helper()
	c := claim(lo, hi)
	if _, err := r.sink.Stored(r.Context(), c); err != nil {
		r.Fatal(err)
	}
	if err := r.sink.Write(r.Context(), &sinks.Batch{Claim: c, Block: b, Identity: c.Identity()}); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) rows() (rows []Row) {
	r.Helper()
	err := Read(r.dir, func(row Row) error {
		row.File = filepath.Base(row.File)
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	return rows
}

func (r *rig) names() []string {
	r.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestParquetColumnsAreTypedByTheirValues(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	r.write(10,
		`{"b":true,"i":1,"f":1.5,"s":"x","mixed":1,"widened":1,"list":[1,{"a":2}],"big":18446744073709551615}`,
		`{"s":"y","mixed":"two","widened":2.5,"i":null,"b":false}`,
	)
	r.write(12, `{"i":7,"new":"column"}`)
	want := []Row{
		{File: "p-3-000102030405060708090a0b0c0d0e0f-00000000000000000010-00000000000000000011.parquet", Topic: "p", Partition: 3, Offset: 10, Time: recordTime, Fields: map[string]any{
			"b": true, "i": int64(1), "f": 1.5, "s": "x", "mixed": "1", "widened": 1.0, "list": `[1,{"a":2}]`, "big": "18446744073709551615"}},
		{File: "p-3-000102030405060708090a0b0c0d0e0f-00000000000000000010-00000000000000000011.parquet", Topic: "p", Partition: 3, Offset: 11, Time: recordTime, Fields: map[string]any{
			"b": false, "s": "y", "mixed": "two", "widened": 2.5}},
		{File: "p-3-000102030405060708090a0b0c0d0e0f-00000000000000000012-00000000000000000012.parquet", Topic: "p", Partition: 3, Offset: 12, Time: recordTime, Fields: map[string]any{
			"i": int64(7), "new": "column"}},
	}
	if diff := cmp.Diff(want, r.rows()); diff != "" {
		t.Error(diff)
	}
	if names := r.names(); !slices.Equal(names[:2], []string{"_schema-000001", "_schema-000002"}) {
		t.Error(names)
	}
}

// TestColumnsOfKnownTypeAreThereWithoutValues: a query that names one fails on a file without it.
func TestColumnsOfKnownTypeAreThereWithoutValues(t *testing.T) {
	nginx := "collect: {file: {include: [/x]}}\nprocess: [{parse: nginx}]\n"
	mapped := "    columns: {status: status, referer: referer}\n"
	for name, sink := range map[string]string{"all fields": "", "mapped": mapped} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nginx, sink)
			r.write(0, `{"status":200,"path":"/"}`)
			known, err := loadSchema(osFS{dir: r.dir})
			if err != nil {
				t.Fatal(err)
			}
			if got := known.typeOf("referer"); got != typeString {
				t.Errorf("referer has type %q in %+v", got, known.columns)
			}
			r.write(1, `{"status":200,"referer":"x"}`)
			if names := r.names(); slices.Contains(names, "_schema-000002") {
				t.Error(names)
			}
		})
	}
}

func TestValuesThatDoNotFitAreRefused(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	r.write(0, `{"i":1,"b":true,"f":2.5}`)
	r.restart()
	b, refused := r.block(1, `{"i":"abc"}`, `{"i":2}`, `{"i":1.5}`, `{"b":"maybe"}`, `{"f":"x"}`, `{"i":"3","f":4}`)
	if b.Rows() != 2 || len(refused) != 4 {
		t.Fatalf("%d rows, refused %v", b.Rows(), refused)
	}
	for i, column := range []string{"i", "i", "b", "f"} {
		var reject *sinks.RejectError
		if !errors.As(refused[i], &reject) || reject.Column != column {
			t.Errorf("refused %v, want column %s", refused[i], column)
		}
	}
	r.store(b, 1, 6)
	rows := r.rows()
	if len(rows) != 3 || rows[1].Offset != 2 || rows[1].Fields["i"] != int64(2) || rows[2].Offset != 6 || rows[2].Fields["f"] != 4.0 {
		t.Errorf("%+v", rows)
	}
}

func TestMappedColumns(t *testing.T) {
	mapped := "    columns:\n      status: int(status)\n      file_offset: int(headers.file_offset)\n      _offset: _offset\n"
	for _, format := range []string{"parquet", "json"} {
		t.Run(format, func(t *testing.T) {
			r := newRig(t, jsonTopic, "    format: "+format+"\n"+mapped)
			b, err := r.sink.NewBlock()
			if err != nil {
				t.Fatal(err)
			}
			for i := range int64(3) {
				e := r.event(i, `{"status":"404","other":1}`, pipelines.Header{Key: "file_offset", Value: fmt.Append(nil, i*100)})
				if err := b.Append(e); err != nil {
					t.Fatal(err)
				}
			}
			r.store(b, 0, 2)
			for i, row := range r.rows() {
				want := map[string]any{"status": int64(404), "file_offset": int64(i) * 100}
				if diff := cmp.Diff(want, row.Fields); diff != "" || row.Offset != int64(i) {
					t.Errorf("offset %d: %s", row.Offset, diff)
				}
			}
		})
	}
}

func TestRawLinesHaveTheirTextAndHeaders(t *testing.T) {
	r := newRig(t, "", "")
	b, err := r.sink.NewBlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append(r.event(5, "a line", pipelines.Header{Key: "host", Value: []byte("h")})); err != nil {
		t.Fatal(err)
	}
	r.store(b, 5, 5)
	if diff := cmp.Diff(map[string]any{"_raw": "a line", "host": "h"}, r.rows()[0].Fields); diff != "" {
		t.Error(diff)
	}
}

func TestJSONLinesInEachCompression(t *testing.T) {
	for compression, extension := range map[string]string{"none": ".json", "gzip": ".json.gz", "zstd": ".json.zst"} {
		t.Run(compression, func(t *testing.T) {
			r := newRig(t, jsonTopic, "    format: json\n    compression: "+compression+"\n")
			r.write(7, `{"s":"a \"quoted\" one","n":1.50,"o":{"k":[1]}}`, `{"s":"b"}`)
			rows := r.rows()
			if len(rows) != 2 || rows[0].File != "p-3-000102030405060708090a0b0c0d0e0f-00000000000000000007-00000000000000000008"+extension || !rows[0].Time.Equal(recordTime) {
				t.Fatalf("%+v", rows)
			}
			want := map[string]any{"s": `a "quoted" one`, "n": 1.5, "o": map[string]any{"k": []any{int64(1)}}}
			if diff := cmp.Diff(want, rows[0].Fields); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParquetInEachCompression(t *testing.T) {
	for _, compression := range []string{"none", "gzip", "snappy", "zstd"} {
		t.Run(compression, func(t *testing.T) {
			r := newRig(t, jsonTopic, "    compression: "+compression+"\n")
			values := make([]string, 5000) // more than a chunk
			for i := range values {
				values[i] = fmt.Sprintf(`{"n":%d,"s":"value %d","t":"x"}`, i, i)
			}
			r.write(0, values...)
			rows := r.rows()
			if len(rows) != len(values) {
				t.Fatalf("%d rows", len(rows))
			}
			for i, row := range rows {
				if row.Offset != int64(i) || row.Fields["n"] != int64(i) || row.Fields["s"] != fmt.Sprintf("value %d", i) {
					t.Fatalf("row %d: %+v", i, row)
				}
			}
		})
	}
}

// TestLZ4IsNotReadWrongly: ClickHouse reads it back in TestClickHouseReadsTheFiles.
func TestLZ4IsNotReadWrongly(t *testing.T) {
	r := newRig(t, jsonTopic, "    compression: lz4\n")
	r.write(0, `{"n":1}`)
	if err := Read(r.dir, func(Row) error { return nil }); err == nil || !strings.Contains(err.Error(), "lz4") {
		t.Errorf("%v", err)
	}
}

func TestClaimWrittenTwiceIsOneFile(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	r.write(0, `{"n":1}`, `{"n":2}`)
	r.restart()
	r.write(0, `{"n":1}`, `{"n":2}`)
	if rows := r.rows(); len(rows) != 2 {
		t.Errorf("%+v", rows)
	}
}

func TestStoredReadsNames(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	r.write(0, `{"n":1}`, `{"n":2}`)
	r.write(2, `{"n":1}`, `{"n":2}`)
	r.write(10, `{"n":1}`)
	leftover := ".p-3-000102030405060708090a0b0c0d0e0f-00000000000000000004-00000000000000000009.parquet.0badcafe.tmp"
	others := ".p-4-00000000000000000004-00000000000000000009.parquet.0badcafe.tmp"
	for _, name := range []string{leftover, others, "foreign.parquet", "p-3-x-y.parquet"} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte("torn"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.sink.Stored(t.Context(), claim(1, 20))
	got.Mend = ""
	want := sinks.Stored{Max: 10, MaxUnknown: -1, Present: []sinks.Range{{Lo: 1, Hi: 3}, {Lo: 10, Hi: 10}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	names := r.names()
	if slices.Contains(names, leftover) || !slices.Contains(names, others) || !slices.Contains(names, "foreign.parquet") {
		t.Errorf("only the leftovers of the partition are to go: %v", names)
	}
}

// TestStoredKnowsTopicsByTheirID: files of an earlier topic of the same name have the same offsets, and are not the caller's. Those of an earlier
// version, whose names have no ID, may be either's.
func TestStoredKnowsTopicsByTheirID(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	r.write(0, `{"n":1}`, `{"n":2}`)
	c := claim(0, 9)
	c.TopicID = sinks.TopicID{9}
	stored, err := r.sink.Stored(t.Context(), c)
	if err != nil || stored.Max != -1 || stored.MaxUnknown != -1 || len(stored.Present) != 0 {
		t.Errorf("rows of another topic were taken for this one's: %+v, %v", stored, err)
	}
	name := "p-3-00000000000000000004-00000000000000000007.parquet"
	if err := os.WriteFile(filepath.Join(r.dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	stored, err = r.sink.Stored(t.Context(), c)
	if err != nil || stored.MaxUnknown != 7 || len(stored.Present) != 1 || !strings.Contains(stored.Mend, "p-3-LO-HI.parquet") {
		t.Errorf("%+v, %v", stored, err)
	}
}

// TestDirectoryRemovedWhileRunning: the directory is made again, and so is its schema.
func TestDirectoryRemovedWhileRunning(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	r.write(0, `{"n":1}`)
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	stored, err := r.sink.Stored(t.Context(), claim(1, 1))
	if err != nil || stored.Max != -1 {
		t.Errorf("%+v, %v", stored, err)
	}
	r.write(1, `{"n":2}`)
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	b, _ := r.block(2, `{"n":3}`)
	if err := r.sink.Write(t.Context(), &sinks.Batch{Claim: claim(2, 2), Block: b}); !errors.Is(err, sinks.ErrSchemaChanged) {
		t.Errorf("%v", err)
	}
	if _, err := r.sink.Check(t.Context()); err != nil { // as the worker does
		t.Fatal(err)
	}
	r.write(2, `{"n":3}`)
	if names := r.names(); len(names) != 3 || names[0] != "_schema-000001" {
		t.Error(names)
	}
}

// TestFilesWithoutLedger: what lies there without a ledger counts by the names, in the whole tree, until it is gone.
func TestFilesWithoutLedger(t *testing.T) {
	r := newRig(t, jsonTopic, "    partition: {path: 'k={k}'}\n")
	r.write(0, `{"k":1}`, `{"k":2}`)
	if err := os.RemoveAll(filepath.Join(r.dir, controlDir)); err != nil {
		t.Fatal(err)
	}
	r.restart()
	stored, err := r.sink.Stored(t.Context(), claim(0, 9))
	if diff := cmp.Diff([]sinks.Range{{Lo: 0, Hi: 1}}, stored.Present); diff != "" || stored.Max != 1 || err != nil {
		t.Error(diff, stored.Max, err)
	}
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	r.sink.ledger("p", 3, topicID).loaded = false
	stored, err = r.sink.Stored(t.Context(), claim(0, 9))
	if len(stored.Present) != 0 || stored.Max != -1 || err != nil {
		t.Errorf("%+v, %v", stored, err)
	}
}

func TestTwoProcessesAgreeOnTheSchema(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	other, err := New(quiet(), r.pipe.Sinks[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	mine := r.sink
	r.write(0, `{"n":1}`)
	r.sink = other // has not seen the schema yet, and takes n for text
	b, _ := r.block(1, `{"n":"x"}`)
	if _, err := other.Stored(t.Context(), claim(1, 1)); err != nil {
		t.Fatal(err)
	}
	err = other.Write(t.Context(), &sinks.Batch{Claim: claim(1, 1), Block: b})
	if !errors.Is(err, sinks.ErrSchemaChanged) {
		t.Fatalf("%v", err)
	}
	if _, err := other.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, refused := r.block(1, `{"n":"x"}`); len(refused) != 1 {
		t.Error("text was taken for an integer column")
	}
	r.sink = mine
}

func TestCheckNamesTheDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	pipe := pipeline(t, filepath.Join(dir, "file", "table"), "", "")
	s, err := New(quiet(), pipe.Sinks[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "cannot be written to") {
		t.Errorf("%v", err)
	}
}

func TestFileNames(t *testing.T) {
	n := fileName{topic: "a-1.b", partition: 12, id: topicID, lo: 3, hi: 4, extension: ".json.gz"}
	got, ok := parseFileName(n.String())
	if !ok || got != n {
		t.Errorf("%+v %t", got, ok)
	}
	old := n
	old.id = sinks.TopicID{}
	if got, ok := parseFileName("a-1.b-12-00000000000000000003-00000000000000000004.json.gz"); !ok || got != old {
		t.Errorf("%+v %t", got, ok)
	}
	final, ok := finalOf("." + n.String() + ".0badcafe.tmp")
	if !ok || final != n.String() {
		t.Errorf("%q %t", final, ok)
	}
	for _, name := range []string{"", ".", "x.tmp", "a-1-2-3.parquet", "000102030405060708090a0b0c0d0e0f-00000000000000000003-00000000000000000004.json", "_schema-000001", ".a.tmp"} {
		if n, ok := parseFileName(name); ok {
			t.Errorf("%q is %+v", name, n)
		}
	}
}

// TestSameContentIsStoredTwice: content is not identity, offsets are.
func TestSameContentIsStoredTwice(t *testing.T) {
	for _, format := range []string{"json", "parquet", "avro"} {
		t.Run(format, func(t *testing.T) {
			r := newRig(t, jsonTopic, "    format: "+format+"\n")
			r.write(0, `{"n":1}`, `{"n":1}`)
			r.write(2, `{"n":1}`, `{"n":1}`)
			rows := r.rows()
			for i, row := range rows {
				if row.Offset != int64(i) || fmt.Sprint(row.Fields["n"]) != "1" {
					t.Errorf("row %d: %+v", i, row)
				}
			}
			if len(rows) != 4 {
				t.Errorf("%d rows, want 4", len(rows))
			}
		})
	}
}

// TestNumbersOutOfRangeAreNeverWrapped: what no 64 bits hold is refused by the column that it would not fit.
func TestNumbersOutOfRangeAreNeverWrapped(t *testing.T) {
	r := newRig(t, jsonTopic, "")
	r.write(0, `{"i":1,"f":1.5}`)
	r.restart()
	b, refused := r.block(1, `{"i":9223372036854775808}`, `{"i":-9223372036854775809}`, `{"i":1e300}`, `{"f":1e400}`, `{"i":9223372036854775807,"f":-1e308}`)
	if len(refused) != 4 {
		t.Errorf("refused %v", refused)
	}
	r.store(b, 1, 5)
	if rows := r.rows(); len(rows) != 2 || rows[1].Offset != 5 || rows[1].Fields["i"] != int64(9223372036854775807) || rows[1].Fields["f"] != -1e308 {
		t.Errorf("%+v", rows)
	}
}
