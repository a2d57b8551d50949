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

// Stream finds the lines of what is read once: a pipe, a connection. Its buffer grows with what a read brings and with lines that are longer,
// and shrinks when neither comes. Not safe for concurrent use.
type Stream struct {
	frame framer
	state frameState
	buf   []byte
	size  int   // buf[:size] was read
	at    int   // buf[:at] was handed over
	base  int64 // offset in the stream of buf[0]
	full  bool  // the last read filled the buffer
	small int   // reads in a row that took little
}

// NewStream returns a stream that cuts longer lines; 0 means LineBytesMaxDefault.
func NewStream(lineBytesMax int) *Stream {
	if lineBytesMax == 0 {
		lineBytesMax = LineBytesMaxDefault
	}
	return &Stream{frame: framer{lineBytesMax: lineBytesMax, linesMax: linesMax}, state: frameState{atStart: true}}
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

// Partial says that an unterminated line is held.
func (s *Stream) Partial() bool { return s.at < s.size }

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

// Next fills c with the lines that are there, up to a limit, and returns false when there are none. They alias the buffer. With final an
// unterminated line is taken as it is.
func (s *Stream) Next(c *Chunk, final bool) bool {
	c.Release()
	if s.at == s.size {
		return false
	}
	c.Data, c.Base, c.From = s.buf[:s.size], s.base, s.base+int64(s.at)
	s.at, _ = s.frame.frame(c, c.Data, s.at, &s.state, final)
	c.End.Offset = s.base + int64(s.at)
	return c.Bytes() > 0
}
