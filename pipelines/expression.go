package pipelines

// Source is an expression as written, with its place.
type Source struct {
	Text string
	Pos  Pos
}

// Expression is a compiled expression. Not safe for concurrent use.
type Expression struct {
}

// Eval evaluates the expression on an event. The value is valid until the
// event's next Reset. A name that is no field is null; an operation on a wrong
// type is an error.
func (x *Expression) Eval(e *Event, v *Value) error { panic("x") }

// NewKey compiles the topic's key. It is nil when the topic has none. A key
// that evaluates to null means a record without key; otherwise the key is the
// value's AppendText.
func (p *Pipeline) NewKey() (*Expression, error) { panic("x") }
