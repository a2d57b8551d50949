package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// ZooKeeperConfig says where a cluster's ZooKeeper is and how to use it.
type ZooKeeperConfig struct {
	// Servers are its members, host:port or host (port 2181).
	Servers []string
	// Chroot is the node under which the cluster lives, such as /sluice; empty
	// is the root. It must exist.
	Chroot string
	// SessionTimeout is how long the session outlives the last sign of life of
	// this broker. Zero means 18 seconds. The server may impose limits.
	SessionTimeout time.Duration
	// ConnectTimeout is how long opening waits for a server. Zero means SessionTimeout.
	ConnectTimeout time.Duration
	// Auth is "user:password" of the digest scheme; empty: none.
	Auth string
	// ACL makes new nodes writable for Auth's user only. Others may read them,
	// but for those under /config/users, which hold secrets.
	ACL bool
}

const (
	defaultZooKeeperSessionTimeout = 18 * time.Second
	// zooKeeperPatience is the part of the session timeout for which an
	// operation waits for a lost connection, each time that it is lost, and a
	// session timeout in all. The change of an ensemble's leader takes less, and whoever waits for a change learns soon that none is possible.
	zooKeeperPatience = 3
	// zooKeeperTxnBytesMax is what a server takes in one request by default
	// (jute.maxbuffer, 1 MiB less a byte); it cuts the connection at more.
	zooKeeperTxnBytesMax = 1<<20 - 1
	// zooKeeperOpBytes bounds what an operation takes beside path and data:
	// headers, lengths, flags and access control.
	zooKeeperOpBytes = 256
)

// usersConfigPath holds secrets, which nobody but the brokers may read.
const usersConfigPath = configPath + "/users"

func (cfg ZooKeeperConfig) withDefaults() ZooKeeperConfig {
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = defaultZooKeeperSessionTimeout
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = cfg.SessionTimeout
	}
	cfg.Servers = zk.FormatServers(cfg.Servers)
	return cfg
}

func (cfg ZooKeeperConfig) check() error {
	if len(cfg.Servers) == 0 {
		return errors.New("no ZooKeeper server is given")
	}
	if cfg.Chroot != "" {
		if _, _, err := splitPath(cfg.Chroot); err != nil {
			return fmt.Errorf("ZooKeeper chroot: %w; it is to be like /sluice", err)
		}
	}
	if user, _, ok := strings.Cut(cfg.Auth, ":"); cfg.Auth != "" && (!ok || user == "") {
		return errors.New("ZooKeeper credentials are to be user:password")
	}
	if cfg.ACL && cfg.Auth == "" {
		return errors.New("access control of ZooKeeper nodes takes credentials, and none are given")
	}
	return nil
}

// ZooKeeper is the store of a cluster of several brokers.
//
// Each of its sessions has a client of its own. When a session has ended, its
// client never connects again, so that nothing that was queued in it can be
// done in the next session; and it is the server that says that a session has
// ended, so that a broker keeps its session, and its place, over any time in
// which all of ZooKeeper is away.
//
// A ZooKeeper is safe for concurrent use. Its lock is held for no I/O and taken
// after all others.
type ZooKeeper struct {
	log    *slog.Logger
	cfg    ZooKeeperConfig
	closed chan struct{} // closed by Close
	done   chan struct{} // closed when the last session has been left

	mu      sync.Mutex        // guards what follows, and the sessions' fields that say so
	current *zooKeeperSession // nil: none yet, or between two
	changed chan struct{}     // closed and replaced when it becomes usable or not
	lost    time.Time         // since when it is unusable; zero: it is usable
	lastErr error             // of the last attempt to connect
}

