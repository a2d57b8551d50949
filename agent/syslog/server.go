// Package syslog takes syslog messages over TCP, TLS, UDP and Unix sockets. It tells messages apart and says who sent them; what is in them
// is the stages' to find out.
package syslog

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/agent/stream"
)

const (
	// listenRetryAfter is the pause before an address that cannot be had is tried again.
	listenRetryAfter = time.Second
	// acceptRetryAfter is the pause after a connection that could not be accepted.
	acceptRetryAfter = 100 * time.Millisecond
	// stopGrace is how long connections are still read when the server stops: what has come is taken.
	stopGrace = 250 * time.Millisecond
	// handshakeMax bounds a TLS handshake.
	handshakeMax = 10 * time.Second
	// datagramBytesMax bounds the datagrams of an address that wait for the journal in memory.
	datagramBytesMax = 8 << 20
)

// headerPeer is the sender's address.
const headerPeer = "peer"

// Listen is a place to listen at: tcp, tls, udp, unix or unixgram, and host:port or a path.
type Listen struct{ Network, Address string }

// String is the place as a URL.
func (l Listen) String() string { return l.Network + "://" + l.Address }

// Config configures a Server.
type Config struct {
	Listen []Listen
	// MessageBytesMax cuts longer messages; 0 means 64 KiB.
	MessageBytesMax int
	// ConnectionsMax bounds the connections; 0 means 1,000. Those beyond are closed at once.
	ConnectionsMax int
	// IdleTimeout closes a connection on which nothing came; 0 means never.
	IdleTimeout time.Duration
	// ReceiveBuffer is what the system is asked to keep of datagrams, in bytes; 0 means its default.
	ReceiveBuffer int
	// SocketMode are the permissions of Unix sockets; 0 means 0666.
	SocketMode os.FileMode
	// TLS serves the tls addresses.
	TLS *tls.Config
	// OnListen is told each address that is listened at. May be nil.
	OnListen func(Listen, net.Addr)
}

// Server is a feed of syslog messages. Its methods are safe for concurrent use.
type Server struct {
	log *slog.Logger
	cfg Config

	places []*place
	open   atomic.Int64
	count  struct{ refused, idle atomic.Int64 }
}

// place is one address.
type place struct {
	Listen
	waiting stream.Waiting

	mu    sync.Mutex
	drops dropCounter // guarded by mu
}

// New makes a server. It does not listen before Run.
func New(log *slog.Logger, cfg Config) *Server {
	if cfg.MessageBytesMax == 0 {
		cfg.MessageBytesMax = 64 << 10
	}
	if cfg.ConnectionsMax == 0 {
		cfg.ConnectionsMax = 1000
	}
	if cfg.SocketMode == 0 {
		cfg.SocketMode = 0o666
	}
	s := &Server{log: log, cfg: cfg}
	for _, l := range cfg.Listen {
		p := &place{Listen: l}
		p.waiting.Begin(fmt.Errorf("not listening at %s yet", l))
		s.places = append(s.places, p)
	}
	return s
}

// Stats implements stream.Feed.
func (s *Server) Stats() stream.Stats {
	st := stream.Stats{Connections: s.open.Load(), Refused: s.count.refused.Load(), Idle: s.count.idle.Load()}
	for _, p := range s.places {
		if err := p.waiting.Get(); err != nil && st.Waiting == nil {
			st.Waiting = err
		}
		p.mu.Lock()
		st.KernelDrops += p.drops.total()
		p.mu.Unlock()
	}
	return st
}

// Run implements stream.Feed.
func (s *Server) Run(ctx context.Context, to stream.Taker) {
	var all sync.WaitGroup
	for _, p := range s.places {
		all.Go(func() { s.keep(ctx, p, to) })
	}
	all.Wait()
}

// keep listens at a place until ctx ends, however often that fails.
func (s *Server) keep(ctx context.Context, p *place, to stream.Taker) {
	serve := s.serveStream
	if p.Network == "udp" || p.Network == "unixgram" {
		serve = s.serveDatagrams
	}
	for ctx.Err() == nil {
		err := serve(ctx, p, to)
		if err == nil || ctx.Err() != nil {
			return
		}
		p.waiting.Set(s.log, "listen at "+p.String(), err)
		stream.Pause(ctx, listenRetryAfter)
	}
}

// listening notes that a place is listened at.
func (s *Server) listening(p *place, at net.Addr) {
	p.waiting.Set(s.log, "listen at "+p.String(), nil)
	s.log.Info("listening for syslog messages", "at", p.String(), "address", at.String())
	if s.cfg.OnListen != nil {
		s.cfg.OnListen(p.Listen, at)
	}
}

// serveStream accepts connections until ctx ends. The error says why it ended otherwise.
func (s *Server) serveStream(ctx context.Context, p *place, to stream.Taker) error {
	l, err := s.listenStream(p)
	if err != nil {
		return err
	}
	s.listening(p, l.Addr())
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept a connection: %w", err)
		case err != nil: // out of descriptors, or the other side is gone
			s.log.Warn("a connection could not be accepted", "at", p.String(), "error", err)
			stream.Pause(ctx, acceptRetryAfter)
			continue
		}
		if s.open.Add(1) > int64(s.cfg.ConnectionsMax) {
			s.open.Add(-1)
			s.count.refused.Add(1)
			_ = c.Close()
			continue
		}
		conns.Go(func() {
			defer s.open.Add(-1)
			s.serveConn(ctx, p, c, to)
		})
	}
}

func (s *Server) listenStream(p *place) (net.Listener, error) {
	if p.Network == "unix" {
		return listenUnix(p.Address, s.cfg.SocketMode)
	}
	l, err := net.Listen("tcp", p.Address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", p.Listen, err)
	}
	return l, nil
}
