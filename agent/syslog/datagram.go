package syslog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/sluice-io/sluice/agent/stream"
	"github.com/sluice-io/sluice/agent/tail"
)

const (
	// DropBacklog counts datagrams that came while those before them waited for the journal.
	DropBacklog = "backlog"
	// datagramMax is the largest datagram.
	datagramMax = 64 << 10
	// manyBytes of one sender are not worth the wait for those of others.
	manyBytes = 64 << 10
	// takersMax bounds the senders whose datagrams are handed over at a time.
	takersMax = 64
	// sendersMax bounds the senders that are remembered.
	sendersMax = 10_000
)

// queue holds datagrams by sender until they are handed over. Nobody can be held who sends them: what does not fit is dropped and counted.
type queue struct {
	bytesMax, messageMax int

	mu      sync.Mutex
	bytes   int               // guarded by mu
	senders map[string]*batch // guarded by mu
	filled  chan struct{}     // holds a token when there is something
	freed   chan struct{}     // holds a token when there is room again
}

func newQueue(bytesMax, messageMax int) *queue {
	return &queue{bytesMax: bytesMax, messageMax: messageMax, senders: map[string]*batch{}, filled: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// batch are datagrams of one sender.
type batch struct {
	origin  *stream.Origin
	data    []byte
	lines   []tail.Line
	skipped tail.Skipped
	base    int64
}

// add takes a datagram. It returns false when there is no room.
func (q *queue) add(sender string, origin func() *stream.Origin, p []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+len(p) > q.bytesMax {
		return false
	}
	b := q.senders[sender]
	if b == nil {
		b = &batch{origin: origin()}
		q.senders[sender] = b
	}
	if len(b.lines) == 0 {
		select {
		case q.filled <- struct{}{}:
		default:
		}
	}
	q.bytes += len(p)
	b.add(p, q.messageMax)
	return true
}

// add appends a message, cut at the limit.
func (b *batch) add(p []byte, messageMax int) {
	start := len(b.data)
	l := tail.Line{Start: uint32(start), Next: uint32(start + len(p))}
	text := trimmed(p)
	if len(text) > messageMax {
		b.skipped.TooLong += int64(len(p) - messageMax)
		b.skipped.Cuts++
		l.Cut, l.Next = true, uint32(start+messageMax)
		text, p = p[:messageMax], p[:messageMax]
	}
	b.data = append(b.data, p...)
	l.End = uint32(start + len(text))
	b.lines = append(b.lines, l)
}

// size is what the batch counts in bytes.
func (b *batch) size() int64 { return int64(len(b.data)) + b.skipped.Bytes() }

// takeAll empties the queue. What is taken counts until it is done.
func (q *queue) takeAll() (out []*batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for sender, b := range q.senders {
		if len(b.lines) == 0 {
			if len(q.senders) > sendersMax {
				delete(q.senders, sender)
			}
			continue
		}
		x := *b
		out = append(out, &x)
		b.base += x.size()
		b.data, b.lines, b.skipped = nil, nil, tail.Skipped{}
	}
	return out
}

func (q *queue) done(bytes int64) {
	q.mu.Lock()
	q.bytes -= int(bytes)
	q.mu.Unlock()
	select {
	case q.freed <- struct{}{}:
	default:
	}
}

// offer makes the batch a chunk.
func (b *batch) offer() *stream.Offer {
	o := &stream.Offer{Origin: b.origin, More: len(b.data) >= manyBytes}
	o.Chunk.Data, o.Chunk.Lines, o.Chunk.Skipped = b.data, b.lines, b.skipped
	o.Chunk.Base, o.Chunk.From, o.Chunk.End.Offset = b.base, b.base, b.base+b.size()
	return o
}

// serveDatagrams reads datagrams until ctx ends. The error says why it ended otherwise.
func (s *Server) serveDatagrams(ctx context.Context, p *place, to stream.Taker) error {
	c, err := s.listenDatagrams(p)
	if err != nil {
		return err
	}
	s.listening(p, c.LocalAddr())
	p.watchDrops(c)
	q := newQueue(datagramBytesMax, s.cfg.MessageBytesMax)
	read := make(chan struct{})
	var handing sync.WaitGroup
	handing.Go(func() { q.hand(to, read) })
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(aMomentAgo) })
	defer stop()
	err = readDatagrams(ctx, p, c, q, to)
	p.closeDrops()
	err = errors.Join(err, c.Close())
	close(read)
	handing.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func readDatagrams(ctx context.Context, p *place, c net.PacketConn, q *queue, to stream.Taker) error {
	buf := make([]byte, datagramMax)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a datagram: %w", err)
		}
		if n == 0 {
			continue
		}
		sender := senderOf(from)
		origin := func() *stream.Origin { return datagramOrigin(p, sender) }
		taken := q.add(sender, origin, buf[:n])
		for !taken && p.Network == "unixgram" && ctx.Err() == nil { // its sender can be held
			select {
			case <-q.freed:
			case <-ctx.Done():
			}
			taken = q.add(sender, origin, buf[:n])
		}
		if !taken {
			to.Drop(DropBacklog, 1, int64(n))
		}
	}
}

// senderOf is a sender's address without its port; "" where there is none.
func senderOf(from net.Addr) string {
	if u, ok := from.(*net.UDPAddr); ok {
		return u.AddrPort().Addr().Unmap().String()
	}
	return ""
}

func datagramOrigin(p *place, sender string) *stream.Origin {
	if sender == "" {
		sender = p.Address
	}
	return &stream.Origin{Name: sender, Headers: []stream.Header{{Key: headerPeer, Value: sender}}}
}

// hand hands over what the queue holds until nothing is read any more, and then the rest.
func (q *queue) hand(to stream.Taker, read <-chan struct{}) {
	for over := false; !over; {
		select {
		case <-q.filled:
		case <-read:
			over = true
		}
		var takers sync.WaitGroup
		limit := make(chan struct{}, takersMax)
		for _, b := range q.takeAll() {
			limit <- struct{}{}
			takers.Go(func() {
				_ = to.Take(b.offer()) // when nothing is taken any more the reading ends too
				q.done(b.size())
				<-limit
			})
		}
		takers.Wait()
	}
}

func (s *Server) listenDatagrams(p *place) (net.PacketConn, error) {
	if p.Network == "unixgram" {
		return listenUnixgram(p.Address, s.cfg.SocketMode)
	}
	c, err := net.ListenPacket("udp", p.Address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", p.Listen, err)
	}
	if u, ok := c.(*net.UDPConn); ok && s.cfg.ReceiveBuffer > 0 {
		s.setBuffer(p, u)
	}
	return c, nil
}

// setBuffer asks for a receive buffer, and says when the system grants less.
func (s *Server) setBuffer(p *place, c *net.UDPConn) {
	if err := c.SetReadBuffer(s.cfg.ReceiveBuffer); err != nil {
		s.log.Warn("the receive buffer cannot be set", "at", p.String(), "error", err)
		return
	}
	if granted := receiveBuffer(c); granted > 0 && granted < s.cfg.ReceiveBuffer {
		s.log.Warn("the system keeps fewer datagrams than asked for; raise net.core.rmem_max", "at", p.String(), "bytes", granted, "asked", s.cfg.ReceiveBuffer)
	}
}
