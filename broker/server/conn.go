package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-io/sluice/internal/quickio"
)

// Conn is a client's connection. Its exported methods are safe for concurrent use.
type Conn struct {
	srv      *Server
	nc       net.Conn
	raw      syscall.RawConn // nil if nc is not plain TCP
	sock     *quickio.Socket // nc, by which all is read and written but file regions
	listener string

	listenerName string
	remote       string
	ip           string

	ctx      context.Context // ends with the connection
	cancel   context.CancelFunc
	done     <-chan struct{}
	software atomic.Pointer[software]

	// What the janitor looks at, in nanoseconds of Server.clock. 0: not so.
	frameDue  atomic.Int64 // when the frame that is being read is given up
	writeDue  atomic.Int64 // when the answer that is being written is given up
	idleSince atomic.Int64

	in       readBuffer             // used by the connection's goroutine only
	clientID atomic.Pointer[string] // of the last request

	slot chan struct{} // tells the reader that a request has left, when its buffer is full

	mu         sync.Mutex
	head, tail *Request // unanswered or unsent, in order of arrival
	inFlight   int
	handling   *Request // the request that is in Handle
	writing    bool     // a goroutine is in drain
	watching   bool     // the reader waits for a request to leave
	kicked     bool     // the read deadline was moved to wake the reader
	closed     bool
	draining   bool // no more requests are read; close when the last is answered
}

type software struct{ name, version string }

// RemoteAddr is the client's address.
func (c *Conn) RemoteAddr() string { return c.remote }

// Listener is the address that the client connected to.
func (c *Conn) Listener() string { return c.listener }

// ListenerName is the name of the listener, by which the client is told the
// addresses that it can reach; empty if it has none.
func (c *Conn) ListenerName() string { return c.listenerName }

// SetClientSoftware records what the client says of itself, for logs.
func (c *Conn) SetClientSoftware(name, version string) {
	c.software.Store(&software{name: name, version: version})
}

// ClientSoftware returns what SetClientSoftware recorded, empty if nothing.
func (c *Conn) ClientSoftware() (name, version string) {
	if s := c.software.Load(); s != nil {
		return s.name, s.version
	}
	return "", ""
}

// serve reads requests until the connection ends.
func (c *Conn) serve() {
	for {
		err := c.serveOne()
		if err == nil {
			continue
		}
		if c.stopReading(err) {
			return
		}
		c.fail(err)
		return
	}
}

func (c *Conn) serveOne() error {
	if err := c.awaitSlot(); err != nil {
		return err
	}
	r, err := c.readRequest()
	if err != nil {
		return err
	}
	if !c.begin(r) {
		r.ReleaseBody()
		return net.ErrClosed
	}
	c.srv.handler.Handle(r)
	c.handled()
	return nil
}

// stopReading tells whether err is only that the server is shutting down. If
// so, the connection closes with its last answer.
func (c *Conn) stopReading(err error) bool {
	c.mu.Lock()
	stop := c.draining && errors.Is(err, os.ErrDeadlineExceeded)
	empty := c.head == nil
	c.mu.Unlock()
	if stop && empty {
		c.close()
	}
	return stop
}

// begin puts r at the end of the queue.
func (c *Conn) begin(r *Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if c.tail == nil {
		c.head = r
	} else {
		c.tail.next = r
	}
	c.tail = r
	c.inFlight++
	c.handling = r
	return true
}

// handled writes what became ready while Handle ran.
func (c *Conn) handled() {
	c.mu.Lock()
	c.handling = nil
	start := c.startWriting()
	c.mu.Unlock()
	if start {
		c.drain()
	}
}

// startWriting makes the caller the writer if there is something to write and
// nobody writes. c.mu is held.
func (c *Conn) startWriting() bool {
	if c.writing || c.closed || c.head == nil || !c.head.ready {
		return false
	}
	c.writing = true
	return true
}

// answer takes the answer of r and sees to its writing.
func (c *Conn) answer(r *Request, resp Response, silent, mayBlock bool) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		resp.release()
		return
	}
	r.resp, r.silent, r.ready, r.onGone = resp, silent, true, nil
	// The connection's goroutine writes after Handle; that saves a goroutine
	// for every request that is answered at once.
	start := c.handling != r && c.startWriting()
	c.mu.Unlock()
	switch {
	case !start:
	case mayBlock:
		c.drain()
	default:
		go c.drain()
	}
}

func (c *Conn) onGone(r *Request, fn func()) {
	c.mu.Lock()
	gone := c.closed
	if !gone && !r.ready {
		r.onGone = fn
	}
	c.mu.Unlock()
	if gone {
		fn()
	}
}

