package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// court sees all officers of a cluster and checks what must hold of their reigns.
type court struct {
	t  *testing.T
	mu sync.Mutex
	// changed is closed and replaced when an office is taken or left.
	changed chan struct{}
	newest  int32 // epoch of the last reign that began
	holders map[*officer]Office
	retired []Office
}

func newCourt(t *testing.T) *court {
	return &court{t: t, changed: make(chan struct{}), holders: map[*officer]Office{}}
}

func (c *court) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// await fails the test unless done comes true by changes of the offices, or by
// what the caller does in done.
func (c *court) await(what string, done func() bool) {
	c.t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if done() {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Millisecond): // what the members do beside it
		case <-deadline:
			c.t.Fatalf("%s did not come", what)
		}
	}
}

// officer is a controller that does nothing but note its reigns.
type officer struct {
	court *court
	fail  error // of TakeOffice
}

func (o *officer) TakeOffice(_ context.Context, office Office) error {
	o.court.mu.Lock()
	defer o.court.mu.Unlock()
	if o.fail != nil {
		return o.fail
	}
	if office.Epoch <= o.court.newest {
		o.court.t.Errorf("epoch %d begins after %d", office.Epoch, o.court.newest)
	}
	if office.Epoch != office.EpochVersion {
		o.court.t.Errorf("epoch %d has version %d", office.Epoch, office.EpochVersion)
	}
	if _, twice := o.court.holders[o]; twice {
		o.court.t.Error("an officer takes office twice")
	}
	o.court.newest = office.Epoch
	o.court.holders[o] = office
	o.court.notify()
	return nil
}

func (o *officer) LeaveOffice() {
	o.court.mu.Lock()
	defer o.court.mu.Unlock()
	if office, ok := o.court.holders[o]; ok {
		o.court.retired = append(o.court.retired, office)
	}
	delete(o.court.holders, o)
	o.court.notify()
}

// office is the reign of an officer, if it has one.
func (o *officer) office() (Office, bool) {
	o.court.mu.Lock()
	defer o.court.mu.Unlock()
	office, ok := o.court.holders[o]
	return office, ok
}

// testMember is a member with its store and officer.
type testMember struct {
	*Member
	store     Store
	officer   *officer
	displaced chan error
}

func registrationOf(id int32) Registration {
	return Registration{
		ClusterID:   "cluster",
		Broker:      Broker{ID: id, Host: "host", Port: 9000 + id},
		BootID:      "boot",
		DirectoryID: fmt.Sprintf("directory-%d", id),
		Clean:       true,
	}
}

// shortTimes keep waits short; they are not what a test measures.
var shortTimes = MemberConfig{SessionTimeout: 100 * time.Millisecond, RetryBackoff: time.Millisecond}

func newTestMember(t *testing.T, c *court, store Store) *testMember {
	t.Helper()
	m := &testMember{store: store, officer: &officer{court: c}, displaced: make(chan error, 1)}
	cfg := shortTimes
	cfg.Displaced = func(err error) { m.displaced <- err }
	m.Member = NewMember(testLog(t), store, m.officer, cfg)
	return m
}

func join(t *testing.T, c *court, store Store, r Registration) *testMember {
	t.Helper()
	m := newTestMember(t, c, store)
	if err := m.Join(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.crash)
	return m
}

// crash ends a member as a crash does, but for its session.
func (m *testMember) crash() {
	m.stop()
	<-m.done
}

func registrationNode(t *testing.T, s Store, id int32) (brokerNode, Stat) {
	t.Helper()
	data, stat, err := s.Get(t.Context(), brokerPath(id))
	if err != nil {
		t.Fatal(err)
	}
	var n brokerNode
	if err := parseNode("registration", data, &n); err != nil {
		t.Fatal(err)
	}
	return n, stat
}

