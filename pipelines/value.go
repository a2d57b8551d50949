package pipelines

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unsafe"
)

// Kind is the type of a Value.
type Kind uint8

// The kinds. An integer that fits is an Int; one above 2^63-1 is a Uint; every
// other number, also an integer beyond 64 bits, is a Float.
const (
	KindNull Kind = iota
	KindBool
	KindInt
	KindUint
	KindFloat
	KindString
	KindTime
	KindList
	KindMap
)

// String is the kind's name in messages.
func (k Kind) String() string {
	switch k {
	case KindBool:
		return "bool"
	case KindInt, KindUint:
		return "integer"
	case KindFloat:
		return "number"
	case KindString:
		return "string"
	case KindTime:
		return "time"
	case KindList:
		return "list"
	case KindMap:
		return "object"
	default:
		return "null"
	}
}

// Value is a field's value: a small tagged union. The zero Value is null.
// Strings, numbers as written, lists and objects are slices of the event's
// buffers, not copies: they are valid until the event's next Reset.
type Value struct {
	kind Kind
	zone int32  // KindTime: seconds east of UTC
	nsec int32  // KindTime
	num  uint64 // bool, int64, uint64, float64 bits (when text is nil), Unix seconds
	text []byte // KindString: the bytes; KindFloat: as written; KindList and KindMap: JSON
}

// Null is the null value.
func Null() Value { return Value{} }

// Bool makes a bool.
func Bool(b bool) Value {
	if b {
		return Value{kind: KindBool, num: 1}
	}
	return Value{kind: KindBool}
}

// Int makes an integer.
func Int(i int64) Value { return Value{kind: KindInt, num: uint64(i)} }

// Uint makes an integer; one that fits in an int64 becomes an Int, so that a
// number has one kind.
func Uint(u uint64) Value {
	if u <= math.MaxInt64 {
		return Int(int64(u))
	}
	return Value{kind: KindUint, num: u}
}

// Float makes a number.
func Float(f float64) Value { return Value{kind: KindFloat, num: math.Float64bits(f)} }

// String makes a string of bytes that are not copied. They need not be valid
// UTF-8; AppendJSON replaces what is not.
func String(b []byte) Value {
	if b == nil {
		b = []byte{}
	}
	return Value{kind: KindString, text: b}
}

// StringOf makes a string.
func StringOf(s string) Value { return String([]byte(s)) }

// Time makes a time that keeps t's zone offset (to the second) and nanoseconds.
func Time(t time.Time) Value {
	_, zone := t.Zone()
	return Value{kind: KindTime, num: uint64(t.Unix()), nsec: int32(t.Nanosecond()), zone: int32(zone)}
}

// Kind is the value's kind.
func (v Value) Kind() Kind { return v.kind }

// IsNull says that the value is null.
func (v Value) IsNull() bool { return v.kind == KindNull }

// Bool is the value of a KindBool.
func (v Value) Bool() bool { return v.num != 0 }

// Int is the value of a KindInt.
func (v Value) Int() int64 { return int64(v.num) }

// Uint is the value of a KindUint.
func (v Value) Uint() uint64 { return v.num }

// Float is the value of a KindFloat; ±Inf when what was written (1e400) does
// not fit in a float64. ToFloat64 refuses those.
func (v Value) Float() float64 {
	if v.text == nil {
		return math.Float64frombits(v.num)
	}
	f, _ := strconv.ParseFloat(alias(v.text), 64)
	return f
}

// Bytes is, without a copy, what a KindString holds, the number as it was
// written of a KindFloat (nil when it was computed), or the JSON of a KindList
// or KindMap.
func (v Value) Bytes() []byte { return v.text }

// Time is the value of a KindTime, in its zone.
func (v Value) Time() time.Time {
	t := time.Unix(int64(v.num), int64(v.nsec))
	if v.zone == 0 {
		return t.UTC()
	}
	return t.In(time.FixedZone("", int(v.zone)))
}

// Any is the value as Go's own: nil, bool, int64, uint64, float64, string,
// time.Time, []any, map[string]any (numbers in them as int64, uint64 or
// float64). It copies.
func (v Value) Any() any {
	switch v.kind {
	case KindString:
		return string(v.text)
	default:
		return v.aliased()
	}
}

// aliased is Any without the copy of strings: what it returns is valid as long
// as the value is.
func (v Value) aliased() any {
	switch v.kind {
	case KindBool:
		return v.Bool()
	case KindInt:
		return v.Int()
	case KindUint:
		return v.num
	case KindFloat:
		return v.Float()
	case KindString:
		return alias(v.text)
	case KindTime:
		return v.Time()
	case KindList, KindMap:
		return decodeNested(v.text, Value.aliased)
	default:
		return nil
	}
}

// decodeNested turns the JSON of a list or object into Go values, with numbers
// as number makes them.
func decodeNested(src []byte, number func(Value) any) any {
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	var out any
	if err := d.Decode(&out); err != nil {
		return nil // not reachable: the text was checked when the value was made
	}
	return withoutNumbers(out, number)
}

// withoutNumbers replaces json.Number by Go numbers, in place.
func withoutNumbers(x any, number func(Value) any) any {
	switch x := x.(type) {
	case json.Number:
		return number(numberOf([]byte(x)))
	case []any:
		for i := range x {
			x[i] = withoutNumbers(x[i], number)
		}
	case map[string]any:
		for k := range x {
			x[k] = withoutNumbers(x[k], number)
		}
	}
	return x
}

// alias makes a string that shares b's memory.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
