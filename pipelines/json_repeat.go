package pipelines

import (
	"encoding/binary"
	"math/bits"
)

// repeat reads members as long as they look as most do: the names of the event before, in order, and strings without escapes or numbers as they are mostly
// written, with no blanks between them. It stops behind a value, or reads nothing at all: member then reads what this did not understand, or says what is
// wrong with it. So it never accepts what member would not, and makes the same values.
func (d *decoder) repeat() (some bool) {
	if !d.same {
		return false
	}
	e, src, pos := d.event, d.src, d.pos
	for n := len(e.fields); n < e.before; n++ {
		f := &e.fields[:n+1][n]
		at := pos + len(f.name) + len(`"":`)
		if !f.plain || at >= len(src) || src[at-1] != ':' || src[at-2] != '"' || src[pos] != '"' || alias(src[pos+1:at-2]) != f.name {
			break
		}
		end := f.value.readUsual(src, at)
		if end == 0 {
			break
		}
		e.fields = e.fields[:n+1]
		d.pos, some = end, true
		if end == len(src) || src[end] != ',' {
			break
		}
		pos = end + 1
	}
	return some
}

// readUsual reads the value at at, and says where it ends: 0 when it is none of the usual ones, and v is as it was.
func (v *Value) readUsual(src []byte, at int) (end int) {
	if src[at] == '"' {
		if end = plainStringEnd(src, at+1); end > 0 {
			*v = Value{kind: KindString, text: src[at+1 : end-1 : end-1]}
		}
		return end
	}
	return v.readUsualNumber(src, at)
}

// plainStringEnd is the place behind the quote that ends a string without escapes, 0 where it has some or no end.
func plainStringEnd(src []byte, i int) int {
	for ; i+8 <= len(src); i += 8 {
		if found := special(binary.LittleEndian.Uint64(src[i:])); found != 0 {
			if i += bits.TrailingZeros64(found) / 8; src[i] == '"' {
				return i + 1
			}
			return 0
		}
	}
	for ; i < len(src) && src[i] >= ' ' && src[i] != '\\'; i++ {
		if src[i] == '"' {
			return i + 1
		}
	}
	return 0
}

// usualDigitsMax is how many digits a number of 64 bits has room for, whichever they are.
const usualDigitsMax = 18

// readUsualNumber reads 123 and 0.123 before a comma or the object's end.
func (v *Value) readUsualNumber(src []byte, at int) (end int) {
	i, n := at, uint64(0)
	for ; i < len(src) && src[i]-'0' <= 9; i++ {
		n = n*10 + uint64(src[i]-'0')
	}
	digits := i - at
	if digits == 0 || digits > usualDigitsMax || digits > 1 && src[at] == '0' || i == len(src) {
		return 0
	}
	if src[i] != '.' {
		if src[i] != ',' && src[i] != '}' {
			return 0
		}
		*v = Value{kind: KindInt, num: n}
		return i
	}
	point := i
	for i++; i < len(src) && src[i]-'0' <= 9; i++ {
	}
	if i == point+1 || i == len(src) || src[i] != ',' && src[i] != '}' {
		return 0
	}
	*v = Value{kind: KindFloat, text: src[at:i:i]}
	return i
}
