package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// zooKeeperSession is one session and the client that has it. The store's lock
// guards the fields that say so.
type zooKeeperSession struct {
	z     *ZooKeeper
	conn  *zk.Conn
	ended chan struct{} // closed when the server has said that the session has ended

	id        int64         // set once it is current, under the store's lock
	connected chan struct{} // closed at the first connection

	// Guarded by the store's lock.
	over    bool // it has ended, or is being left: it must not connect again
	ready   bool // it has authenticated itself
	up      bool // it is connected
	watches map[watchKey]chan struct{}
	socket  net.Conn
	silent  *time.Timer // closes the socket unless the server takes the session up
}

func newZooKeeperSession(z *ZooKeeper) *zooKeeperSession {
	return &zooKeeperSession{
		z: z, ended: make(chan struct{}), connected: make(chan struct{}),
		watches: map[watchKey]chan struct{}{},
	}
}

// serve begins the session and returns when it has ended or the store is closed.
func (s *zooKeeperSession) serve() {
	z := s.z
	conn, _, err := zk.Connect(z.cfg.Servers, z.cfg.SessionTimeout,
		zk.WithDialer(s.dial), zk.WithEventCallback(s.event), zk.WithHostProvider(&zooKeeperHosts{}),
		zk.WithLogger(zooKeeperLog{z.log}), zk.WithLogInfo(false))
	if err != nil { // it fails only on what OpenZooKeeper has checked
		panic(fmt.Sprintf("connect to ZooKeeper: %v", err))
	}
	s.conn = conn
	select {
	case <-s.connected:
		s.begin()
	case <-s.ended:
		return
	case <-z.closed:
		return
	}
	select {
	case <-s.ended:
	case <-z.closed:
	}
}

// begin authenticates the session, as often as its connection breaks meanwhile,
// and makes it the store's. The client does it again at each reconnection.
func (s *zooKeeperSession) begin() {
	z := s.z
	for z.cfg.Auth != "" {
		err := s.conn.AddAuth("digest", []byte(z.cfg.Auth))
		if err == nil {
			break
		}
		z.mu.Lock()
		z.lastErr = fmt.Errorf("authenticate: %w", err)
		z.mu.Unlock()
		if s.isOver() || z.isClosed() || !connectionBroke(err) {
			return
		}
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if s.over {
		return
	}
	s.id, s.ready = s.conn.SessionID(), true
	z.current = s
	z.log.Info("ZooKeeper session has begun", "servers", z.servers(), "session", sessionName(s.id))
	z.setUsable(s.up)
}

// event follows the client's state. It is called by the client's own goroutine,
// between its steps, and must not wait for it.
func (s *zooKeeperSession) event(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	z := s.z
	z.mu.Lock()
	defer z.mu.Unlock()
	if s.silent != nil && e.State != zk.StateConnected {
		s.silent.Stop()
	}
	switch e.State {
	case zk.StateHasSession:
		s.up = true
		select {
		case <-s.connected:
		default:
			close(s.connected)
		}
	case zk.StateExpired:
		z.endSession(s)
		return
	case zk.StateDisconnected:
		s.up = false
	default:
		return
	}
	if s.ready && !s.over {
		if s.up {
			z.log.Info("connection to ZooKeeper is back", "after", time.Since(z.lost).Round(time.Millisecond))
		}
		z.setUsable(s.up)
	}
}

// endSession ends s: its client does not connect again, and all that waited for
// something in it look again. The caller holds mu.
func (z *ZooKeeper) endSession(s *zooKeeperSession) {
	if s.over {
		return
	}
	s.over = true
	for _, ch := range s.watches {
		close(ch)
	}
	s.watches = nil
	if s.socket != nil {
		_ = s.socket.Close()
	}
	close(s.ended)
	if z.current == s {
		z.current = nil
	}
	z.setUsable(false)
}

// setUsable notes whether there is a session to ask in. The caller holds mu.
func (z *ZooKeeper) setUsable(usable bool) {
	switch {
	case usable && !z.lost.IsZero():
		z.lost, z.lastErr = time.Time{}, nil
		z.notify()
	case !usable && z.lost.IsZero():
		z.lost = time.Now()
		if !z.isClosed() {
			z.log.Warn("connection to ZooKeeper is lost: nothing is changed in the cluster until it is back", "servers", z.servers())
		}
		z.notify()
	}
}

// dial connects to a server, unless the session is over: the client would begin
// another with it.
func (s *zooKeeperSession) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	z := s.z
	if s.isOver() {
		return nil, ErrSessionEnded
	}
	conn, err := net.DialTimeout(network, address, timeout)
	z.mu.Lock()
	defer z.mu.Unlock()
	if err != nil {
		z.lastErr = err
		return nil, err
	}
	if s.over {
		_ = conn.Close()
		return nil, ErrSessionEnded
	}
	s.socket = conn
	s.silent = time.AfterFunc(s.answerTimeout(), func() { _ = conn.Close() })
	return conn, nil
}

