package pipelines

import (
	"strings"
	"unsafe"
)

// reserved are the names that are not fields, and the kinds of their values.
var reserved = map[string]Kind{
	"_raw": KindString, "_topic": KindString, "_partition": KindInt, "_offset": KindInt,
	"_time": KindTime, "_key": KindString, "headers": KindMap,
}

// headerPrefix begins the key of a reference to one header: headers.NAME.
const headerPrefix = "headers."

// reference is a name in an expression.
type reference struct {
	key    string // in the environment
	name   string // of the field or header
	header bool   // headers.NAME
	meta   bool   // it may be none of a field: see metaValue
	hint   int    // where the field was last time
}

func newReference(key string) reference {
	if name, ok := strings.CutPrefix(key, headerPrefix); ok {
		return reference{key: key, name: name, header: true}
	}
	return reference{key: key, name: key, meta: key[0] == '_' || key == "headers"}
}

// boxed is the value for the environment.
func (r *reference) boxed(e *Event) any {
	if r.key == "headers" {
		return headerMap(e)
	}
	return boxed(r.value(e))
}

func headerMap(e *Event) map[string]any {
	m := make(map[string]any, len(e.Meta.Headers))
	for _, h := range e.Meta.Headers {
		m[h.Key] = string(h.Value)
	}
	return m
}

// value looks a name up: see the package's comment.
func (r *reference) value(e *Event) Value {
	if !r.meta && !r.header && r.hint < len(e.fields) && e.fields[r.hint].name == r.name {
		return e.fields[r.hint].value
	}
	return r.lookUp(e)
}

func (r *reference) lookUp(e *Event) Value {
	if r.header {
		return headerValue(e, r.name)
	}
	if r.meta {
		if v, ok := metaValue(e, r.name); ok {
			return v
		}
	}
	if i := e.find(r.name, r.hint); i >= 0 {
		r.hint, r.name = i, e.fields[i].name // the same string is found equal without a look at its bytes
		return e.fields[i].value
	}
	if !e.parsed || r.name == "host" {
		return headerValue(e, r.name)
	}
	return Null()
}

func headerValue(e *Event, name string) Value {
	if b, ok := e.Meta.Header(name); ok && b != nil {
		return String(b)
	}
	return Null()
}

func metaValue(e *Event, name string) (Value, bool) {
	switch name {
	case "_raw":
		return String(e.Raw), true
	case "_topic":
		return String(unsafe.Slice(unsafe.StringData(e.Meta.Topic), len(e.Meta.Topic))), true
	case "_partition":
		return Int(int64(e.Meta.Partition)), true
	case "_offset":
		return Int(e.Meta.Offset), true
	case "_time":
		if e.Meta.Time.IsZero() {
			return Null(), true
		}
		return Time(e.Meta.Time.UTC()), true // whatever the zone of this machine
	case "_key":
		if e.Meta.Key == nil {
			return Null(), true
		}
		return String(e.Meta.Key), true
	case "headers":
		v, err := nestedValueOf(headerMap(e))
		return v, err == nil
	}
	return Value{}, false
}
