package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// patience bounds the wait for what a store does by itself, on a busy machine.
const patience = time.Minute

// testedStore is one kind of store: open returns a client of a new empty tree,
// again one more client of the same tree, nil where there can be no other.
type testedStore struct {
	name  string
	open  func(t *testing.T) Store
	again func(t *testing.T) Store
}

// stores are all kinds. The tree that again speaks of is that of the last open.
func stores() []testedStore {
	var memory *Memory
	var servers []string
	var chroot string
	return []testedStore{
		{"embedded", func(t *testing.T) Store { return openStore(t, t.TempDir()) }, nil},
		{"memory",
			func(t *testing.T) Store { memory = NewMemory(); return memory.Open() },
			func(*testing.T) Store { return memory.Open() }},
		{"zookeeper",
			func(t *testing.T) Store {
				servers, chroot = sharedZooKeeper(t), newChroot(t, sharedZooKeeper(t))
				return openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: chroot})
			},
			func(t *testing.T) Store {
				return openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: chroot})
			}},
	}
}

func eachStore(t *testing.T, test func(t *testing.T, kind testedStore)) {
	for _, kind := range stores() {
		t.Run(kind.name, func(t *testing.T) { test(t, kind) })
	}
}

// storeTests are what every store has to pass.
func storeTests() map[string]func(*testing.T, testedStore) {
	return map[string]func(*testing.T, testedStore){
		"transactions":       storeTransactions,
		"large transactions": storeTakesLargeTransactions,
		"watches":            watchesFireOnceOnChange,
		"repeated watches":   watchesDoNotPileUp,
		"sessions":           sessionOwnsItsNodes,
		"compare and set":    storeComparesAndSets,
	}
}

func TestStores(t *testing.T) {
	for name, test := range storeTests() {
		t.Run(name, func(t *testing.T) { eachStore(t, test) })
	}
}

// The same with an ensemble that has lost its leader.
func TestStoreOfAnEnsembleWithoutItsLeader(t *testing.T) {
	ensemble := testenv.StartZooKeeperEnsemble(t)
	var servers []string
	for _, s := range ensemble {
		servers = append(servers, s.Addr)
	}
	killLeader(t, ensemble)
	var chroot string
	another := func(t *testing.T) Store {
		return openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: chroot})
	}
	kind := testedStore{"ensemble", func(t *testing.T) Store {
		chroot = newChroot(t, servers)
		return another(t)
	}, another}
	for name, test := range storeTests() {
		t.Run(name, func(t *testing.T) { test(t, kind) })
	}
}

func killLeader(t *testing.T, ensemble []*testenv.ZooKeeperServer) {
	t.Helper()
	for _, s := range ensemble {
		if mode, err := s.Mode(t.Context()); err == nil && mode == "leader" {
			s.Kill()
			return
		}
	}
	t.Fatal("the ensemble has no leader")
}

