package tail

import "bytes"

// Line is one line, or a record that a form made of some: a place in the data
// of its Chunk.
type Line struct {
	// Start is where it begins, End where it ends without terminator. In a
	// chunk with texts of its own End is the number of the line's.
	Start, End uint32
	// Next is where it ends in the file's bytes, terminator included. Next less
	// Start is what it takes in the file; of a record it is the sum of its
	// lines, which others may lie between.
	Next uint32
	// Cut says that the line was longer than the limit; its rest is dropped.
	Cut bool
	// Partial says that the line had no terminator when it was sent.
	Partial bool
	// Split says that a limit ended the record before its last line.
	Split bool
}

// Skipped counts bytes that are in the file and in no line.
type Skipped struct {
	NULs    int64 // holes that a truncation left before the next line
	Mark    int64 // byte-order mark
	TooLong int64 // rest of lines beyond the limit
	Late    int64 // terminator that came after its line was sent without one
	Frame   int64 // what stands around a message that is counted in bytes
	Cuts    int64 // number of lines cut (not bytes)
	Splits  int64 // number of records that a limit ended (not bytes)
}

// Bytes is the sum of the skipped bytes.
func (s Skipped) Bytes() int64 { return s.NULs + s.Mark + s.TooLong + s.Late + s.Frame }

// framer finds lines. It decides only: bytes in, places out.
type framer struct {
	lineBytesMax int
	linesMax     int
	encoding     Encoding
}

// frameState is what framing needs to know of the bytes before.
type frameState struct {
	atStart bool // of the file: a byte-order mark may come
	skip    bool // in the rest of a line that was cut
	late    bool // the last line was sent without terminator: it may come now
}

var byteOrderMark = []byte{0xEF, 0xBB, 0xBF}

// frame appends the lines of data[at:] to c and returns how far it got. What
// is left after that is an unterminated line, or lines beyond linesMax (more).
// With final an unterminated line is taken as it is.
func (f *framer) frame(c *Chunk, data []byte, at int, st *frameState, final bool) (end int, more bool) {
	if f.encoding != UTF8 {
		return f.frameWide(c, data, at, st, final)
	}
	at, wait := f.begin(c, data, at, st, final)
	if wait {
		return at, false
	}
	for at < len(data) {
		if len(c.Lines) >= f.linesMax {
			return at, true
		}
		if data[at] == 0 {
			at = skipNULs(c, data, at)
			continue
		}
		i := bytes.IndexByte(data[at:], '\n')
		if i < 0 {
			return f.rest(c, data, at, st, final), false
		}
		if i > f.lineBytesMax {
			at = f.cut(c, data, at, at+i+1)
			continue
		}
		stop := at + i
		if i > 0 && data[stop-1] == '\r' {
			stop--
		}
		c.Lines = append(c.Lines, Line{Start: uint32(at), End: uint32(stop), Next: uint32(at + i + 1)})
		at += i + 1
	}
	return at, false
}

// begin deals with what may stand before the first line. wait says that more
// bytes are needed to tell.
func (f *framer) begin(c *Chunk, data []byte, at int, st *frameState, final bool) (next int, wait bool) {
	rest := data[at:]
	if len(rest) == 0 {
		return at, true
	}
	if st.atStart {
		if !final && len(rest) < len(byteOrderMark) && bytes.HasPrefix(byteOrderMark, rest) {
			return at, true
		}
		st.atStart = false
		if bytes.HasPrefix(rest, byteOrderMark) {
			c.Skipped.Mark += int64(len(byteOrderMark))
			return at + len(byteOrderMark), false
		}
	}
	if st.skip {
		return skipLine(c, data, at, st), false
	}
	if st.late {
		if rest[0] == '\r' && len(rest) == 1 && !final {
			return at, true
		}
		st.late = false
		n := terminator(rest)
		c.Skipped.Late += int64(n)
		at += n
	}
	return at, false
}

func terminator(p []byte) int {
	switch {
	case p[0] == '\n':
		return 1
	case len(p) > 1 && p[0] == '\r' && p[1] == '\n':
		return 2
	}
	return 0
}

// skipNULs passes over a run of NULs at the beginning of a line.
func skipNULs(c *Chunk, data []byte, at int) int {
	start := at
	for at < len(data) && data[at] == 0 {
		at++
	}
	c.Skipped.NULs += int64(at - start)
	return at
}

// skipLine passes over the rest of a line that was cut.
func skipLine(c *Chunk, data []byte, at int, st *frameState) int {
	i := bytes.IndexByte(data[at:], '\n')
	if i < 0 {
		c.Skipped.TooLong += int64(len(data) - at)
		return len(data)
	}
	st.skip = false
	c.Skipped.TooLong += int64(i + 1)
	return at + i + 1
}

// rest deals with an unterminated line at the end of the data.
func (f *framer) rest(c *Chunk, data []byte, at int, st *frameState, final bool) int {
	n := len(data) - at
	// One byte over the limit may be the CR of a line that just fits.
	if n > f.lineBytesMax+1 {
		st.skip = true
		return f.cut(c, data, at, len(data))
	}
	if !final {
		return at
	}
	if n > f.lineBytesMax {
		st.late = true
		return f.cut(c, data, at, len(data))
	}
	st.late = true
	c.Lines = append(c.Lines, Line{Start: uint32(at), End: uint32(len(data)), Next: uint32(len(data)), Partial: true})
	return len(data)
}

// cut sends the head of a line over the limit and drops the rest up to next.
func (f *framer) cut(c *Chunk, data []byte, at, next int) int {
	body := data[at:next]
	if n := len(body); n > 0 && body[n-1] == '\n' {
		if n -= 1; n > 0 && body[n-1] == '\r' {
			n--
		}
		if n <= f.lineBytesMax { // only its terminator was over
			c.Lines = append(c.Lines, Line{Start: uint32(at), End: uint32(at + n), Next: uint32(next)})
			return next
		}
	}
	end := at + runeBoundary(body, f.lineBytesMax)
	c.Lines = append(c.Lines, Line{Start: uint32(at), End: uint32(end), Next: uint32(end), Cut: true})
	c.Skipped.TooLong += int64(next - end)
	c.Skipped.Cuts++
	return next
}

// CutText returns the beginning of a text of at most n bytes, cut on a rune
// boundary.
func CutText(p []byte, n int) []byte {
	if len(p) <= n {
		return p
	}
	return p[:runeBoundary(p, n)]
}

// runeBoundary returns the largest length up to n that does not split a UTF-8
// sequence of p; n where p is not UTF-8 there.
func runeBoundary(p []byte, n int) int {
	for back := 0; back < 4 && n-back > 0; back++ {
		if p[n-back]&0xC0 != 0x80 {
			return n - back
		}
	}
	return n
}
