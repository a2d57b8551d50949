package server

import (
	"io"
	"sync/atomic"
	"time"
)

// Handler starts requests.
type Handler interface {
	// Handle is called on the connection's own goroutine, for one request at a
	// time, in the order of arrival. It returns once the request has started:
	// what must happen before the next request of the connection may start has
	// happened. The answer may come later, from any goroutine. Every request
	// ends with exactly one call of Respond, RespondBlocking, NoResponse or Fail.
	Handle(*Request)
}

// Part is one piece of a response: bytes, or a region of a file. A file region
// on a plaintext TCP connection goes from the page cache to the socket without
// passing through this process when File is an *os.File and large enough.
type Part struct {
	// Bytes are sent as they are when File is nil. They must not change until
	// the response has left.
	Bytes []byte

	File io.ReaderAt
	Pos  int64
	Len  int

	// Release, if set, is called exactly once: after the part was sent, or
	// when it is given up because the connection has ended.
	Release func()
}

func (p *Part) size() int {
	if p.File != nil {
		return p.Len
	}
	return len(p.Bytes)
}

// Response is what follows the response header. The server adds the frame size
// and the header.
type Response struct {
	Parts []Part
	// Flexible selects response header version 1, which carries tagged fields.
	Flexible bool
}

func (r *Response) size() int {
	n := 0
	for i := range r.Parts {
		n += r.Parts[i].size()
	}
	return n
}

func (r *Response) release() {
	for i := range r.Parts {
		if release := r.Parts[i].Release; release != nil {
			r.Parts[i].Release = nil
			release()
		}
	}
}

// Request is one request of a connection. Its fields do not change after
// Handle was called; Body is valid until the request is answered or ReleaseBody
// is called. Its methods are safe for concurrent use.
type Request struct {
	Key, Version  int16
	CorrelationID int32
	ClientID      string
	// Body is what follows the request header.
	Body []byte
	// Sums are those of the frame's pieces that Config.Sums asked for, if any, and
	// BodyAt is where in the frame the body starts.
	Sums   []uint32
	BodyAt int
	Conn   *Conn
	// Received is when the whole request had been read.
	Received time.Time

	frame *frame         // what Body is part of; owned by bodyReleased's winner
	inner func(Response) // takes the answer of a request within another

	bodyReleased atomic.Bool
	answered     atomic.Bool

	// The following are guarded by Conn.mu.

	next   *Request // the request that came after this one
	ready  bool     // answered, waiting for its turn
	silent bool     // answered with nothing
	resp   Response
	onGone func() // called once if the client goes before the answer
}

// Respond answers the request and never blocks: the response is written by the
// connection's goroutine if the request is still in Handle, otherwise by one
// that is started for it. Responses leave in the order of their requests.
func (r *Request) Respond(resp Response) { r.finish(resp, false, false) }

// RespondBlocking answers like Respond, and writes on the calling goroutine
// when it is the request's turn. It may block for as long as the client is slow
// to read, so it is for goroutines that serve only this request.
func (r *Request) RespondBlocking(resp Response) { r.finish(resp, false, true) }

// NoResponse ends a request that the protocol gives no answer.
func (r *Request) NoResponse() { r.finish(Response{}, true, false) }

// Fail ends the request by closing its connection, which logs err once.
// Nothing more is sent, not even answers to earlier requests that were ready.
func (r *Request) Fail(err error) {
	if r.answered.Swap(true) {
		return
	}
	r.ReleaseBody()
	r.Conn.fail(err)
}

// ReleaseBody gives up Body before the answer, so that a request that waits
// does not hold its memory. The caller must keep no slice of it.
func (r *Request) ReleaseBody() {
	if r.bodyReleased.Swap(true) {
		return
	}
	f := r.frame
	r.frame, r.Body = nil, nil
	if f != nil {
		r.Conn.srv.memory.put(f)
	}
}

// Done is closed when the connection has ended.
func (r *Request) Done() <-chan struct{} { return r.Conn.done }

// OnGone arranges for fn to be called once, from any goroutine, if the
// connection ends before the request is answered; at once if it has ended.
// A request has room for one such function. It costs no goroutine while the
// request waits.
func (r *Request) OnGone(fn func()) {
	if r.inner == nil {
		r.Conn.onGone(r, fn)
	}
}

// Inner returns a request that came within r, on r's connection: answer is
// called with its answer, once, which is nothing for NoResponse. Body must stay
// as it is until then. It is not told of a client that has gone.
func (r *Request) Inner(key, version int16, clientID string, body []byte, answer func(Response)) *Request {
	return &Request{
		Key: key, Version: version, CorrelationID: r.CorrelationID, ClientID: clientID,
		Body: body, Conn: r.Conn, Received: r.Received, inner: answer,
	}
}

func (r *Request) finish(resp Response, silent, mayBlock bool) {
	if r.answered.Swap(true) {
		resp.release()
		return
	}
	r.ReleaseBody()
	if r.inner != nil {
		r.inner(resp)
		return
	}
	r.Conn.answer(r, resp, silent, mayBlock)
}
