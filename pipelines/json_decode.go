package pipelines

import (
	"bytes"
	"io"
)

// DecodeJSON fills the fields from raw, which must be one JSON object, and
// marks the event parsed. Raw and Meta are left as they are. raw is not copied
// and must stay unchanged until Reset. A key that comes twice has its last
// value. On an error the event has no fields.
//
// Limits: 1,024 fields, nesting of 128.
func (e *Event) DecodeJSON(raw []byte) error { panic("x") }

func numberOf(b []byte) Value          { panic("x") }
func newByteReader(b []byte) io.Reader { return bytes.NewReader(b) }
