package clickhouse

import (
	"strings"
	"sync"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// block gathers rows as the columns of one INSERT.
type block struct {
	table   *table
	mapping *pipelines.Columns
	fields  []field
	insert  string
	input   proto.Input
	rows    int
	topic   []byte // of the last row: mostly that of the next
	misfit  pipelines.Misfit
	marks   []string // columns of the row in progress that hold something else than the record said

	mu      sync.Mutex // guards what follows, of the INSERT in progress
	changed error      // the table is no longer what the block was made for
	abort   func()
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

// begin makes abort the way to end the INSERT; the function it returns is called when that has ended, and says whether the table had changed.
func (b *block) begin(abort func()) (end func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed, b.abort = nil, abort
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
		c, err := newColumn(w.typ)
		if err != nil {
			return nil, err
		}
		f := field{name: w.name, from: w.from, key: w.key, column: c}
		if f.scalar, f.nullable, err = scalarOf(w.typ); err != nil {
			return nil, err
		}
		f.isTime = !f.nullable && strings.HasPrefix(f.scalar.name, "Date")
		b.fields = append(b.fields, f)
		b.input = append(b.input, proto.InputColumn{Name: w.name, Data: wire{c, w.typ, b.cut}})
		names = append(names, quoteName(w.name))
	}
	b.insert = "INSERT INTO " + t.name() + " (" + strings.Join(names, ", ") + ")"
	return b, nil
}

func (b *block) Rows() int { return b.rows }

func (b *block) Bytes() (n int64) {
	for i := range b.fields {
		n += int64(b.fields[i].bytes())
	}
	return n
}

func (b *block) Reset() {
	b.rows = 0
	for i := range b.fields {
		b.fields[i].reset()
	}
}

// Append adds the event as a row, or none of it.
func (b *block) Append(e *pipelines.Event) error {
	b.marks = b.marks[:0]
	for i := range b.fields {
		if err := b.add(&b.fields[i], e); err != nil {
			for j := range i + 1 {
				b.fields[j].undo()
			}
			return &sinks.RejectError{Column: b.fields[i].name, Err: err}
		}
	}
	for i := range b.fields {
		b.fields[i].done()
	}
	b.rows++
	return nil
}

// fillTopicID makes the topic's ID the value of all rows.
func (b *block) fillTopicID(id sinks.TopicID) error {
	for i := range b.fields {
		f := &b.fields[i]
		if f.from != fromTopicID {
			continue
		}
		f.reset()
		v := pipelines.StringOf(id.String())
		for range b.rows {
			if err := f.column.add(v); err != nil {
				return err
			}
			f.done()
		}
	}
	return nil
}

func (b *block) add(f *field, e *pipelines.Event) error {
	var v pipelines.Value
	switch f.from {
	case fromTopic:
		if string(b.topic) != e.Meta.Topic {
			b.topic = []byte(e.Meta.Topic)
		}
		v = pipelines.String(b.topic)
	case fromPartition:
		v = pipelines.Int(int64(e.Meta.Partition))
	case fromOffset:
		v = pipelines.Int(e.Meta.Offset)
	case fromTopicID: // the same for all rows of a claim: see fillTopicID
		return nil
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
