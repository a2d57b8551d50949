package clickhouse

import (
	"encoding/binary"
	"math"

	"github.com/sluice-io/sluice/pipelines"
)

// form is what a column's type has in common with others whose usual values are taken in the same way.
type form uint8

const (
	formNone form = iota
	formText
	formInteger
	formFloat
	formTime
	formIPv4
)

// usual is how a column takes values of the kind and form that most have, without the conversions that decide on all others: the same bytes, several times
// faster. It never refuses: what it does not take goes through the column's putter.
type usual struct {
	form   form
	bits   int
	lo, hi int64 // of integers, and of times in seconds
	scale  int64 // of times: ticks in a second
}

// usualOf is the usual values of a type.
func usualOf(t chType) usual {
	switch t.name {
	case "String":
		return usual{form: formText}
	case "Int8", "Int16", "Int32", "Int64":
		bits := intBits[t.name]
		return usual{form: formInteger, bits: bits, lo: math.MinInt64 >> (64 - bits), hi: math.MaxInt64 >> (64 - bits)}
	case "UInt8", "UInt16", "UInt32":
		bits := intBits[t.name]
		return usual{form: formInteger, bits: bits, hi: 1<<bits - 1}
	case "UInt64":
		return usual{form: formInteger, bits: 64, hi: math.MaxInt64}
	case "Float64":
		return usual{form: formFloat}
	case "DateTime":
		return usual{form: formTime, bits: 32, lo: epoch.Unix(), hi: dateTimeMax.Unix(), scale: 1}
	case "DateTime64":
		if precision, err := t.intArg(0); err == nil && precision >= 0 && precision < 9 {
			return usual{form: formTime, bits: 64, lo: date32Min.Unix(), hi: date32Max.Unix(), scale: int64(math.Pow10(precision))}
		}
	case "IPv4":
		return usual{form: formIPv4}
	}
	return usual{}
}

const nanosecondsPerSecond = 1_000_000_000

// addUsual is add for the values that most are; false, with nothing changed, for all others.
func (c *leaf) addUsual(v *pipelines.Value) bool {
	switch u := &c.usual; u.form {
	case formText:
		text, ok := v.UsualText()
		if !ok {
			return false
		}
		c.data = append(binary.AppendUvarint(c.data, uint64(len(text))), text...)
	case formInteger:
		n, ok := v.UsualInt()
		if !ok || n < u.lo || n > u.hi {
			return false
		}
		c.data = appendInt(c.data, u.bits, uint64(n))
	case formFloat:
		f, ok := v.UsualFloat()
		if !ok {
			return false
		}
		c.data = binary.LittleEndian.AppendUint64(c.data, math.Float64bits(f))
	case formTime:
		seconds, nsec, ok := v.UsualTime()
		if !ok || seconds < u.lo || seconds > u.hi {
			return false
		}
		c.data = appendInt(c.data, u.bits, uint64(seconds*u.scale+nsec/(nanosecondsPerSecond/u.scale)))
	case formIPv4:
		text, ok := v.UsualText()
		if !ok {
			return false
		}
		addr, ok := dottedQuad(text)
		if !ok {
			return false
		}
		c.data = binary.LittleEndian.AppendUint32(c.data, addr)
	default:
		return false
	}
	c.n++
	return true
}

// dottedQuad reads 10.0.255.1.
func dottedQuad(text []byte) (addr uint32, ok bool) {
	part, digits, dots := uint32(0), 0, 0
	for _, c := range text {
		switch {
		case c-'0' <= 9:
			if part == 0 && digits > 0 { // no leading zeros: netip takes none either
				return 0, false
			}
			part = part*10 + uint32(c-'0')
			if digits++; part > 255 {
				return 0, false
			}
		case c == '.' && digits > 0 && dots < 3:
			addr, part, digits = addr<<8|part, 0, 0
			dots++
		default:
			return 0, false
		}
	}
	return addr<<8 | part, dots == 3 && digits > 0
}