// OpenZooKeeper connects to ZooKeeper and begins a session. Errors name what is
// to be mended: no server reached, chroot missing, access denied.
func OpenZooKeeper(ctx context.Context, log *slog.Logger, cfg ZooKeeperConfig) (*ZooKeeper, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	z := &ZooKeeper{
		log: log, cfg: cfg,
		closed: make(chan struct{}), done: make(chan struct{}),
		changed: make(chan struct{}), lost: time.Now(),
	}
	go z.run()
	if err := z.checkChroot(ctx); err != nil {
		_ = z.Close()
		return nil, err
	}
	return z, nil
}

func (z *ZooKeeper) checkChroot(ctx context.Context) error {
	if _, err := z.await(ctx, z.cfg.ConnectTimeout); err != nil {
		return fmt.Errorf("open cluster store: %w", err)
	}
	_, _, err := z.Get(ctx, "/")
	if errors.Is(err, ErrNoNode) {
		return fmt.Errorf("open cluster store: ZooKeeper at %s has no node %s: if the chroot is not misspelt, "+
			"create it once with ZooKeeper's own tool: zkCli.sh -server %s create %s",
			z.servers(), z.cfg.Chroot, z.cfg.Servers[0], z.cfg.Chroot)
	}
	if err != nil {
		return fmt.Errorf("open cluster store: %w", err)
	}
	return nil
}

func (z *ZooKeeper) servers() string { return strings.Join(z.cfg.Servers, ",") }

// Close ends the session, and with it its ephemeral nodes.
func (z *ZooKeeper) Close() error {
	z.mu.Lock()
	if !z.isClosed() {
		close(z.closed)
	}
	z.mu.Unlock()
	<-z.done
	return nil
}

func (z *ZooKeeper) isClosed() bool {
	select {
	case <-z.closed:
		return true
	default:
		return false
	}
}

// Lost says since when ZooKeeper cannot be reached; the zero time: it can.
func (z *ZooKeeper) Lost() time.Time {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.lost
}

// Away says why ZooKeeper cannot be reached; nil: it can.
func (z *ZooKeeper) Away() error {
	if z.Lost().IsZero() {
		return nil
	}
	return z.unavailable(nil)
}

// run has one session after the other until the store is closed.
func (z *ZooKeeper) run() {
	defer close(z.done)
	for {
		s := newZooKeeperSession(z)
		s.serve()
		select {
		case <-z.closed:
			z.leave(s)
			return
		case <-s.ended:
			z.log.Warn("ZooKeeper session has expired, another begins", "session", sessionName(s.id))
			// It has nothing to say any more, but takes a while to notice.
			go s.conn.Close()
		}
	}
}

// leave ends the last session.
func (z *ZooKeeper) leave(s *zooKeeperSession) {
	s.conn.Close()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.endSession(s)
}

// notify wakes up those that wait for a usable session. The caller holds mu.
func (z *ZooKeeper) notify() {
	close(z.changed)
	z.changed = make(chan struct{})
}

// await returns the session once it is usable, if that takes no longer than patience.
func (z *ZooKeeper) await(ctx context.Context, patience time.Duration) (*zooKeeperSession, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		if err := ctx.Err(); err != nil {
			return nil, z.unavailable(err)
		}
		s, changed, err := z.usable()
		if s != nil || err != nil {
			return s, err
		}
		select {
		case <-changed:
		case <-z.closed:
			return nil, ErrStoreClosed
		case <-ctx.Done():
			return nil, z.unavailable(ctx.Err())
		case <-timer.C:
			return nil, z.unavailable(nil)
		}
	}
}

// usable returns the session if it is usable, and else what to wait for.
func (z *ZooKeeper) usable() (*zooKeeperSession, <-chan struct{}, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.isClosed() {
		return nil, nil, ErrStoreClosed
	}
	if z.lost.IsZero() {
		return z.current, nil, nil
	}
	return nil, z.changed, nil
}

