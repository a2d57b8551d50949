package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// steadySession is the session timeout of tests in which no session is to end.
const steadySession = 30 * time.Second

func sharedZooKeeper(t *testing.T) []string { return []string{testenv.ZooKeeper(t).Addr} }

// testLog shows what a store logs when its test fails.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func openZooKeeper(t *testing.T, cfg ZooKeeperConfig) *ZooKeeper {
	t.Helper()
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = steadySession
	}
	cfg.ConnectTimeout = patience
	z, err := OpenZooKeeper(t.Context(), testLog(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = z.Close() })
	return z
}

var chroots atomic.Int32

// newChroot makes an empty node for a test of its own.
func newChroot(t *testing.T, servers []string) string {
	t.Helper()
	z := openZooKeeper(t, ZooKeeperConfig{Servers: servers})
	chroot := fmt.Sprintf("/test-%d", chroots.Add(1))
	txn(t, z, Create(chroot, nil))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return chroot
}

// awaitConnected waits until a store has its connection, or has lost it.
func awaitConnected(t *testing.T, z *ZooKeeper, connected bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		z.mu.Lock()
		is, changed := z.lost.IsZero(), z.changed
		z.mu.Unlock()
		if is == connected {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("connected: %t after %s", is, patience)
		}
	}
}

// expire cuts a client off until its session has ended on the server, which
// another client sees by its node /mark.
func expire(t *testing.T, p *testenv.Proxy, s, other Store) {
	t.Helper()
	txn(t, s, CreateEphemeral("/mark", nil))
	gone := watch(t, other, "/mark", WatchData)
	p.Cut()
	await(t, gone, "the end of the session")
}

func TestZooKeeperSessionExpires(t *testing.T) {
	servers := sharedZooKeeper(t)
	chroot := newChroot(t, servers)
	other := openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: chroot})
	p := testenv.StartProxy(t, servers[0])
	z := openZooKeeper(t, ZooKeeperConfig{Servers: []string{p.Addr()}, Chroot: chroot, SessionTimeout: time.Second})
	session, err := z.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	txn(t, z, Create("/a", nil), Create("/n", []byte("1")))
	armed := watch(t, z, "/a", WatchData)
	expire(t, p, z, other)
	if isClosed(session.Ended) || isClosed(armed) {
		t.Error("the session is given up before the server has said so")
	}
	if z.Lost().IsZero() {
		t.Error("the loss is not told")
	}
	p.Flow()
	await(t, session.Ended, "the end of the session")
	await(t, armed, "the watch of the ended session")
	next, err := z.Session(t.Context())
	if err != nil || next.ID == session.ID || isClosed(next.Ended) {
		t.Errorf("%+v, %v", next, err)
	}
	if err := z.Txn(t.Context(), CreateEphemeral("/late", nil).In(session)); !errors.Is(err, ErrSessionEnded) {
		t.Errorf("an operation of the ended session: %v", err)
	}
	txn(t, z, CreateEphemeral("/mark", nil).In(next))
	armed = watch(t, z, "/a", WatchData)
	txn(t, other, Set("/a", nil, 0))
	await(t, armed, "a watch of the new session")
	if !z.Lost().IsZero() {
		t.Error("still lost")
	}
}

// What a controller had asked for when its connection stalled is not done after
// its session has ended, whether it says so itself or by the version it checks.
func TestZooKeeperQueuedWritesOfAnExpiredSession(t *testing.T) {
	servers := sharedZooKeeper(t)
	chroot := newChroot(t, servers)
	other := openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: chroot})
	p := testenv.StartProxy(t, servers[0])
	z := openZooKeeper(t, ZooKeeperConfig{Servers: []string{p.Addr()}, Chroot: chroot, SessionTimeout: time.Second})
	txn(t, z, Create("/epoch", []byte("1")), Create("/done", nil), CreateEphemeral("/controller", nil))
	vacant := watch(t, other, "/controller", WatchData)

	p.Stall()
	const queued = 40 // more than the client's queue holds
	results := make(chan error, queued)
	for i := range queued {
		go func() {
			results <- z.Txn(t.Context(), Check("/epoch", 0), Create(fmt.Sprintf("/done/%d", i), nil))
		}()
	}
	await(t, vacant, "the end of the session")
	txn(t, other, CreateEphemeral("/controller", nil), Set("/epoch", []byte("2"), 0))
	p.Flow()
	for range queued {
		if err := <-results; err == nil {
			t.Error("a queued write of an expired session was done")
		}
	}
	awaitConnected(t, z, true)
	// Those that fail before they are sent go out in the next session, where
	// only the version of the epoch stops them.
	err := z.Txn(t.Context(), Check("/epoch", 0), Create("/done/late", nil))
	var failed *TxnError
	if !errors.As(err, &failed) || failed.Index != 0 || !errors.Is(err, ErrBadVersion) {
		t.Errorf("%v", err)
	}
	children, err := other.Children(t.Context(), "/done")
	if err != nil || len(children) != 0 {
		t.Errorf("done all the same: %v, %v", children, err)
	}
}

