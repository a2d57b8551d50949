package pipelines

import "time"

// Header is a record header.
type Header struct {
	Key   string
	Value []byte
}

// Meta is what is known of the record beside its value. In the agent, before
// the record exists, Topic is the topic it goes to, and Partition and Offset
// are 0.
type Meta struct {
	Topic     string
	Partition int32
	Offset    int64
	Time      time.Time // the record's timestamp
	Key       []byte
	Headers   []Header
}

// Header returns the last header of that name.
func (m *Meta) Header(name string) ([]byte, bool) {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if m.Headers[i].Key == name {
			return m.Headers[i].Value, true
		}
	}
	return nil, false
}

// arenaBytesKept bounds the memory that an Event keeps from one line to the
// next: one huge line must not hold it for ever.
const arenaBytesKept = 1 << 20

// Event is a line or record being worked on. It is meant to be reused: Reset
// keeps its buffers. Not safe for concurrent use.
type Event struct {
	Raw  []byte // the line, or the record's value; not copied
	Meta Meta

	fields []field
	before int // how many fields, with distinct names, the event before had
	parsed bool
	as     []byte // the JSON object that the fields were read from, if they are that and nothing else
	arena  []byte // unescaped strings and encoded nested values of this event
	names  map[string]string
}

// field is one field. After a Reset the entries beyond len keep their names,
// so that the next event of the same shape need not make them again.
type field struct {
	name  string
	plain bool // the name is in JSON what it is: nothing in it is escaped
	value Value
}

// Reset begins a new event on raw, which must stay unchanged until the next
// Reset. Fields are gone; Meta is left as it is, for the caller to fill.
func (e *Event) Reset(raw []byte) {
	e.Raw = raw
	e.clear()
	if cap(e.arena) > arenaBytesKept {
		e.arena = nil
	}
	e.arena = e.arena[:0]
}

// clear removes the fields.
func (e *Event) clear() {
	if len(e.fields) > 0 {
		e.before = len(e.fields)
	}
	e.fields = e.fields[:0]
	e.parsed = false
	e.as = nil
}

// Parsed says that a parse stage (or DecodeJSON) has filled the fields: the
// value to send on is AppendJSON, not Raw.
func (e *Event) Parsed() bool { return e.parsed }

// Len is the number of fields.
func (e *Event) Len() int { return len(e.fields) }

// Field returns the i-th field, in order. The value is valid until Reset.
func (e *Event) Field(i int) (name string, v Value) {
	f := &e.fields[i]
	return f.name, f.value
}

// Get returns a field's value, valid until Reset.
func (e *Event) Get(name string) (Value, bool) {
	i := e.find(name, 0)
	if i < 0 {
		return Value{}, false
	}
	return e.fields[i].value, true
}

// Set sets a field, at its place when the event has it, else at the end.
// v is not copied: bytes in it must stay unchanged until Reset.
func (e *Event) Set(name string, v Value) {
	e.as = nil
	if i := e.find(name, 0); i >= 0 {
		e.fields[i].value = v
		return
	}
	e.push(name, v)
}

// Delete removes a field; the others keep their order.
func (e *Event) Delete(name string) {
	i := e.find(name, 0)
	if i < 0 {
		return
	}
	e.as = nil
	e.fields = append(e.fields[:i], e.fields[i+1:]...)
}

// push appends a field that is known not to be there.
func (e *Event) push(name string, v Value) {
	if n := len(e.fields); n < cap(e.fields) {
		if e.fields[:n+1][n].name == name {
			e.again(v)
			return
		}
	}
	e.fields = append(e.fields, field{name: name, value: v})
}

// again appends the field that the event before had at this place, with another value.
func (e *Event) again(v Value) {
	n := len(e.fields)
	e.fields = e.fields[:n+1]
	e.fields[n].value = v
}

// find returns the index of a field or -1. hint is where to look first.
func (e *Event) find(name string, hint int) int {
	if hint < len(e.fields) && e.fields[hint].name == name {
		return hint
	}
	for i := range e.fields {
		if e.fields[i].name == name {
			return i
		}
	}
	return -1
}

// ReadRecord begins an event on a record of the pipeline's topic: Reset on
// value, meta, and the fields when the topic holds events. A record marked
// with HeaderRaw is left a raw line (Parsed is false). Fields that the
// pipeline's stages are known to make as times are times again. The error says
// why a value is not the JSON object it should be.
func (p *Pipeline) ReadRecord(e *Event, meta Meta, value []byte) error {
	e.Reset(value)
	e.Meta = meta
	if p.Topic.Value != ValueEvent {
		return nil
	}
	if mark, ok := e.Meta.Header(HeaderRaw); ok && string(mark) == "1" {
		return nil
	}
	if err := e.DecodeJSON(value); err != nil {
		return err
	}
	for _, t := range p.times {
		e.readTime(t)
	}
	return nil
}

// readTime turns a string that is a time into one.
func (e *Event) readTime(t timeField) {
	i := e.find(t.name, t.place)
	if i < 0 || e.fields[i].value.kind != KindString {
		return
	}
	if v, ok := parseTime(e.fields[i].value.text); ok {
		e.fields[i].value = v
		e.as = nil
	}
}
