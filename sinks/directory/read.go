package directory

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hamba/avro/v2/ocf"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// Row is one stored row.
type Row struct {
	File      string
	Topic     string
	Partition int32
	Offset    int64
	Time      time.Time
	// Fields are the other columns that are not null. Parquet has bool, int64, float64, string (also of lists and objects, as JSON) and
	// time.Time; Avro has the same, by its own names of the columns; JSON lines have nil, bool, int64 or float64, string, []any and map[string]any.
	Fields map[string]any
}

// Read is ReadFrom for a local directory; a Row's File is the whole path.
func Read(dir string, fn func(Row) error) error {
	return ReadFrom(osFS{dir: dir}, func(row Row) error {
		row.File = filepath.Join(dir, filepath.FromSlash(row.File))
		return fn(row)
	})
}

// ReadFrom calls fn for every row of every finished file of a file system, in the order of the files' paths. It reads what is there, whoever wrote it, and
// stops at the first error. Names that begin with a point or an underscore are passed over. Each file is held in memory whole.
func ReadFrom(f FS, fn func(Row) error) error { return readTree(f, "", fn) }

func readTree(f FS, at string, fn func(Row) error) error {
	entries, err := f.List(at)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range entries {
		name := path.Join(at, e.Name)
		switch n, finished := parseFileName(e.Name); {
		case e.Dir && !hidden(e.Name):
			err = readTree(f, name, fn)
		case finished && !e.Dir:
			err = readFile(f, name, n.extension, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readFile(f FS, name, extension string, fn func(Row) error) error {
	file, err := f.Open(name)
	if err != nil {
		return err
	}
	content, err := io.ReadAll(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	read := readJSON
	switch extension {
	case ".parquet":
		read = readParquet
	case ".avro":
		read = readAvro
	}
	if err := read(name, extension, content, fn); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func readAvro(path, _ string, content []byte, fn func(Row) error) error {
	d, err := ocf.NewDecoder(bytes.NewReader(content))
	if err != nil {
		return err
	}
	for d.HasNext() {
		fields := map[string]any{}
		if err := d.Decode(&fields); err != nil {
			return err
		}
		if err := fn(avroRow(path, fields)); err != nil {
			return err
		}
	}
	return d.Error()
}

// avroRow takes the columns of every row out of the fields, and the nulls.
func avroRow(path string, fields map[string]any) Row {
	row := Row{File: path, Fields: fields}
	row.Topic, _ = fields[columnTopic].(string)
	partition, _ := fields[columnPartition].(int)
	row.Partition = int32(partition)
	row.Offset, _ = fields[columnOffset].(int64)
	row.Time, _ = fields[columnTime].(time.Time)
	for _, name := range []string{columnTopic, columnPartition, columnOffset, columnTime} {
		delete(fields, name)
	}
	for name, v := range fields {
		if union, ok := v.(map[string]any); ok { // the name of a type and its value
			for _, v = range union {
				fields[name] = v
			}
		}
		if v == nil {
			delete(fields, name)
		}
	}
	return row
}

func readParquet(path, _ string, content []byte, fn func(Row) error) error {
	file, err := parquet.OpenFile(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return err
	}
	if err := readable(file); err != nil {
		return err
	}
	columns := file.Schema().Fields()
	for _, group := range file.RowGroups() {
		if err := readRowGroup(path, group, columns, fn); err != nil {
			return err
		}
	}
	return nil
}

// readable refuses what the library reads wrongly: pages in LZ4 that are not much smaller than their content come back as zeros (parquet-go v0.32.0). What
// it writes is right.
func readable(file *parquet.File) error {
	for _, group := range file.Metadata().RowGroups {
		for _, c := range group.Columns {
			if c.MetaData.Codec == format.Lz4Raw {
				return errors.New("compressed with lz4, which can be written but not be read back here: read it with another tool")
			}
		}
	}
	return nil
}

func readRowGroup(path string, group parquet.RowGroup, columns []parquet.Field, fn func(Row) error) error {
	rows := group.Rows()
	defer rows.Close()
	buf := make([]parquet.Row, 256)
	for {
		n, err := rows.ReadRows(buf)
		for _, values := range buf[:n] {
			if err := fn(rowOf(path, values, columns)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func rowOf(path string, values parquet.Row, columns []parquet.Field) Row {
	row := Row{File: path, Fields: make(map[string]any, len(values))}
	for _, v := range values {
		if v.IsNull() {
			continue
		}
		c := columns[v.Column()]
		switch x := fieldOf(v, c); c.Name() {
		case columnTopic:
			row.Topic, _ = x.(string)
		case columnPartition:
			row.Partition = v.Int32()
		case columnOffset:
			row.Offset = v.Int64()
		case columnTime:
			row.Time, _ = x.(time.Time)
		default:
			row.Fields[c.Name()] = x
		}
	}
	return row
}

func fieldOf(v parquet.Value, c parquet.Field) any {
	switch v.Kind() {
	case parquet.Boolean:
		return v.Boolean()
	case parquet.Int32:
		return int64(v.Int32())
	case parquet.Int64:
		if isTimestamp(c) {
			return time.UnixMicro(v.Int64()).UTC()
		}
		return v.Int64()
	case parquet.Double:
		return v.Double()
	default:
		return string(v.ByteArray())
	}
}

func readJSON(path, extension string, content []byte, fn func(Row) error) error {
	r, err := decompressor(bytes.NewReader(content), extension)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bufio.NewReader(r))
	d.UseNumber()
	for {
		fields := map[string]any{}
		err := d.Decode(&fields)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		row, err := jsonRow(path, fields)
		if err != nil {
			return err
		}
		if err := fn(row); err != nil {
			return err
		}
	}
}

func decompressor(r io.Reader, extension string) (io.Reader, error) {
	switch extension {
	case ".json.gz":
		return gzip.NewReader(r)
	case ".json.zst":
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	default:
		return r, nil
	}
}

// jsonRow takes the columns of every row out of the fields.
func jsonRow(path string, fields map[string]any) (Row, error) {
	row := Row{File: path, Fields: fields}
	for name, v := range fields {
		fields[name] = number(v)
	}
	topic, ok1 := fields[columnTopic].(string)
	partition, ok2 := fields[columnPartition].(int64)
	offset, ok3 := fields[columnOffset].(int64)
	text, ok4 := fields[columnTime].(string)
	when, err := time.Parse(time.RFC3339Nano, text)
	if !ok1 || !ok2 || !ok3 || !ok4 || err != nil {
		return row, errors.New("a line without _topic, _partition, _offset and _time")
	}
	row.Topic, row.Partition, row.Offset, row.Time = topic, int32(partition), offset, when
	for _, name := range []string{columnTopic, columnPartition, columnOffset, columnTime} {
		delete(fields, name)
	}
	return row, nil
}

// number turns each json.Number in a value into an int64 where it is one, else into a float64.
func number(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = number(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = number(v[k])
		}
	}
	return v
}

func isTimestamp(c parquet.Field) bool {
	t := c.Type().LogicalType()
	if t == nil {
		return false
	}
	_, ok := t.Value.(*format.TimestampType)
	return ok
}
