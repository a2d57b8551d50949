package directory

import (
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"strconv"
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

	// What lines have in common, as text.
	names []jsonName // of the n-th value of a row: most rows have the same shape
	head  jsonHead
}

// jsonName is a name as it stands in a line: ,"NAME":
type jsonName struct {
	name string
	text []byte
}

// jsonHead is the beginning of a line, up to the offset, and the timestamp behind it.
type jsonHead struct {
	topic     string
	partition int32
	text      []byte
	time      time.Time
	timeText  []byte
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
	dst := b.appendHead(b.lines, &e.Meta)
	if b.places.noTime {
		dst = append(dst, `,"`+columnNoTime+`":true`...)
	}
	if raw := b.verbatim(e); raw != nil {
		b.lines = append(append(append(dst, ','), raw[1:]...), '\n')
		b.ends = append(b.ends, len(b.lines))
		b.places.put(group)
		return nil
	}
	n := 0
	err = eachField(b.columns, e, func(name string, v pipelines.Value) error {
		dst = append(dst, b.name(n, name)...)
		dst = v.AppendJSON(dst)
		n++
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

// verbatim is the event's JSON where its fields go into the line as they came, nil where they do not.
func (b *jsonBlock) verbatim(e *pipelines.Event) []byte {
	if !b.columns.Default() || e.Len() == 0 {
		return nil
	}
	raw := e.Verbatim()
	for i := range e.Len() {
		if name, _ := e.Field(i); raw == nil || reserved(name) {
			return nil
		}
	}
	return raw
}

// appendHead appends the columns of every row.
func (b *jsonBlock) appendHead(dst []byte, m *pipelines.Meta) []byte {
	h := &b.head
	if h.text == nil || h.topic != m.Topic || h.partition != m.Partition {
		h.topic, h.partition = m.Topic, m.Partition
		h.text = append(h.text[:0], `{"_topic":`...)
		h.text = pipelines.StringOf(m.Topic).AppendJSON(h.text)
		h.text = append(h.text, `,"_partition":`...)
		h.text = strconv.AppendInt(h.text, int64(m.Partition), 10)
		h.text = append(h.text, `,"_offset":`...)
	}
	if h.timeText == nil || !h.time.Equal(m.Time) {
		h.time = m.Time
		h.timeText = append(h.timeText[:0], `,"_time":"`...)
		h.timeText = append(m.Time.UTC().AppendFormat(h.timeText, time.RFC3339Nano), '"')
	}
	dst = append(dst, h.text...)
	dst = strconv.AppendInt(dst, m.Offset, 10)
	return append(dst, h.timeText...)
}

// name is the text of the n-th value's name.
func (b *jsonBlock) name(n int, name string) []byte {
	if n < len(b.names) && b.names[n].name == name {
		return b.names[n].text
	}
	text := append(pipelines.StringOf(name).AppendJSON([]byte{','}), ':')
	if n < len(b.names) {
		b.names[n] = jsonName{name, text}
	} else if n == len(b.names) && n < columnsMax {
		b.names = append(b.names, jsonName{name, text})
	}
	return text
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
