package clickhouse

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// accessDDL is a table of ten columns for accessValue.
const accessDDL = `ts DateTime64(3, 'UTC'), host LowCardinality(String), remote_addr IPv4, method LowCardinality(String), path String, status UInt16,
	bytes UInt64, referer String, user_agent String, seconds Float64, ` + ownDDL

// accessValue is about 220 bytes of JSON, as in a topic.
func accessValue(i int) []byte {
	return fmt.Appendf(nil, `{"ts":"2026-11-30T10:%02d:%02d.%03dZ","host":"web-%d","remote_addr":"10.%d.%d.%d","method":"GET","path":"/products/%d","status":%d,"bytes":%d,`+
		`"referer":"https://example.com/","user_agent":"Mozilla/5.0 (X11; Linux x86_64)","seconds":0.0%02d}`,
		i/60%60, i%60, i%1000, i%8, i>>16&255, i>>8&255, i&255, i%5000, 200+i%5, i*37%100000, i%97)
}

// accessTable is the table as the server would describe it.
func accessTable(b testing.TB, spec *pipelines.SinkSpec) *table {
	t := &table{database: "default", table: "t", engine: "MergeTree", window: 100}
	args, err := splitArgs(accessDDL)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range args {
		var name, typ string
		for i := range c {
			if c[i] == ' ' {
				name, typ = c[:i], c[i+1:]
				break
			}
		}
		t.columns = append(t.columns, tableColumn{name: name, typ: typ})
	}
	if err := t.match(spec); err != nil {
		b.Fatal(err)
	}
	return t
}

const benchRows = 10_000

// BenchmarkEncodeNginx is BenchmarkEncode for raw lines that the worker parses.
func BenchmarkEncodeNginx(b *testing.B) {
	pipes, err := pipelines.Parse("bench.yaml", []byte("pipeline: p\ntopic: {name: p}\nsink:\n  process: [{parse: nginx}]\n  clickhouse: {addr: ['127.0.0.1:1'], table: t, columns: {ts: time, host: '\"web-1\"', "+
		"remote_addr: remote_addr, method: method, path: path, status: status, bytes: bytes, referer: referer, user_agent: user_agent, seconds: 0.5}}\n"))
	if err != nil {
		b.Fatal(err)
	}
	spec := pipes[0].Sinks[0]
	chain, err := spec.NewProcess()
	if err != nil {
		b.Fatal(err)
	}
	rows, err := newBlock(spec, accessTable(b, spec))
	if err != nil {
		b.Fatal(err)
	}
	var lines [][]byte
	for i := range benchRows {
		lines = append(lines, fmt.Appendf(nil, `10.%d.%d.%d - - [30/Nov/2026:10:%02d:%02d +0000] "GET /products/%d?page=%d HTTP/1.1" %d %d "https://example.com/" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"`,
			i>>16&255, i>>8&255, i&255, i/60%60, i%60, i%5000, i%7, 200+i%5, i*37%100000))
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuSeconds()
	var e pipelines.Event
	for i := range b.N {
		if i%benchRows == 0 {
			rows.Reset()
		}
		meta := pipelines.Meta{Topic: "p", Offset: int64(i), Time: time.Unix(1_700_000_000, 0)}
		if err := pipes[0].ReadRecord(&e, meta, lines[i%benchRows]); err != nil {
			b.Fatal(err)
		}
		if result := chain.Apply(&e); result.Outcome != pipelines.Keep {
			b.Fatal(result.Err)
		}
		if err := rows.Append(&e); err != nil {
			b.Fatal(err)
		}
	}
	reportRows(b, b.N, before)
}

// BenchmarkEncode is what the worker does for each record: JSON value to event to columns of the wire.
func BenchmarkEncode(b *testing.B) {
	pipe := pipeline(b, "127.0.0.1:1", "t", "")
	rows, err := newBlock(pipe.Sinks[0], accessTable(b, pipe.Sinks[0]))
	if err != nil {
		b.Fatal(err)
	}
	values, bytes := accessValues()
	b.SetBytes(bytes / benchRows)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuSeconds()
	var e pipelines.Event
	for i := range b.N {
		if i%benchRows == 0 {
			rows.Reset()
		}
		appendAccess(b, pipe, &e, rows, values, i)
	}
	reportRows(b, b.N, before)
}

func accessValues() (values [][]byte, bytes int64) {
	for i := range benchRows {
		values = append(values, accessValue(i))
		bytes += int64(len(values[i]))
	}
	return values, bytes
}

func appendAccess(b *testing.B, pipe *pipelines.Pipeline, e *pipelines.Event, rows *block, values [][]byte, i int) {
	meta := pipelines.Meta{Topic: "p", Offset: int64(i), Time: time.Unix(1_700_000_000, 0)}
	if err := pipe.ReadRecord(e, meta, values[i%benchRows]); err != nil {
		b.Fatal(err)
	}
	if err := rows.Append(e); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkInsert encodes and inserts claims of 100,000 rows into a real table.
func BenchmarkInsert(b *testing.B) {
	const claimRows = 100_000
	server := testenv.ClickHouse(b)
	server.Query(b, "CREATE TABLE access ("+accessDDL+") ENGINE = MergeTree ORDER BY ts SETTINGS non_replicated_deduplication_window = 100")
	pipe := pipeline(b, server.Addr, "access", "")
	s, err := New(quiet(), pipe.Sinks[0])
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Check(b.Context()); err != nil {
		b.Fatal(err)
	}
	made, err := s.NewBlock()
	if err != nil {
		b.Fatal(err)
	}
	rows := made.(*block)
	values, _ := accessValues()
	var e pipelines.Event
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuSeconds()
	for n := range b.N {
		rows.Reset()
		for i := range claimRows {
			appendAccess(b, pipe, &e, rows, values, n*claimRows+i)
		}
		c := sinks.Claim{Pipeline: "p", Topic: "p", Lo: int64(n) * claimRows, Hi: int64(n+1)*claimRows - 1}
		if err := s.Write(context.Background(), &sinks.Batch{Claim: c, Block: rows, Identity: c.Identity()}); err != nil {
			b.Fatal(err)
		}
	}
	reportRows(b, b.N*claimRows, before)
}

// cpuSeconds is what this process has used: on a shared machine the honest figure.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func reportRows(b *testing.B, rows int, before float64) {
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric((cpuSeconds()-before)/float64(rows)*1e6, "cpu-s/Mrow")
}