func txn(t *testing.T, s Store, ops ...Op) {
	t.Helper()
	if err := s.Txn(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
}

// listing is the tree below path as text, without what differs between stores.
func listing(t *testing.T, s Store, path string) string {
	t.Helper()
	data, stat, err := s.Get(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	children, err := s.Children(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s %q v%d\n", path, data, stat.Version)
	for _, child := range children {
		out.WriteString(listing(t, s, strings.TrimSuffix(path, "/")+"/"+child))
	}
	return out.String()
}

func watch(t *testing.T, s Store, path string, kind WatchKind) <-chan struct{} {
	t.Helper()
	ch, err := s.Watch(t.Context(), path, kind)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// await fails the test unless ch is closed soon.
func await(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
	}
}

func storeTransactions(t *testing.T, kind testedStore) {
	s := kind.open(t)
	txn(t, s, Create("/a", []byte("1")), Create("/a/b", nil), Set("/a", []byte("2"), 0), Create("/a/a", []byte("x")))
	data, stat, err := s.Get(t.Context(), "/a")
	if err != nil || string(data) != "2" || stat.Version != 1 || stat.Owner != 0 {
		t.Errorf("%q %+v %v", data, stat, err)
	}
	children, err := s.Children(t.Context(), "/a")
	if err != nil || fmt.Sprint(children) != "[a b]" {
		t.Errorf("%v %v", children, err)
	}
	before := listing(t, s, "/a")
	for _, c := range []struct {
		ops  []Op
		want error
	}{
		{[]Op{Create("/x", nil), Create("/a", nil)}, ErrNodeExists},
		{[]Op{Create("/x", nil), Set("/a", nil, 0)}, ErrBadVersion},
		{[]Op{Create("/x", nil), Check("/a", 7)}, ErrBadVersion},
		{[]Op{Check("/a", 7), Create("/x", nil)}, ErrBadVersion},
		{[]Op{Create("/x", nil), Delete("/a", AnyVersion)}, ErrNotEmpty},
		{[]Op{Delete("/a/b", AnyVersion), Delete("/nowhere", AnyVersion)}, ErrNoNode},
		{[]Op{Create("/no/parent", nil)}, ErrNoNode},
		{[]Op{CreateEphemeral("/e", nil), Create("/e/child", nil)}, ErrEphemeralParent},
		{[]Op{Create("/x", nil), Check("/nowhere", AnyVersion)}, ErrNoNode},
	} {
		bad := len(c.ops) - 1
		if c.ops[0].Kind == OpCheck {
			bad = 0
		}
		err := s.Txn(t.Context(), c.ops...)
		var failed *TxnError
		if !errors.Is(err, c.want) || !errors.As(err, &failed) || failed.Index != bad || failed.Path != c.ops[bad].Path {
			t.Errorf("%v: %v, want %v", c.ops, err, c.want)
		}
	}
	for _, path := range []string{"", "a", "/", "//a", "/a/", "/a//b"} {
		if s.Txn(t.Context(), Create(path, nil)) == nil {
			t.Errorf("%q was made", path)
		}
	}
	if after := listing(t, s, "/a"); after != before {
		t.Errorf("a failed transaction left\n%s, before\n%s", after, before)
	}
	for _, path := range []string{"/x", "/e"} {
		if _, _, err := s.Get(t.Context(), path); !errors.Is(err, ErrNoNode) {
			t.Errorf("%s after a failed transaction: %v", path, err)
		}
	}
	if _, err := s.Children(t.Context(), "/nowhere"); !errors.Is(err, ErrNoNode) {
		t.Errorf("%v", err)
	}
}

// A transaction as large as the controller's largest is taken whole.
func storeTakesLargeTransactions(t *testing.T, kind testedStore) {
	s := kind.open(t)
	ops := []Op{Create("/a", nil)}
	for i := range txnOpsMax {
		ops = append(ops, Create("/a/"+strconv.Itoa(i), bytes.Repeat([]byte("x"), 1000)))
	}
	txn(t, s, ops...)
	children, err := s.Children(t.Context(), "/a")
	if err != nil || len(children) != txnOpsMax {
		t.Errorf("%d children, %v", len(children), err)
	}
}

func watchesFireOnceOnChange(t *testing.T, kind testedStore) {
	s := kind.open(t)
	txn(t, s, Create("/a", nil))
	data, children, absent := watch(t, s, "/a", WatchData), watch(t, s, "/a", WatchChildren), watch(t, s, "/a/b", WatchData)
	txn(t, s, Check("/a", 0))
	if isClosed(data) || isClosed(children) || isClosed(absent) {
		t.Error("a check fires a watch")
	}
	txn(t, s, Create("/a/b", nil))
	await(t, children, "the watch of the children")
	await(t, absent, "the watch of the node to come")
	if isClosed(data) {
		t.Error("a child fires the watch of its parent's data")
	}
	txn(t, s, Set("/a", nil, AnyVersion))
	await(t, data, "the watch of the data")
	data = watch(t, s, "/a/b", WatchData)
	gone := watch(t, s, "/a/b", WatchChildren)
	txn(t, s, Delete("/a/b", AnyVersion))
	await(t, gone, "the watch of the children of a deleted node")
	await(t, data, "the watch of a deleted node")
	if _, err := s.Watch(t.Context(), "/nowhere", WatchChildren); !errors.Is(err, ErrNoNode) {
		t.Errorf("watching the children of nothing: %v", err)
	}
}

// A watch that is armed again before it has fired is the same one: whoever looks
// at two things arms both each time one has changed.
func watchesDoNotPileUp(t *testing.T, kind testedStore) {
	s := kind.open(t)
	txn(t, s, Create("/a", nil))
	first := watch(t, s, "/a", WatchData)
	for range 100 {
		if watch(t, s, "/a", WatchData) != first {
			t.Fatal("another watch")
		}
	}
	txn(t, s, Set("/a", nil, 0))
	await(t, first, "the watch")
	if second := watch(t, s, "/a", WatchData); second == first {
		t.Error("a watch that has fired is given out again")
	}
}

func sessionOwnsItsNodes(t *testing.T, kind testedStore) {
	s := kind.open(t)
	session, err := s.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	txn(t, s, CreateEphemeral("/first", nil).In(session), CreateEphemeral("/e", nil), Create("/stays", nil))
	_, first, err := s.Get(t.Context(), "/e")
	if err != nil || first.Owner != session.ID {
		t.Errorf("%+v, %v; the session is %d", first, err, session.ID)
	}
	txn(t, s, Delete("/e", 0))
	txn(t, s, CreateEphemeral("/e", nil))
	if _, second, err := s.Get(t.Context(), "/e"); err != nil || second.Created <= first.Created {
		t.Errorf("created at %d, and before at %d, %v", second.Created, first.Created, err)
	}
	other := Session{ID: session.ID + 1}
	if err := s.Txn(t.Context(), Create("/x", nil), Check("/stays", 0).In(other)); !errors.Is(err, ErrSessionEnded) {
		t.Errorf("an operation of another session: %v", err)
	}
	if _, _, err := s.Get(t.Context(), "/x"); !errors.Is(err, ErrNoNode) {
		t.Errorf("of another session: %v", err)
	}

	last := watch(t, s, "/stays", WatchData)
	var gone <-chan struct{}
	var another Store
	if kind.again != nil {
		another = kind.again(t)
		gone = watch(t, another, "/e", WatchData)
	}
	if err := s.(interface{ Close() error }).Close(); err != nil {
		t.Fatal(err)
	}
	if !isClosed(last) || !isClosed(session.Ended) {
		t.Error("closing does not end the session")
	}
	if _, _, err := s.Get(t.Context(), "/stays"); !errors.Is(err, ErrStoreClosed) {
		t.Errorf("%v", err)
	}
	if err := s.Txn(t.Context(), Create("/x", nil)); !errors.Is(err, ErrStoreClosed) {
		t.Errorf("%v", err)
	}
	if another != nil {
		await(t, gone, "the end of an ephemeral node")
		if got := listing(t, another, "/stays"); got != "/stays \"\" v0\n" {
			t.Error(got)
		}
		for _, path := range []string{"/first", "/e"} {
			if _, _, err := another.Get(t.Context(), path); !errors.Is(err, ErrNoNode) {
				t.Errorf("%s after its session: %v", path, err)
			}
		}
	}
}

// Many who add to one number, each by the version that it read, lose no addition.
func storeComparesAndSets(t *testing.T, kind testedStore) {
	const writers, additions = 4, 15
	s := kind.open(t)
	txn(t, s, Create("/n", []byte("0")))
	clients := []Store{s}
	if kind.again != nil {
		clients = append(clients, kind.again(t))
	}
	counts := make([]addCount, writers)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() { counts[w] = addByVersion(t.Context(), clients[w%len(clients)], additions) })
	}
	all.Wait()
	var sum addCount
	for _, c := range counts {
		sum.sure, sum.unsure = sum.sure+c.sure, sum.unsure+c.unsure
		if c.err != nil {
			t.Error(c.err)
		}
	}
	data, stat, err := s.Get(t.Context(), "/n")
	if version := int(stat.Version); err != nil || string(data) != strconv.Itoa(version) || version < sum.sure || version > sum.sure+sum.unsure {
		t.Errorf("%s in version %d after %d additions and %d that are uncertain, %v", data, version, sum.sure, sum.unsure, err)
	}
}

// addCount is how many additions were acknowledged, and of how many the answer
// was lost, as an ensemble on a busy machine may lose it.
type addCount struct {
	sure, unsure int
	err          error
}

func addByVersion(ctx context.Context, s Store, times int) (c addCount) {
	for c.sure+c.unsure < times && c.err == nil {
		err := addOnce(ctx, s)
		switch {
		case err == nil:
			c.sure++
		case errors.Is(err, ErrUncertain):
			c.unsure++
		case !errors.Is(err, ErrBadVersion):
			c.err = err
		}
	}
	return c
}

func addOnce(ctx context.Context, s Store) error {
	data, stat, err := s.Get(ctx, "/n")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(data))
	if err != nil {
		return err
	}
	return s.Txn(ctx, Set("/n", []byte(strconv.Itoa(n+1)), stat.Version))
}
