package directory

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/hamba/avro/v2"
	"github.com/hamba/avro/v2/ocf"
	"github.com/klauspost/compress/zstd"

	"github.com/sluice-io/sluice/pipelines"
)

// avroBlockBytes is when a block of a container file is closed.
const avroBlockBytes = 256 << 10

func avroCodec(c pipelines.Compression) (ocf.CodecName, error) {
	switch c {
	case pipelines.CompressionNone:
		return ocf.Null, nil
	case pipelines.CompressionDeflate:
		return ocf.Deflate, nil
	case pipelines.CompressionSnappy:
		return ocf.Snappy, nil
	case pipelines.CompressionZstd, pipelines.CompressionAuto, "":
		return ocf.ZStandard, nil
	default:
		return "", fmt.Errorf("files of Avro cannot be compressed with %s: use zstd, snappy, deflate or none", c)
	}
}

type avroRecord struct {
	Type   string           `json:"type"`
	Name   string           `json:"name"`
	Fields []map[string]any `json:"fields"`
}

type avroLogical struct {
	Type    string `json:"type"`
	Logical string `json:"logicalType"`
}

var avroTime = avroLogical{"long", "timestamp-micros"}

// avroSchema is the schema of a file: the four columns of every row, then the directory's, each of them null or its type.
func avroSchema(s *schema) (avro.Schema, error) {
	record := avroRecord{Type: "record", Name: "row", Fields: []map[string]any{
		{"name": columnTopic, "type": "string"},
		{"name": columnPartition, "type": "int"},
		{"name": columnOffset, "type": "long"},
		{"name": columnTime, "type": avroTime},
	}}
	names := map[string]bool{columnTopic: true, columnPartition: true, columnOffset: true, columnTime: true}
	for _, c := range s.columns {
		field := map[string]any{"name": avroName(c.Name, names), "type": []any{"null", avroType(c.Type)}, "default": nil}
		if field["name"] != c.Name {
			field["column"] = c.Name
		}
		record.Fields = append(record.Fields, field)
	}
	text, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	return avro.ParseBytesWithCache(text, "", &avro.SchemaCache{})
}

func avroType(t columnType) any {
	switch t {
	case typeBool:
		return "boolean"
	case typeInt:
		return "long"
	case typeFloat:
		return "double"
	case typeTime:
		return avroTime
	default:
		return "string"
	}
}

// avroName is a column's name in Avro, whose names have letters, digits and underscores only and do not begin with a digit. taken are those that are in use.
func avroName(column string, taken map[string]bool) string {
	name := []byte(column)
	for i, c := range name {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			name[i] = '_'
		}
	}
	out := string(name)
	if out == "" {
		out = "_"
	}
	for n, first := 2, out; taken[out]; n++ {
		out = first + "_" + strconv.Itoa(n)
	}
	taken[out] = true
	return out
}

// encodeAvro writes an object container file. The rows are encoded by hand, straight from the block's cells; hamba/avro makes blocks, header and codecs.
func (b *columnBlock) encodeAvro(w io.Writer, f *pipelines.Files, rows []int32) error {
	codec, err := avroCodec(f.Compression)
	if err != nil {
		return err
	}
	schema, err := avroSchema(b.schema)
	if err != nil {
		return fmt.Errorf("make the Avro schema: %w", err)
	}
	file, err := ocf.NewEncoderWithSchema(schema, w, ocf.WithCodec(codec), ocf.WithSchemaMarshaler(ocf.FullSchemaMarshaler), ocf.WithBlockLength(math.MaxInt), ocf.WithBlockSize(avroBlockBytes),
		ocf.WithZStandardEncoderOptions(zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)))
	if err != nil {
		return err
	}
	cells := make([]avroColumn, len(b.schema.columns))
	for i, c := range b.schema.columns {
		cells[i].typ = c.Type
		if at, ok := b.index[c.Name]; ok {
			cells[i].cells = b.columns[at].cells
		}
	}
	n := len(b.offsets)
	if rows != nil {
		n = len(rows)
	}
	var row []byte
	for i := range n {
		at := i
		if rows != nil {
			at = int(rows[i])
		}
		row = b.appendAvro(row[:0], at, cells)
		if _, err := file.Write(row); err != nil {
			return err
		}
	}
	return file.Close()
}

type avroColumn struct {
	typ   columnType
	cells []cell
}

func (b *columnBlock) appendAvro(dst []byte, row int, columns []avroColumn) []byte {
	dst = binary.AppendVarint(dst, int64(len(b.topic)))
	dst = append(dst, b.topic...)
	dst = binary.AppendVarint(dst, int64(b.partition))
	dst = binary.AppendVarint(dst, b.offsets[row])
	dst = binary.AppendVarint(dst, b.times[row])
	for i := range columns {
		c := &columns[i]
		if row >= len(c.cells) || c.cells[row].len == absent {
			dst = append(dst, 0) // the first of the union: null
			continue
		}
		dst = append(dst, 2) // the second
		switch v := c.cells[row]; c.typ {
		case typeBool:
			dst = append(dst, byte(v.num))
		case typeInt, typeTime:
			dst = binary.AppendVarint(dst, int64(v.num))
		case typeFloat:
			dst = binary.LittleEndian.AppendUint64(dst, v.num)
		default:
			dst = binary.AppendVarint(dst, int64(v.len))
			dst = append(dst, b.text[v.num:v.num+uint64(v.len)]...)
		}
	}
	return dst
}
