package clickhouse

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/google/uuid"

	"github.com/sluice-io/sluice/pipelines"
)

// Limits of types' arguments; the server's own are lower or the same.
const (
	fixedStringMax   = 1 << 24
	decimalDigitsMax = 76
)

// newLeaf makes the column of a scalar type.
func newLeaf(t chType) (*leaf, error) {
	put, err := putterOf(t)
	if err != nil {
		return nil, err
	}
	name := t.String()
	if t.name == "JSON" { // sent as text, which the server parses
		name = "String"
	}
	c := &leaf{name: name, put: put, usual: usualOf(t)}
	if !strings.HasPrefix(t.name, "Enum") && t.name != "JSON" { // an Enum need not have a name for 0
		c.zero = make([]byte, zeroBytes(t))
	}
	return c, nil
}

// intBits are the integer types and their sizes.
var intBits = map[string]int{
	"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64, "Int128": 128, "Int256": 256,
	"UInt8": 8, "UInt16": 16, "UInt32": 32, "UInt64": 64, "UInt128": 128, "UInt256": 256,
}

func putterOf(t chType) (putter, error) {
	if put, ok := plainPutters[t.name]; ok {
		return put, nil
	}
	switch t.name {
	case "FixedString":
		n, err := t.lengthArg(0, fixedStringMax)
		return fixedString(n), err
	case "DateTime64":
		precision, err := t.intArg(0)
		return dateTime64(precision), err
	case "Enum8", "Enum16":
		values, err := t.enumValues()
		return enum(values, t.name == "Enum8"), err
	case "Decimal":
		return decimalOf(t)
	case "Int128", "Int256", "UInt128", "UInt256":
		return bigInteger(intBits[t.name], t.name[0] == 'I'), nil
	default:
		return nil, fmt.Errorf("type %s cannot be written yet: map to a column of another type, or leave the column out", t)
	}
}

var plainPutters = map[string]putter{
	"Int8": signed(8), "Int16": signed(16), "Int32": signed(32), "Int64": signed(64),
	"UInt8": unsigned(8), "UInt16": unsigned(16), "UInt32": unsigned(32), "UInt64": unsigned(64),
	"Float32": float32Value, "Float64": float64Value,
	"Bool": boolValue, "String": stringValue, "JSON": jsonValue,
	"Date": date, "Date32": date32, "DateTime": dateTime,
	"UUID": uuidValue, "IPv4": ipv4, "IPv6": ipv6,
}

// zeroBytes is how long a scalar that stands for a null is.
func zeroBytes(t chType) int {
	switch t.name {
	case "Int8", "UInt8", "Bool", "Enum8", "String", "JSON": // an empty string is its length
		return 1
	case "Int16", "UInt16", "Enum16", "Date":
		return 2
	case "Int32", "UInt32", "Float32", "Date32", "DateTime", "IPv4":
		return 4
	case "UUID", "IPv6", "Int128", "UInt128":
		return 16
	case "Int256", "UInt256":
		return 32
	case "FixedString":
		n, _ := t.lengthArg(0, fixedStringMax)
		return n
	case "Decimal":
		precision, _ := t.intArg(0)
		return decimalBytes(precision)
	default:
		return 8
	}
}

func appendInt(dst []byte, bits int, x uint64) []byte {
	switch bits {
	case 8:
		return append(dst, byte(x))
	case 16:
		return binary.LittleEndian.AppendUint16(dst, uint16(x))
	case 32:
		return binary.LittleEndian.AppendUint32(dst, uint32(x))
	default:
		return binary.LittleEndian.AppendUint64(dst, x)
	}
}

func signed(bits int) putter {
	return func(dst []byte, v pipelines.Value) ([]byte, error) {
		x, err := v.ToInt(bits)
		if err != nil {
			return dst, err
		}
		return appendInt(dst, bits, uint64(x)), nil
	}
}

func unsigned(bits int) putter {
	return func(dst []byte, v pipelines.Value) ([]byte, error) {
		x, err := v.ToUint(bits)
		if err != nil {
			return dst, err
		}
		return appendInt(dst, bits, x), nil
	}
}

