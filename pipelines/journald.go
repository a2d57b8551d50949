package pipelines

import (
	"bytes"
	"time"
	"unicode/utf8"
	"unsafe"
)

// journaldFields are what is known of the events of parse: journald. The journal's own fields follow, by their own names.
var journaldFields = [...]parsedField{{"time", KindTime}}

const journaldTimestamp = "__REALTIME_TIMESTAMP"

// parseJournald reads an entry as journalctl -o json prints it: an object of the journal's fields. A field that is not plain text is
// printed as a list of its bytes; it becomes a string when they are UTF-8, and stays the list otherwise. `time` is when the journal took
// the entry, in UTC, to the microsecond.
func parseJournald(e *Event) error {
	if err := e.DecodeJSON(e.Raw); err != nil {
		return err
	}
	at := Null()
	for i := range e.fields {
		f := &e.fields[i]
		switch {
		case f.value.kind == KindList:
			e.textOf(f)
		case f.name == journaldTimestamp && f.value.kind == KindString:
			at = microseconds(f.value.text)
		}
	}
	if at.IsNull() {
		e.clear()
		return &SyntaxError{Format: "journald", Want: "want a field " + journaldTimestamp + " with microseconds"}
	}
	e.Set("time", at)
	return nil
}

// JournalText is a field of an entry that journalctl printed, where it is text: printed as such, or as a list of its bytes. It is good until
// the event is reset.
func (e *Event) JournalText(name string) (text []byte, ok bool) {
	v, _ := e.Get(name)
	switch v.kind {
	case KindString:
		return v.text, true
	case KindList:
		if list, ok := appendByteList(nil, v.text); ok && utf8.Valid(list) {
			return list, true
		}
	}
	return nil, false
}

func microseconds(b []byte) Value {
	us, ok := parseDigits(b)
	if !ok || us > 1<<60 {
		return Null()
	}
	return Time(time.UnixMicro(int64(us)).UTC())
}

// textOf turns a list of bytes into a string, where it is one and UTF-8. A field that an entry has several times is a list of strings, and
// stays one.
func (e *Event) textOf(f *field) {
	from := len(e.arena)
	arena, ok := appendByteList(e.arena, f.value.text)
	e.arena = arena[:from]
	if !ok || !utf8.Valid(arena[from:]) {
		return
	}
	e.arena = arena
	f.value = String(arena[from:len(arena):len(arena)])
}

// appendByteList appends the bytes of [104,105]. ok is false when it is none.
func appendByteList(dst, list []byte) ([]byte, bool) {
	list = bytes.TrimSuffix(bytes.TrimPrefix(list, []byte("[")), []byte("]"))
	if len(list) == 0 {
		return dst, false
	}
	for number := range bytes.SplitSeq(list, []byte(",")) {
		n, ok := parseDigits(number)
		if !ok || n > 255 {
			return dst, false
		}
		dst = append(dst, byte(n))
	}
	return dst, true
}

// textValue is a string's value without a copy.
func textValue(s string) Value { return String(unsafe.Slice(unsafe.StringData(s), len(s))) }
