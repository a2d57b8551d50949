package directory

import (
	"errors"
	"math"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// columnsMax bounds the columns of a directory: events whose field names are data would make one for each value.
const columnsMax = 2000

var errColumns = errors.New("the directory has no room for another column: store fields with ever new names as one object")

// cell is one value of a staged column, in the form of the column's type.
type cell struct {
	num uint64 // bool, integer, number bits, microseconds; of text, where it starts in the block's text
	len int32  // of text; absent for a null
}

const absent = -1

// staged is a column of a block.
type staged struct {
	name   string
	typ    columnType
	fixed  bool // by the schema or by what the pipeline is known to make: values that do not fit are refused
	known  bool // the schema has it
	cells  []cell
	values int // cells that are not null
}

// columnBlock gathers rows by column. Values are brought to their column's type as they come, so that a record that does not fit is known at once;
// the types of columns that the schema does not have yet may still widen.
type columnBlock struct {
	mapping *pipelines.Columns
	places  *placer
	current func() *schema
	schema  *schema // that the columns were made from

	columns []staged
	index   map[string]int
	order   []int // the column of the i-th value of the last row: most rows have the same shape

	topic     []byte
	partition int32
	offsets   []int64
	times     []int64 // microseconds
	text      []byte  // of all columns

	// Of files of Parquet, from one to the next.
	file       *parquet.GenericWriter[any]
	fileSchema *schema // that file has
	chunk      []parquet.Value
}

func newColumnBlock(mapping *pipelines.Columns, places *placer, s *schema, current func() *schema) *columnBlock {
	b := &columnBlock{mapping: mapping, places: places, current: current}
	b.layOut(s)
	return b
}

// layOut makes the columns of a schema version and those that the mapping names.
func (b *columnBlock) layOut(s *schema) {
	b.schema = s
	b.columns, b.index, b.order = nil, make(map[string]int, len(s.columns)), nil
	for _, c := range s.columns {
		b.addColumn(staged{name: c.Name, typ: c.Type, fixed: true, known: true})
	}
	for i, name := range b.mapping.Names() {
		if _, ok := b.index[name]; ok || reserved(name) {
			continue
		}
		typ := typeOf(b.mapping.Kind(i))
		b.addColumn(staged{name: name, typ: typ, fixed: typ != typeUnknown})
	}
}

func (b *columnBlock) addColumn(c staged) int {
	b.columns = append(b.columns, c)
	b.index[c.name] = len(b.columns) - 1
	return len(b.columns) - 1
}

func (b *columnBlock) Rows() int       { return len(b.offsets) }
func (b *columnBlock) placed() *placer { return b.places }

func (b *columnBlock) Bytes() int64 {
	n := int64(len(b.text) + 16*len(b.offsets))
	for i := range b.columns {
		n += 16 * int64(len(b.columns[i].cells))
	}
	return n
}

func (b *columnBlock) Reset() {
	b.offsets, b.times, b.text = b.offsets[:0], b.times[:0], b.text[:0]
	b.places.reset()
	if s := b.current(); s != b.schema {
		b.layOut(s)
		return
	}
	for i := range b.columns {
		c := &b.columns[i]
		c.cells, c.values = c.cells[:0], 0
		if !c.fixed {
			c.typ = typeUnknown
		}
	}
}

// Append adds the event as a row.
func (b *columnBlock) Append(e *pipelines.Event) error {
	group, err := b.places.place(e)
	if err != nil {
		return err
	}
	textBefore, n := len(b.text), 0
	err = eachField(b.mapping, e, func(name string, v pipelines.Value) error {
		i, err := b.column(name, n)
		n++
		if err != nil {
			return err
		}
		return b.add(i, v)
	})
	if err == nil && b.places.noTime {
		err = b.markNoTime()
	}
	if err != nil {
		b.undo(textBefore)
		return err
	}
	b.places.put(group)
	if len(b.offsets) == 0 {
		b.topic, b.partition = append(b.topic[:0], e.Meta.Topic...), e.Meta.Partition
	}
	b.offsets = append(b.offsets, e.Meta.Offset)
	b.times = append(b.times, e.Meta.Time.UnixMicro())
	return nil
}

// markNoTime sets the column of rows without an event time.
func (b *columnBlock) markNoTime() error {
	i, ok := b.index[columnNoTime]
	if !ok {
		i = b.addColumn(staged{name: columnNoTime, typ: typeBool, fixed: true})
	}
	return b.add(i, pipelines.Bool(true))
}

// undo takes the values of an unfinished row back.
func (b *columnBlock) undo(textLen int) {
	rows := len(b.offsets)
	for i := range b.columns {
		c := &b.columns[i]
		if len(c.cells) > rows {
			if c.cells[rows].len != absent {
				c.values--
			}
			c.cells = c.cells[:rows]
		}
	}
	b.text = b.text[:textLen]
}

// column finds the column of the n-th value of a row.
func (b *columnBlock) column(name string, n int) (int, error) {
	if n < len(b.order) && b.columns[b.order[n]].name == name {
		return b.order[n], nil
	}
	i, ok := b.index[name]
	if !ok {
		if len(b.columns) >= columnsMax {
			return 0, &sinks.RejectError{Column: name, Err: errColumns}
		}
		i = b.addColumn(staged{name: name})
	}
	if n < len(b.order) {
		b.order[n] = i
	} else if n == len(b.order) {
		b.order = append(b.order, i)
	}
	return i, nil
}

// add puts a value into the row that is being made. Rows that had no value for the column become null.
func (b *columnBlock) add(i int, v pipelines.Value) error {
	c := &b.columns[i]
	for len(c.cells) < len(b.offsets) {
		c.cells = append(c.cells, cell{len: absent})
	}
	if len(c.cells) > len(b.offsets) {
		return nil // a field that comes twice: the first stays
	}
	if v.IsNull() {
		c.cells = append(c.cells, cell{len: absent})
		return nil
	}
	if !c.fixed {
		b.retype(c, join(c.typ, typeOf(v.Kind())))
	}
	value, err := b.cell(v, c.typ)
	if err != nil {
		return &sinks.RejectError{Column: c.name, Err: err}
	}
	c.cells = append(c.cells, value)
	c.values++
	return nil
}

// cell brings a value to a type.
func (b *columnBlock) cell(v pipelines.Value, t columnType) (cell, error) {
	switch t {
	case typeBool:
		x, err := v.ToBool()
		if x {
			return cell{num: 1}, err
		}
		return cell{}, err
	case typeInt:
		x, err := v.ToInt64()
		return cell{num: uint64(x)}, err
	case typeFloat:
		x, err := v.ToFloat64()
		return cell{num: math.Float64bits(x)}, err
	case typeTime:
		x, err := v.ToTime()
		return cell{num: uint64(x.UnixMicro())}, err
	case typeJSON:
		start := len(b.text)
		b.text = v.AppendJSON(b.text)
		return textCell(start, len(b.text)), nil
	default:
		start := len(b.text)
		b.text = v.AppendText(b.text)
		return textCell(start, len(b.text)), nil
	}
}

func textCell(start, end int) cell { return cell{num: uint64(start), len: int32(end - start)} }

// retype widens a column, and brings what it holds to the new type.
func (b *columnBlock) retype(c *staged, to columnType) {
	from := c.typ
	if from == to {
		return
	}
	c.typ = to
	if from == typeUnknown || from == typeJSON { // nothing but nulls, or text already
		return
	}
	for i := range c.cells {
		if c.cells[i].len != absent {
			c.cells[i], _ = b.cell(c.cells[i].value(from), to) // an integer as number, or anything as text: always possible
		}
	}
}

// value is the cell of a column of scalars as a value again.
func (c cell) value(t columnType) pipelines.Value {
	switch t {
	case typeBool:
		return pipelines.Bool(c.num != 0)
	case typeFloat:
		return pipelines.Float(math.Float64frombits(c.num))
	case typeTime:
		return pipelines.Time(time.UnixMicro(int64(c.num)).UTC())
	default:
		return pipelines.Int(int64(c.num))
	}
}

// prepare makes the schema hold the block's columns: those that have values, and those of the mapping whose type is known beforehand, so that
// a query that names such a column works on a directory where it was always null.
func (b *columnBlock) prepare(s *Sink) error {
	now := b.current()
	var added []column
	for i := range b.columns {
		c := &b.columns[i]
		switch known := now.typeOf(c.name); {
		case known == c.typ, c.values == 0 && (!c.fixed || known != typeUnknown):
		case known != typeUnknown:
			return sinks.ErrSchemaChanged // another block was first, with another type
		default:
			added = append(added, column{c.name, c.typ})
		}
	}
	if len(added) > 0 {
		next, err := s.addColumns(now, added)
		if err != nil {
			return err
		}
		now = next
	}
	b.schema = now
	return nil
}
