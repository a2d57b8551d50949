package tail

import "io"

// Limits of reading streams.
const (
	// streamBytesMin is what a quiet stream's buffer takes.
	streamBytesMin = 4 << 10
	// StreamBytes is the most that is read of a stream at once.
	StreamBytes = 256 << 10
	// streamShrinkAfter is how many reads in a row must take little of a large buffer before it is given up.
	streamShrinkAfter = 16
)

// Framing adds the lines of data[at:] to c, up to a limit, and returns how far it got. With final what is left is taken as it is.
type Framing func(c *Chunk, data []byte, at int, final bool) (end int)

// NewLines returns the framing of lines that end with newlines, which cuts longer ones; 0 means LineBytesMaxDefault.
func NewLines(lineBytesMax int, encoding Encoding) Framing {
	if lineBytesMax == 0 {
		lineBytesMax = LineBytesMaxDefault
	}
	f, state := framer{lineBytesMax: lineBytesMax, linesMax: linesMax, encoding: encoding}, frameState{atStart: true}
	return func(c *Chunk, data []byte, at int, final bool) int {
		end, _ := f.frame(c, data, at, &state, final)
		return end
	}
}

// Stream finds the lines of what is read once: a pipe, a connection. Its buffer grows with what a read brings and with lines that are longer,
// and shrinks when neither comes. Not safe for concurrent use.
type Stream struct {
	frame Framing
	form  Form // nil: each line is a record
	hold  int  // bytes that may be held back because a record may go on
	buf   []byte
	size  int   // buf[:size] was read
	at    int   // buf[:at] was handed over
	base  int64 // offset in the stream of buf[0]
	full  bool  // the last read filled the buffer
	small int   // reads in a row that took little
	open  bool  // a record may go on
}

// NewStream returns a stream of nothing yet.
func NewStream(f Framing) *Stream { return &Stream{frame: f} }

// NewRecords returns a stream of records that a form makes of lines. No more than hold bytes are held back because a record may go on.
func NewRecords(f Framing, form Form, hold int) *Stream {
	return &Stream{frame: f, form: form, hold: hold}
}

// Read reads once. What Next returned before must not be used any more.
func (s *Stream) Read(r io.Reader) (int, error) {
	s.makeRoom()
	n, err := r.Read(s.buf[s.size:])
	s.size += n
	s.full = s.size == len(s.buf)
	if n > 0 && n < len(s.buf)/8 {
		s.small++
	} else if n > 0 {
		s.small = 0
	}
	return n, err
}

// Full says that the last read brought as much as it could: there is probably more.
func (s *Stream) Full() bool { return s.full }

// Partial says that something is held: an unterminated line, or a record that may go on.
func (s *Stream) Partial() bool { return s.at < s.size }

// Open says that a record is held that may go on.
func (s *Stream) Open() bool { return s.open && s.Partial() }

// makeRoom moves what is left to the beginning of a buffer that has room behind it.
func (s *Stream) makeRoom() {
	left := s.size - s.at
	want := max(len(s.buf), streamBytesMin)
	switch {
	case left == want, s.full && want < StreamBytes:
		want *= 2
	case s.small >= streamShrinkAfter && left < streamBytesMin/2:
		want = streamBytesMin
		s.small = 0
	}
	if want != len(s.buf) {
		grown := make([]byte, want)
		copy(grown, s.buf[s.at:s.size])
		s.buf = grown
	} else {
		copy(s.buf, s.buf[s.at:s.size])
	}
	s.base += int64(s.at)
	s.size, s.at = left, 0
}

// Next fills c with the lines that are there, up to a limit, as many as the extent says, and returns false when there are none. They alias
// the buffer.
func (s *Stream) Next(c *Chunk, extent Extent) bool {
	c.Release()
	s.open = false
	if s.at == s.size {
		return false
	}
	c.Data, c.Base, c.From = s.buf[:s.size], s.base, s.base+int64(s.at)
	end := s.frame(c, c.Data, s.at, extent == All)
	if s.form != nil && len(c.Lines) > 0 {
		end = s.shape(c, end, extent)
	}
	s.at = end
	c.End.Offset = s.base + int64(s.at)
	return c.Bytes() > 0
}

// shape lets the form make records of the lines, and returns where those end.
func (s *Stream) shape(c *Chunk, end int, extent Extent) int {
	framed := len(c.Lines)
	c.Skipped.Cuts = 0 // records count theirs
	taken := s.form.Shape(c, endOf(extent))
	if taken == 0 && (framed >= linesMax || s.size-s.at > s.hold) {
		c.Truncate(0)
		taken = s.form.Shape(c, Full)
	}
	if taken < framed {
		// A line that is left begins in no state of the framing: one that is cut, or is partial, is never left.
		end = int(c.Lines[taken].Start)
		s.open = true
		skipped := Skipped{Cuts: c.Skipped.Cuts, Splits: c.Skipped.Splits, NULs: int64(end - s.at)}
		for i := range c.Lines[:taken] {
			skipped.NULs -= int64(c.Lines[i].Next - c.Lines[i].Start)
		}
		c.Skipped = skipped
	}
	c.Lines, c.shaped.lines = c.shaped.lines, c.Lines[:0]
	if c.texts = c.shaped.texts; c.texts == nil {
		c.texts = [][]byte{}
	}
	return end
}
