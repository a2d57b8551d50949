package tail

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"
)

// Encoding is what the bytes of a file mean. The zero value is UTF-8, or
// anything else in which a newline is one byte.
type Encoding uint8

// The encodings.
const (
	UTF8 Encoding = iota
	UTF16LE
	UTF16BE
)

// unit is how many bytes a code unit takes.
func (e Encoding) unit() int64 {
	if e == UTF8 {
		return 1
	}
	return 2
}

// at is the code unit at the beginning of p.
func (e Encoding) at(p []byte) uint16 {
	if e == UTF16BE {
		return binary.BigEndian.Uint16(p)
	}
	return binary.LittleEndian.Uint16(p)
}

// newline finds the first newline of whole code units, or returns -1. It looks
// for its one byte that is not zero, which is what a processor finds fast.
func (e Encoding) newline(p []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(p[from:], '\n')
		if i < 0 {
			return -1
		}
		i += from
		if unit := i &^ 1; unit+1 < len(p) && e.at(p[unit:]) == '\n' {
			return unit
		}
		from = i + 1
	}
}

// lastNewline returns the place after the last newline, 0 when there is none.
// p ends at the end of a code unit.
func (e Encoding) lastNewline(p []byte) int {
	if e == UTF8 {
		return bytes.LastIndexByte(p, '\n') + 1
	}
	for i := len(p) - 2; i >= 0; i -= 2 {
		if e.at(p[i:]) == '\n' {
			return i + 2
		}
	}
	return 0
}

// endsInNUL says that the last code unit is zero.
func (e Encoding) endsInNUL(p []byte) bool {
	return e == UTF8 && p[len(p)-1] == 0 || e != UTF8 && len(p) > 1 && e.at(p[len(p)-2:]) == 0
}

// isMark says that p is a byte-order mark and nothing else.
func (e Encoding) isMark(p []byte) bool {
	return e == UTF8 && bytes.Equal(p, byteOrderMark) || e != UTF8 && len(p) == 2 && e.at(p) == byteOrderMarkWide
}

// appendUTF8 appends p as UTF-8 up to limit bytes of it, and returns how much
// of p that is. A surrogate without its other half, and an odd byte at the end,
// become U+FFFD.
func (e Encoding) appendUTF8(dst, p []byte, limit int) (out []byte, n int) {
	most := len(dst) + limit
	for n < len(p) {
		r, size := rune(utf8.RuneError), len(p)-n
		if size >= 2 {
			r, size = e.rune(p[n:])
		}
		if len(dst)+utf8.RuneLen(r) > most {
			break
		}
		dst = utf8.AppendRune(dst, r)
		n += size
	}
	return dst, n
}

// rune decodes the rune at the beginning of p, which has at least a code unit.
func (e Encoding) rune(p []byte) (r rune, size int) {
	r = rune(e.at(p))
	if !utf16.IsSurrogate(r) {
		return r, 2
	}
	if len(p) >= 4 {
		if both := utf16.DecodeRune(r, rune(e.at(p[2:]))); both != utf8.RuneError {
			return both, 4
		}
	}
	return utf8.RuneError, 2
}

// byteOrderMarkWide is the byte-order mark as a code unit.
const byteOrderMarkWide = 0xFEFF

// frameWide is frame for two-byte code units. at is the beginning of one. The
// texts of the lines are UTF-8, which the limit counts.
func (f *framer) frameWide(c *Chunk, data []byte, at int, st *frameState, final bool) (end int, more bool) {
	at, wait := f.beginWide(c, data, at, st, final)
	if wait {
		return at, false
	}
	for at+1 < len(data) {
		if len(c.Lines) >= f.linesMax {
			return at, true
		}
		if f.encoding.at(data[at:]) == 0 {
			at = skipNULsWide(c, data, at)
			continue
		}
		i := f.encoding.newline(data[at:])
		if i < 0 {
			return f.restWide(c, data, at, st, final), false
		}
		stop := at + i
		if i > 0 && f.encoding.at(data[stop-2:]) == '\r' {
			stop -= 2
		}
		f.lineWide(c, data, at, stop, at+i+2)
		at += i + 2
	}
	return at, false
}

// lineWide adds a line, cut at the limit.
func (f *framer) lineWide(c *Chunk, data []byte, at, stop, next int) *Line {
	from := len(c.arena)
	var n int
	c.arena, n = f.encoding.appendUTF8(c.arena, data[at:stop], f.lineBytesMax)
	l := Line{Start: uint32(at), End: uint32(len(c.wide)), Next: uint32(next)}
	c.wide = append(c.wide, c.arena[from:len(c.arena):len(c.arena)])
	c.texts = c.wide
	if n < stop-at {
		l.Cut, l.Next = true, uint32(at+n)
		c.Skipped.TooLong += int64(next - at - n)
		c.Skipped.Cuts++
	}
	c.Lines = append(c.Lines, l)
	return &c.Lines[len(c.Lines)-1]
}

func (f *framer) beginWide(c *Chunk, data []byte, at int, st *frameState, final bool) (next int, wait bool) {
	if len(data)-at < 2 {
		return at, true
	}
	if st.atStart {
		st.atStart = false
		if f.encoding.at(data[at:]) == byteOrderMarkWide {
			c.Skipped.Mark += 2
			return at + 2, false
		}
	}
	if st.skip {
		return f.skipLineWide(c, data, at, st), false
	}
	if st.late {
		first := f.encoding.at(data[at:])
		if first == '\r' && len(data)-at < 4 && !final {
			return at, true
		}
		st.late = false
		n := 0
		switch {
		case first == '\n':
			n = 2
		case first == '\r' && len(data)-at >= 4 && f.encoding.at(data[at+2:]) == '\n':
			n = 4
		}
		c.Skipped.Late += int64(n)
		at += n
	}
	return at, false
}

func (f *framer) skipLineWide(c *Chunk, data []byte, at int, st *frameState) int {
	i := f.encoding.newline(data[at:])
	next := at + i + 2
	if i < 0 {
		next = at + (len(data)-at)&^1
	} else {
		st.skip = false
	}
	c.Skipped.TooLong += int64(next - at)
	return next
}

func skipNULsWide(c *Chunk, data []byte, at int) int {
	start := at
	for at+1 < len(data) && data[at] == 0 && data[at+1] == 0 {
		at += 2
	}
	c.Skipped.NULs += int64(at - start)
	return at
}

// restWide deals with an unterminated line at the end. An odd byte is left: the
// other half of it may come.
func (f *framer) restWide(c *Chunk, data []byte, at int, st *frameState, final bool) int {
	end := at + (len(data)-at)&^1
	// A text of the limit takes at most twice as many bytes, and a CR.
	if end-at > 2*f.lineBytesMax+2 {
		f.lineWide(c, data, at, end, end)
		st.skip = true
		return end
	}
	if !final || end == at {
		return at
	}
	f.lineWide(c, data, at, end, end).Partial = true
	st.late = true
	return end
}