func TestZooKeeperAwayAndBack(t *testing.T) {
	server := testenv.StartZooKeeper(t)
	const sessionTimeout = 9 * time.Second
	z := openZooKeeper(t, ZooKeeperConfig{Servers: []string{server.Addr}, SessionTimeout: sessionTimeout})
	session, err := z.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	txn(t, z, Create("/a", nil), CreateEphemeral("/e", nil))
	armed := watch(t, z, "/a", WatchData)
	server.Kill()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for what, err := range map[string]error{
		"a change": z.Txn(ctx, Set("/a", nil, 0)),
		"a read":   func() error { _, _, err := z.Get(ctx, "/a"); return err }(),
	} {
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), server.Addr) {
			t.Errorf("%s without ZooKeeper: %v", what, err)
		}
	}
	if took := time.Since(begun); took > sessionTimeout {
		t.Errorf("refused after %s", took)
	}
	if err := z.Txn(t.Context(), Set("/a", nil, 0)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a deadline: %v", err)
	}
	server.Restart(t)
	other := openZooKeeper(t, ZooKeeperConfig{Servers: []string{server.Addr}})
	txn(t, other, Set("/a", nil, 0))
	await(t, armed, "a watch that outlived the server")
	if _, stat, err := z.Get(t.Context(), "/e"); err != nil || stat.Owner != session.ID || isClosed(session.Ended) {
		t.Errorf("the session did not outlive the server: %+v, %v", stat, err)
	}
	txn(t, z, Set("/a", nil, 1))
}

// A server that takes connections and says nothing, as one does that hangs or is
// starting, costs the session a pause and no more.
func TestZooKeeperServerThatSaysNothing(t *testing.T) {
	server := sharedZooKeeper(t)[0]
	speaks, silent := testenv.StartProxy(t, server), testenv.StartProxy(t, server)
	z := openZooKeeper(t, ZooKeeperConfig{
		Servers: []string{speaks.Addr(), silent.Addr()}, Chroot: newChroot(t, []string{server}), SessionTimeout: 9 * time.Second,
	})
	session, err := z.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	z.mu.Lock()
	used := z.current.socket.RemoteAddr().String()
	z.mu.Unlock()
	if used == silent.Addr() { // the client takes them in any order
		speaks, silent = silent, speaks
	}
	silent.Mute()
	speaks.Cut()
	awaitConnected(t, z, false)
	speaks.Flow()
	awaitConnected(t, z, true)
	txn(t, z, Create("/a", nil))
	if isClosed(session.Ended) {
		t.Error("the session ended with a server that said nothing")
	}
}

// A broker that stops while ZooKeeper is away does not wait for it, nor does one
// that is stopped while it begins.
func TestZooKeeperClosesWithoutAServer(t *testing.T) {
	server := testenv.StartZooKeeper(t)
	z := openZooKeeper(t, ZooKeeperConfig{Servers: []string{server.Addr}, Auth: "sluice:secret"})
	armed := watch(t, z, "/a", WatchData)
	server.Kill()
	waiting := make(chan error, 1)
	go func() { waiting <- z.Txn(t.Context(), Create("/a", nil)) }()
	begun := time.Now()
	if err := z.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; err == nil {
		t.Error("a change was made without a server")
	}
	await(t, armed, "the watch of the closed store")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := OpenZooKeeper(ctx, testLog(t), ZooKeeperConfig{Servers: []string{server.Addr}, Auth: "sluice:secret"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("opened without a server: %v", err)
	}
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("it took %s", took)
	}
}

func TestZooKeeperEnsembleLosesItsLeader(t *testing.T) {
	ensemble := testenv.StartZooKeeperEnsemble(t)
	var servers []string
	for _, s := range ensemble {
		servers = append(servers, s.Addr)
	}
	z := openZooKeeper(t, ZooKeeperConfig{Servers: servers})
	session, err := z.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	txn(t, z, Create("/n", []byte("0")), Create("/other", nil), CreateEphemeral("/e", nil))
	armed := watch(t, z, "/other", WatchData)

	added := make(chan int)
	stop, cancel := context.WithCancel(t.Context())
	go func() { added <- addUntil(stop, z) }()
	killLeader(t, ensemble)
	begun := time.Now()
	other := openZooKeeper(t, ZooKeeperConfig{Servers: servers})
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := other.Txn(ctx, Set("/other", nil, 0))
		cancel()
		if err == nil || errors.Is(err, ErrBadVersion) { // uncertain, and done
			break
		}
		if time.Since(begun) > patience {
			t.Fatal(err)
		}
	}
	t.Logf("changes are taken again after %s", time.Since(begun).Round(time.Millisecond))
	await(t, armed, "a watch that outlived the leader")
	cancel()
	sure := <-added
	data, stat, err := z.Get(t.Context(), "/n")
	if err != nil || int(stat.Version) < sure {
		t.Errorf("%s in version %d, though %d changes were done, %v", data, stat.Version, sure, err)
	}
	if isClosed(session.Ended) {
		t.Error("the session ended with the leader")
	}
}

