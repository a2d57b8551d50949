package clickhouse

import (
	"encoding/binary"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// constant is a column that has one value in all rows of a claim. As LowCardinality it goes out as a dictionary of that value and a byte for each row: the
// server then need not find out that they are the same.
type constant struct {
	of    *leaf  // makes the value
	low   bool   // it is declared as LowCardinality
	value []byte // as the wire has it
	n     int
	data  []byte // scratch: the value n times, or with low n zeros behind a head
}

// The parts of a LowCardinality column on the wire: the version of its form once, then flags with the width of the indexes, and keys and indexes with their
// numbers before them.
const (
	lowVersion     = 1
	lowFlags       = 1<<9 | 1<<10 // the keys come along, and are all that there are
	lowIndexesByte = 0            // an index has a byte
)

// set makes v the value of n rows.
func (c *constant) set(v pipelines.Value, n int) error {
	c.of.reset()
	if err := c.of.add(v); err != nil {
		return err
	}
	c.value, c.n = c.of.data, n
	if !c.low {
		c.data = repeated(c.data[:0], c.value, n)
		return nil
	}
	c.data = binary.LittleEndian.AppendUint64(c.data[:0], lowFlags|lowIndexesByte)
	c.data = binary.LittleEndian.AppendUint64(c.data, 1)
	c.data = append(c.data, c.value...)
	c.data = binary.LittleEndian.AppendUint64(c.data, uint64(n))
	c.data = repeated(c.data, []byte{0}, n)
	return nil
}

// repeated appends value n times.
func repeated(dst, value []byte, n int) []byte {
	start, end := len(dst), len(dst)+n*len(value)
	dst = append(dst, value...)
	for len(dst) < end {
		dst = append(dst, dst[start:min(len(dst), start+end-len(dst))]...)
	}
	return dst[:end]
}

func (c *constant) add(pipelines.Value) error { return nil }
func (c *constant) done()                     {}
func (c *constant) undo()                     {}
func (c *constant) reset()                    { c.n, c.data = 0, c.data[:0] }
func (c *constant) rows() int                 { return c.n }
func (c *constant) bytes() int                { return len(c.data) }
func (c *constant) write(chain func([]byte))  { chain(c.data) }

func (c *constant) typ() string {
	if c.low {
		return "LowCardinality(" + c.of.typ() + ")"
	}
	return c.of.typ()
}

// encodeState is called before the first byte of the column.
func (c *constant) encodeState(to *proto.Buffer) {
	if c.low {
		to.PutInt64(lowVersion)
	}
}

// newConstant makes a column of a type that own columns have.
func newConstant(typ string, lowCardinality bool) (*constant, error) {
	t, _, err := scalarOf(typ)
	if err != nil {
		return nil, err
	}
	of, err := newLeaf(t)
	if err != nil {
		return nil, err
	}
	outer, err := parseType(typ)
	return &constant{of: of, low: lowCardinality && outer.name == "LowCardinality"}, err
}

// isConstant says that all rows of a claim have the same value there.
func isConstant(from int) bool {
	return from == fromTopic || from == fromTopicID || from == fromPartition
}

// fill gives the columns that are the same for all rows of a claim their values.
func (b *block) fill(c *sinks.Claim) error {
	for i := range b.fields {
		f := &b.fields[i]
		var v pipelines.Value
		switch f.from {
		case fromTopic:
			v = pipelines.StringOf(c.Topic)
		case fromTopicID:
			v = pipelines.StringOf(c.TopicID.String())
		case fromPartition:
			v = pipelines.Int(int64(c.Partition))
		default:
			continue
		}
		if err := f.column.(*constant).set(v, b.rows); err != nil {
			return err
		}
	}
	return nil
}
