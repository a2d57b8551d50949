package pipelines

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Why a value cannot be what a destination wants; matched with errors.Is.
var (
	ErrRange = errors.New("out of range")
	ErrType  = errors.New("wrong type")
	ErrNull  = errors.New("null")
)

// convertedTextMax bounds, in bytes, how much of a value an error shows.
const convertedTextMax = 100

// ConversionError says which value could not become what. It wraps ErrRange,
// ErrType or ErrNull.
type ConversionError struct {
	Value string // the value as text, cut at 100 bytes
	Kind  Kind
	To    string // "int8", "time", ...
	Err   error
}

func (e *ConversionError) Error() string {
	if e.Err == ErrNull {
		return fmt.Sprintf("null cannot be %s", e.To)
	}
	return fmt.Sprintf("%s %q cannot be %s: %v", e.Kind, e.Value, e.To, e.Err)
}

// Unwrap returns ErrRange, ErrType or ErrNull.
func (e *ConversionError) Unwrap() error { return e.Err }

// Refuse makes a ConversionError for a destination's own types, such as an
// enumeration or a string of fixed length.
func (v Value) Refuse(to string, why error) error {
	text := v.AppendText(nil)
	if len(text) > convertedTextMax {
		text = text[:convertedTextMax]
	}
	return &ConversionError{Value: string(text), Kind: v.kind, To: to, Err: why}
}

// refuse is Refuse where the kind alone decides.
func (v Value) refuse(to string) error {
	if v.kind == KindNull {
		return v.Refuse(to, ErrNull)
	}
	return v.Refuse(to, ErrType)
}

// ToInt64 gives an integer: an integer, a number without fraction, a bool (0
// or 1), or a string that is one of the first two. It never wraps, rounds or clamps.
func (v Value) ToInt64() (int64, error) { return v.ToInt(64) }

// ToInt is ToInt64 for a signed integer of 8, 16, 32 or 64 bits.
func (v Value) ToInt(bits int) (int64, error) {
	to := [...]string{"int8", "int16", "int32", "int64"}[sizeIndex(bits)]
	n, negative, err := v.integer(to)
	if err != nil {
		return 0, err
	}
	limit := uint64(1) << (bits - 1)
	switch {
	case !negative && n < limit:
		return int64(n), nil
	case negative && n <= limit:
		return int64(-n), nil
	}
	return 0, v.Refuse(to, ErrRange)
}

// ToUint64 is ToInt64 for an unsigned integer.
func (v Value) ToUint64() (uint64, error) { return v.ToUint(64) }

// ToUint is ToUint64 for an unsigned integer of 8, 16, 32 or 64 bits.
func (v Value) ToUint(bits int) (uint64, error) {
	to := [...]string{"uint8", "uint16", "uint32", "uint64"}[sizeIndex(bits)]
	n, negative, err := v.integer(to)
	if err != nil {
		return 0, err
	}
	if negative && n != 0 || n > math.MaxUint64>>(64-bits) {
		return 0, v.Refuse(to, ErrRange)
	}
	return n, nil
}

// sizeIndex is 0 for 8 bits up to 3 for 64. Another size is a mistake of the caller.
func sizeIndex(bits int) int {
	switch bits {
	case 8:
		return 0
	case 16:
		return 1
	case 32:
		return 2
	case 64:
		return 3
	}
	panic(fmt.Sprintf("an integer of %d bits", bits))
}

// integer is the magnitude and the sign of an integral value.
func (v Value) integer(to string) (n uint64, negative bool, err error) {
	switch v.kind {
	case KindInt:
		if i := int64(v.num); i < 0 {
			return uint64(-i), true, nil
		}
		return v.num, false, nil
	case KindUint, KindBool:
		return v.num, false, nil
	case KindFloat:
		if v.text == nil {
			return v.integerOfFloat(to)
		}
	case KindString:
		if !isNumber(v.text) {
			return 0, false, v.Refuse(to, ErrType)
		}
	default:
		return 0, false, v.refuse(to)
	}
	n, negative, why := integerOfText(v.text)
	if why != nil {
		return 0, false, v.Refuse(to, why)
	}
	return n, negative, nil
}

func (v Value) integerOfFloat(to string) (n uint64, negative bool, err error) {
	f := math.Float64frombits(v.num)
	if f != math.Trunc(f) { // NaN too
		return 0, false, v.Refuse(to, ErrType)
	}
	if abs := math.Abs(f); abs < 1<<64 {
		return uint64(abs), f < 0, nil
	}
	return 0, false, v.Refuse(to, ErrRange)
}

