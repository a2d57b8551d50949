package clickhouse

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// column gathers the values of one column in the form they have on the wire. A row that fails halfway is taken back with undo. Not safe for
// concurrent use.
type column interface {
	// add appends a value, or fails and leaves the column to be undone.
	add(v pipelines.Value) error
	// done makes what was added since the last done the column's next row.
	done()
	// undo takes back what was added since the last done.
	undo()
	reset()
	rows() int
	bytes() int
	// typ is the type that is declared to the server. It converts LowCardinality itself: a dictionary made here would cost more than it saves.
	typ() string
	// write hands the column's bytes over; they must stay unchanged until the block is sent.
	write(chain func([]byte))
}

// leaf is a column of scalars.
type leaf struct {
	name   string
	put    putter
	usual  usual
	zero   []byte // what stands for nothing; nil where nothing does
	data   []byte
	n      int
	mark   int // length of data at the last done
	markNo int // n at the last done
}

// putter appends a value as the wire has it, or says why the type cannot hold it.
type putter func(dst []byte, v pipelines.Value) ([]byte, error)

func (c *leaf) add(v pipelines.Value) (err error) {
	if v.IsNull() {
		return pipelines.ErrNull
	}
	c.data, err = c.put(c.data, v)
	c.n++
	return err
}

// addRaw appends a value that is in the form of the wire.
func (c *leaf) addRaw(value []byte) {
	c.data = append(c.data, value...)
	c.n++
}

func (c *leaf) done()                    { c.mark, c.markNo = len(c.data), c.n }
func (c *leaf) undo()                    { c.data, c.n = c.data[:c.mark], c.markNo }
func (c *leaf) reset()                   { c.data, c.n, c.mark, c.markNo = c.data[:0], 0, 0, 0 }
func (c *leaf) rows() int                { return c.n }
func (c *leaf) bytes() int               { return len(c.data) }
func (c *leaf) typ() string              { return c.name }
func (c *leaf) write(chain func([]byte)) { chain(c.data) }

// nullable is a column of scalars or nulls: a byte for each row that says null, then the scalars with something in the place of nulls.
type nullable struct {
	of    *leaf
	zero  []byte
	nulls []byte
}

func (c *nullable) add(v pipelines.Value) error {
	if v.IsNull() {
		c.nulls = append(c.nulls, 1)
		c.of.data = append(c.of.data, c.zero...)
		c.of.n++
		return nil
	}
	c.nulls = append(c.nulls, 0)
	return c.of.add(v)
}

func (c *nullable) done()       { c.of.done() }
func (c *nullable) reset()      { c.nulls = c.nulls[:0]; c.of.reset() }
func (c *nullable) rows() int   { return len(c.nulls) }
func (c *nullable) bytes() int  { return len(c.nulls) + c.of.bytes() }
func (c *nullable) typ() string { return "Nullable(" + c.of.typ() + ")" }

func (c *nullable) undo() {
	c.of.undo()
	c.nulls = c.nulls[:c.of.n]
}

func (c *nullable) write(chain func([]byte)) {
	chain(c.nulls)
	c.of.write(chain)
}

// offsets are, for each row of an array or map, where its elements end.
type offsets struct {
	data []byte
	n    int
	mark int
}

func (o *offsets) add(end int) {
	o.data = binary.LittleEndian.AppendUint64(o.data, uint64(end))
	o.n++
}

func (o *offsets) done()  { o.mark = o.n }
func (o *offsets) undo()  { o.n = o.mark; o.data = o.data[:8*o.n] }
func (o *offsets) reset() { o.data, o.n, o.mark = o.data[:0], 0, 0 }

// array is a column of lists.
type array struct {
	offsets
	of column
}