func float32Value(dst []byte, v pipelines.Value) ([]byte, error) {
	x, err := v.ToFloat32()
	if err != nil {
		return dst, err
	}
	return appendInt(dst, 32, uint64(math.Float32bits(float32(x)))), nil
}

func float64Value(dst []byte, v pipelines.Value) ([]byte, error) {
	x, err := v.ToFloat64()
	if err != nil {
		return dst, err
	}
	return appendInt(dst, 64, math.Float64bits(x)), nil
}

func boolValue(dst []byte, v pipelines.Value) ([]byte, error) {
	x, err := v.ToBool()
	if x {
		return append(dst, 1), err
	}
	return append(dst, 0), err
}

// stringValue writes the length before the bytes.
func stringValue(dst []byte, v pipelines.Value) ([]byte, error) {
	if v.Kind() == pipelines.KindString {
		dst = binary.AppendUvarint(dst, uint64(len(v.Bytes())))
		return append(dst, v.Bytes()...), nil
	}
	return appendSized(dst, v.AppendText), nil
}

// jsonValue writes a value as JSON text, which the server reads into its JSON type.
func jsonValue(dst []byte, v pipelines.Value) ([]byte, error) {
	if v.Kind() != pipelines.KindMap {
		return dst, notA(v, "object")
	}
	return appendSized(dst, v.AppendJSON), nil
}

// appendSized writes text whose length is not known before: first where it ends up when the length takes one byte, as it mostly does.
func appendSized(dst []byte, text func([]byte) []byte) []byte {
	start := len(dst)
	dst = text(append(dst, 0))
	n := len(dst) - start - 1
	if n < 0x80 {
		dst[start] = byte(n)
		return dst
	}
	size := binary.AppendUvarint(nil, uint64(n))
	dst = append(dst, size[1:]...)
	copy(dst[start+len(size):], dst[start+1:start+1+n])
	copy(dst[start:], size)
	return dst
}

// fixedString pads with zero bytes, as the server does, and refuses what is longer.
func fixedString(n int) putter {
	zeros := make([]byte, n)
	return func(dst []byte, v pipelines.Value) ([]byte, error) {
		start := len(dst)
		dst = v.AppendText(dst)
		size := len(dst) - start
		if size > n {
			return dst, fmt.Errorf("%d bytes do not fit in FixedString(%d): %w", size, n, pipelines.ErrRange)
		}
		return append(dst, zeros[size:]...), nil
	}
}

