package syslog

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sluice-io/sluice/agent/stream"
	"github.com/sluice-io/sluice/agent/tail"
)

// connection is one that messages are read from. When the server stops it is read for a moment more.
type connection struct {
	net.Conn
	idle time.Duration

	mu   sync.Mutex
	last bool // guarded by mu: the deadline stands
}

// extend puts the deadline off.
func (c *connection) extend() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last || c.idle == 0 {
		return nil
	}
	return c.SetReadDeadline(time.Now().Add(c.idle))
}

func (c *connection) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = true
	_ = c.SetReadDeadline(time.Now().Add(stopGrace)) // fails only when it is closed
}

// serveConn reads the messages of a connection to its end.
func (s *Server) serveConn(ctx context.Context, p *place, raw net.Conn, to stream.Taker) {
	c := &connection{Conn: raw, idle: s.cfg.IdleTimeout}
	defer func() { _ = c.Close() }() // it may be closed by the other side
	origin := originOf(p, raw.RemoteAddr())
	if p.Network == "tls" {
		var err error
		if c.Conn, err = s.handshake(ctx, raw); err != nil {
			s.log.Warn("a TLS connection was not made", "at", p.String(), "peer", origin.Name, "error", err)
			return
		}
	}
	stop := context.AfterFunc(ctx, c.finish)
	defer stop()
	if err := s.readConn(c, origin, to); errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		s.count.idle.Add(1)
	}
}

func (s *Server) handshake(ctx context.Context, raw net.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeMax)
	defer cancel()
	c := tls.Server(raw, s.cfg.TLS)
	return c, c.HandshakeContext(ctx)
}

// readConn hands messages over, and reads on when they are kept.
func (s *Server) readConn(c *connection, origin *stream.Origin, to stream.Taker) error {
	in := tail.NewStream(newFraming(s.cfg.MessageBytesMax))
	for {
		if err := c.extend(); err != nil {
			return err
		}
		_, err := in.Read(c)
		extent := tail.Whole
		if err != nil {
			extent = tail.All
		}
		o := stream.Offer{Origin: origin, More: in.Full()}
		for in.Next(&o.Chunk, extent) {
			if takeErr := to.Take(&o); takeErr != nil {
				return takeErr
			}
		}
		if err != nil {
			return err
		}
	}
}

// originOf is who sends: an address without its port, or the socket.
func originOf(p *place, addr net.Addr) *stream.Origin {
	peer := p.Address
	if host, _, err := net.SplitHostPort(addr.String()); err == nil && p.Network != "unix" {
		peer = host
	}
	return &stream.Origin{Name: peer, Headers: []stream.Header{{Key: headerPeer, Value: peer}}}
}
