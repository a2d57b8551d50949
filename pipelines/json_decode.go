package pipelines

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of a JSON event.
const (
	jsonFieldsMax  = 1024
	jsonNestingMax = 128
	// internedNamesMax and internedNameBytesMax bound the field names an Event
	// remembers, so that keys made of data (user IDs) do not grow it for ever.
	internedNamesMax     = 4096
	internedNameBytesMax = 128
)

// SyntaxError says where a line is not what its parser reads.
type SyntaxError struct {
	Format string // "json", "nginx"
	Offset int    // bytes from the start of the line
	Want   string // what should stand there
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s: byte %d: %s", e.Format, e.Offset, e.Want)
}

// DecodeJSON fills the fields from raw, which must be one JSON object, and
// marks the event parsed. Raw and Meta are left as they are. raw is not copied
// and must stay unchanged until Reset. A key that comes twice has its last
// value at its first place. On an error the event has no fields.
//
// Numbers keep what was written: an integer of 64 bits is an Int or a Uint,
// any other number remembers its text. Lists and objects stay JSON text,
// without blanks. Bytes that are not UTF-8 are taken as they are (AppendJSON
// replaces them); half a surrogate pair becomes U+FFFD.
//
// Limits: 1,024 fields, nesting of 128.
func (e *Event) DecodeJSON(raw []byte) error {
	e.clear()
	d := decoder{src: raw, event: e, same: true}
	if err := d.object(); err != nil {
		e.fields = e.fields[:0]
		return err
	}
	e.parsed = true
	if !d.altered {
		e.as = raw
	}
	return nil
}

// decoder reads one event's JSON.
type decoder struct {
	src   []byte
	pos   int
	event *Event
	blank bool // blanks were skipped

	altered bool // the fields are not in JSON what the source is
	same    bool // so far the names are those of the event before, in order
}

func (d *decoder) fail(want string) error {
	return &SyntaxError{Format: "json", Offset: d.pos, Want: want}
}

func (d *decoder) blanks() {
	for d.pos < len(d.src) && isBlank(d.src[d.pos]) {
		d.pos++
	}
}