// The limits of the server's date types; beyond them it wraps or clamps.
var (
	dateMax       = time.Date(2149, 6, 6, 23, 59, 59, 999_999_999, time.UTC)
	dateTimeMax   = time.Unix(math.MaxUint32, 999_999_999)
	epoch         = time.Unix(0, 0)
	date32Min     = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
	date32Max     = time.Date(2299, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	nanosecondMax = time.Unix(0, math.MaxInt64)
)

func timeWithin(v pipelines.Value, from, to time.Time, what string) (time.Time, error) {
	t, err := v.ToTime()
	if err == nil && (t.Before(from) || t.After(to)) {
		err = fmt.Errorf("%s does not fit in %s: %w", t.Format(time.RFC3339Nano), what, pipelines.ErrRange)
	}
	return t, err
}

// calendarDays is the date of t in UTC, as days since 1970. A time that came as text has lost its zone on the way here, so no time keeps it.
func calendarDays(t time.Time) int64 { return floorDiv(t.Unix(), 24*60*60) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func date(dst []byte, v pipelines.Value) ([]byte, error) {
	t, err := dateOf(v)
	days := calendarDays(t)
	if err == nil && (days < 0 || days > calendarDays(dateMax)) {
		err = fmt.Errorf("%s does not fit in Date: %w", t.Format(time.DateOnly), pipelines.ErrRange)
	}
	if err != nil {
		return dst, err
	}
	return appendInt(dst, 16, uint64(days)), nil
}

func date32(dst []byte, v pipelines.Value) ([]byte, error) {
	t, err := dateOf(v)
	days := calendarDays(t)
	if err == nil && (days < calendarDays(date32Min) || days > calendarDays(date32Max)) {
		err = fmt.Errorf("%s does not fit in Date32: %w", t.Format(time.DateOnly), pipelines.ErrRange)
	}
	if err != nil {
		return dst, err
	}
	return appendInt(dst, 32, uint64(days)), nil
}

// dateOf reads a time, or a date without one.
func dateOf(v pipelines.Value) (time.Time, error) {
	if v.Kind() == pipelines.KindString && len(v.Bytes()) == len(time.DateOnly) {
		if t, err := time.Parse(time.DateOnly, string(v.Bytes())); err == nil {
			return t, nil
		}
	}
	return v.ToTime()
}

func dateTime(dst []byte, v pipelines.Value) ([]byte, error) {
	t, err := timeWithin(v, epoch, dateTimeMax, "DateTime")
	if err != nil {
		return dst, err
	}
	return appendInt(dst, 32, uint64(t.Unix())), nil
}

// dateTime64 cuts what is finer than the precision.
func dateTime64(precision int) putter {
	to := date32Max
	if precision >= 9 {
		to = nanosecondMax
	}
	scale := int64(math.Pow10(max(min(precision, 9), 0)))
	what := fmt.Sprintf("DateTime64(%d)", precision)
	return func(dst []byte, v pipelines.Value) ([]byte, error) {
		t, err := timeWithin(v, date32Min, to, what)
		if err != nil {
			return dst, err
		}
		ticks := t.Unix()*scale + int64(t.Nanosecond())/(1_000_000_000/scale)
		return appendInt(dst, 64, uint64(ticks)), nil
	}
}

func uuidValue(dst []byte, v pipelines.Value) ([]byte, error) {
	if v.Kind() != pipelines.KindString {
		return dst, notA(v, "UUID")
	}
	id, err := uuid.ParseBytes(v.Bytes())
	if err != nil {
		return dst, fmt.Errorf("%w: %w", err, pipelines.ErrType)
	}
	// Two numbers of 64 bits, each with its lowest byte first.
	dst = binary.LittleEndian.AppendUint64(dst, binary.BigEndian.Uint64(id[:8]))
	return binary.LittleEndian.AppendUint64(dst, binary.BigEndian.Uint64(id[8:])), nil
}

func address(v pipelines.Value) (netip.Addr, error) {
	if v.Kind() != pipelines.KindString {
		return netip.Addr{}, notA(v, "IP address")
	}
	text := unsafe.String(unsafe.SliceData(v.Bytes()), len(v.Bytes())) // not kept beyond the call
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("%w: %w", err, pipelines.ErrType)
	}
	return a, nil
}

func ipv4(dst []byte, v pipelines.Value) ([]byte, error) {
	a, err := address(v)
	if err == nil && !a.Unmap().Is4() {
		err = fmt.Errorf("%s is no IPv4 address: %w", a, pipelines.ErrType)
	}
	if err != nil {
		return dst, err
	}
	b := a.Unmap().As4()
	return appendInt(dst, 32, uint64(binary.BigEndian.Uint32(b[:]))), nil
}

func ipv6(dst []byte, v pipelines.Value) ([]byte, error) {
	a, err := address(v)
	if err != nil {
		return dst, err
	}
	b := a.As16() // an IPv4 address in its mapped form
	return append(dst, b[:]...), nil
}

// enum takes a name, or a number that has one.
func enum(values map[string]int64, eight bool) putter {
	bits := 16
	if eight {
		bits = 8
	}
	numbers := make(map[int64]bool, len(values))
	for _, n := range values {
		numbers[n] = true
	}
	return func(dst []byte, v pipelines.Value) ([]byte, error) {
		n, ok := int64(0), false
		switch v.Kind() {
		case pipelines.KindString:
			n, ok = values[string(v.Bytes())]
		case pipelines.KindInt:
			n, ok = v.Int(), numbers[v.Int()]
		}
		if !ok {
			return dst, fmt.Errorf("%s is not in the Enum: %w", v.AppendText(nil), pipelines.ErrRange)
		}
		return appendInt(dst, bits, uint64(n)), nil
	}
}

func decimalBytes(precision int) int {
	switch {
	case precision <= 9:
		return 4
	case precision <= 18:
		return 8
	case precision <= 38:
		return 16
	default:
		return 32
	}
}

func decimalOf(t chType) (putter, error) {
	precision, err := t.lengthArg(0, decimalDigitsMax)
	if err != nil {
		return nil, err
	}
	scale, err := t.lengthArg(1, precision)
	return decimal(precision, scale), err
}

// decimal takes numbers, written out where they came as text, and refuses digits that the type has no place for; a number that a stage
// computed is rounded.
func decimal(precision, scale int) putter {
	size := decimalBytes(precision)
	limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(precision)), nil)
	what := fmt.Sprintf("Decimal(%d, %d)", precision, scale)
	return func(dst []byte, v pipelines.Value) ([]byte, error) {
		digits, err := decimalDigits(v, scale)
		if err != nil {
			return dst, fmt.Errorf("%s as %s: %w", v.AppendText(nil), what, err)
		}
		if len(digits) <= 18 && size <= 8 && precision >= len(strings.TrimPrefix(digits, "-")) {
			n, err := strconv.ParseInt(digits, 10, 64)
			return appendInt(dst, size*8, uint64(n)), err
		}
		n, ok := new(big.Int).SetString(digits, 10)
		if !ok {
			return dst, fmt.Errorf("%s as %s: %w", v.AppendText(nil), what, pipelines.ErrType)
		}
		if n.CmpAbs(limit) >= 0 {
			return dst, fmt.Errorf("%s does not fit in %s: %w", v.AppendText(nil), what, pipelines.ErrRange)
		}
		return appendBig(dst, n, size), nil
	}
}

