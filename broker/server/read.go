package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// readBuffer holds what was read from a connection and not yet used.
type readBuffer struct {
	buf  [readBufferBytes]byte
	r, w int
}

func (b *readBuffer) buffered() []byte { return b.buf[b.r:b.w] }
func (b *readBuffer) full() bool       { return b.w-b.r == len(b.buf) }

// more reads once.
func (b *readBuffer) more(src io.Reader) error {
	if b.r > 0 {
		b.w = copy(b.buf[:], b.buf[b.r:b.w])
		b.r = 0
	}
	n, err := src.Read(b.buf[b.w:])
	b.w += n
	if n > 0 {
		return nil // a failing connection fails again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

const (
	sizeBytes = 4
	// headBytes are looked at before memory is given to a request.
	headBytes = sizeBytes + 4 // size, key, version
	// leastRequestBytes is a header with a null client id.
	leastRequestBytes = 10
)

// errFrame is wrapped by errors about what a client sent.
var errFrame = errors.New("bad frame")

// readRequest reads a frame and its header.
func (c *Conn) readRequest() (*Request, error) {
	size, err := c.readHead()
	if err != nil {
		return nil, err
	}
	// The key is the first that readHead left.
	f, err := c.readFrame(size, int16(binary.BigEndian.Uint16(c.in.buffered())))
	if err != nil {
		return nil, err
	}
	c.frameDue.Store(0)
	r, err := c.parse(f)
	if err != nil {
		c.srv.memory.put(f)
		return nil, err
	}
	return r, nil
}

// readHead reads until the size, key and version are there and leaves all but
// the size in the buffer.
func (c *Conn) readHead() (size int, err error) {
	for len(c.in.buffered()) < headBytes {
		if n := len(c.in.buffered()); n > 0 {
			c.armFrame(0)
		}
		if err := c.in.more(c.sock); err != nil {
			if len(c.in.buffered()) > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, fmt.Errorf("read: %w", err)
		}
		// A bad size is known, and refused, before the rest arrives.
		if b := c.in.buffered(); len(b) >= sizeBytes {
			if err := c.checkSize(int32(binary.BigEndian.Uint32(b))); err != nil {
				return 0, err
			}
		}
	}
	b := c.in.buffered()
	n := int32(binary.BigEndian.Uint32(b))
	if err := c.checkSize(n); err != nil {
		return 0, err
	}
	key, version := int16(binary.BigEndian.Uint16(b[4:])), int16(binary.BigEndian.Uint16(b[6:]))
	if err := c.srv.cfg.Check(key, version, int(n)); err != nil {
		return 0, err
	}
	c.in.r += sizeBytes
	return int(n), nil
}

func (c *Conn) checkSize(n int32) error {
	if n < leastRequestBytes || int(n) > c.srv.cfg.MaxRequestBytes {
		return fmt.Errorf("%w: request of %d bytes, from %d to %d are allowed", errFrame, n, leastRequestBytes, c.srv.cfg.MaxRequestBytes)
	}
	return nil
}

// armFrame starts the time that a frame may take, if it is not running.
func (c *Conn) armFrame(size int) {
	limit := c.srv.cfg.FrameTimeout + time.Duration(size/frameBytesPerSecond)*time.Second
	due := c.srv.clock.Load() + int64(limit)
	if size > 0 || c.frameDue.Load() == 0 {
		c.frameDue.Store(due)
	}
}

// readFrame reads the size bytes of a request into memory of its own.
func (c *Conn) readFrame(size int, key int16) (*frame, error) {
	if len(c.in.buffered()) < size {
		c.armFrame(size)
	}
	f, err := c.srv.memory.charge(c.ctx, size)
	if err != nil {
		return nil, fmt.Errorf("wait for request memory: %w", err)
	}
	f.wanted = size >= summedBytesMin && c.srv.cfg.Sums(key)
	if err := c.fillFrame(f, size); err != nil {
		c.srv.memory.put(f)
		return nil, fmt.Errorf("read request of %d bytes: %w", size, err)
	}
	return f, nil
}

// fillFrame reads size bytes into f. A large frame first gets memory for a part
// of it, unless there is a buffer to spare, so that memory is only taken by
// clients that do send.
func (c *Conn) fillFrame(f *frame, size int) error {
	m := c.srv.memory
	if size <= largeFrameBytes || m.take(f, size, false) {
		if f.buf == nil {
			m.take(f, size, true)
		}
		return c.fill(f, 0)
	}
	m.take(f, largeFrameBytes, true)
	if err := c.fill(f, 0); err != nil {
		return err
	}
	part := f.buf
	m.take(f, size, true)
	n := copy(f.buf, part)
	m.keep(part)
	return c.fill(f, n)
}

// fill reads what is missing of a frame's memory from the byte at from on.
func (c *Conn) fill(f *frame, from int) error {
	if !f.wanted {
		return c.readFull(f.buf[from:])
	}
	for from < len(f.buf) {
		to := min(from+summedReadBytes, len(f.buf))
		if err := c.readFull(f.buf[from:to]); err != nil {
			return err
		}
		f.sum(to, &c.srv.cfg)
		from = to
	}
	return nil
}

// sum sums the pieces that are whole with the first n bytes.
func (f *frame) sum(n int, cfg *Config) {
	for at := len(f.sums) * cfg.PieceBytes; at+cfg.PieceBytes <= n; at += cfg.PieceBytes {
		f.sums = append(f.sums, cfg.PieceSum(f.buf[at:at+cfg.PieceBytes]))
	}
}

// readFull fills dst from the buffer and then from the connection.
func (c *Conn) readFull(dst []byte) error {
	n := copy(dst, c.in.buffered())
	c.in.r += n
	if n == len(dst) {
		return nil
	}
	if _, err := io.ReadFull(c.sock, dst[n:]); err != nil {
		return err
	}
	return nil
}

// parse reads the request header and makes the rest of the frame the body.
func (c *Conn) parse(f *frame) (*Request, error) {
	b := f.buf
	if len(b) < leastRequestBytes {
		return nil, fmt.Errorf("%w: header cut short", errFrame)
	}
	r := &Request{
		Key:           int16(binary.BigEndian.Uint16(b)),
		Version:       int16(binary.BigEndian.Uint16(b[2:])),
		CorrelationID: int32(binary.BigEndian.Uint32(b[4:])),
		Conn:          c,
		frame:         f,
	}
	id, body, err := parseClientID(b[8:])
	if err != nil {
		return nil, err
	}
	if c.srv.cfg.Flexible(r.Key, r.Version) {
		if body, err = skipTags(body); err != nil {
			return nil, err
		}
	}
	r.ClientID, r.Body = c.shareClientID(id), body
	r.Sums, r.BodyAt = f.sums, len(b)-len(body)
	r.Received = time.Now()
	return r, nil
}

// shareClientID returns id as a string, the same one for all requests of a client.
func (c *Conn) shareClientID(id []byte) string {
	last := c.clientID.Load()
	if string(id) != *last {
		s := string(id)
		last = &s
		c.clientID.Store(last)
	}
	return *last
}

// parseClientID reads a nullable string; null counts as empty.
func parseClientID(b []byte) (id, rest []byte, err error) {
	n := int(int16(binary.BigEndian.Uint16(b)))
	b = b[2:]
	switch {
	case n == -1:
		return nil, b, nil
	case n < 0 || n > len(b):
		return nil, nil, fmt.Errorf("%w: client id of %d bytes in the remaining %d", errFrame, n, len(b))
	}
	return b[:n], b[n:], nil
}

// skipTags reads past tagged fields.
func skipTags(b []byte) ([]byte, error) {
	count, b, err := uvarint(b)
	if err != nil {
		return nil, err
	}
	for ; count > 0; count-- {
		var size uint64
		if _, b, err = uvarint(b); err != nil {
			return nil, err
		}
		if size, b, err = uvarint(b); err != nil {
			return nil, err
		}
		if size > uint64(len(b)) {
			return nil, fmt.Errorf("%w: tagged field of %d bytes in the remaining %d", errFrame, size, len(b))
		}
		b = b[size:]
	}
	return b, nil
}

func uvarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n > 5 {
		return 0, nil, fmt.Errorf("%w: header's tagged fields", errFrame)
	}
	return v, b[n:], nil
}
