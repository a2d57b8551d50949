package directory

import (
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
)

const benchRows = 10_000

// accessValue is about 220 bytes of JSON, as in a topic.
func accessValue(i int) []byte {
	return fmt.Appendf(nil, `{"ts":"2026-11-30T10:%02d:%02d.%03dZ","host":"web-%d","remote_addr":"10.%d.%d.%d","method":"GET","path":"/products/%d","status":%d,"bytes":%d,`+
		`"referer":"https://example.com/","user_agent":"Mozilla/5.0 (X11; Linux x86_64)","seconds":0.0%02d}`,
		i/60%60, i%60, i%1000, i%8, i>>16&255, i>>8&255, i&255, i%5000, 200+i%5, i*37%100000, i%97)
}

func accessValues() (values [][]byte, bytes int64) {
	for i := range benchRows {
		values = append(values, accessValue(i))
		bytes += int64(len(values[i]))
	}
	return values, bytes
}

// BenchmarkAppend is what the worker does for each record: JSON value to event to staged columns or a line.
func BenchmarkAppend(b *testing.B) {
	for _, format := range []string{"parquet", "avro", "json"} {
		b.Run(format, func(b *testing.B) {
			pipe, rows := benchBlock(b, format)
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
		})
	}
}

// BenchmarkFile encodes claims of 100,000 rows from their JSON values to the bytes of a file.
func BenchmarkFile(b *testing.B) {
	const claimRows = 100_000
	for _, format := range []string{"parquet", "avro", "json"} {
		b.Run(format, func(b *testing.B) {
			pipe, rows := benchBlock(b, format)
			values, _ := accessValues()
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuSeconds()
			var e pipelines.Event
			for range b.N {
				rows.Reset()
				for i := range claimRows {
					appendAccess(b, pipe, &e, rows, values, i)
				}
				if p, ok := rows.(*columnBlock); ok && p.schema.version == 0 {
					p.schema = p.asSchema()
				}
				if err := rows.encode(io.Discard, pipe.Sinks[0].Files(), nil); err != nil {
					b.Fatal(err)
				}
			}
			reportRows(b, b.N*claimRows, before)
		})
	}
}

// BenchmarkParquetWriter is the writer alone, on a block of 100,000 rows.
func BenchmarkParquetWriter(b *testing.B) {
	const claimRows = 100_000
	pipe, rows := benchBlock(b, "parquet")
	values, _ := accessValues()
	var e pipelines.Event
	for i := range claimRows {
		appendAccess(b, pipe, &e, rows, values, i)
	}
	p := rows.(*columnBlock)
	p.schema = p.asSchema()
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuSeconds()
	for range b.N {
		if err := rows.encode(io.Discard, pipe.Sinks[0].Files(), nil); err != nil {
			b.Fatal(err)
		}
	}
	reportRows(b, b.N*claimRows, before)
}

func benchBlock(b *testing.B, format string) (*pipelines.Pipeline, encodable) {
	pipe := pipeline(b, "unused", jsonTopic, "    format: "+format+"\n")
	columns, err := pipe.Sinks[0].NewColumns()
	if err != nil {
		b.Fatal(err)
	}
	places, err := newPlacer(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	if format == "json" {
		return pipe, newJSONBlock(columns, places)
	}
	s := newSchema(0, nil)
	var rows *columnBlock
	rows = newColumnBlock(columns, places, s, func() *schema { // what the block has made it, as in a worker after its first batch
		if rows == nil {
			return s
		}
		return rows.schema
	})
	return pipe, rows
}

// asSchema is the schema of the block's columns, without a directory to hold it.
func (b *columnBlock) asSchema() *schema {
	var columns []column
	for _, c := range b.columns {
		columns = append(columns, column{c.name, c.typ})
	}
	return newSchema(1, columns)
}

func appendAccess(b *testing.B, pipe *pipelines.Pipeline, e *pipelines.Event, rows encodable, values [][]byte, i int) {
	meta := pipelines.Meta{Topic: "p", Offset: int64(i), Time: recordTime}
	if err := pipe.ReadRecord(e, meta, values[i%benchRows]); err != nil {
		b.Fatal(err)
	}
	if err := rows.Append(e); err != nil {
		b.Fatal(err)
	}
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