// bigInteger takes whole numbers beyond 64 bits, written out where they came as text.
func bigInteger(bits int, signed bool) putter {
	lo, hi := new(big.Int), new(big.Int).Lsh(big.NewInt(1), uint(bits))
	if signed {
		hi.Rsh(hi, 1)
		lo.Neg(hi)
	}
	return func(dst []byte, v pipelines.Value) ([]byte, error) {
		digits, err := decimalDigits(v, 0)
		if err != nil {
			return dst, fmt.Errorf("%s as an integer: %w", v.AppendText(nil), err)
		}
		n, ok := new(big.Int).SetString(digits, 10)
		if !ok {
			return dst, fmt.Errorf("%s as an integer: %w", v.AppendText(nil), pipelines.ErrType)
		}
		if n.Cmp(lo) < 0 || n.Cmp(hi) >= 0 {
			return dst, fmt.Errorf("%s does not fit in %d bits: %w", digits, bits, pipelines.ErrRange)
		}
		return appendBig(dst, n, bits/8), nil
	}
}

// appendBig writes a two's complement number of size bytes, lowest first.
func appendBig(dst []byte, n *big.Int, size int) []byte {
	if n.Sign() < 0 {
		n = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(size)*8))
	}
	b := n.FillBytes(make([]byte, size))
	for i := range b {
		dst = append(dst, b[size-1-i])
	}
	return dst
}

// decimalDigits is the value times 10^scale, as an integer's digits.
func decimalDigits(v pipelines.Value, scale int) (string, error) {
	var text string
	switch v.Kind() {
	case pipelines.KindInt, pipelines.KindUint, pipelines.KindString:
		text = string(v.AppendText(nil))
	case pipelines.KindFloat:
		if text = string(v.Bytes()); text == "" {
			text = strconv.FormatFloat(v.Float(), 'f', scale, 64)
		}
	default:
		return "", pipelines.ErrType
	}
	if strings.ContainsAny(text, "eE") {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.Abs(f) > 1e76 {
			return "", pipelines.ErrRange
		}
		text = strconv.FormatFloat(f, 'f', scale, 64)
	}
	whole, fraction, _ := strings.Cut(text, ".")
	if strings.TrimPrefix(whole, "-")+fraction == "" {
		return "", pipelines.ErrType
	}
	if rest := strings.TrimRight(fraction, "0"); len(rest) > scale {
		return "", fmt.Errorf("%d digits after the point: %w", len(rest), pipelines.ErrRange)
	}
	fraction = (fraction + strings.Repeat("0", scale))[:scale]
	digits := whole + fraction
	if strings.Trim(strings.TrimPrefix(digits, "-"), "0123456789") != "" {
		return "", pipelines.ErrType
	}
	return digits, nil
}