// isNumber says that b is a number as JSON writes them.
func isNumber(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	d := decoder{src: b}
	return d.skipNumber() == nil && d.pos == len(b)
}

// integerOfText reads a number as JSON writes them, exactly: 1.50e1 is 15, and
// 9007199254740993.0 is not rounded on the way.
func integerOfText(text []byte) (n uint64, negative bool, why error) {
	if text[0] == '-' {
		text, negative = text[1:], true
	}
	if n, ok := parseDigits(text); ok {
		return n, negative, nil
	}
	mantissa, exponent := text, 0
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		var err error
		if exponent, err = strconv.Atoi(string(bytes.TrimPrefix(text[i+1:], []byte("+")))); err != nil {
			exponent = math.MaxInt32 // or as small: either way no integer, unless it is zero
		}
	}
	whole, fraction, _ := bytes.Cut(mantissa, []byte("."))
	digits := append(append(make([]byte, 0, len(mantissa)+20), whole...), fraction...)
	exponent -= len(fraction)
	digits = bytes.TrimLeft(digits, "0")
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits, exponent = digits[:len(digits)-1], exponent+1
	}
	if len(digits) == 0 {
		return 0, false, nil
	}
	if exponent < 0 {
		return 0, false, ErrType
	}
	if len(digits)+exponent > 20 {
		return 0, false, ErrRange
	}
	for range exponent {
		digits = append(digits, '0')
	}
	n, ok := parseDigits(digits)
	if !ok {
		return 0, false, ErrRange
	}
	return n, negative, nil
}

// ToFloat64 gives a number: a number, or a string that is one. An integer that
// float64 cannot hold exactly is rounded to the nearest, as everywhere; one
// beyond its range (1e400) is refused.
func (v Value) ToFloat64() (float64, error) { return v.float("float64", 64) }

// ToFloat32 is ToFloat64 for a float32: rounded to the nearest, refused beyond
// its range.
func (v Value) ToFloat32() (float32, error) {
	f, err := v.float("float32", 32)
	return float32(f), err
}

func (v Value) float(to string, bits int) (float64, error) {
	switch v.kind {
	case KindInt:
		return float64(int64(v.num)), nil
	case KindUint:
		return float64(v.num), nil
	case KindFloat:
		if v.text != nil {
			break
		}
		f := math.Float64frombits(v.num)
		if bits == 32 && !math.IsInf(f, 0) && math.IsInf(float64(float32(f)), 0) {
			return 0, v.Refuse(to, ErrRange)
		}
		return f, nil
	case KindString:
		if !isNumber(v.text) {
			return 0, v.Refuse(to, ErrType)
		}
	default:
		return 0, v.refuse(to)
	}
	f, err := strconv.ParseFloat(alias(v.text), bits)
	if err != nil {
		return 0, v.Refuse(to, ErrRange)
	}
	return f, nil
}

// ToBool gives a bool: a bool, the integers 0 and 1, the strings true, false, 0, 1.
func (v Value) ToBool() (bool, error) {
	switch v.kind {
	case KindBool:
		return v.num != 0, nil
	case KindInt:
		if v.num <= 1 {
			return v.num == 1, nil
		}
		return false, v.Refuse("bool", ErrRange)
	case KindString:
		switch alias(v.text) {
		case "true", "1":
			return true, nil
		case "false", "0":
			return false, nil
		}
	}
	return false, v.refuse("bool")
}

// Unix seconds of the years 1 and 10000, the bounds of what ToTime returns.
const (
	timeSecondsMin = -62135596800
	timeSecondsMax = 253402300800
)

// ToTime gives a time: a time, a string in RFC 3339 (a blank in place of the T
// is fine, the zone is needed), or a number of Unix seconds; in UTC. Years are
// 1 to 9999.
func (v Value) ToTime() (time.Time, error) {
	var t time.Time
	switch v.kind {
	case KindTime:
		t = time.Unix(int64(v.num), int64(v.nsec)).UTC()
	case KindString:
		parsed, ok := parseTime(v.text)
		if !ok {
			return time.Time{}, v.Refuse("time", ErrType)
		}
		t = time.Unix(int64(parsed.num), int64(parsed.nsec)).UTC()
	case KindInt:
		t = time.Unix(int64(v.num), 0).UTC()
	case KindFloat:
		f := v.Float()
		if !(f > timeSecondsMin && f < timeSecondsMax) {
			return time.Time{}, v.Refuse("time", ErrRange)
		}
		whole, fraction := math.Modf(f)
		t = time.Unix(int64(whole), int64(fraction*1e9)).UTC()
	case KindUint:
		return time.Time{}, v.Refuse("time", ErrRange)
	default:
		return time.Time{}, v.refuse("time")
	}
	if s := t.Unix(); s < timeSecondsMin || s >= timeSecondsMax {
		return time.Time{}, v.Refuse("time", ErrRange)
	}
	return t, nil
}