func TestMemberJoinsAndLeaves(t *testing.T) {
	eachStore(t, func(t *testing.T, kind testedStore) {
		s := kind.open(t)
		m := join(t, newCourt(t), s, registrationOf(7))
		node, stat := registrationNode(t, s, 7)
		session, err := s.Session(t.Context())
		if err != nil || stat.Owner != session.ID || stat.Created != m.Epoch() || node.Port != 9007 || !node.Clean || node.Lost {
			t.Errorf("%+v, %+v, epoch %d, %v", node, stat, m.Epoch(), err)
		}
		office, ok := m.officer.office()
		if !ok || office.Epoch != 1 || office.Session.ID != session.ID || m.ControllerID() != 7 {
			t.Errorf("%+v, %v, controller %d", office, ok, m.ControllerID())
		}
		txn(t, s, Check(controllerEpochPath, office.EpochVersion).In(office.Session))
		if err := m.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		if _, ok := m.officer.office(); ok {
			t.Error("in office after leaving")
		}
		for _, path := range []string{brokerPath(7), controllerPath} {
			if _, _, err := s.Get(t.Context(), path); !errors.Is(err, ErrNoNode) {
				t.Errorf("%s after leaving: %v", path, err)
			}
		}
	})
}

func TestTwoCandidatesOneOffice(t *testing.T) {
	for _, kind := range stores()[1:] {
		t.Run(kind.name, func(t *testing.T) {
			c := newCourt(t)
			stores := []Store{kind.open(t), kind.again(t)}
			members := []*testMember{newTestMember(t, c, stores[0]), newTestMember(t, c, stores[1])}
			errs := make([]error, 2)
			var all sync.WaitGroup
			for i, m := range members {
				all.Go(func() { errs[i] = m.Join(t.Context(), registrationOf(int32(i+1))) })
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for _, m := range members {
				t.Cleanup(m.crash)
			}
			first, second := members[0], members[1]
			if _, ok := second.officer.office(); ok {
				first, second = second, first
			}
			c.mu.Lock()
			if len(c.holders) != 1 || c.newest != 1 {
				t.Errorf("offices %v", c.holders)
			}
			c.mu.Unlock()
			if err := first.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.await("the election of the other", func() bool {
				office, ok := second.officer.office()
				return ok && office.Epoch == 2 && second.ControllerID() == second.self.Broker.ID
			})
		})
	}
}

func TestMemberRegistersAgainAfterExpiry(t *testing.T) {
	c, tree := newCourt(t), NewMemory()
	store := tree.Open()
	m := join(t, c, store, registrationOf(1))
	other := join(t, c, tree.Open(), registrationOf(2))
	was, first := m.Epoch(), tree.Open()
	office, _ := m.officer.office()
	store.Expire()
	c.await("a new registration", func() bool { return m.Epoch() > was })
	c.await("an election", func() bool { return len(c.now()) == 1 && c.epoch() == 2 })
	if node, stat := registrationNode(t, first, 1); !node.Clean || stat.Created != m.Epoch() {
		t.Errorf("%+v, %+v", node, stat)
	}
	err := store.Txn(t.Context(), Check(controllerEpochPath, office.EpochVersion))
	if !errors.Is(err, ErrBadVersion) {
		t.Errorf("the former controller's check: %v", err)
	}
	c.await("what both know", func() bool { return m.ControllerID() == other.ControllerID() && m.ControllerID() != noController })
}

// now are the offices held.
func (c *court) now() []Office {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Office
	for _, o := range c.holders {
		out = append(out, o)
	}
	return out
}

func (c *court) epoch() int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// A broker that was killed and started again within its session takes its own
// place, and its office, at once; were the first one still there, it must stop.
func TestMemberReplacesItsOwnRegistration(t *testing.T) {
	for _, kind := range stores()[1:] {
		t.Run(kind.name, func(t *testing.T) {
			c, s := newCourt(t), kind.open(t)
			first := join(t, c, s, registrationOf(1))
			begun := time.Now()
			second := join(t, c, kind.again(t), registrationOf(1))
			if took := time.Since(begun); took > steadySession/2 {
				t.Errorf("after %s", took)
			}
			if second.Epoch() <= first.Epoch() {
				t.Errorf("epoch %d after %d", second.Epoch(), first.Epoch())
			}
			if office, ok := second.officer.office(); !ok || office.Epoch != 2 {
				t.Errorf("%+v, %v", office, ok)
			}
			select {
			case err := <-first.displaced:
				var taken *TakenError
				if !errors.As(err, &taken) || !strings.Contains(err.Error(), "host:9001") {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("the first one is not told")
			}
			if _, ok := first.officer.office(); ok {
				t.Error("the first one is still in office")
			}
			if err := first.Leave(t.Context()); err != nil {
				t.Error(err)
			}
			if _, stat := registrationNode(t, s, 1); stat.Created != second.Epoch() {
				t.Error("the first one took the second's registration away")
			}
		})
	}
}

// A registration of this directory under another boot is that of a machine that
// went down, which ends with its session, or of a copy of the directory.
func TestMemberWaitsForARegistrationOfAnotherBoot(t *testing.T) {
	c, tree := newCourt(t), NewMemory()
	before := tree.Open()
	first := join(t, c, before, registrationOf(1))
	again := registrationOf(1)
	again.BootID = "another boot"
	copied := newTestMember(t, c, tree.Open())
	var taken *TakenError
	if err := copied.Join(t.Context(), again); !errors.As(err, &taken) {
		t.Fatalf("beside a live broker: %v", err)
	}
	if _, stat := registrationNode(t, before, 1); stat.Created != first.Epoch() {
		t.Error("the live broker's registration is gone")
	}

	first.crash()
	rebooted := newTestMember(t, c, tree.Open())
	joined := make(chan error, 1)
	go func() { joined <- rebooted.Join(t.Context(), again) }()
	_ = before.Close()
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rebooted.crash)
	if rebooted.Epoch() <= first.Epoch() {
		t.Errorf("epoch %d after %d", rebooted.Epoch(), first.Epoch())
	}
}

func TestMemberRefusals(t *testing.T) {
	for _, kind := range stores()[1:] {
		t.Run(kind.name, func(t *testing.T) {
			c, s := newCourt(t), kind.open(t)
			m := join(t, c, s, registrationOf(1))
			refuse := func(r Registration, want ...string) {
				t.Helper()
				before := listing(t, s, "/")
				err := newTestMember(t, c, kind.again(t)).Join(t.Context(), r)
				for _, w := range want {
					if err == nil || !strings.Contains(err.Error(), w) {
						t.Errorf("%v, want %q", err, w)
					}
				}
				if after := listing(t, s, "/"); after != before {
					t.Errorf("the refusal changed the store from\n%s to\n%s", before, after)
				}
			}
			r := registrationOf(2)
			r.ClusterID = "another"
			refuse(r, "belongs to cluster another, the cluster store to cluster")
			r = registrationOf(1)
			r.DirectoryID, r.Broker.Host = "elsewhere", "second"
			refuse(r, "id 1 is in use by host:9001 (data directory directory-1)", "this broker is second:9001 (data directory elsewhere)")
			if err := m.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			refuse(r, "broker 1 had the data directory with the id directory-1", "has now elsewhere")

			r.Replaced = true
			replaced := join(t, c, kind.again(t), r)
			if node, _ := registrationNode(t, s, 1); !node.Replaced || node.DirectoryID != "elsewhere" {
				t.Errorf("%+v", node)
			}
			if err := replaced.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			refuse(registrationOf(1), "with the id elsewhere") // the old disk again
		})
	}
}

// Each of several data directories is known: one that is new may come, one that
// is not there is refused, unless that may be for a failed disk.
func TestMemberKnowsAllItsDirectories(t *testing.T) {
	c, tree := newCourt(t), NewMemory()
	for _, step := range []struct {
		more     []string
		offline  bool
		replaced bool
		missing  string
	}{
		{more: []string{"b"}},
		{more: []string{"c", "b"}},
		{more: []string{"c"}, offline: true},
		{more: []string{"c"}, missing: "b"},
		{more: []string{"c"}, offline: true},
		{more: []string{"c", "new"}, missing: "b"},
		{more: []string{"c", "new"}, replaced: true},
		{more: []string{"c", "b"}, missing: "new"},
		{more: []string{"c", "new"}},
	} {
		store := tree.Open()
		r := registrationOf(1)
		r.MoreDirectoryIDs, r.DirectoriesOffline, r.Replaced = step.more, step.offline, step.replaced
		m := newTestMember(t, c, store)
		err := m.Join(t.Context(), r)
		var other *OtherDirectoryError
		if step.missing != "" && (!errors.As(err, &other) || other.Missing != step.missing) || step.missing == "" && err != nil {
			t.Errorf("%+v: %v", step, err)
		}
		if err == nil {
			if err := m.Leave(t.Context()); err != nil {
				t.Error(err)
			}
		}
		_ = store.Close()
	}
}

// What a broker told of its last stop is told again, by every registration,
// until the controller has decided on one that told it.
func TestWhatABrokerToldIsRemembered(t *testing.T) {
	c, tree := newCourt(t), NewMemory()
	look := tree.Open()
	store := tree.Open()
	r := registrationOf(1)
	r.Clean, r.Lost = false, true
	told := func(clean, lost bool, when string) {
		t.Helper()
		if node, _ := registrationNode(t, look, 1); node.Clean != clean || node.Lost != lost {
			t.Errorf("%s: %+v", when, node)
		}
	}
	m := join(t, c, store, r)
	told(false, true, "registered")
	was := m.Epoch()
	store.Expire()
	c.await("a new registration", func() bool { return m.Epoch() > was })
	told(false, true, "registered after an expiry")
	if err := m.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	store = tree.Open()
	m = join(t, c, store, registrationOf(1)) // it stopped cleanly this time
	told(false, true, "registered after a clean stop that nobody saw")
	select {
	case <-m.Settled():
		t.Error("settled before a decision")
	default:
	}
	m.Seen(nil, NewImage("cluster", []Broker{{ID: 1, Epoch: was}}))
	m.Seen(nil, NewImage("cluster", []Broker{{ID: 1, Epoch: m.Epoch()}}))
	c.await("the record's end", func() bool {
		data, _, err := look.Get(t.Context(), directoryPath(1))
		return err == nil && string(data) == `{"version":1,"directory_id":"directory-1"}`
	})
	<-m.Settled()
	was = m.Epoch()
	store.Expire()
	c.await("a new registration", func() bool { return m.Epoch() > was })
	told(true, false, "after the decision")
}

// Whatever transaction's answer is lost, the broker is registered once and in
// office once.
func TestMemberJoinsThoughAnswersAreLost(t *testing.T) {
	for lost := range 6 {
		c, tree := newCourt(t), NewMemory()
		store := tree.Open()
		store.LoseAnswers(lost)
		m := newTestMember(t, c, store)
		if err := m.Join(t.Context(), registrationOf(1)); err != nil {
			t.Fatalf("%d answers lost: %v", lost, err)
		}
		t.Cleanup(m.crash)
		if office, ok := m.officer.office(); !ok || office.Epoch != 1 {
			t.Errorf("%d answers lost: %+v, %v", lost, office, ok)
		}
		first, _, err := m.AllocateProducerIDs(t.Context())
		if err != nil || first > producerIDBlock { // a block whose answer was lost is left out
			t.Errorf("producer ids from %d, %v", first, err)
		}
	}
}

// A store that is lost while a broker joins is waited for, as long as is said.
func TestMemberJoinsThoughTheStoreIsAway(t *testing.T) {
	c := newCourt(t)
	tree := NewMemory()
	store := tree.Open()
	m := newTestMember(t, c, store)
	store.SetAway(true)
	m.cfg.JoinTimeout = time.Nanosecond
	if err := m.Join(t.Context(), registrationOf(1)); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	m.cfg.JoinTimeout = time.Minute
	joined := make(chan error, 1)
	looks := make(chan struct{}, 1)
	m.log = slog.New(slog.NewTextHandler(writerFunc(func() {
		select {
		case looks <- struct{}{}:
		default:
		}
	}), nil))
	go func() { joined <- m.Join(t.Context(), registrationOf(1)) }()
	<-looks // it has failed once
	select {
	case err := <-joined:
		t.Fatal(err)
	default:
	}
	store.SetAway(false)
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.crash)
	if m.Epoch() == 0 || m.ControllerID() != 1 {
		t.Errorf("epoch %d, controller %d", m.Epoch(), m.ControllerID())
	}
}

