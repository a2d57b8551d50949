package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/sluice-io/sluice/internal/quickio"
)

const (
	// inlineBytes is up to where a part is copied behind the response's other
	// bytes, which costs less than a system call or packet of its own.
	inlineBytes = 16 << 10
	// gatherBytes is how much is gathered before it is sent.
	gatherBytes = 64 << 10
	// copyBufferBytes is the buffer for file regions that cannot be sent by
	// the kernel.
	copyBufferBytes = 256 << 10
)

// errCutShort says that a file region had fewer bytes than it was announced
// with. The rest of the response cannot be made up, so the connection closes.
var errCutShort = errors.New("file region is cut short")

// writer gathers responses of one connection and sends them. Not safe for
// concurrent use.
type writer struct {
	c    *Conn
	buf  []byte
	copy []byte // for regions that are copied; made when needed
}

func newWriter() *writer { return &writer{buf: make([]byte, 0, inlineBytes)} }

func (w *writer) reset(c *Conn) {
	w.c = c
	w.buf = w.buf[:0]
	if cap(w.buf) > 2*gatherBytes {
		w.buf = make([]byte, 0, inlineBytes)
	}
}

// pending is how many bytes are gathered and not yet sent.
func (w *writer) pending() int { return len(w.buf) }

// response sends or gathers one response: size, correlation id, for flexible
// ones an empty set of tagged fields, and the parts.
func (w *writer) response(correlation int32, resp *Response) error {
	size := 4 + resp.size()
	if resp.Flexible {
		size++
	}
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(size))
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(correlation))
	if resp.Flexible {
		w.buf = append(w.buf, 0)
	}
	for i := range resp.Parts {
		more := i+1 < len(resp.Parts)
		if err := w.part(&resp.Parts[i], more); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) part(p *Part, more bool) error {
	if len(w.buf) >= gatherBytes {
		if err := w.flush(true); err != nil {
			return err
		}
	}
	switch {
	case p.File == nil && len(p.Bytes) <= inlineBytes:
		w.buf = append(w.buf, p.Bytes...)
		return nil
	case p.File == nil:
		return w.large(p.Bytes)
	case p.Len <= inlineBytes:
		return w.inlineRegion(p)
	}
	return w.region(p, more)
}

// large sends what is gathered and b with one call.
func (w *writer) large(b []byte) error {
	bufs := net.Buffers{w.buf, b}
	w.c.expectWrite()
	_, err := bufs.WriteTo(w.c.nc)
	w.c.writeDue.Store(0)
	w.buf = w.buf[:0]
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (w *writer) inlineRegion(p *Part) error {
	n := len(w.buf)
	w.buf = append(w.buf, make([]byte, p.Len)...)
	dst := w.buf[n:]
	if f, ok := p.File.(*os.File); ok {
		if read, errno := quickio.ReadCached(f, dst, p.Pos); errno == 0 && read == len(dst) {
			return nil
		}
	}
	return readRegion(p.File, dst, p.Pos)
}

func readRegion(f io.ReaderAt, dst []byte, pos int64) error {
	n, err := f.ReadAt(dst, pos)
	if n == len(dst) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("read at %d: %w: %d of %d bytes", pos, errCutShort, n, len(dst))
	}
	return fmt.Errorf("read region at %d: %w", pos, err)
}

// region sends what is gathered and then a file region.
func (w *writer) region(p *Part, more bool) error {
	if err := w.flush(true); err != nil {
		return err
	}
	w.c.expectWrite()
	defer w.c.writeDue.Store(0)
	if f, ok := p.File.(*os.File); ok && w.c.raw != nil {
		return w.c.sendFile(f, p.Pos, p.Len)
	}
	return w.copyRegion(p.File, p.Pos, p.Len)
}

// copyRegion sends a file region through a buffer.
func (w *writer) copyRegion(f io.ReaderAt, pos int64, n int) error {
	if w.copy == nil {
		w.copy = make([]byte, copyBufferBytes)
	}
	for n > 0 {
		chunk := w.copy[:min(n, len(w.copy))]
		if err := readRegion(f, chunk, pos); err != nil {
			return err
		}
		if _, err := w.c.sock.Write(chunk); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		w.c.expectWrite()
		pos, n = pos+int64(len(chunk)), n-len(chunk)
	}
	return nil
}

// flush sends what is gathered. With more, the kernel may wait for what
// follows before it sends a packet.
func (w *writer) flush(more bool) error {
	if len(w.buf) == 0 {
		return nil
	}
	w.c.expectWrite()
	write := w.c.sock.Write
	if more {
		write = w.c.sock.WriteMore
	}
	_, err := write(w.buf)
	w.c.writeDue.Store(0)
	w.buf = w.buf[:0]
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// expectWrite starts, or starts again, the time in which some bytes must go.
func (c *Conn) expectWrite() {
	c.writeDue.Store(c.srv.clock.Load() + int64(c.srv.cfg.WriteTimeout))
}
