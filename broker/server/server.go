package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/internal/quickio"
)

// Server accepts connections and serves their requests.
type Server struct {
	log     *slog.Logger
	cfg     Config
	handler Handler
	memory  *memory
	metrics *metrics
	writers sync.Pool // of *writer

	// clock is the janitor's time in nanoseconds. It is coarse, and free to read.
	clock atomic.Int64
	// logged counts what was logged, and what was not, since the janitor's last round.
	logged atomic.Int64

	stop     chan struct{} // closed by Shutdown
	stopOnce sync.Once
	running  sync.WaitGroup // accept loops and the janitor

	mu        sync.Mutex
	listeners []net.Listener
	conns     map[*Conn]struct{}
	perIP     map[string]int
	stopped   bool
	empty     chan struct{} // closed when stopped and the last connection is gone
}

// logsPerRound limits log lines about bad clients between two rounds of the janitor.
const logsPerRound = 10

// New returns a server that listens to nothing yet. Its metrics are registered
// with reg, which may be nil.
func New(log *slog.Logger, reg prometheus.Registerer, cfg Config, handler Handler) *Server {
	cfg = cfg.withDefaults()
	s := &Server{
		log:     log,
		cfg:     cfg,
		handler: handler,
		memory:  newMemory(cfg.RequestMemoryBytes, cfg.IdleMemoryBytes),
		metrics: newMetrics(reg, cfg.APIName),
		stop:    make(chan struct{}),
		conns:   map[*Conn]struct{}{},
		perIP:   map[string]int{},
		empty:   make(chan struct{}),
	}
	s.writers.New = func() any { return newWriter() }
	s.clock.Store(time.Now().UnixNano())
	return s
}

// Listen binds all addresses and returns them with the ports that were taken.
// Connections wait in the system's queue until Serve.
func (s *Server) Listen() ([]net.Addr, error) {
	var addrs []net.Addr
	for _, addr := range s.cfg.ListenAddrs {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			s.closeListeners()
			return nil, fmt.Errorf("listen: %w", err)
		}
		s.mu.Lock()
		s.listeners = append(s.listeners, l)
		s.mu.Unlock()
		addrs = append(addrs, l.Addr())
	}
	return addrs, nil
}

// Serve starts to accept connections and returns.
func (s *Server) Serve() {
	s.mu.Lock()
	listeners := s.listeners
	s.mu.Unlock()
	for i, l := range listeners {
		name := ""
		if i < len(s.cfg.ListenNames) {
			name = s.cfg.ListenNames[i]
		}
		s.running.Go(func() { s.accept(l, name) })
	}
	s.running.Go(s.janitor)
}

// Shutdown stops accepting connections and reading requests, and closes each
// connection when its last request has been answered. When ctx ends first, it
// closes the rest and returns the context's error. Waits that should not take
// their time must be ended by the Handler's owner.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.beginStop() {
		c.startDraining()
	}
	var err error
	select {
	case <-s.empty:
	case <-ctx.Done():
		err = fmt.Errorf("close connections: %w", ctx.Err())
		for _, c := range s.connections() {
			c.close()
		}
	}
	s.stopOnce.Do(func() { close(s.stop) })
	s.running.Wait()
	return err
}

func (s *Server) beginStop() []*Conn {
	s.closeListeners()
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		s.signalEmpty()
	}
	s.mu.Unlock()
	return s.connections()
}

// signalEmpty is called with s.mu held whenever stopped or conns changes.
func (s *Server) signalEmpty() {
	if !s.stopped || len(s.conns) > 0 {
		return
	}
	select {
	case <-s.empty:
	default:
		close(s.empty)
	}
}

func (s *Server) closeListeners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		_ = l.Close() // closing twice is an error, and harmless
	}
}

func (s *Server) connections() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}

// acceptRetryMax limits the pause after a failed accept, such as one for want
// of file descriptors.
const acceptRetryMax = time.Second

func (s *Server) accept(l net.Listener, name string) {
	pause := time.Duration(0)
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			s.admit(l.Addr().String(), name, nc)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			pause = min(max(2*pause, 5*time.Millisecond), acceptRetryMax)
			if s.mayLog() {
				s.log.Error("accept failed", "listener", l.Addr(), "error", err, "retry", pause)
			}
			if !s.pause(pause) {
				return
			}
		}
	}
}