// writerFunc is called for each write.
type writerFunc func()

func (w writerFunc) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

func TestOfficeThatCannotBeTaken(t *testing.T) {
	c, tree := newCourt(t), NewMemory()
	broken := newTestMember(t, c, tree.Open())
	broken.officer.fail = errors.New("the tree makes no sense")
	if err := broken.Join(t.Context(), registrationOf(1)); !errors.Is(err, broken.officer.fail) {
		t.Fatal(err)
	}
	if _, _, err := tree.Open().Get(t.Context(), controllerPath); !errors.Is(err, ErrNoNode) {
		t.Errorf("the office is not given up: %v", err)
	}
	store := tree.Open()
	m := join(t, c, store, registrationOf(2))
	other := join(t, c, tree.Open(), registrationOf(3))
	c.mu.Lock()
	m.officer.fail = broken.officer.fail
	c.mu.Unlock()
	store.Expire() // it may win again, and can't
	c.await("the election of one who can", func() bool {
		_, ok := other.officer.office()
		return ok
	})
}

func TestOfficerResigns(t *testing.T) {
	c, tree := newCourt(t), NewMemory()
	m := join(t, c, tree.Open(), registrationOf(1))
	office, _ := m.officer.office()
	office.Resign()
	c.await("the next reign", func() bool {
		next, ok := m.officer.office()
		return ok && next.Epoch == 2
	})
	office.Resign() // late, of a reign that is over
	other := tree.Open()
	txn(t, other, Delete(controllerPath, AnyVersion)) // as an operator does to move the controller
	c.await("the next reign", func() bool {
		next, ok := m.officer.office()
		return ok && next.Epoch == 3
	})
}

