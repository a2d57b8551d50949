//go:build unix

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// polled reads a descriptor that may have nothing for long, and stops when it is told to, whatever the descriptor is: the runtime's own
// waiting does not know terminals and inherited pipes. One goroutine reads.
type polled struct {
	file     *os.File
	stop     [2]*os.File // readable when reading is to stop
	hasty    atomic.Bool // when reading is to stop, what is there is left
	deadline time.Time
	over     func() bool // stops the watching of the context
}

// newPolled reads from file until ctx ends, and then what is there.
func newPolled(ctx context.Context, file *os.File) (*polled, error) {
	p := &polled{file: file}
	var err error
	if p.stop[0], p.stop[1], err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	p.over = context.AfterFunc(ctx, func() { _, _ = p.stop[1].Write([]byte{0}) })
	return p, nil
}

// SetReadDeadline implements Reader.
func (p *polled) SetReadDeadline(t time.Time) error {
	p.deadline = t
	return nil
}

// Read implements Reader. It returns io.EOF when reading is to stop.
func (p *polled) Read(b []byte) (int, error) {
	fds := []unix.PollFd{{Fd: int32(p.file.Fd()), Events: unix.POLLIN}, {Fd: int32(p.stop[0].Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, p.wait())
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for input: %w", err)
		case fds[1].Revents != 0 && (p.hasty.Load() || fds[0].Revents&unix.POLLIN == 0):
			return 0, io.EOF
		case n == 0:
			return 0, os.ErrDeadlineExceeded
		}
		return p.file.Read(b)
	}
}

// stopGrace is how long is still read of what is written without end when an input stops.
const stopGrace = 250 * time.Millisecond

// hurry has reading stop a moment after ctx ends, whatever is there.
func (p *polled) hurry(ctx context.Context) {
	context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, func() { p.hasty.Store(true) }) })
}

// wait is the time to the deadline in ms; -1 is without end.
func (p *polled) wait() int {
	if p.deadline.IsZero() {
		return -1
	}
	return int(max(time.Until(p.deadline).Milliseconds(), 0))
}

// Close ends the watching. The file is left open.
func (p *polled) Close() error {
	p.over()
	return errors.Join(p.stop[0].Close(), p.stop[1].Close())
}
