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
	Origin       *Origin
}

// Reader is what lines are read from. A read that is behind its deadline fails with os.ErrDeadlineExceeded.
type Reader interface {
	io.Reader
	SetReadDeadline(time.Time) error
}

// Copy hands over the lines of r until it ends. It returns nil at the end of r.
func (l *Lines) Copy(r Reader, to Taker) error {
	s := tail.NewStream(l.LineBytesMax)
	for {
		deadline := time.Time{}
		if s.Partial() {
			deadline = time.Now().Add(l.PartialAfter)
		}
		if err := r.SetReadDeadline(deadline); err != nil {
			return err
		}
		n, err := s.Read(r)
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if takeErr := l.hand(s, to, err != nil && (n == 0 || !late)); takeErr != nil {
			return takeErr
		}
		switch {
		case err == nil, late:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

// hand hands over what is whole; with final all that is there.
func (l *Lines) hand(s *tail.Stream, to Taker, final bool) error {
	o := Offer{Origin: l.Origin, More: s.Full()}
	for s.Next(&o.Chunk, final) {
		if err := to.Take(&o); err != nil {
			return err
		}
	}
	return nil
}
