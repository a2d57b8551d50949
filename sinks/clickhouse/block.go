package clickhouse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// block gathers rows as the columns of one INSERT.
type block struct {
	table   *table
	mapping *pipelines.Columns
	fields  []field
	others  []column // those of the fields without a leaf
	insert  string
	input   proto.Input
	rows    int
	expect  int // rows of the batch in progress; 0: not known
	misfit  pipelines.Misfit
	refused *refusedRows // nil: none
	marks   []string     // columns of the row in progress that hold something else than the record said

	mu      sync.Mutex // guards what follows, of the INSERT in progress
	changed error      // the table is no longer what the block was made for
	abort   func()
	until   time.Time // no byte of it is sent after this; zero: at any time
}

// cut ends the INSERT in progress, for the client would wait for the server, and the server for the block.
func (b *block) cut(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = err
	if b.abort != nil {
		b.abort()
	}
}

// errOverdue keeps a process that was stopped in the middle of an INSERT from sending the rows when it wakes: another worker may have the partition by then.
var errOverdue = errors.New("the claim's deadline passed before the server asked for the rows")

// inTime is asked right before the rows are sent, when the server has said that it takes them.
func (b *block) inTime() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.until.IsZero() && time.Now().After(b.until) {
		return errOverdue
	}
	return nil
}

// begin makes abort the way to end the INSERT, of which nothing is sent after until; the function it returns is called when that has ended, and says whether the table had changed.
func (b *block) begin(abort func(), until time.Time) (end func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed, b.abort, b.until = nil, abort, until
	return func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.abort = nil
		return b.changed
	}
}

// field is a written column and where its values come from.
type field struct {
	name string
	from int    // index in the mapping; below 0: one of the row's own, see below
	key  string // not "": the column holds this field of each of the value's objects
	column
	leaf   *leaf  // the column, when it is one of scalars that the mapping fills: the common case has a shorter way
	fixed  []byte // not nil: what leaf has in every row
	number *leaf  // the column, when it holds offsets as numbers of 64 bits

	scalar   chType // without Nullable and LowCardinality
	nullable bool
	isTime   bool
}

// Where the columns that no mapping fills come from.
const (
	fromTopic = -1 - iota
	fromPartition
	fromOffset
	fromTime
	fromTopicID
	fromMarks
)

func newBlock(spec *pipelines.SinkSpec, t *table) (*block, error) {
	mapping, err := t.compile(spec)
	if err != nil {
		return nil, err
	}
	b := &block{table: t, mapping: mapping, misfit: spec.ClickHouse.Misfit}
	names := make([]string, 0, len(t.written))
	for _, w := range t.written {
		c, err := t.newColumnFor(w)
		if err != nil {
			return nil, err
		}
		f := field{name: w.name, from: w.from, key: w.key, column: c}
		b.shorten(&f)
		if f.scalar, f.nullable, err = scalarOf(w.typ); err != nil {
			return nil, err
		}
		f.isTime = !f.nullable && strings.HasPrefix(f.scalar.name, "Date")
		b.fields = append(b.fields, f)
		b.input = append(b.input, proto.InputColumn{Name: w.name, Data: wire{c, w.typ, b.cut, b.inTime}})
		names = append(names, quoteName(w.name))
	}
	b.insert = "INSERT INTO " + t.name() + " (" + strings.Join(names, ", ") + ")"
	return b, nil
}

// shorten finds the short ways that a field has.
func (b *block) shorten(f *field) {
	of, ok := f.column.(*leaf)
	switch {
	case ok && f.from >= 0 && f.key == "":
		f.leaf = of
		if v, ok := b.mapping.Fixed(f.from); ok && of.add(v) == nil {
			f.fixed = of.data
			of.data = nil
		}
		of.reset()
		return
	case ok && f.from == fromOffset && of.usual.form == formInteger && of.usual.bits == 64:
		f.number = of
	}
	b.others = append(b.others, f.column)
}

func (b *block) Rows() int { return b.rows }

func (b *block) Bytes() (n int64) {
	for i := range b.fields {
		n += int64(b.fields[i].bytes())
	}
	return n
}

// Expect tells how many rows come after a Reset.
func (b *block) Expect(rows int) { b.expect = rows }

// sampleRows is after how many rows it is judged how large a block becomes.
const sampleRows = 256

// reserve makes room for the rows that are expected, by what those so far took: columns that grow step by step are copied each time, and end up too large.
func (b *block) reserve() {
	for i := range b.fields {
		if l, ok := b.fields[i].column.(*leaf); ok {
			if want := len(l.data) / b.rows * b.expect / 16 * 17; want > cap(l.data) {
				l.data = append(make([]byte, 0, want), l.data...)
			}
		}
	}
}

func (b *block) Reset() {
	b.rows, b.expect = 0, 0
	for i := range b.fields {
		b.fields[i].reset()
	}
}

// Append adds the event as a row, or none of it.
func (b *block) Append(e *pipelines.Event) error {
	if b.refused != nil {
		if why := b.refused.reason(e.Meta.Partition, e.Meta.Offset); why != "" {
			return &sinks.RejectError{Err: fmt.Errorf("%w %s", sinks.ErrConstraint, why)}
		}
	}
	b.marks = b.marks[:0]
	for i := range b.fields {
		if err := b.add(&b.fields[i], e); err != nil {
			for j := range i + 1 {
				b.fields[j].undo()
			}
			return &sinks.RejectError{Column: b.fields[i].name, Err: err}
		}
	}
	for _, c := range b.others {
		c.done()
	}
	b.rows++
	if b.rows == sampleRows && b.expect > sampleRows {
		b.reserve()
	}
	return nil
}

func (b *block) add(f *field, e *pipelines.Event) error {
	switch {
	case f.fixed != nil:
		f.leaf.done()
		f.leaf.addRaw(f.fixed)
		return nil
	case f.number != nil:
		f.number.data = binary.LittleEndian.AppendUint64(f.number.data, uint64(e.Meta.Offset))
		f.number.n++
		return nil
	case f.leaf == nil:
		return b.addOther(f, e)
	}
	f.leaf.done() // what was added before is of whole rows
	v := b.mapping.Field(e, f.from)
	switch {
	case v == nil:
		return b.addOther(f, e)
	case f.leaf.addUsual(v):
		return nil
	}
	err := f.leaf.add(*v)
	if err != nil && b.misfit != (pipelines.Misfit{}) {
		return b.mend(f, *v, err, e)
	}
	return err
}

// addOther adds the value of a column that is no plain field of scalars.
func (b *block) addOther(f *field, e *pipelines.Event) error {
	var v pipelines.Value
	switch f.from {
	case fromTopic, fromPartition, fromTopicID: // the same for all rows of a claim: see fill
		return nil
	case fromOffset:
		v = pipelines.Int(e.Meta.Offset)
	case fromTime:
		v = pipelines.Time(e.Meta.Time)
	case fromMarks:
		return f.column.add(listOf(b.marks))
	default:
		if err := b.mapping.Eval(e, f.from, &v); err != nil {
			return err
		}
		if f.key != "" {
			v = pluck(v, f.key)
		}
	}
	err := f.column.add(v)
	if err != nil && b.misfit != (pipelines.Misfit{}) && f.from >= 0 {
		return b.mend(f, v, err, e)
	}
	return err
}

// listOf is a list of texts.
func listOf(texts []string) pipelines.Value {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	return nested(list)
}

// scalarOf is a column's type without what is around it.
func scalarOf(typ string) (t chType, nullable bool, err error) {
	for {
		if t, err = parseType(typ); err != nil {
			return t, false, err
		}
		switch t.name {
		case "Nullable":
			nullable = true
		case "LowCardinality":
		default:
			return t, nullable, nil
		}
		typ = t.only()
	}
}
