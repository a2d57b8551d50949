package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// What is remembered of each broker over its registrations; Kafka has no such nodes.
const directoriesPath = "/brokers/directories"

func directoryPath(id int32) string {
	return fmt.Sprintf("%s/%d", directoriesPath, id)
}

// directoryNode says which data directory a broker has, and what it told of its
// last stop that no controller has decided on yet. A broker may register and go
// again before one has, and would know nothing of it the next time.
type directoryNode struct {
	Version     int      `json:"version"`
	DirectoryID string   `json:"directory_id"`
	More        []string `json:"more_directory_ids,omitempty"`
	Unclean     bool     `json:"unclean,omitempty"`
	Lost        bool     `json:"lost,omitempty"`
	Replaced    bool     `json:"replaced,omitempty"`
}

// undecided tells whether there is something that no controller has decided on.
func (n directoryNode) undecided() bool { return n.Unclean || n.Lost || n.Replaced }

// missing returns an identity that n has and a registration lacks, "" if none:
// of a directory that was wiped, replaced or left out.
func (n directoryNode) missing(r Registration) string {
	if n.DirectoryID != r.DirectoryID {
		return n.DirectoryID
	}
	if r.DirectoriesOffline {
		return ""
	}
	for _, id := range n.More {
		if !slices.Contains(r.MoreDirectoryIDs, id) {
			return id
		}
	}
	return ""
}

// triesMax bounds how often a change is tried again that others were faster
// with. Each try costs some round trips, and something is wrong if many fail.
const triesMax = 20

// overtaken tells that a transaction failed, or may have, in a way that reading
// again and trying again can settle.
func overtaken(err error) bool {
	return errors.Is(err, ErrNodeExists) || errors.Is(err, ErrNoNode) || errors.Is(err, ErrBadVersion) || errors.Is(err, ErrUncertain)
}

// registrationWait bounds the wait for an earlier registration to end, in
// session timeouts.
const registrationWait = 2

// OtherDirectoryError refuses a broker that lacks a data directory which the
// cluster knows of it: what it had acknowledged is not there.
type OtherDirectoryError struct {
	BrokerID int32
	Missing  string   // identity of the directory
	Own      []string // identities of those that there are
}

func (e *OtherDirectoryError) Error() string {
	return fmt.Sprintf("broker %d had the data directory with the id %s when it was in the cluster last, and has now %s, "+
		"without what it had acknowledged there", e.BrokerID, e.Missing, strings.Join(e.Own, " and "))
}

// TakenError refuses a broker whose id another one has.
type TakenError struct {
	BrokerID   int32
	Other, Own string // address and data directory
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("broker id %d is in use by %s, and this broker is %s: stop one of them, or give it another id",
		e.BrokerID, e.Other, e.Own)
}

// displacedError says that another process took this broker's place.
type displacedError struct{ error }

func (e *displacedError) Unwrap() error { return e.error }

// ReadClusterID returns the identity of the store's cluster, [ErrNoNode] if it
// has none yet.
func ReadClusterID(ctx context.Context, store Store) (string, error) {
	data, _, err := store.Get(ctx, clusterIDPath)
	if err != nil {
		return "", fmt.Errorf("read cluster id: %w", err)
	}
	var n clusterIDNode
	if err := parseNode("cluster id", data, &n); err != nil {
		return "", err
	}
	return n.ID, nil
}

// EnsureClusterID returns the identity of the store's cluster. A store that has
// none yet takes the proposed one.
func EnsureClusterID(ctx context.Context, store Store, proposed string) (string, error) {
	ops, err := absent(ctx, store, []Op{Create(clusterPath, nil), Create(clusterIDPath, mustJSON(clusterIDNode{"1", proposed}))})
	if err != nil {
		return "", fmt.Errorf("read cluster id: %w", err)
	}
	if len(ops) > 0 {
		// Another broker may be faster, or the answer get lost: what is there counts.
		if err := store.Txn(ctx, ops...); err != nil && !overtaken(err) {
			return "", fmt.Errorf("write cluster id: %w", err)
		}
	}
	return ReadClusterID(ctx, store)
}

// prepareTree makes the nodes that are always there and checks that the store
// is that of this cluster, before it changes anything.
func prepareTree(ctx context.Context, store Store, clusterID string) error {
	id, err := EnsureClusterID(ctx, store, clusterID)
	if err != nil {
		return err
	}
	if id != clusterID {
		return fmt.Errorf("the data directory belongs to cluster %s, the cluster store to %s: "+
			"one of the two is the wrong one for this broker", clusterID, id)
	}
	var wanted []Op
	for _, path := range append(slices.Clone(persistentPaths), directoriesPath) {
		wanted = append(wanted, Create(path, nil))
	}
	wanted = append(wanted, Create(controllerEpochPath, []byte("0")))
	for range triesMax {
		var ops []Op
		if ops, err = absent(ctx, store, wanted); err == nil && len(ops) > 0 {
			err = store.Txn(ctx, ops...)
		}
		if !overtaken(err) {
			break
		}
		// Another broker made some of them, or this one all: look again.
	}
	if err != nil {
		return fmt.Errorf("prepare cluster store: %w", err)
	}
	return nil
}

// absent leaves those of creates whose nodes do not exist.
func absent(ctx context.Context, store Store, creates []Op) ([]Op, error) {
	there := make([]bool, len(creates))
	err := concurrently(len(creates), func(i int) error {
		_, _, err := store.Get(ctx, creates[i].Path)
		if there[i] = err == nil; errors.Is(err, ErrNoNode) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []Op
	for i, op := range creates {
		if !there[i] {
			out = append(out, op)
		}
	}
	return out, nil
}

// register makes sure that this broker is registered in the session.
func (m *Member) register(ctx context.Context, session Session) (err error) {
	for range triesMax {
		var done bool
		if done, err = m.tryRegister(ctx, session); done {
			return nil
		}
		if err != nil && !overtaken(err) {
			break
		}
		// Done, or something changed meanwhile: reading tells.
	}
	return fmt.Errorf("register broker %d: %w", m.self.Broker.ID, err)
}

func (m *Member) tryRegister(ctx context.Context, session Session) (done bool, err error) {
	data, stat, err := m.store.Get(ctx, brokerPath(m.self.Broker.ID))
	switch {
	case err == nil && stat.Owner == session.ID:
		m.registered(stat.Created)
		return true, nil
	case err == nil:
		return false, m.displace(ctx, session, data, stat)
	case errors.Is(err, ErrNoNode):
		return false, m.enter(ctx, session, nil)
	}
	return false, err
}

func (m *Member) registered(epoch int64) {
	if old := m.epoch.Swap(epoch); old != epoch {
		m.log.Info("this broker is registered", "id", m.self.Broker.ID, "epoch", epoch)
	}
}

// enter writes the registration, after what has to go first, and what is to be
// remembered beyond it.
func (m *Member) enter(ctx context.Context, session Session, first []Op) error {
	known, remember, err := m.remember(ctx)
	if err != nil {
		return err
	}
	r := m.self
	r.Clean, r.Lost, r.Replaced = !known.Unclean, known.Lost, known.Replaced
	ops := append(first, remember,
		CreateEphemeral(brokerPath(r.Broker.ID), newBrokerNode(r, m.cfg.Now())).In(session))
	return m.store.Txn(ctx, ops...)
}

// remember adds what this broker has to tell to what is remembered of it.
func (m *Member) remember(ctx context.Context) (directoryNode, Op, error) {
	path := directoryPath(m.self.Broker.ID)
	known, version, err := m.readDirectory(ctx)
	if err != nil {
		return known, Op{}, err
	}
	write := func(data []byte) Op { return Set(path, data, version) }
	if version < 0 {
		known = directoryNode{Version: 1, DirectoryID: m.self.DirectoryID}
		write = func(data []byte) Op { return Create(path, data) }
	}
	own := append([]string{m.self.DirectoryID}, m.self.MoreDirectoryIDs...)
	if missing := known.missing(m.self); missing != "" {
		if !m.self.Replaced {
			return known, Op{}, &OtherDirectoryError{m.self.Broker.ID, missing, own}
		}
		known.DirectoryID, known.More, known.Replaced = own[0], nil, true
	}
	if !m.self.DirectoriesOffline {
		known.More = nil
	}
	for _, id := range m.self.MoreDirectoryIDs {
		if !slices.Contains(known.More, id) {
			known.More = append(known.More, id)
		}
	}
	known.Unclean = known.Unclean || !m.self.Clean
	known.Lost = known.Lost || m.self.Lost
	return known, write(mustJSON(known)), nil
}

// readDirectory reads what is remembered of this broker; version -1 is nothing.
func (m *Member) readDirectory(ctx context.Context) (n directoryNode, version int32, err error) {
	data, stat, err := m.store.Get(ctx, directoryPath(m.self.Broker.ID))
	if errors.Is(err, ErrNoNode) {
		return n, -1, nil
	}
	if err != nil {
		return n, 0, err
	}
	return n, stat.Version, parseNode(fmt.Sprintf("directory of broker %d", m.self.Broker.ID), data, &n)
}

// forgetDecided forgets what this broker told once the controller has decided
// on its registration: it is not to be told again with the next one.
func (m *Member) forgetDecided(ctx context.Context) error {
	if m.decided.Load() != m.epoch.Load() {
		return nil
	}
	m.self.Clean, m.self.Lost, m.self.Replaced = true, false, false
	known, version, err := m.readDirectory(ctx)
	if err != nil {
		return err
	}
	if version >= 0 && known.undecided() {
		known.Unclean, known.Lost, known.Replaced = false, false, false
		if err := m.store.Txn(ctx, Set(directoryPath(m.self.Broker.ID), mustJSON(known), version)); err != nil {
			return err
		}
	}
	if !m.settles {
		m.settles = true
		close(m.settled)
	}
	return nil
}

// displace deals with a registration of this broker's id that is not of this
// session. One that this machine made since it booted, for this directory, is
// of a process that has ended, since only one can have the directory; it is
// replaced. For the end of any other one it waits, as long as that could be a
// session that nobody keeps up.
func (m *Member) displace(ctx context.Context, session Session, data []byte, stat Stat) error {
	var other brokerNode
	if err := parseNode("broker registration", data, &other); err != nil {
		return err
	}
	taken := &TakenError{m.self.Broker.ID,
		fmt.Sprintf("%s:%d (data directory %s)", other.Host, other.Port, other.DirectoryID),
		fmt.Sprintf("%s:%d (data directory %s)", m.self.Broker.Host, m.self.Broker.Port, m.self.DirectoryID)}
	if mine := m.epoch.Load(); mine != 0 && stat.Created > mine {
		return &displacedError{taken}
	}
	if other.DirectoryID == m.self.DirectoryID && other.BootID == m.self.BootID && other.BootID != "" {
		m.log.Info("an earlier registration of this broker is replaced", "epoch", stat.Created)
		return m.replace(ctx, session, stat)
	}
	if other.DirectoryID != m.self.DirectoryID && !m.self.Replaced {
		return taken
	}
	return m.waitForEnd(ctx, stat, taken)
}

// replace registers in place of a registration whose session nobody keeps up,
// and takes the office from that session too, if it has it.
func (m *Member) replace(ctx context.Context, session Session, stale Stat) error {
	first := []Op{Delete(brokerPath(m.self.Broker.ID), stale.Version)}
	_, office, err := m.store.Get(ctx, controllerPath)
	if err != nil && !errors.Is(err, ErrNoNode) {
		return err
	}
	if err == nil && office.Owner == stale.Owner {
		first = append(first, Delete(controllerPath, office.Version))
	}
	return m.enter(ctx, session, first)
}

// waitForEnd returns nil once the registration is another one or gone.
func (m *Member) waitForEnd(ctx context.Context, was Stat, taken error) error {
	path := brokerPath(m.self.Broker.ID)
	m.log.Info("waiting for the end of an earlier registration", "epoch", was.Created, "at most", registrationWait*m.cfg.SessionTimeout)
	timer := time.NewTimer(registrationWait * m.cfg.SessionTimeout)
	defer timer.Stop()
	for {
		changed, err := m.store.Watch(ctx, path, WatchData)
		if err != nil {
			return err
		}
		_, is, err := m.store.Get(ctx, path)
		if errors.Is(err, ErrNoNode) || err == nil && is.Created != was.Created {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-timer.C:
			return taken
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
