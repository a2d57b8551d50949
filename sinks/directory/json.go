package directory

import (
	"compress/gzip"
	"io"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// jsonBlock gathers rows as JSON lines.
type jsonBlock struct {
	columns *pipelines.Columns
	lines   []byte
	rows    int
}

func newJSONBlock(columns *pipelines.Columns) *jsonBlock { return &jsonBlock{columns: columns} }

func (b *jsonBlock) Rows() int    { return b.rows }
func (b *jsonBlock) Bytes() int64 { return int64(len(b.lines)) }
func (b *jsonBlock) Reset()       { b.lines, b.rows = b.lines[:0], 0 }

// Append adds a line; whatever an event holds can be written as JSON.
func (b *jsonBlock) Append(e *pipelines.Event) error {
	start := len(b.lines)
	dst := append(b.lines, `{"_topic":`...)
	dst = pipelines.StringOf(e.Meta.Topic).AppendJSON(dst)
	dst = append(dst, `,"_partition":`...)
	dst = pipelines.Int(int64(e.Meta.Partition)).AppendJSON(dst)
	dst = append(dst, `,"_offset":`...)
	dst = pipelines.Int(e.Meta.Offset).AppendJSON(dst)
	dst = append(dst, `,"_time":"`...)
	dst = append(e.Meta.Time.UTC().AppendFormat(dst, time.RFC3339Nano), '"')
	err := eachField(b.columns, e, func(name string, v pipelines.Value) error {
		dst = append(dst, ',')
		dst = append(pipelines.StringOf(name).AppendJSON(dst), ':')
		dst = v.AppendJSON(dst)
		return nil
	})
	if err != nil {
		b.lines = dst[:start]
		return err
	}
	b.lines = append(dst, '}', '\n')
	b.rows++
	return nil
}

// eachField calls fn for the row's own columns: the mapped ones, or every field.
func eachField(columns *pipelines.Columns, e *pipelines.Event, fn func(name string, v pipelines.Value) error) error {
	if !columns.Default() {
		return eachMapped(columns, e, fn)
	}
	if !e.Parsed() {
		return eachOfRaw(e, fn)
	}
	for i := range e.Len() {
		name, v := e.Field(i)
		if reserved(name) {
			continue
		}
		if err := fn(name, v); err != nil {
			return err
		}
	}
	return nil
}

func eachMapped(columns *pipelines.Columns, e *pipelines.Event, fn func(name string, v pipelines.Value) error) error {
	for i, name := range columns.Names() {
		if reserved(name) {
			continue
		}
		var v pipelines.Value
		if err := columns.Eval(e, i, &v); err != nil {
			return &sinks.RejectError{Column: name, Err: err}
		}
		if err := fn(name, v); err != nil {
			return err
		}
	}
	return nil
}

// eachOfRaw calls fn for what a raw line has: its text, its fields if stages set any, and its headers. A line that was kept because it did not parse shares its
// directory with events, whose fields may be called like its headers: of those only the mark is stored.
func eachOfRaw(e *pipelines.Event, fn func(name string, v pipelines.Value) error) error {
	if err := fn(columnRaw, pipelines.String(e.Raw)); err != nil {
		return err
	}
	for i := range e.Len() {
		name, v := e.Field(i)
		if reserved(name) || name == columnRaw {
			continue
		}
		if err := fn(name, v); err != nil {
			return err
		}
	}
	_, kept := e.Meta.Header(pipelines.HeaderRaw)
	for i, h := range e.Meta.Headers {
		if reserved(h.Key) || kept && h.Key != pipelines.HeaderRaw || repeated(e, i) {
			continue
		}
		if err := fn(h.Key, pipelines.String(h.Value)); err != nil {
			return err
		}
	}
	return nil
}

// repeated says that a later header or a field has the same name.
func repeated(e *pipelines.Event, i int) bool {
	key := e.Meta.Headers[i].Key
	if _, ok := e.Get(key); ok {
		return true
	}
	return slices.ContainsFunc(e.Meta.Headers[i+1:], func(h pipelines.Header) bool { return h.Key == key })
}

func reserved(name string) bool {
	if name == "" || name[0] != '_' {
		return false
	}
	switch name {
	case columnTopic, columnPartition, columnOffset, columnTime:
		return true
	}
	return false
}

func (b *jsonBlock) prepare(*Sink) error { return nil }

func (b *jsonBlock) encode(w io.Writer, compression pipelines.Compression) error {
	z, err := compressor(w, compression)
	if err != nil {
		return err
	}
	if _, err := z.Write(b.lines); err != nil {
		return err
	}
	return z.Close()
}

func compressor(w io.Writer, compression pipelines.Compression) (io.WriteCloser, error) {
	switch compression {
	case pipelines.CompressionNone:
		return plainWriter{w}, nil
	case pipelines.CompressionGzip:
		return gzip.NewWriter(w), nil
	default:
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	}
}

type plainWriter struct{ io.Writer }

func (plainWriter) Close() error { return nil }
