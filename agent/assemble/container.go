package assemble

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// Part is one line of a container's log file: a whole line that the container
// wrote, or a part of one.
type Part struct {
	Stream []byte // stdout or stderr
	Time   []byte // RFC 3339 with nanoseconds, as it stands in the file
	Text   []byte
	// Partial says that the line goes on with the next part of the stream.
	Partial bool
}

// ParseCRI reads a line of the form that the container runtimes of Kubernetes
// write: TIME STREAM TAGS TEXT, where the first tag is P for a part and F for a
// line's end. It returns false for what is none. The part aliases the line.
func ParseCRI(line []byte) (p Part, ok bool) {
	time, rest, ok := bytes.Cut(line, space)
	if !ok || len(time) == 0 || time[0] < '0' || time[0] > '9' {
		return Part{}, false
	}
	stream, rest, ok := bytes.Cut(rest, space)
	if !ok || !isStream(stream) {
		return Part{}, false
	}
	tags, text, _ := bytes.Cut(rest, space)
	first, _, _ := bytes.Cut(tags, colon)
	if len(first) != 1 || first[0] != 'P' && first[0] != 'F' {
		return Part{}, false
	}
	return Part{Stream: stream, Time: time, Text: text, Partial: first[0] == 'P'}, true
}

var (
	space  = []byte(" ")
	colon  = []byte(":")
	stdout = []byte("stdout")
	stderr = []byte("stderr")
)

func isStream(s []byte) bool { return bytes.Equal(s, stdout) || bytes.Equal(s, stderr) }

// ParseDocker reads a line of Docker's json-file driver: an object with log,
// stream and time. A log without newline at its end is a part. Texts with
// escapes are decoded into memory appended to arena; others alias the line.
func ParseDocker(line, arena []byte) (p Part, grown []byte, ok bool) {
	s := scanner{rest: line, arena: arena}
	if !s.skip('{') {
		return Part{}, arena, false
	}
	hasLog := false
	for !s.skip('}') {
		key, ok := s.text()
		if !ok || !s.skip(':') {
			return Part{}, arena, false
		}
		switch string(key) {
		case "log":
			p.Text, hasLog = s.text()
			ok = hasLog
		case "stream":
			p.Stream, ok = s.text()
		case "time":
			p.Time, ok = s.text()
		default:
			ok = s.value(0)
		}
		if !ok || !s.skip(',') && !s.at('}') {
			return Part{}, arena, false
		}
	}
	if !hasLog || !isStream(p.Stream) || s.blank() != 0 {
		return Part{}, arena, false
	}
	n := len(p.Text)
	if p.Partial = n == 0 || p.Text[n-1] != '\n'; !p.Partial {
		p.Text = bytes.TrimSuffix(p.Text[:n-1], []byte("\r"))
	}
	return p, s.arena, true
}

// scanner reads JSON from the front. It is only as strict as telling values
// apart needs.
type scanner struct {
	rest  []byte
	arena []byte
}

// blank passes over white space and returns the next byte, 0 at the end.
func (s *scanner) blank() byte {
	for len(s.rest) > 0 {
		switch c := s.rest[0]; c {
		case ' ', '\t', '\r', '\n':
			s.rest = s.rest[1:]
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) at(c byte) bool { return s.blank() == c }

// skip passes over a byte if it is the next one.
func (s *scanner) skip(c byte) bool {
	if !s.at(c) {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// text reads a string.
func (s *scanner) text() ([]byte, bool) {
	if !s.skip('"') {
		return nil, false
	}
	for i := 0; i < len(s.rest); i++ {
		switch s.rest[i] {
		case '"':
			out := s.rest[:i:i]
			s.rest = s.rest[i+1:]
			return out, true
		case '\\':
			return s.escaped(i)
		}
	}
	return nil, false
}

// escaped reads the rest of a string that has an escape at i.
func (s *scanner) escaped(i int) ([]byte, bool) {
	from := len(s.arena)
	s.arena = append(s.arena, s.rest[:i]...)
	p := s.rest[i:]
	for len(p) > 0 {
		j := bytes.IndexAny(p, `"\`)
		if j < 0 {
			return nil, false
		}
		s.arena = append(s.arena, p[:j]...)
		if p[j] == '"' {
			s.rest = p[j+1:]
			return s.arena[from:len(s.arena):len(s.arena)], true
		}
		n := s.escape(p[j:])
		if n == 0 {
			return nil, false
		}
		p = p[j+n:]
	}
	return nil, false
}

var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape decodes the escape at the beginning of p and returns its length, 0
// when it is none.
func (s *scanner) escape(p []byte) int {
	if len(p) < 2 {
		return 0
	}
	if c := escapes[p[1]]; c != 0 {
		s.arena = append(s.arena, c)
		return 2
	}
	r, ok := hex4(p)
	if !ok {
		return 0
	}
	n := 6
	if utf16.IsSurrogate(r) {
		low, _ := hex4(p[6:])
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			n = 12
		}
	}
	s.arena = utf8.AppendRune(s.arena, r)
	return n
}

// hex4 reads an escape at the beginning of p that is \u with four hex digits.
func hex4(p []byte) (r rune, ok bool) {
	if len(p) < 6 || p[0] != '\\' || p[1] != 'u' {
		return 0, false
	}
	for _, c := range p[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// depthMax bounds the nesting of values that are passed over.
const depthMax = 64

// value passes over a value.
func (s *scanner) value(depth int) bool {
	switch s.blank() {
	case '"':
		_, ok := s.text()
		return ok
	case '{', '[':
		return depth < depthMax && s.nested(depth+1)
	case 0:
		return false
	}
	i := bytes.IndexAny(s.rest, ",}] \t")
	if i <= 0 {
		return false
	}
	s.rest = s.rest[i:]
	return true
}

func (s *scanner) nested(depth int) bool {
	object := s.rest[0] == '{'
	end := byte(']')
	if object {
		end = '}'
	}
	s.rest = s.rest[1:]
	for !s.skip(end) {
		if object {
			if _, ok := s.text(); !ok || !s.skip(':') {
				return false
			}
		}
		if !s.value(depth) || !s.skip(',') && !s.at(end) {
			return false
		}
	}
	return true
}