// drain writes answers while the oldest request has one. Only one goroutine is
// in drain: the one that set writing.
func (c *Conn) drain() {
	w := c.srv.writers.Get().(*writer)
	w.reset(c)
	err := c.writeReady(w)
	w.reset(nil)
	c.srv.writers.Put(w)
	if err != nil {
		c.fail(err)
	}
}

func (c *Conn) writeReady(w *writer) error {
	for {
		r := c.nextReady(w.pending() == 0)
		if r == nil {
			if w.pending() == 0 {
				return nil
			}
			// What became ready meanwhile is written by another round.
			if err := w.flush(false); err != nil {
				return err
			}
			continue
		}
		err := c.write(w, r)
		r.resp.release()
		if err != nil {
			return err
		}
	}
}

func (c *Conn) write(w *writer, r *Request) error {
	c.srv.metrics.observe(r.Key, r.Received)
	if r.silent {
		return nil
	}
	return w.response(r.CorrelationID, &r.resp)
}

// nextReady takes the oldest request out of the queue if it is answered. If
// there is none and last is set, the caller is no longer the writer.
func (c *Conn) nextReady(last bool) *Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.head
	if c.closed || r == nil || !r.ready {
		if last {
			c.stopWriting()
		}
		return nil
	}
	c.head = r.next
	if c.head == nil {
		c.tail = nil
	}
	r.next = nil
	c.inFlight--
	c.wakeReader()
	return r
}

// stopWriting ends the role of the writer. c.mu is held.
func (c *Conn) stopWriting() {
	c.writing = false
	c.idleSince.Store(c.srv.clock.Load())
	if c.draining && c.head == nil && !c.closed {
		go c.close()
	}
}

// wakeReader tells a reader in awaitSlot that there is one. c.mu is held.
func (c *Conn) wakeReader() {
	if !c.watching {
		return
	}
	c.watching = false
	c.kick()
	select {
	case c.slot <- struct{}{}:
	default:
	}
}

// kick makes a blocked read return. c.mu is held.
func (c *Conn) kick() {
	c.kicked = true
	// The past is any fixed time that is not zero, which would mean no deadline.
	_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
}

// awaitSlot waits until another request may be read. Meanwhile it reads ahead
// into the connection's small buffer, to learn if the client goes.
func (c *Conn) awaitSlot() error {
	for {
		c.mu.Lock()
		free := c.inFlight < c.srv.cfg.MaxInFlight
		c.watching = !free
		if free {
			c.unkick()
		}
		c.mu.Unlock()
		if free {
			return nil
		}
		if err := c.watch(); err != nil {
			return err
		}
	}
}

// unkick allows reads again after kick, unless the server is shutting down.
// c.mu is held.
func (c *Conn) unkick() {
	if c.kicked && !c.draining {
		c.kicked = false
		_ = c.nc.SetReadDeadline(time.Time{}) // fails only on a closed connection
	}
}

// watch returns when a request has left, or with an error when the client has.
// When the buffer is full of further requests, it no longer sees the latter.
func (c *Conn) watch() error {
	if c.in.full() {
		select {
		case <-c.slot:
			return nil
		case <-c.done:
			return net.ErrClosed
		}
	}
	err := c.in.more(c.sock)
	if errors.Is(err, os.ErrDeadlineExceeded) && !c.isDraining() {
		return nil
	}
	return err
}

func (c *Conn) isDraining() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining
}

// startDraining ends the reading of requests.
func (c *Conn) startDraining() {
	c.mu.Lock()
	c.draining = true
	c.watching = false
	c.kick()
	c.mu.Unlock()
	select {
	case c.slot <- struct{}{}:
	default:
	}
}

// fail closes the connection for a reason, which is logged unless the
// connection has already ended or the client has just hung up.
func (c *Conn) fail(err error) {
	if !c.close() {
		return
	}
	name, version := c.ClientSoftware()
	args := []any{"remote", c.remote, "listener", c.listener, "client_id", *c.clientID.Load(),
		"software", name, "software_version", version, "error", err}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		c.srv.log.Debug("connection ended", args...)
		return
	}
	c.srv.metrics.failed.Inc()
	if c.srv.mayLog() {
		c.srv.log.Warn("connection closed", args...)
	}
}

// close ends the connection, gives up the answers that were not sent and tells
// the waits that their client has gone. It reports whether it was the first.
func (c *Conn) close() bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	c.closed = true
	queue := c.head
	c.head, c.tail = nil, nil
	c.mu.Unlock()

	c.cancel()
	_ = c.nc.Close() // nothing to be done about a connection that does not close
	c.srv.forget(c)
	for r := queue; r != nil; {
		// r may be answered by fn: read what is needed before.
		next, ready, fn := r.next, r.ready, r.onGone
		r.next, r.onGone = nil, nil
		if ready {
			r.resp.release()
		} else if fn != nil {
			fn()
		}
		r = next
	}
	return true
}