// addUntil changes /n until ctx ends and returns how many changes were acknowledged.
func addUntil(ctx context.Context, s Store) (sure int) {
	for ctx.Err() == nil {
		if err := s.Txn(ctx, Set("/n", nil, AnyVersion)); err == nil {
			sure++
		}
	}
	return sure
}

func TestZooKeeperAccess(t *testing.T) {
	servers := sharedZooKeeper(t)
	chroot := newChroot(t, servers)
	p := testenv.StartProxy(t, servers[0])
	owner := openZooKeeper(t, ZooKeeperConfig{Servers: []string{p.Addr()}, Chroot: chroot, Auth: "sluice:secret", ACL: true})
	txn(t, owner, Create(configPath, []byte("open")), Create(usersConfigPath, nil), Create(usersConfigPath+"/alice", []byte("x")))

	for name, auth := range map[string]string{"no credentials": "", "a wrong password": "sluice:guess"} {
		z := openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: chroot, Auth: auth})
		if data, _, err := z.Get(t.Context(), configPath); err != nil || string(data) != "open" {
			t.Errorf("with %s: %q, %v", name, data, err)
		}
		if _, _, err := z.Get(t.Context(), usersConfigPath+"/alice"); !errors.Is(err, ErrForbidden) {
			t.Errorf("a secret read with %s: %v", name, err)
		}
		for _, op := range []Op{Set(configPath, nil, 0), Create(configPath+"/x", nil), Delete(usersConfigPath+"/alice", 0)} {
			if err := z.Txn(t.Context(), op); !errors.Is(err, ErrForbidden) {
				t.Errorf("%+v with %s: %v", op, name, err)
			}
		}
	}
	// The client proves itself at each connection.
	p.Cut()
	p.Flow()
	if data, _, err := owner.Get(t.Context(), usersConfigPath+"/alice"); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	txn(t, owner, Set(configPath, nil, 0))
}

func TestZooKeeperRefusals(t *testing.T) {
	servers := sharedZooKeeper(t)
	nobody := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	for _, c := range []struct {
		cfg  ZooKeeperConfig
		want string
	}{
		{ZooKeeperConfig{}, "no ZooKeeper server"},
		{ZooKeeperConfig{Servers: servers, Chroot: "x"}, "to be like /sluice"},
		{ZooKeeperConfig{Servers: servers, Auth: "nobody"}, "user:password"},
		{ZooKeeperConfig{Servers: servers, ACL: true}, "takes credentials"},
		{ZooKeeperConfig{Servers: servers, Chroot: "/mistyped"}, "no node /mistyped: if the chroot is not misspelt"},
		{ZooKeeperConfig{Servers: []string{nobody}, ConnectTimeout: 300 * time.Millisecond}, nobody},
	} {
		begun := time.Now()
		z, err := OpenZooKeeper(t.Context(), testLog(t), c.cfg)
		if err == nil {
			_ = z.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%+v: refused after %s", c.cfg, took)
		}
	}
	root := openZooKeeper(t, ZooKeeperConfig{Servers: servers})
	if _, _, err := root.Get(t.Context(), "/mistyped"); !errors.Is(err, ErrNoNode) {
		t.Errorf("the missing chroot was made: %v", err)
	}
}

func TestZooKeeperTooLarge(t *testing.T) {
	servers := sharedZooKeeper(t)
	z := openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: newChroot(t, servers)})
	session, err := z.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The largest that is not refused is taken: the bound is not too wide.
	largest := zooKeeperTxnBytesMax - 2*zooKeeperOpBytes - 2*len(z.path("/a"))
	txn(t, z, Create("/a", nil), Set("/a", bytes.Repeat([]byte("x"), largest), 0))
	err = z.Txn(t.Context(), Create("/b", nil), Set("/b", bytes.Repeat([]byte("x"), largest+1), 0))
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if isClosed(session.Ended) {
		t.Error("the session ended")
	}
	if data, _, err := z.Get(t.Context(), "/a"); err != nil || len(data) != largest {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}