func TestProducerIDsAreGivenOnce(t *testing.T) {
	const members, blocks = 3, 10
	for _, kind := range stores()[1:] {
		t.Run(kind.name, func(t *testing.T) {
			c := newCourt(t)
			var mu sync.Mutex
			var firsts []int64
			var all sync.WaitGroup
			for i := range members {
				store := Store(nil)
				if i == 0 {
					store = kind.open(t)
				} else {
					store = kind.again(t)
				}
				m := join(t, c, store, registrationOf(int32(i)))
				all.Go(func() {
					for range blocks {
						first, count, err := m.AllocateProducerIDs(t.Context())
						if err != nil || count != producerIDBlock {
							t.Errorf("%d ids, %v", count, err)
						}
						mu.Lock()
						firsts = append(firsts, first)
						mu.Unlock()
					}
				})
			}
			all.Wait()
			slices.Sort(firsts)
			for i, first := range firsts {
				if first != int64(i)*producerIDBlock {
					t.Fatalf("blocks from %v", firsts)
				}
			}
		})
	}
}

// Candidates are killed, cut off, expired and made to resign at random. There is
// always one controller again, each reign has an epoch of its own that is higher
// than those before, and no former controller can write.
func TestRandomKillsOfCandidates(t *testing.T) {
	const rounds, candidates = 200, 4
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c, tree := newCourt(t), NewMemory()
	look := tree.Open()
	members := make([]*testMember, candidates)
	for i := range members {
		members[i] = join(t, c, tree.Open(), registrationOf(int32(i)))
	}
	client := func(i int) *MemoryClient { return members[i].store.(*MemoryClient) }
	for round := range rounds {
		i := rng.IntN(candidates)
		if holder := holderOf(members); holder >= 0 && rng.IntN(2) == 0 {
			i = holder
		}
		what := rng.IntN(6)
		switch what {
		case 0: // killed, and started again before its session has ended
			members[i].crash()
			members[i].officer.LeaveOffice()
			members[i] = join(t, c, tree.Open(), registrationOf(int32(i)))
		case 1: // killed, and started again after that
			members[i].crash()
			members[i].officer.LeaveOffice()
			_ = client(i).Close()
			members[i] = join(t, c, tree.Open(), registrationOf(int32(i)))
		case 2:
			client(i).Expire()
		case 3: // cut off, and back after its session has ended
			client(i).SetAway(true)
			client(i).Expire()
			other := rng.IntN(candidates)
			client(other).Expire()
			client(i).SetAway(false)
		case 4: // the answers to what it does next are lost
			client(i).LoseAnswers(1 + rng.IntN(3))
			client(i).Expire()
		case 5:
			if office, ok := members[i].officer.office(); ok {
				office.Resign()
			}
		}
		var epoch int32
		c.await(fmt.Sprintf("a controller after round %d (%d on %d)", round, what, i), func() bool {
			epoch = settledOffice(t, c, look)
			return epoch > 0
		})
		for _, office := range c.formerly(epoch) {
			for _, m := range members {
				err := m.store.Txn(t.Context(), Check(controllerEpochPath, office.EpochVersion))
				if !errors.Is(err, ErrBadVersion) {
					t.Fatalf("round %d: a check of epoch %d, after it: %v", round, office.Epoch, err)
				}
			}
		}
	}
	t.Logf("%d reigns in %d rounds", c.epoch(), rounds)
}