func isBlank(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// peek is the next byte after blanks, 0 at the end.
func (d *decoder) peek() byte {
	if d.pos < len(d.src) && d.src[d.pos] > ' ' {
		return d.src[d.pos]
	}
	start := d.pos
	d.blanks()
	if d.pos > start {
		d.blank, d.altered = true, true
	}
	if d.pos == len(d.src) {
		return 0
	}
	return d.src[d.pos]
}

func (d *decoder) object() error {
	if d.peek() != '{' {
		return d.fail("want an object, {")
	}
	d.pos++
	if d.peek() == '}' {
		d.pos++
		return d.end()
	}
	for {
		if !d.repeat() {
			if err := d.member(); err != nil {
				return err
			}
		}
		switch d.peek() {
		case ',':
			d.pos++
		case '}':
			d.pos++
			return d.end()
		default:
			return d.fail("want , or }")
		}
	}
}

func (d *decoder) end() error {
	if d.pos != len(d.src) {
		d.altered = true
	}
	if d.blanks(); d.pos != len(d.src) {
		return d.fail("want nothing after the object")
	}
	return nil
}

func (d *decoder) member() error {
	if d.skipExpectedKey() {
		v, err := d.value()
		d.event.again(v)
		return err
	}
	if d.peek() != '"' {
		return d.fail("want a key in quotes")
	}
	key, err := d.string()
	if err != nil {
		return err
	}
	if d.peek() != ':' {
		return d.fail("want :")
	}
	d.pos++
	v, err := d.value()
	if err != nil {
		return err
	}
	return d.add(key, v)
}

// skipExpectedKey goes behind the next key and its colon when the key is that of the event before, and no blanks are about: the common case. Such a name need be
// neither read nor looked for.
func (d *decoder) skipExpectedKey() bool {
	e, n := d.event, len(d.event.fields)
	if !d.same || n >= e.before {
		return false
	}
	f := &e.fields[:n+1][n]
	colon := d.pos + len(f.name) + 2
	if !f.plain || colon >= len(d.src) || d.src[colon] != ':' || d.src[colon-1] != '"' || d.src[d.pos] != '"' || alias(d.src[d.pos+1:colon-1]) != f.name {
		return false
	}
	d.pos = colon + 1
	return true
}

// isPlain says that a name stands in JSON as it is.
func isPlain(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// add appends the field. While the names are those of the event before, which
// were distinct, they need neither a copy nor a search for the same name: logs
// have few shapes.
func (d *decoder) add(key []byte, v Value) error {
	e, n := d.event, len(d.event.fields)
	if d.same && n < e.before {
		if name := e.fields[:n+1][n].name; name == alias(key) {
			e.again(v)
			return nil
		}
	}
	d.same = false
	if i := e.find(alias(key), n); i >= 0 {
		d.altered = true
		e.fields[i].value = v
		return nil
	}
	if n == jsonFieldsMax {
		return d.fail(fmt.Sprintf("more than %d fields", jsonFieldsMax))
	}
	name := e.intern(key)
	e.fields = append(e.fields, field{name: name, plain: isPlain(name), value: v})
	return nil
}

// intern makes a name of key's bytes, the same string for the same bytes.
func (e *Event) intern(key []byte) string {
	if name, ok := e.names[string(key)]; ok {
		return name
	}
	name := string(key)
	if len(key) > internedNameBytesMax || len(e.names) >= internedNamesMax {
		return name
	}
	if e.names == nil {
		e.names = make(map[string]string)
	}
	e.names[name] = name
	return name
}

func (d *decoder) value() (Value, error) {
	switch c := d.peek(); {
	case c == '"':
		s, err := d.string()
		return Value{kind: KindString, text: s}, err
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	case c == '{':
		return d.nested(KindMap)
	case c == '[':
		return d.nested(KindList)
	case c == 't':
		return Bool(true), d.word("true")
	case c == 'f':
		return Bool(false), d.word("false")
	case c == 'n':
		return Null(), d.word("null")
	default:
		return Value{}, d.fail("want a value")
	}
}

func (d *decoder) word(w string) error {
	if len(d.src)-d.pos < len(w) || alias(d.src[d.pos:d.pos+len(w)]) != w {
		return d.fail("want " + w)
	}
	d.pos += len(w)
	return nil
}

// string reads a string; without escapes it is a slice of the source, else it
// is written to the arena.
func (d *decoder) string() ([]byte, error) {
	start := d.pos + 1
	end, escaped, err := d.skipString()
	if err != nil {
		return nil, err
	}
	if !escaped {
		return d.src[start:end:end], nil
	}
	d.altered = true
	arena := d.event.arena
	from := len(arena)
	arena = appendUnescaped(arena, d.src[start:end])
	d.event.arena = arena
	return arena[from:len(arena):len(arena)], nil
}

// skipString goes behind the string that begins at pos, checking its escapes,
// and returns where its content ends.
func (d *decoder) skipString() (end int, escaped bool, err error) {
	i := d.pos + 1
	for {
		for i+8 <= len(d.src) {
			n := bits.TrailingZeros64(special(binary.LittleEndian.Uint64(d.src[i:]))) / 8
			i += n
			if n < 8 {
				break
			}
		}
		if i >= len(d.src) {
			d.pos = i
			return 0, false, d.fail("the string has no end")
		}
		switch c := d.src[i]; {
		case c == '"':
			d.pos = i + 1
			return i, escaped, nil
		case c == '\\':
			escaped = true
			n := escapeLen(d.src[i:])
			if n == 0 {
				d.pos = i
				return 0, false, d.fail("unknown escape in a string")
			}
			i += n
		case c < 0x20:
			d.pos = i
			return 0, false, d.fail("control character in a string")
		default:
			i++
		}
	}
}

// escapeLen is the length of the escape at the start of b, 0 when it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b); ok {
			return 6
		}
	}
	return 0
}

