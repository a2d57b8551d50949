package pipelines

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
)

// Columns is a compiled mapping of events to a destination's columns. Not safe
// for concurrent use: one per goroutine.
type Columns struct {
	byDefault bool
	names     []string
	kinds     []Kind
	values    []*Expression
	hash      string
}

// NewColumns compiles the sink's mapping. Without `columns:` it is every
// top-level field by its name: Default is true, and Names are those that the
// stages are known to make (parse: nginx, set, labels), or _raw alone when the
// topic holds raw lines that no stage parses; they are empty when the fields
// are not known (parse: json).
func (s *SinkSpec) NewColumns() (*Columns, error) {
	if s.Columns != nil {
		return s.newColumns(s.Columns, false)
	}
	fields := s.fields()
	switch {
	case !fields.parsed:
		return s.NewColumnsNamed([]string{"_raw"})
	case !fields.complete:
		return s.newColumns(nil, true)
	}
	return s.NewColumnsNamed(fields.names)
}

// NewColumnsNamed compiles the default mapping for given columns, such as a
// table's: each is filled by the field (or _topic, _partition, ...) of its name.
func (s *SinkSpec) NewColumnsNamed(names []string) (*Columns, error) {
	columns := make([]Column, len(names))
	for i, name := range names {
		columns[i] = Column{Name: name, Expr: &Source{Text: nameExpression(name), Pos: s.Pos}}
	}
	return s.newColumns(columns, true)
}

// nameExpression is an expression that is the field of that name, also when
// the name is no identifier.
func nameExpression(name string) string {
	if x, err := (&Source{Text: name}).compile(); err == nil && x.ref != nil && x.ref.key == name && !x.ref.header {
		return name
	}
	return "$env[" + strconv.Quote(name) + "]"
}

func (s *SinkSpec) newColumns(columns []Column, byDefault bool) (*Columns, error) {
	c := &Columns{byDefault: byDefault, hash: s.mappingHash(columns)}
	fields := s.fields()
	for _, column := range columns {
		x, err := column.Expr.expression()
		if err != nil {
			return nil, fmt.Errorf("compile column %s: %w", column.Name, err)
		}
		c.names = append(c.names, column.Name)
		c.kinds = append(c.kinds, fields.kindOf(column.Expr))
		c.values = append(c.values, x)
	}
	return c, nil
}

// fields are what an event has behind the worker's stages.
func (s *SinkSpec) fields() knownFields {
	k := s.upstream.clone()
	for _, stage := range s.Process {
		stage.follow(&k)
	}
	return k
}

// mappingHash covers what decides on a row's values beside the record.
func (s *SinkSpec) mappingHash(columns []Column) string {
	h := sha256.New()
	fmt.Fprintln(h, "sluice mapping 1")
	for _, stage := range s.Process {
		fmt.Fprintf(h, "%q\n", stage.text())
	}
	for _, c := range columns {
		fmt.Fprintf(h, "%q=%q\n", c.Name, c.Expr.Text)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Default says that the file has no `columns:`.
func (c *Columns) Default() bool { return c.byDefault }

// Names are the columns in order. The caller must not change them.
func (c *Columns) Names() []string { return c.names }

// Kind is what the i-th column will hold (or null) when that is known
// beforehand, else KindNull.
func (c *Columns) Kind(i int) Kind { return c.kinds[i] }

// Eval evaluates the i-th column. The value is valid until the event's next Reset.
func (c *Columns) Eval(e *Event, i int, v *Value) error { return c.values[i].Eval(e, v) }

// Field is what Eval makes of a column that is a field where the event before had it, the common case; nil for every other. The caller must not change it.
func (c *Columns) Field(e *Event, i int) *Value {
	r := c.values[i].ref
	if r == nil || r.meta || r.header || r.hint >= len(e.fields) || e.fields[r.hint].name != r.name {
		return nil
	}
	return &e.fields[r.hint].value
}

// Fixed is the value of a column that is a constant; ok is false for every other.
func (c *Columns) Fixed(i int) (v Value, ok bool) {
	if c.values[i].fixed == nil {
		return Value{}, false
	}
	return *c.values[i].fixed, true
}

// Hash identifies the mapping: the columns' names and expressions in order,
// and the worker's stages. 16 hex digits.
func (c *Columns) Hash() string { return c.hash }