// pause waits for d, and returns false if the server stops meanwhile.
func (s *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stop:
		return false
	}
}

// admit starts to serve nc if the limits allow.
func (s *Server) admit(listener, name string, nc net.Conn) {
	c := s.newConn(listener, name, nc)
	if reason := s.remember(c); reason != "" {
		s.metrics.refused.WithLabelValues(reason).Inc()
		if s.mayLog() {
			s.log.Warn("connection refused", "remote", c.remote, "listener", listener, "reason", reason)
		}
		c.cancel()
		_ = nc.Close() // it was never served
		return
	}
	go c.serve()
}

func (s *Server) newConn(listener, name string, nc net.Conn) *Conn {
	c := &Conn{srv: s, nc: nc, listener: listener, listenerName: name, slot: make(chan struct{}, 1)}
	c.clientID.Store(new(string))
	c.remote = nc.RemoteAddr().String()
	c.ip, _, _ = net.SplitHostPort(c.remote)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.done = c.ctx.Done()
	c.idleSince.Store(s.clock.Load())
	if tcp, ok := nc.(*net.TCPConn); ok {
		if s.cfg.SendBufferBytes > 0 {
			_ = tcp.SetWriteBuffer(s.cfg.SendBufferBytes) // refused: the kernel's own
		}
		c.raw, _ = tcp.SyscallConn() // fails only on a closed connection, which then fails to read
	}
	c.sock = quickio.NewSocket(nc)
	return c
}

// SetConnectionLimits replaces Config.MaxConnections and MaxConnectionsPerIP for
// the connections that come from now on; those that are open stay.
func (s *Server) SetConnectionLimits(all, perIP int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.MaxConnections, s.cfg.MaxConnectionsPerIP = all, perIP
}

// remember counts c in, or says which limit it would pass.
func (s *Server) remember(c *Conn) (reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return "shutdown"
	case len(s.conns) >= s.cfg.MaxConnections:
		return "max_connections"
	case s.cfg.MaxConnectionsPerIP > 0 && s.perIP[c.ip] >= s.cfg.MaxConnectionsPerIP:
		return "max_connections_per_ip"
	}
	s.conns[c] = struct{}{}
	s.perIP[c.ip]++
	s.metrics.connections.Inc()
	return ""
}

func (s *Server) forget(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	if s.perIP[c.ip]--; s.perIP[c.ip] == 0 {
		delete(s.perIP, c.ip)
	}
	s.metrics.connections.Dec()
	s.signalEmpty()
}

func (s *Server) janitor() {
	t := time.NewTicker(janitorInterval)
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			s.tidy(now)
		case <-s.stop:
			return
		}
	}
}

// tidy is one round of the janitor.
func (s *Server) tidy(now time.Time) {
	s.clock.Store(now.UnixNano())
	for _, c := range s.connections() {
		if err := c.overdue(now.UnixNano()); err != nil {
			c.fail(err)
		}
	}
	s.memory.trim()
	if n := s.logged.Swap(0); n > logsPerRound {
		s.log.Warn("log lines about connections left out", "count", n-logsPerRound)
	}
}

// mayLog tells whether one more line about a bad client may be logged now.
func (s *Server) mayLog() bool { return s.logged.Add(1) <= logsPerRound }

// overdue says which of its times the connection has exceeded.
func (c *Conn) overdue(now int64) error {
	if due := c.frameDue.Load(); due != 0 && now > due {
		return fmt.Errorf("%w: stopped in the middle", errFrame)
	}
	if due := c.writeDue.Load(); due != 0 && now > due {
		return fmt.Errorf("answers are not read for %v", c.srv.cfg.WriteTimeout)
	}
	if now-c.idleSince.Load() > int64(c.srv.cfg.IdleTimeout) && c.isIdle() {
		return fmt.Errorf("idle for %v: %w", c.srv.cfg.IdleTimeout, net.ErrClosed)
	}
	return nil
}

func (c *Conn) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight == 0 && c.frameDue.Load() == 0
}
