package directory

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/compress/gzip"
	"github.com/parquet-go/parquet-go/compress/lz4"
	"github.com/parquet-go/parquet-go/compress/snappy"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/sluice-io/sluice/pipelines"
)

const (
	// pageBytes is when a column's page is closed.
	pageBytes = 256 << 10
	// dictionaryBytesMax is when a column's dictionary is given up: its values are too many to be worth one.
	dictionaryBytesMax = 1 << 20
	// chunkValues is how many values go to a column at a time.
	chunkValues = 1024
)

// parquetCodec makes the codec of one writer.
func parquetCodec(c pipelines.Compression) (compress.Codec, error) {
	switch c {
	case pipelines.CompressionNone:
		return &parquet.Uncompressed, nil
	case pipelines.CompressionGzip:
		return &gzip.Codec{Level: gzip.DefaultCompression}, nil
	case pipelines.CompressionSnappy:
		return &snappy.Codec{}, nil
	case pipelines.CompressionLZ4:
		return &lz4.Codec{Level: lz4.Fastest}, nil
	case pipelines.CompressionZstd, pipelines.CompressionAuto, "":
		return &zstd.Codec{Level: zstd.SpeedFastest, Concurrency: 1}, nil
	default:
		return nil, fmt.Errorf("parquet cannot be compressed with %s: use zstd, lz4, snappy, gzip or none", c)
	}
}

// orderedGroup is a group that keeps its fields' order; parquet.Group sorts them by name.
type orderedGroup struct {
	parquet.Group
	fields []parquet.Field
}

func (g *orderedGroup) Fields() []parquet.Field { return g.fields }

// parquetSchema is the schema of a file: the four columns of every row, then the directory's.
func parquetSchema(s *schema) *parquet.Schema {
	names := []string{columnTopic, columnPartition, columnOffset, columnTime}
	group := parquet.Group{
		columnTopic:     parquet.Encoded(parquet.String(), &parquet.RLEDictionary),
		columnPartition: parquet.Encoded(parquet.Leaf(parquet.Int32Type), &parquet.RLEDictionary),
		columnOffset:    parquet.Encoded(parquet.Leaf(parquet.Int64Type), &parquet.DeltaBinaryPacked),
		columnTime:      parquet.Encoded(parquet.Timestamp(parquet.Microsecond), &parquet.DeltaBinaryPacked),
	}
	for _, c := range s.columns {
		names = append(names, c.Name)
		group[c.Name] = parquet.Optional(nodeOf(c.Type))
	}
	fields := group.Fields()
	slices.SortFunc(fields, func(a, b parquet.Field) int {
		return slices.Index(names, a.Name()) - slices.Index(names, b.Name())
	})
	return parquet.NewSchema("row", &orderedGroup{group, fields})
}

func nodeOf(t columnType) parquet.Node {
	switch t {
	case typeBool:
		return parquet.Leaf(parquet.BooleanType)
	case typeInt:
		return parquet.Encoded(parquet.Leaf(parquet.Int64Type), &parquet.RLEDictionary)
	case typeFloat:
		return parquet.Leaf(parquet.DoubleType)
	case typeTime:
		return parquet.Encoded(parquet.Timestamp(parquet.Microsecond), &parquet.DeltaBinaryPacked)
	case typeJSON:
		return parquet.JSON()
	default:
		return parquet.Encoded(parquet.String(), &parquet.RLEDictionary)
	}
}

// encode writes the file of some rows, nil for all.
func (b *columnBlock) encode(w io.Writer, f *pipelines.Files, rows []int32) error {
	if f.Format == pipelines.FormatAvro {
		return b.encodeAvro(w, f, rows)
	}
	return b.encodeParquet(w, f, rows)
}

func (b *columnBlock) encodeParquet(w io.Writer, f *pipelines.Files, rows []int32) error {
	codec, err := parquetCodec(f.Compression)
	if err != nil {
		return err
	}
	file := parquet.NewWriter(w, parquetSchema(b.schema),
		parquet.Compression(codec),
		parquet.PageBufferSize(pageBytes),
		parquet.DictionaryMaxBytes(dictionaryBytesMax),
		parquet.DataPageStatistics(true),
		parquet.CreatedBy("sluice", "", ""))
	n := len(b.offsets)
	if rows != nil {
		n = len(rows)
	}
	for from := 0; from < n; {
		to := min(n, from+f.RowGroupRows)
		if err := b.writeRowGroup(file.ColumnWriters(), rows, from, to); err != nil {
			return err
		}
		if from = to; from < n {
			if err := file.Flush(); err != nil {
				return err
			}
		}
	}
	return file.Close()
}

// writeRowGroup writes some of the rows; from and to count in rows, or in the block where rows is nil.
func (b *columnBlock) writeRowGroup(columns []*parquet.ColumnWriter, rows []int32, from, to int) error {
	at := func(i int) int { return i }
	if rows != nil {
		at = func(i int) int { return int(rows[i]) }
	}
	values := make([]parquet.Value, 0, chunkValues)
	topic := parquet.ByteArrayValue(b.topic).Level(0, 0, 0)
	partition := parquet.Int32Value(b.partition).Level(0, 0, 1)
	fills := []func(row int) parquet.Value{
		func(int) parquet.Value { return topic },
		func(int) parquet.Value { return partition },
		func(row int) parquet.Value { return parquet.Int64Value(b.offsets[row]).Level(0, 0, 2) },
		func(row int) parquet.Value { return parquet.Int64Value(b.times[row]).Level(0, 0, 3) },
	}
	for _, c := range b.schema.columns {
		fills = append(fills, b.fill(c, len(fills)))
	}
	for i, fill := range fills {
		err := writeColumn(columns[i], values, from, to, func(i int) parquet.Value { return fill(at(i)) })
		if err != nil {
			return fmt.Errorf("column %d: %w", i, err)
		}
	}
	return nil
}

// writeColumn writes values, a chunk at a time.
func writeColumn(to *parquet.ColumnWriter, values []parquet.Value, from, end int, value func(i int) parquet.Value) error {
	for i := from; i < end; {
		values = values[:0]
		for ; i < end && len(values) < cap(values); i++ {
			values = append(values, value(i))
		}
		if _, err := to.WriteRowValues(values); err != nil {
			return err
		}
	}
	return nil
}

// fill gives the values of one of the directory's columns, at the place it has in the file.
func (b *columnBlock) fill(c column, at int) func(row int) parquet.Value {
	var cells []cell
	if i, ok := b.index[c.Name]; ok {
		cells = b.columns[i].cells
	}
	null := parquet.NullValue().Level(0, 0, at)
	present := b.present(c.Type)
	return func(row int) parquet.Value {
		if row >= len(cells) || cells[row].len == absent {
			return null
		}
		return present(cells[row]).Level(0, 1, at)
	}
}

// present turns the cells of a type into Parquet's values.
func (b *columnBlock) present(t columnType) func(cell) parquet.Value {
	switch t {
	case typeBool:
		return func(c cell) parquet.Value { return parquet.BooleanValue(c.num != 0) }
	case typeInt, typeTime:
		return func(c cell) parquet.Value { return parquet.Int64Value(int64(c.num)) }
	case typeFloat:
		return func(c cell) parquet.Value { return parquet.DoubleValue(math.Float64frombits(c.num)) }
	default:
		return func(c cell) parquet.Value {
			return parquet.ByteArrayValue(b.text[c.num : c.num+uint64(c.len)])
		}
	}
}
