package directory

import (
	"compress/gzip"
	"errors"
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
	places  *placer
	lines   []byte
	ends    []int // of each row's line
}

func newJSONBlock(columns *pipelines.Columns, places *placer) *jsonBlock {
	return &jsonBlock{columns: columns, places: places}
}

func (b *jsonBlock) Rows() int       { return len(b.ends) }
func (b *jsonBlock) Bytes() int64    { return int64(len(b.lines) + 8*len(b.ends)) }
func (b *jsonBlock) placed() *placer { return b.places }

func (b *jsonBlock) Reset() {
	b.lines, b.ends = b.lines[:0], b.ends[:0]
	b.places.reset()
}

// Append adds a line; whatever an event holds can be written as JSON.
func (b *jsonBlock) Append(e *pipelines.Event) error {
	group, err := b.places.place(e)
	if err != nil {
		return err
	}
	start := len(b.lines)
	dst := append(b.lines, `{"_topic":`...)
	dst = pipelines.StringOf(e.Meta.Topic).AppendJSON(dst)
	dst = append(dst, `,"_partition":`...)
	dst = pipelines.Int(int64(e.Meta.Partition)).AppendJSON(dst)
	dst = append(dst, `,"_offset":`...)
	dst = pipelines.Int(e.Meta.Offset).AppendJSON(dst)
	dst = append(dst, `,"_time":"`...)
	dst = append(e.Meta.Time.UTC().AppendFormat(dst, time.RFC3339Nano), '"')
	if b.places.noTime {
		dst = append(dst, `,"`+columnNoTime+`":true`...)
	}
	err = eachField(b.columns, e, func(name string, v pipelines.Value) error {
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
	b.ends = append(b.ends, len(b.lines))
	b.places.put(group)
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
	case columnTopic, columnPartition, columnOffset, columnTime, columnNoTime:
		return true
	}
	return false
}

func (b *jsonBlock) prepare(*Sink) error { return nil }

func (b *jsonBlock) encode(w io.Writer, f *pipelines.Files, rows []int32) error {
	z, err := compressor(w, f.Compression)
	if err != nil {
		return err
	}
	if rows == nil {
		_, err = z.Write(b.lines)
	} else {
		err = b.writeLines(z, rows)
	}
	return errors.Join(err, z.Close())
}

// writeLines writes the lines of some rows; those that follow each other go in one piece.
func (b *jsonBlock) writeLines(w io.Writer, rows []int32) error {
	for i := 0; i < len(rows); {
		first := rows[i]
		last := first
		for i++; i < len(rows) && rows[i] == last+1; i++ {
			last++
		}
		start := 0
		if first > 0 {
			start = b.ends[first-1]
		}
		if _, err := w.Write(b.lines[start:b.ends[last]]); err != nil {
			return err
		}
	}
	return nil
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