// parseTime reads RFC 3339, with T or a blank, without an allocation.
func parseTime(b []byte) (Value, bool) {
	seconds, nsec, zone, ok := parseMoment(b)
	if !ok {
		return Value{}, false
	}
	return Value{kind: KindTime, num: uint64(seconds), nsec: int32(nsec), zone: int32(zone)}, true
}

// parseMoment is parseTime with what makes the time: Unix seconds, nanoseconds, and seconds east of UTC.
func parseMoment(b []byte) (seconds, nsec, zone int64, ok bool) {
	const shape = "0000-00-00T00:00:00"
	if len(b) <= len(shape) || b[4] != '-' || b[7] != '-' || b[10] != 'T' && b[10] != 't' && b[10] != ' ' || b[13] != ':' || b[16] != ':' {
		return 0, 0, 0, false
	}
	year, month, day := pair(b[0], b[1])*100+pair(b[2], b[3]), pair(b[5], b[6]), pair(b[8], b[9])
	hour, minute, second := pair(b[11], b[12]), pair(b[14], b[15]), pair(b[17], b[18])
	if year < 0 || !validDate(year, month, day) || uint64(hour) > 23 || uint64(minute) > 59 || uint64(second) > 59 {
		return 0, 0, 0, false
	}
	nsec, rest := parseFraction(b[len(shape):])
	if zone, ok = parseZone(rest); !ok {
		return 0, 0, 0, false
	}
	return daysOf(year, month, day)*secondsPerDay + hour*3600 + minute*60 + second - zone, nsec, zone, true
}

// pair is a number of two digits; far below 0 where they are none, also when it is a part of a longer number.
func pair(tens, ones byte) int64 {
	tens, ones = tens-'0', ones-'0'
	if tens > 9 || ones > 9 {
		return -1_000_000
	}
	return int64(tens)*10 + int64(ones)
}

// hasShape says that b begins like shape: 0 for any digit, T for T, t or a blank.
func hasShape(b []byte, shape string) bool {
	for i := range len(shape) {
		switch c := b[i]; shape[i] {
		case '0':
			if c-'0' > 9 {
				return false
			}
		case 'T':
			if c != 'T' && c != 't' && c != ' ' {
				return false
			}
		default:
			if c != shape[i] {
				return false
			}
		}
	}
	return true
}

// decimal reads digits that have been checked.
func decimal(b []byte) int64 {
	var n int64
	for _, c := range b {
		n = n*10 + int64(c-'0')
	}
	return n
}

func validDate(year, month, day int64) bool {
	if month < 1 || month > 12 || day < 1 {
		return false
	}
	return day <= 28 || day <= daysIn(year, month)
}

func daysIn(year, month int64) int64 {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// parseFraction reads .NNN; digits beyond nanoseconds are cut.
func parseFraction(b []byte) (nsec int64, rest []byte) {
	if b[0] != '.' {
		return 0, b
	}
	i, unit := 1, int64(100_000_000)
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		nsec += unit * int64(b[i]-'0')
		unit /= 10
	}
	if i == 1 {
		return 0, nil
	}
	return nsec, b[i:]
}

// parseZone reads Z or ±hh:mm, all of b, as seconds east of UTC.
func parseZone(b []byte) (int64, bool) {
	if len(b) == 1 && (b[0] == 'Z' || b[0] == 'z') {
		return 0, true
	}
	if len(b) != 6 || b[0] != '+' && b[0] != '-' || !hasShape(b[1:], "00:00") {
		return 0, false
	}
	hours, minutes := decimal(b[1:3]), decimal(b[4:6])
	if hours > 23 || minutes > 59 {
		return 0, false
	}
	zone := hours*3600 + minutes*60
	if b[0] == '-' {
		zone = -zone
	}
	return zone, true
}

// AppendText appends the value as text: a string's own bytes, nothing for
// null, RFC 3339 for a time, JSON for the others.
func (v Value) AppendText(dst []byte) []byte {
	switch v.kind {
	case KindNull:
		return dst
	case KindString:
		return append(dst, v.text...)
	case KindTime:
		return v.appendTime(dst)
	}
	return v.AppendJSON(dst)
}