// answerTimeout is how long a server that took the connection may take to take
// up the session, for which the client itself waits several session timeouts: a
// server that hangs must leave the session time to be kept on another. To begin
// one is a change, which a slow disk may delay.
func (s *zooKeeperSession) answerTimeout() time.Duration {
	if s.id == 0 {
		return s.z.cfg.SessionTimeout
	}
	return s.z.patience() / time.Duration(len(s.z.cfg.Servers))
}

func (s *zooKeeperSession) isOver() bool {
	s.z.mu.Lock()
	defer s.z.mu.Unlock()
	return s.over
}

// watch arms a watch, or returns the one that is armed already.
func (s *zooKeeperSession) watch(key watchKey) (<-chan struct{}, error) {
	if ch, err := s.armed(key); ch != nil || err != nil {
		return ch, err
	}
	events, err := s.arm(key)
	if err != nil {
		return nil, err
	}
	ch := make(chan struct{})
	s.z.mu.Lock()
	defer s.z.mu.Unlock()
	if s.over {
		return nil, ErrSessionEnded
	}
	if other, ok := s.watches[key]; ok { // armed meanwhile; the server fires both
		return other, nil
	}
	s.watches[key] = ch
	go s.follow(key, ch, events)
	return ch, nil
}

func (s *zooKeeperSession) armed(key watchKey) (<-chan struct{}, error) {
	s.z.mu.Lock()
	defer s.z.mu.Unlock()
	if s.over {
		return nil, ErrSessionEnded
	}
	if ch, ok := s.watches[key]; ok {
		return ch, nil
	}
	return nil, nil
}

func (s *zooKeeperSession) arm(key watchKey) (events <-chan zk.Event, err error) {
	path := s.z.path(key.path)
	if key.kind == WatchChildren {
		_, _, events, err = s.conn.ChildrenW(path)
	} else {
		_, _, events, err = s.conn.ExistsW(path)
	}
	return events, err
}

// follow waits for a watch's one event, which comes at the latest with the end
// of the client.
func (s *zooKeeperSession) follow(key watchKey, ch chan struct{}, events <-chan zk.Event) {
	<-events
	s.z.mu.Lock()
	defer s.z.mu.Unlock()
	if s.watches[key] == ch {
		delete(s.watches, key)
		close(ch)
	}
}

// zooKeeperHosts goes round the servers. Unlike the client's own it pauses only
// after all of them have failed, and leaves names to be resolved at each
// connection, since addresses change.
type zooKeeperHosts struct {
	mu      sync.Mutex // guards what follows
	servers []string
	next    int
	failed  int // since the last success
}

// Init implements [zk.HostProvider].
func (h *zooKeeperHosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

// Len implements [zk.HostProvider].
func (h *zooKeeperHosts) Len() int { return len(h.servers) }

// Next implements [zk.HostProvider].
func (h *zooKeeperHosts) Next() (server string, pause bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.servers[h.next]
	h.next = (h.next + 1) % len(h.servers)
	if h.failed == len(h.servers) {
		h.failed, pause = 0, true
	}
	h.failed++
	return server, pause
}

// Connected implements [zk.HostProvider].
func (h *zooKeeperHosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = 0
}

// zooKeeperLog has what the client says, which is of use only to who looks for
// a fault in the connection itself.
type zooKeeperLog struct{ log *slog.Logger }

func (l zooKeeperLog) Printf(format string, args ...any) {
	l.log.Debug("ZooKeeper client: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func sessionName(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }
