package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// responseBytesMax bounds one answer: a follower's fetch of large batches from
// many partitions is the largest.
const responseBytesMax = 1 << 30

// errMalformed says that a peer's answer cannot be read.
var errMalformed = errors.New("malformed answer")

// conn is a connection to a peer. It carries one request at a time and is not
// safe for concurrent use. After an error it is of no more use.
type conn struct {
	net.Conn
	formatter   *kmsg.RequestFormatter
	correlation int32
	out, in     []byte // reused
	idleSince   time.Time
}

func dial(ctx context.Context, address, clientID string) (*conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID))}, nil
}

// roundTrip sends req and reads its answer, which aliases the connection's
// buffer until the next call. It ends when ctx does.
func (c *conn) roundTrip(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	deadline, _ := ctx.Deadline() // none is the zero time, which is none for the connection too
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	resp, err := c.exchange(req)
	if !stop() && err == nil {
		err = ctx.Err() // its deadline may be in the past already
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return resp, err
}

func (c *conn) exchange(req kmsg.Request) (kmsg.Response, error) {
	c.correlation++
	c.out = c.formatter.AppendRequest(c.out[:0], req, c.correlation)
	if _, err := c.Write(c.out); err != nil {
		return nil, err
	}
	body, err := c.receive()
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if resp.IsFlexible() {
		if body, err = skipTags(body); err != nil {
			return nil, err
		}
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%w: %s version %d: %w", errMalformed, kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp, nil
}

// receive reads a frame and returns what follows its correlation id.
func (c *conn) receive() ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, err
	}
	size, id := int32(binary.BigEndian.Uint32(head[:])), int32(binary.BigEndian.Uint32(head[4:]))
	switch {
	case size < 4 || size > responseBytesMax:
		return nil, fmt.Errorf("%w: %d bytes long", errMalformed, size)
	case id != c.correlation:
		return nil, fmt.Errorf("%w: it belongs to request %d, %d was sent", errMalformed, id, c.correlation)
	}
	n := int(size) - 4
	if cap(c.in) < n {
		c.in = make([]byte, n)
	}
	c.in = c.in[:n]
	_, err := io.ReadFull(c, c.in)
	return c.in, err
}

// skipTags skips the tagged fields of a response header.
func skipTags(b []byte) ([]byte, error) {
	next := func() int {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > uint64(len(b)) {
			b = nil
			return -1
		}
		b = b[n:]
		return int(v)
	}
	for count := next(); count != 0; count-- {
		if count < 0 || next() < 0 {
			return nil, fmt.Errorf("%w: its header is cut short", errMalformed)
		}
		n := next()
		if n < 0 || n > len(b) {
			return nil, fmt.Errorf("%w: its header is cut short", errMalformed)
		}
		b = b[n:]
	}
	return b, nil
}
