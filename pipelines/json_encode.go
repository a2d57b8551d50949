package pipelines

// AppendJSON appends the event's fields as one JSON object, in their order, on
// one line. Bytes that are not UTF-8 become U+FFFD. A time is RFC 3339 in its
// own zone; a number that came as JSON is written as it came.
func (e *Event) AppendJSON(dst []byte) []byte { panic("x") }

// AppendJSON appends the value as JSON.
func (v Value) AppendJSON(dst []byte) []byte { panic("x") }