func (c *array) add(v pipelines.Value) error {
	if v.Kind() != pipelines.KindList {
		return notA(v, "list")
	}
	list, _ := v.Any().([]any)
	for i, x := range list {
		if err := c.of.add(valueOf(x)); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	c.offsets.add(c.of.rows())
	return nil
}

func (c *array) done()       { c.offsets.done(); c.of.done() }
func (c *array) undo()       { c.offsets.undo(); c.of.undo() }
func (c *array) reset()      { c.offsets.reset(); c.of.reset() }
func (c *array) rows() int   { return c.n }
func (c *array) bytes() int  { return len(c.data) + c.of.bytes() }
func (c *array) typ() string { return "Array(" + c.of.typ() + ")" }

func (c *array) write(chain func([]byte)) {
	chain(c.data)
	c.of.write(chain)
}

// mapping is a column of objects.
type mapping struct {
	offsets
	keys, values column
}

func (c *mapping) add(v pipelines.Value) error {
	if v.Kind() != pipelines.KindMap {
		return notA(v, "object")
	}
	object, _ := v.Any().(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(object)) { // the same bytes on every rewrite
		if err := c.keys.add(pipelines.StringOf(key)); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		if err := c.values.add(valueOf(object[key])); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
	}
	c.offsets.add(c.keys.rows())
	return nil
}

func (c *mapping) done()       { c.offsets.done(); c.keys.done(); c.values.done() }
func (c *mapping) undo()       { c.offsets.undo(); c.keys.undo(); c.values.undo() }
func (c *mapping) reset()      { c.offsets.reset(); c.keys.reset(); c.values.reset() }
func (c *mapping) rows() int   { return c.n }
func (c *mapping) bytes() int  { return len(c.data) + c.keys.bytes() + c.values.bytes() }
func (c *mapping) typ() string { return "Map(" + c.keys.typ() + ", " + c.values.typ() + ")" }

func (c *mapping) write(chain func([]byte)) {
	chain(c.data)
	c.keys.write(chain)
	c.values.write(chain)
}

func notA(v pipelines.Value, want string) error {
	return fmt.Errorf("%s is no %s: %w", v.Kind(), want, pipelines.ErrType)
}

// valueOf makes a value of what a list or object holds.
func valueOf(x any) pipelines.Value {
	switch x := x.(type) {
	case nil:
		return pipelines.Null()
	case bool:
		return pipelines.Bool(x)
	case int64:
		return pipelines.Int(x)
	case uint64:
		return pipelines.Uint(x)
	case float64:
		return pipelines.Float(x)
	case string:
		return pipelines.StringOf(x)
	default:
		return nested(x)
	}
}

// nested makes a value of a list or object within a list or object.
func nested(x any) pipelines.Value {
	text, err := json.Marshal(map[string]any{"v": x})
	if err != nil {
		return pipelines.Null()
	}
	var e pipelines.Event
	if err := e.DecodeJSON(text); err != nil {
		return pipelines.Null()
	}
	v, _ := e.Get("v")
	return v
}

// wire shows a column to the client's encoder.
type wire struct {
	column
	declared string      // the type that the table had when the block was made, as the server writes it
	changed  func(error) // told when it has another for an INSERT
	inTime   func() error
}

func (w wire) Type() proto.ColumnType { return proto.ColumnType(w.typ()) }

// Infer is called with the type that the column has for this INSERT, before the first byte of it is sent. The server would convert what was made for
// another type, and wrap what the new one cannot hold.
func (w wire) Infer(t proto.ColumnType) error {
	if err := w.inTime(); err != nil {
		w.changed(err)
		return err
	}
	if string(t) != w.declared {
		err := fmt.Errorf("type %s became %s: %w", w.declared, t, sinks.ErrSchemaChanged)
		w.changed(err)
		return err
	}
	return nil
}

// EncodeState is called before the column is written.
func (w wire) EncodeState(b *proto.Buffer) {
	if c, ok := w.column.(*constant); ok {
		c.encodeState(b)
	}
}

func (w wire) Rows() int                     { return w.rows() }
func (w wire) EncodeColumn(b *proto.Buffer)  { w.write(b.PutRaw) }
func (w wire) WriteColumn(out *proto.Writer) { w.write(out.ChainWrite) }

// newColumn makes the column of a server's type.
func newColumn(typ string) (column, error) {
	t, err := parseType(typ)
	if err != nil {
		return nil, err
	}
	switch t.name {
	case "LowCardinality":
		return newColumn(t.only())
	case "Nullable":
		return newNullable(t.only())
	case "Array":
		of, err := newColumn(t.only())
		return &array{of: of}, err
	case "Map":
		return newMap(t)
	case "Tuple":
		return newTuple(t)
	case "Nested":
		of, err := newTuple(t)
		return &array{of: of}, err
	default:
		if other, ok := sameAs[t.name]; ok {
			return newColumn(other)
		}
		return newLeaf(t)
	}
}

func newNullable(inner string) (column, error) {
	t, err := parseType(inner)
	if err != nil {
		return nil, err
	}
	of, err := newLeaf(t)
	if err != nil {
		return nil, err
	}
	return &nullable{of: of, zero: make([]byte, zeroBytes(t))}, nil
}

func newMap(t chType) (column, error) {
	if len(t.args) != 2 {
		return nil, fmt.Errorf("type %s: two arguments are wanted", t)
	}
	keys, err := newColumn(t.args[0])
	if err != nil {
		return nil, err
	}
	values, err := newColumn(t.args[1])
	return &mapping{keys: keys, values: values}, err
}
