package clickhouse

import (
	"fmt"
	"strings"

	"github.com/sluice-io/sluice/pipelines"
)

// tuple is a column of lists of fixed length, or of objects where its elements have names. On the wire it is its elements' columns, one after the other.
type tuple struct {
	names []string // "" each where they have none
	of    []column
}

func (c *tuple) add(v pipelines.Value) error {
	switch v.Kind() {
	case pipelines.KindList:
		list, _ := v.Any().([]any)
		if len(list) != len(c.of) {
			return fmt.Errorf("a list of %d for a tuple of %d: %w", len(list), len(c.of), pipelines.ErrType)
		}
		for i, x := range list {
			if err := c.of[i].add(valueOf(x)); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
		return nil
	case pipelines.KindMap:
		return c.addObject(v)
	}
	return notA(v, "list or object")
}

// addObject takes an object that has the tuple's names and no others: what has no place would be lost without a word.
func (c *tuple) addObject(v pipelines.Value) error {
	object, _ := v.Any().(map[string]any)
	known := 0
	for i, name := range c.names {
		x, ok := object[name]
		if ok && name != "" {
			known++
		}
		if err := c.of[i].add(valueOf(x)); err != nil {
			return fmt.Errorf("element %q: %w", name, err)
		}
	}
	if known < len(object) {
		return fmt.Errorf("the object has names that the tuple has not: %w", pipelines.ErrType)
	}
	return nil
}

func (c *tuple) each(f func(column)) {
	for _, x := range c.of {
		f(x)
	}
}

func (c *tuple) done()                    { c.each(column.done) }
func (c *tuple) undo()                    { c.each(column.undo) }
func (c *tuple) reset()                   { c.each(column.reset) }
func (c *tuple) rows() int                { return c.of[0].rows() }
func (c *tuple) write(chain func([]byte)) { c.each(func(x column) { x.write(chain) }) }

func (c *tuple) bytes() (n int) {
	c.each(func(x column) { n += x.bytes() })
	return n
}

func (c *tuple) typ() string {
	elements := make([]string, len(c.of))
	for i, x := range c.of {
		elements[i] = x.typ()
		if c.names[i] != "" {
			elements[i] = quoteName(c.names[i]) + " " + elements[i]
		}
	}
	return "Tuple(" + strings.Join(elements, ", ") + ")"
}

func newTuple(t chType) (column, error) {
	if len(t.args) == 0 {
		return nil, fmt.Errorf("type %s: a tuple without elements cannot be written", t)
	}
	c := &tuple{}
	for _, arg := range t.args {
		name, typ := splitName(arg)
		of, err := newColumn(typ)
		if err != nil {
			return nil, err
		}
		c.names, c.of = append(c.names, name), append(c.of, of)
	}
	return c, nil
}

// splitName takes apart "name Type" or "Type".
func splitName(arg string) (name, typ string) {
	if strings.HasPrefix(arg, "`") {
		for i := 1; i < len(arg); i++ {
			switch arg[i] {
			case '\\':
				i++
			case '`':
				name := strings.NewReplacer("\\`", "`", "\\\\", "\\").Replace(arg[1:i])
				return name, strings.TrimSpace(arg[i+1:])
			}
		}
	}
	i := strings.IndexByte(arg, ' ')
	if i < 0 || strings.ContainsAny(arg[:i], "(',") {
		return "", arg
	}
	return arg[:i], strings.TrimSpace(arg[i+1:])
}

// sameAs are types that are another's by another name.
var sameAs = map[string]string{
	"Point":           "Tuple(Float64, Float64)",
	"Ring":            "Array(Tuple(Float64, Float64))",
	"LineString":      "Array(Tuple(Float64, Float64))",
	"Polygon":         "Array(Array(Tuple(Float64, Float64)))",
	"MultiLineString": "Array(Array(Tuple(Float64, Float64)))",
	"MultiPolygon":    "Array(Array(Array(Tuple(Float64, Float64))))",
}

// pluck makes of a list of objects the list of one of their fields; of an object, its field. It fills the columns n.a, n.b of a Nested column n.
func pluck(v pipelines.Value, key string) pipelines.Value {
	switch x := v.Any().(type) {
	case map[string]any:
		return valueOf(x[key])
	case []any:
		out := make([]any, len(x))
		for i := range x {
			if object, ok := x[i].(map[string]any); ok {
				out[i] = object[key]
			}
		}
		return nested(out)
	}
	return v
}
