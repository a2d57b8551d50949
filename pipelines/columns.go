package pipelines

// Columns is a compiled mapping of events to a destination's columns. Not safe
// for concurrent use: one per goroutine.
type Columns struct {
}

// NewColumns compiles the sink's mapping. Without `columns:` it is every
// top-level field by its name: Default is true, and Names are those that the
// stages are known to make (parse: nginx, set, labels); they are empty when
// that is not known (parse: json).
func (s *SinkSpec) NewColumns() (*Columns, error) { panic("x") }

// NewColumnsNamed compiles the default mapping for given columns, such as a
// table's: each is filled by the field (or _topic, _partition, ...) of its name.
func (s *SinkSpec) NewColumnsNamed(names []string) (*Columns, error) { panic("x") }

// Default says that the file has no `columns:`.
func (c *Columns) Default() bool { panic("x") }

// Names are the columns in order. The caller must not change them.
func (c *Columns) Names() []string { panic("x") }

// Kind is what the i-th column will hold when that is known beforehand (a time
// is a string once it has passed through a topic: use ToTime), else KindNull.
func (c *Columns) Kind(i int) Kind { panic("x") }

// Eval evaluates the i-th column. The value is valid until the event's next Reset.
func (c *Columns) Eval(e *Event, i int, v *Value) error { panic("x") }

// Hash identifies the mapping: the columns' names and expressions in order,
// and the worker's stages. 16 hex digits.
func (c *Columns) Hash() string { panic("x") }
