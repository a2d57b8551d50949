// Package stream reads what is read once and cannot be asked for again: standard input, named pipes, the output of commands. It hands the
// lines over in chunks, and reads on when they are kept: so what a kill loses is at most one chunk, the beginning of a line, and what the
// system holds in its buffers.
package stream

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// ErrOver says that nothing is taken any more.
var ErrOver = errors.New("nothing is taken any more")

// Taker takes what inputs read. It is safe for concurrent use.
type Taker interface {
	// Take hands over a chunk and returns when it is kept: then its bytes may be used again. It returns an ErrOver when it never will be.
	Take(*Offer) error
	// Drop tells of lines that came and could not be taken.
	Drop(reason string, lines, bytes int64)
}

// Offer is a chunk to be taken.
type Offer struct {
	Chunk  tail.Chunk
	Origin *Origin
	// Cursor is where an input that can be asked again has come to with the chunk; "" in every other.
	Cursor string
	// More says that the origin has more at once, so that it is of no use to wait for it with what is taken.
	More bool
}

// Origin is what the lines of one place have in common.
type Origin struct {
	// Name tells places from one another: the lines of a place stay in order.
	Name    string
	Headers []Header
	// Kept belongs to the taker.
	Kept any
}

// Header is a record header.
type Header struct{ Key, Value string }

// Feed is an input. Run reads until ctx ends, or there is nothing more to come, hands over what it has and returns.
type Feed interface {
	Run(ctx context.Context, to Taker)
	// Stats is safe for concurrent use.
	Stats() Stats
}

// Stats are counts of what feeds do; each has some of them.
type Stats struct {
	// Waiting says what the feed waits for before anything can be read; nil when for nothing.
	Waiting error
	// Connections are open, Refused were closed at once because there were too many, Idle because nothing came for long.
	Connections, Refused, Idle int64
	// KernelDrops are datagrams that the system dropped because its buffer was full, as far as it tells.
	KernelDrops int64
	// Starts are those of a command, Exits their ends by exit code; a signal is signal:NAME.
	Starts int64
	Exits  map[string]int64
}

// Lines says how the lines of a reader are read.
type Lines struct {
	LineBytesMax int
	// PartialAfter is how long an unterminated line waits for its end before it is sent as it is.
	PartialAfter time.Duration
	// Encoding is what the bytes are; lines are UTF-8 whatever it is.
	Encoding tail.Encoding
	// Form makes records of lines; nil means that each line is one. It belongs to one Copy at a time. RecordAfter is how long a record that
	// may go on waits for that.
	Form        tail.Form
	RecordAfter time.Duration
	Origin      *Origin
}

// Reader is what lines are read from. A read that is behind its deadline fails with os.ErrDeadlineExceeded.
type Reader interface {
	io.Reader
	SetReadDeadline(time.Time) error
}

// Copy hands over the lines of r until it ends. It returns nil at the end of r.
func (l *Lines) Copy(r Reader, to Taker) error {
	s := tail.NewRecords(tail.NewLines(l.LineBytesMax, l.Encoding), l.Form, l.holdBytesMax())
	for {
		deadline, extent := l.deadline(s)
		if err := r.SetReadDeadline(deadline); err != nil {
			return err
		}
		n, err := s.Read(r)
		switch {
		case n > 0 || err == nil: // it is not quiet
			extent = tail.Whole
		case !errors.Is(err, os.ErrDeadlineExceeded):
			extent = tail.All
		}
		if err := l.hand(s, to, extent); err != nil {
			return err
		}
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if extent != tail.All {
			if err := l.hand(s, to, tail.All); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// holdBytesMax bounds what is held back because a record may go on.
func (l *Lines) holdBytesMax() int {
	limit := l.LineBytesMax
	if limit == 0 {
		limit = tail.LineBytesMaxDefault
	}
	return 2*limit + tail.StreamBytes
}

// deadline is when what is held back is taken though nothing came, and how much of it.
func (l *Lines) deadline(s *tail.Stream) (time.Time, tail.Extent) {
	switch {
	case s.Open():
		return time.Now().Add(l.RecordAfter), tail.Ripe
	case s.Partial():
		return time.Now().Add(l.PartialAfter), tail.All
	}
	return time.Time{}, tail.Whole
}

// hand hands over what the extent says.
func (l *Lines) hand(s *tail.Stream, to Taker, extent tail.Extent) error {
	o := Offer{Origin: l.Origin, More: s.Full()}
	for s.Next(&o.Chunk, extent) {
		if err := to.Take(&o); err != nil {
			return err
		}
	}
	return nil
}