// unavailable says why nothing can be asked.
func (z *ZooKeeper) unavailable(cause error) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if cause == nil {
		cause = z.lastErr
	}
	if errors.Is(cause, zk.ErrAuthFailed) {
		return fmt.Errorf("%w: ZooKeeper at %s refuses the credentials", ErrForbidden, z.servers())
	}
	err := fmt.Errorf("%w: no connection to ZooKeeper at %s", ErrUnavailable, z.servers())
	if !z.lost.IsZero() {
		err = fmt.Errorf("%w for %s", err, time.Since(z.lost).Round(time.Millisecond))
	}
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func (z *ZooKeeper) patience() time.Duration { return z.cfg.SessionTimeout / zooKeeperPatience }

// path is a node's path in ZooKeeper.
func (z *ZooKeeper) path(path string) string {
	if path == "/" && z.cfg.Chroot != "" {
		return z.cfg.Chroot
	}
	return z.cfg.Chroot + path
}

// read asks the session's server and asks again when the connection broke,
// which is harmless. It returns early when ctx ends.
func read[T any](ctx context.Context, z *ZooKeeper, what, path string, ask func(*zooKeeperSession) (T, error)) (T, error) {
	var none T
	until := time.Now().Add(z.cfg.SessionTimeout)
	for {
		s, err := z.await(ctx, z.patience())
		if err != nil {
			return none, fmt.Errorf("%s %s: %w", what, path, err)
		}
		v, err := waitFor(ctx, func() (T, error) { return ask(s) })
		if err == nil {
			return v, nil
		}
		if err := fromZooKeeper(err); !connectionBroke(err) || time.Now().After(until) || ctx.Err() != nil {
			return none, fmt.Errorf("%s %s: %w", what, path, err)
		}
	}
}

// waitFor calls ask, which knows no context, and does not wait for it any
// longer when ctx ends.
func waitFor[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		v, err := ask()
		answered <- answer{v, err}
	}()
	select {
	case a := <-answered:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

type zooKeeperNode struct {
	data []byte
	stat *zk.Stat
}

// Get implements [Store].
func (z *ZooKeeper) Get(ctx context.Context, path string) ([]byte, Stat, error) {
	n, err := read(ctx, z, "get", path, func(s *zooKeeperSession) (zooKeeperNode, error) {
		data, stat, err := s.conn.Get(z.path(path))
		return zooKeeperNode{data, stat}, err
	})
	if err != nil {
		return nil, Stat{}, err
	}
	return n.data, Stat{Version: n.stat.Version, Created: n.stat.Czxid, Owner: n.stat.EphemeralOwner}, nil
}

// Children implements [Store].
func (z *ZooKeeper) Children(ctx context.Context, path string) ([]string, error) {
	names, err := read(ctx, z, "children of", path, func(s *zooKeeperSession) ([]string, error) {
		names, _, err := s.conn.Children(z.path(path))
		return names, err
	})
	slices.Sort(names)
	return names, err
}

// Watch implements [Store]. The client arms its watches again when it connects
// to another server.
func (z *ZooKeeper) Watch(ctx context.Context, path string, kind WatchKind) (<-chan struct{}, error) {
	return read(ctx, z, "watch", path, func(s *zooKeeperSession) (<-chan struct{}, error) {
		return s.watch(watchKey{path, kind})
	})
}

// Session implements [Store].
func (z *ZooKeeper) Session(ctx context.Context) (Session, error) {
	s, err := z.await(ctx, z.patience())
	if err != nil {
		return Session{}, err
	}
	return Session{ID: s.id, Ended: s.ended}, nil
}

// Txn implements [Store]. What was not sent yet when the connection broke is
// sent again; what was is not, for it may have been applied.
func (z *ZooKeeper) Txn(ctx context.Context, ops ...Op) error {
	requests, err := z.requests(ops)
	if err != nil {
		return err
	}
	until := time.Now().Add(z.cfg.SessionTimeout)
	for {
		s, err := z.await(ctx, z.patience())
		if err != nil {
			return fmt.Errorf("change the cluster store: %w", err)
		}
		if err := checkSession(ops, s.id); err != nil {
			return err
		}
		err = s.multi(ctx, ops, requests)
		if !notSent(err) {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("change the cluster store: %w", z.unavailable(err))
		}
	}
}

// multi sends a transaction in the session.
func (s *zooKeeperSession) multi(ctx context.Context, ops []Op, requests []any) error {
	results, err := waitFor(ctx, func() ([]zk.MultiResponse, error) { return s.conn.Multi(requests...) })
	if err == nil {
		return nil
	}
	for i, r := range results {
		if r.Error != nil && i < len(ops) {
			return &TxnError{Index: i, Path: ops[i].Path, Err: fromZooKeeper(r.Error)}
		}
	}
	if notSent(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUncertain, fromZooKeeper(err))
}

// notSent tells that a transaction was not applied, and nothing is wrong with it.
func notSent(err error) bool {
	return errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrSessionMoved)
}