// hex4 reads an escape that is \u with four hex digits.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		h, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		r = r<<4 | rune(h)
	}
	return r, true
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// appendUnescaped appends src, whose escapes have been checked.
func appendUnescaped(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		c := src[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		if src[i+1] != 'u' {
			dst = append(dst, unescaped(src[i+1]))
			i += 2
			continue
		}
		r, _ := hex4(src[i:])
		i += 6
		if utf16.IsSurrogate(r) {
			low, ok := hex4(src[i:])
			r = utf16.DecodeRune(r, low)
			if ok && r != utf8.RuneError {
				i += 6
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

func (d *decoder) number() (Value, error) {
	start := d.pos
	if err := d.skipNumber(); err != nil {
		return Value{}, err
	}
	return numberOf(d.src[start:d.pos:d.pos]), nil
}

func (d *decoder) skipNumber() error {
	if d.src[d.pos] == '-' {
		d.pos++
	}
	if d.pos < len(d.src) && d.src[d.pos] == '0' {
		d.pos++
	} else if !d.digits() {
		return d.fail("want a digit")
	}
	if d.pos < len(d.src) && d.src[d.pos] == '.' {
		d.pos++
		if !d.digits() {
			return d.fail("want a digit")
		}
	}
	if d.pos < len(d.src) && d.src[d.pos]|0x20 == 'e' {
		d.pos++
		if d.pos < len(d.src) && (d.src[d.pos] == '+' || d.src[d.pos] == '-') {
			d.pos++
		}
		if !d.digits() {
			return d.fail("want a digit")
		}
	}
	return nil
}

func (d *decoder) digits() bool {
	start := d.pos
	for d.pos < len(d.src) && d.src[d.pos]-'0' <= 9 {
		d.pos++
	}
	return d.pos > start
}

// numberOf is the value of a JSON number as written.
func numberOf(text []byte) Value {
	digits, negative := text, false
	if digits[0] == '-' {
		digits, negative = digits[1:], true
	}
	n, ok := parseDigits(digits)
	switch {
	case !ok || negative && n == 0:
		return Value{kind: KindFloat, text: text}
	case !negative:
		return Uint(n)
	case n <= math.MaxInt64:
		return Int(-int64(n))
	case n == 1<<63:
		return Int(math.MinInt64)
	}
	return Value{kind: KindFloat, text: text}
}

// parseDigits reads decimal digits and nothing else.
func parseDigits(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	if len(b) > 19 { // may overflow: let strconv find out
		n, err := strconv.ParseUint(alias(b), 10, 64)
		return n, err == nil && b[0] != '+'
	}
	var n uint64
	for _, c := range b {
		if c-'0' > 9 {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// nested reads a list or an object as JSON text, without blanks between its
// parts: a slice of the source when it has none.
func (d *decoder) nested(kind Kind) (Value, error) {
	start := d.pos
	d.blank = false
	if err := d.skipNested(1); err != nil {
		return Value{}, err
	}
	text := d.src[start:d.pos:d.pos]
	if d.blank {
		arena := d.event.arena
		from := len(arena)
		arena = appendWithoutBlanks(arena, text)
		d.event.arena = arena
		text = arena[from:len(arena):len(arena)]
	}
	return Value{kind: kind, text: text}, nil
}

// skipNested checks the list or object at pos and goes behind it. depth is
// the levels that are open with it.
func (d *decoder) skipNested(depth int) error {
	if depth > jsonNestingMax {
		return d.fail(fmt.Sprintf("nested more than %d deep", jsonNestingMax))
	}
	object := d.src[d.pos] == '{'
	closing := d.src[d.pos] + 2 // in ASCII } is two behind {, and ] two behind [
	d.pos++
	if d.peek() == closing {
		d.pos++
		return nil
	}
	for {
		if object {
			if err := d.skipKey(); err != nil {
				return err
			}
		}
		if err := d.skipValue(depth); err != nil {
			return err
		}
		switch d.peek() {
		case ',':
			d.pos++
		case closing:
			d.pos++
			return nil
		default:
			return d.fail("want , or the end of the list or object")
		}
	}
}

// skipKey goes behind "key": of an object.
func (d *decoder) skipKey() error {
	if d.peek() != '"' {
		return d.fail("want a key in quotes")
	}
	if _, _, err := d.skipString(); err != nil {
		return err
	}
	if d.peek() != ':' {
		return d.fail("want :")
	}
	d.pos++
	return nil
}

// skipValue checks the value behind the blanks at pos and goes behind it.
func (d *decoder) skipValue(depth int) error {
	c := d.peek()
	if c == '{' || c == '[' {
		return d.skipNested(depth + 1)
	}
	return d.skipScalar(c)
}

func (d *decoder) skipScalar(c byte) error {
	switch {
	case c == '"':
		_, _, err := d.skipString()
		return err
	case c == '-' || c >= '0' && c <= '9':
		return d.skipNumber()
	case c == 't':
		return d.word("true")
	case c == 'f':
		return d.word("false")
	case c == 'n':
		return d.word("null")
	}
	return d.fail("want a value")
}

// appendWithoutBlanks copies checked JSON without the blanks between its parts.
func appendWithoutBlanks(dst, src []byte) []byte {
	quoted := false
	for i := 0; i < len(src); i++ {
		c := src[i]
		switch {
		case quoted && c == '\\':
			dst = append(dst, c, src[i+1])
			i++
			continue
		case c == '"':
			quoted = !quoted
		case !quoted && isBlank(c):
			continue
		}
		dst = append(dst, c)
	}
	return dst
}
