package pipelines

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"time"
	"unicode/utf8"
)

// AppendJSON appends the event's fields as one JSON object, in their order, on
// one line. Bytes that are not UTF-8 become U+FFFD. A time is RFC 3339 in its
// own zone; a number that came as JSON is written as it came.
func (e *Event) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	for i := range e.fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, e.fields[i].name)
		dst = append(dst, ':')
		dst = e.fields[i].value.AppendJSON(dst)
	}
	return append(dst, '}')
}

// Verbatim is what AppendJSON would append, without a copy, when that is what the event was decoded from: one object without blanks and needless escapes. It is nil
// for every other event.
func (e *Event) Verbatim() []byte {
	if e.as == nil || !utf8.Valid(e.as) {
		return nil
	}
	return e.as
}

// AppendJSON appends the value as JSON. A number that JSON has no word for
// (NaN, an infinity) is null. A number with a fraction keeps one ("1.0"), so
// that it does not come back as an integer.
func (v Value) AppendJSON(dst []byte) []byte {
	switch v.kind {
	case KindBool:
		return strconv.AppendBool(dst, v.num != 0)
	case KindInt:
		return strconv.AppendInt(dst, int64(v.num), 10)
	case KindUint:
		return strconv.AppendUint(dst, v.num, 10)
	case KindFloat:
		return v.appendFloat(dst)
	case KindString:
		return appendString(dst, alias(v.text))
	case KindTime:
		dst = append(dst, '"')
		return append(v.appendTime(dst), '"')
	case KindList, KindMap:
		return appendNested(dst, v.text)
	default:
		return append(dst, "null"...)
	}
}

func (v Value) appendFloat(dst []byte) []byte {
	if v.text != nil {
		return append(dst, v.text...)
	}
	f := math.Float64frombits(v.num)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	abs := math.Abs(f)
	if abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[start:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// appendNested copies checked JSON, mending what is not UTF-8. Only strings
// can hold such bytes, so replacing them leaves the JSON well formed.
func appendNested(dst, src []byte) []byte {
	if utf8.Valid(src) {
		return append(dst, src...)
	}
	for len(src) > 0 {
		r, size := utf8.DecodeRune(src)
		dst = utf8.AppendRune(dst, r)
		src = src[size:]
	}
	return dst
}

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		if i+8 <= len(s) {
			n := plainPrefix(s[i:])
			i += n
			if n == 8 {
				continue
			}
		}
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = appendEscape(append(dst, s[start:i]...), c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(append(dst, s[start:i]...), "\uFFFD"...)
			start = i + 1
		}
		i += size
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	default:
		return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
	}
}

const (
	eachByte = 0x0101010101010101
	highBits = 0x8080808080808080
)

// plainPrefix is how many of the first eight bytes of s are ASCII that JSON
// writes as it is.
func plainPrefix(s string) int {
	w := binary.LittleEndian.Uint64([]byte(s[:8]))
	return bits.TrailingZeros64(special(w)|w&highBits) / 8
}

// special looks at eight bytes at once: the lowest high bit that is set marks
// the first byte that ends a run of plain characters inside a JSON string (a
// control character, the quote, the backslash). Higher bits may be wrong: it is
// the usual "has a zero byte" trick, whose borrow only runs upwards.
func special(w uint64) uint64 {
	quote := w ^ eachByte*'"'
	slash := w ^ eachByte*'\\'
	control := (w - eachByte*0x20) & ^w
	return (control | (quote-eachByte)&^quote | (slash-eachByte)&^slash) & highBits
}

const secondsPerDay = 86400

// appendTime appends RFC 3339 with nanoseconds when there are some. Written by
// hand: time.AppendFormat costs more than the parse of the whole line.
func (v Value) appendTime(dst []byte) []byte {
	zone := int64(v.zone)
	if zone%60 != 0 { // RFC 3339 has no seconds in the offset
		zone = 0
	}
	local := int64(v.num) + zone
	days, second := local/secondsPerDay, local%secondsPerDay
	if second < 0 {
		days, second = days-1, second+secondsPerDay
	}
	year, month, day := civil(days)
	if year < 0 || year > 9999 {
		return v.Time().AppendFormat(dst, time.RFC3339Nano)
	}
	dst = append2(append2(dst, year/100), year%100)
	dst = append2(append(dst, '-'), month)
	dst = append2(append(dst, '-'), day)
	dst = append2(append(dst, 'T'), second/3600)
	dst = append2(append(dst, ':'), second/60%60)
	dst = append2(append(dst, ':'), second%60)
	dst = appendFraction(dst, int64(v.nsec))
	return appendZone(dst, zone)
}

func appendFraction(dst []byte, nsec int64) []byte {
	if nsec == 0 {
		return dst
	}
	dst = append(dst, '.')
	for unit := int64(100_000_000); nsec > 0; unit /= 10 {
		dst = append(dst, byte('0'+nsec/unit))
		nsec %= unit
	}
	return dst
}

func appendZone(dst []byte, zone int64) []byte {
	if zone == 0 {
		return append(dst, 'Z')
	}
	sign := byte('+')
	if zone < 0 {
		sign, zone = '-', -zone
	}
	dst = append2(append(dst, sign), zone/3600)
	return append2(append(dst, ':'), zone/60%60)
}

func append2(dst []byte, n int64) []byte { return append(dst, byte('0'+n/10), byte('0'+n%10)) }

// civil turns days since 1970-01-01 into a date of the proleptic Gregorian
// calendar, and daysOf back. Years are counted from March, so that the leap day
// is the last one (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
func civil(days int64) (year, month, day int64) {
	days += 719468
	era := floorDiv(days, 146097)
	doe := days - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = doy - (153*mp+2)/5 + 1
	month = mp + 3
	if month > 12 {
		month -= 12
	}
	year = yoe + era*400
	if month <= 2 {
		year++
	}
	return year, month, day
}

func daysOf(year, month, day int64) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := floorDiv(year, 400)
	yoe := year - era*400
	doy := (153*(month-3)+2)/5 + day - 1
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 719468
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