// requests turns operations into ZooKeeper's.
func (z *ZooKeeper) requests(ops []Op) ([]any, error) {
	out := make([]any, len(ops))
	size := 0
	for i, op := range ops {
		if _, _, err := splitPath(op.Path); err != nil {
			return nil, &TxnError{Index: i, Path: op.Path, Err: err}
		}
		path := z.path(op.Path)
		size += len(path) + len(op.Data) + zooKeeperOpBytes
		switch op.Kind {
		case OpCheck:
			out[i] = &zk.CheckVersionRequest{Path: path, Version: op.Version}
		case OpCreate:
			r := &zk.CreateRequest{Path: path, Data: op.Data, Acl: z.acl(op.Path)}
			if op.Ephemeral {
				r.Flags = zk.FlagEphemeral
			}
			out[i] = r
		case OpSet:
			out[i] = &zk.SetDataRequest{Path: path, Data: op.Data, Version: op.Version}
		case OpDelete:
			out[i] = &zk.DeleteRequest{Path: path, Version: op.Version}
		default:
			return nil, &TxnError{Index: i, Path: op.Path, Err: fmt.Errorf("unknown operation %d", op.Kind)}
		}
	}
	if size > zooKeeperTxnBytesMax {
		return nil, &TxnError{Index: len(ops) - 1, Path: ops[len(ops)-1].Path,
			Err: fmt.Errorf("%w: %d operations of up to %d bytes", ErrTooLarge, len(ops), size)}
	}
	return out, nil
}

// acl is the access control of a new node.
func (z *ZooKeeper) acl(path string) []zk.ACL {
	if !z.cfg.ACL {
		return zk.WorldACL(zk.PermAll)
	}
	acl := zk.AuthACL(zk.PermAll)
	if path == usersConfigPath || strings.HasPrefix(path, usersConfigPath+"/") {
		return acl
	}
	return append(acl, zk.WorldACL(zk.PermRead)...)
}

// fromZooKeeper gives ZooKeeper's errors their names in this package.
func fromZooKeeper(err error) error {
	for _, known := range []struct{ theirs, ours error }{
		{zk.ErrNoNode, ErrNoNode},
		{zk.ErrNodeExists, ErrNodeExists},
		{zk.ErrBadVersion, ErrBadVersion},
		{zk.ErrNotEmpty, ErrNotEmpty},
		{zk.ErrNoChildrenForEphemerals, ErrEphemeralParent},
	} {
		if errors.Is(err, known.theirs) {
			return known.ours
		}
	}
	if errors.Is(err, zk.ErrNoAuth) {
		return fmt.Errorf("%w: the credentials for ZooKeeper are not those of the user who made the node", ErrForbidden)
	}
	return err
}

// connectionBroke tells that an error is the connection's or the session's.
func connectionBroke(err error) bool {
	for _, broke := range []error{zk.ErrConnectionClosed, zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved, zk.ErrClosing, ErrSessionEnded} {
		if errors.Is(err, broke) {
			return true
		}
	}
	var netErr net.Error
	return errors.As(err, &netErr)
}
