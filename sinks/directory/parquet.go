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

// encodeParquet reuses the writer of the file before, with its buffers, while the columns are the same.
func (b *columnBlock) encodeParquet(w io.Writer, f *pipelines.Files, rows []int32) error {
	if b.file == nil || b.fileSchema != b.schema {
		codec, err := parquetCodec(f.Compression)
		if err != nil {
			return err
		}
		b.file = parquet.NewGenericWriter[any](w, parquetSchema(b.schema),
			parquet.Compression(codec),
			parquet.PageBufferSize(pageBytes),
			parquet.DictionaryMaxBytes(dictionaryBytesMax),
			parquet.DataPageStatistics(true),
			parquet.CreatedBy("sluice", "", ""))
		b.fileSchema = b.schema
	} else {
		b.file.Reset(w)
	}
	n := len(b.offsets)
	if rows != nil {
		n = len(rows)
	}
	for from := 0; from < n; {
		to := min(n, from+f.RowGroupRows)
		if err := b.writeRowGroup(b.file.ColumnWriters(), rows, from, to); err != nil {
			b.file = nil // of no use any more
			return err
		}
		if from = to; from < n {
			if err := b.file.Flush(); err != nil {
				b.file = nil
				return err
			}
		}
	}
	err := b.file.Close()
	if err != nil {
		b.file = nil
	}
	return err
}

// writeRowGroup writes some of the rows, column by column; from and to count in rows, or in the block where rows is nil.
func (b *columnBlock) writeRowGroup(columns []*parquet.ColumnWriter, rows []int32, from, to int) error {
	own := []func(values []parquet.Value, row int){
		func(values []parquet.Value, _ int) { fillWith(values, parquet.ByteArrayValue(b.topic)) },
		func(values []parquet.Value, _ int) { fillWith(values, parquet.Int32Value(b.partition)) },
		func(values []parquet.Value, first int) { fillInts(values, b.offsets, rows, first) },
		func(values []parquet.Value, first int) { fillInts(values, b.times, rows, first) },
	}
	for i, fill := range own {
		if err := b.writeColumn(columns[i], from, to, fill); err != nil {
			return err
		}
	}
	for i, c := range b.schema.columns {
		var cells []cell
		if at, ok := b.index[c.Name]; ok {
			cells = b.columns[at].cells
		}
		err := b.writeColumn(columns[len(own)+i], from, to, func(values []parquet.Value, first int) { b.fillCells(values, c.Type, cells, rows, first) })
		if err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	return nil
}

// writeColumn writes values a chunk at a time. fill sets the values of the rows from first on.
func (b *columnBlock) writeColumn(to *parquet.ColumnWriter, from, end int, fill func(values []parquet.Value, first int)) error {
	if b.chunk == nil {
		b.chunk = make([]parquet.Value, chunkValues)
	}
	for from < end {
		values := b.chunk[:min(chunkValues, end-from)]
		fill(values, from)
		if _, err := to.WriteRowValues(values); err != nil {
			return err
		}
		from += len(values)
	}
	return nil
}

func fillWith(values []parquet.Value, v parquet.Value) {
	for i := range values {
		values[i] = v
	}
}

func fillInts(values []parquet.Value, ints []int64, rows []int32, first int) {
	for i := range values {
		at := first + i
		if rows != nil {
			at = int(rows[at])
		}
		values[i] = parquet.Int64Value(ints[at])
	}
}

// present is the definition level of a value that is not null.
const present = 1

// fillCells sets the values of an optional column: in one loop a type, which most of the time of a file goes into.
func (b *columnBlock) fillCells(values []parquet.Value, t columnType, cells []cell, rows []int32, first int) {
	for i := range values {
		at := first + i
		if rows != nil {
			at = int(rows[at])
		}
		if at >= len(cells) || cells[at].len == absent {
			values[i] = parquet.Value{}
			continue
		}
		c := &cells[at]
		switch t {
		case typeInt, typeTime:
			values[i] = parquet.Int64Value(int64(c.num)).Level(0, present, 0)
		case typeFloat:
			values[i] = parquet.DoubleValue(math.Float64frombits(c.num)).Level(0, present, 0)
		case typeBool:
			values[i] = parquet.BooleanValue(c.num != 0).Level(0, present, 0)
		default:
			values[i] = parquet.ByteArrayValue(b.text[c.num:c.num+uint64(c.len)]).Level(0, present, 0)
		}
	}
}