func holderOf(members []*testMember) int {
	return slices.IndexFunc(members, func(m *testMember) bool {
		_, ok := m.officer.office()
		return ok
	})
}

// formerly returns and forgets the reigns that are over and were followed by
// that of the epoch.
func (c *court) formerly(epoch int32) (out []Office) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = slices.DeleteFunc(c.retired, func(o Office) bool {
		if o.Epoch < epoch {
			out = append(out, o)
		}
		return o.Epoch < epoch
	})
	return out
}

// settledOffice returns the epoch of the only reign if the store agrees with it, else 0.
func settledOffice(t *testing.T, c *court, s Store) int32 {
	t.Helper()
	held := c.now()
	if len(held) != 1 {
		return 0
	}
	_, stat, err := s.Get(t.Context(), controllerPath)
	if err != nil || stat.Owner != held[0].Session.ID {
		return 0
	}
	data, _, err := s.Get(t.Context(), controllerEpochPath)
	if err != nil || string(data) != strconv.Itoa(int(held[0].Epoch)) {
		return 0
	}
	return held[0].Epoch
}

// With a real ZooKeeper: the controller is cut off until its session has ended,
// another is elected, and the first, back, has left the office, is registered
// anew and can write nothing of its reign.
func TestZooKeeperControllerExpires(t *testing.T) {
	servers := sharedZooKeeper(t)
	chroot := newChroot(t, servers)
	c := newCourt(t)
	p := testenv.StartProxy(t, servers[0])
	first := join(t, c, openZooKeeper(t, ZooKeeperConfig{Servers: []string{p.Addr()}, Chroot: chroot, SessionTimeout: time.Second}), registrationOf(1))
	second := join(t, c, openZooKeeper(t, ZooKeeperConfig{Servers: servers, Chroot: chroot}), registrationOf(2))
	office, ok := first.officer.office()
	if !ok {
		t.Fatal("the first is not in office")
	}
	was := first.Epoch()
	p.Stall() // what it sends from now on stays on the way
	late := make(chan error, 1)
	go func() {
		late <- first.store.Txn(t.Context(), Check(controllerEpochPath, office.EpochVersion).In(office.Session), Create(topicPath("late"), nil))
	}()
	c.await("another controller", func() bool {
		next, ok := second.officer.office()
		return ok && next.Epoch == 2
	})
	if first.Epoch() != was {
		t.Error("it has another epoch though it could not ask")
	}
	p.Flow()
	if err := <-late; err == nil {
		t.Error("a write of the former controller was done")
	}
	c.await("the registration of who came back", func() bool { return first.Epoch() > was && first.ControllerID() == 2 })
	if _, ok := first.officer.office(); ok {
		t.Error("the former controller is in office")
	}
	if _, _, err := second.store.Get(t.Context(), topicPath("late")); !errors.Is(err, ErrNoNode) {
		t.Errorf("the late topic: %v", err)
	}
	err := first.store.Txn(t.Context(), Check(controllerEpochPath, office.EpochVersion).In(office.Session))
	if !errors.Is(err, ErrSessionEnded) {
		t.Errorf("the former session's write: %v", err)
	}
}
