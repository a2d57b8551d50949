package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// Registration is what a broker tells of itself when it joins.
type Registration struct {
	// ClusterID is the cluster that its data belongs to.
	ClusterID string
	// Broker is this broker as clients reach it.
	Broker Broker
	// BootID is the machine's boot: the page cache survived if it is the same as before.
	BootID string
	// DirectoryID is the identity of the data directory, in the form of [FormatTopicID].
	DirectoryID string
	// MoreDirectoryIDs are the identities of the broker's other data directories.
	MoreDirectoryIDs []string
	// DirectoriesOffline says that some directory has failed, so that its
	// identity is not known.
	DirectoriesOffline bool
	// Clean says that the broker had stopped cleanly. If it had not, every
	// partition it leads gets a new leader epoch before it leads again.
	Clean bool
	// Lost says that the logs may lack records which the broker had acknowledged
	// as a follower: the machine went down without a clean stop, or recovery cut
	// below a stored high watermark.
	Lost bool
	// Replaced says that the operator has given the broker another, empty data
	// directory in place of one. Without it, one that is missing is refused.
	Replaced bool
}

// Office is the office of the controller as one broker won it.
type Office struct {
	// Epoch is the controller epoch.
	Epoch int32
	// EpochVersion is the version of /controller_epoch, which every write of
	// this reign checks.
	EpochVersion int32
	// Session is the one that holds the office.
	Session Session
	// Resign gives the office up; it does not wait. An officer that lost a check
	// of the epoch, or cannot go on, calls it after it has stopped deciding.
	Resign func()
}

// Officer is the part of a broker that can be the controller.
type Officer interface {
	// TakeOffice begins a reign; ctx ends with it. On an error, the office is
	// given up and won again later, by this broker or another.
	TakeOffice(ctx context.Context, office Office) error
	// LeaveOffice ends the reign: nothing is decided or written after it
	// returns. It may be called without a reign.
	LeaveOffice()
}

// MemberConfig has the times of a member.
type MemberConfig struct {
	// SessionTimeout is that of the store: how long a registration can outlive
	// its broker. Zero means 18 seconds.
	SessionTimeout time.Duration
	// JoinTimeout is how long Join goes on trying while the store cannot be reached.
	// Zero means SessionTimeout.
	JoinTimeout time.Duration
	// RetryBackoff is the pause after a failure before the next try. Zero means 500 ms.
	RetryBackoff time.Duration
	// Now is the clock for the timestamps in the store. Nil means time.Now.
	Now func() time.Time
	// Displaced is called once, if another process registers in this broker's
	// place: the broker must stop. Nil: only the log tells.
	Displaced func(error)
}

func (cfg MemberConfig) withDefaults() MemberConfig {
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = defaultZooKeeperSessionTimeout
	}
	if cfg.JoinTimeout == 0 {
		cfg.JoinTimeout = cfg.SessionTimeout
	}
	if cfg.RetryBackoff == 0 {
		cfg.RetryBackoff = 500 * time.Millisecond
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Displaced == nil {
		cfg.Displaced = func(error) {}
	}
	return cfg
}

// noController as a controller's id says that none is known.
const noController int32 = -1

// Member is one broker's membership in the cluster: its registration, which it
// keeps up over the ends of its sessions, and its candidacy for the office of
// the controller. It watches only the office and its own registration.
//
// Its methods but Join and Leave are safe for concurrent use; Join is called
// once, and Leave after it. One goroutine, from Join to Leave, does the rest.
type Member struct {
	log     *slog.Logger
	store   Store
	officer Officer
	cfg     MemberConfig

	epoch      atomic.Int64  // of the registration
	controller atomic.Int32  // as last read
	decided    atomic.Int64  // the newest epoch that the controller has decided on
	resigned   atomic.Int32  // the newest reign that was given up by the officer
	poke       chan struct{} // one waiting at most: look again
	settled    chan struct{} // see Settled

	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended

	// Of the goroutine, and of Join before it runs.
	self    Registration
	reign   *reign // nil: another broker is the controller, or none
	reigned int32  // the epoch of the last reign
	quiet   bool   // the last failure has been logged
	settles bool   // settled is closed
}

// reign is a time in office.
type reign struct {
	epoch   int32
	session Session
	end     context.CancelFunc
}

// NewMember returns a member that has not joined.
func NewMember(log *slog.Logger, store Store, officer Officer, cfg MemberConfig) *Member {
	m := &Member{log: log, store: store, officer: officer, cfg: cfg.withDefaults(), poke: make(chan struct{}, 1), settled: make(chan struct{})}
	m.controller.Store(noController)
	return m
}

// Epoch is the broker epoch: the number of the transaction that registered this
// broker. It changes when the broker had to register again.
func (m *Member) Epoch() int64 { return m.epoch.Load() }

// ControllerID is the broker that holds the office as last heard, -1 if none.
func (m *Member) ControllerID() int32 { return m.controller.Load() }

// Join makes this broker a member: it checks that the store is that of its
// cluster, registers, and stands for the office if that is vacant. When it wins
// the office it has taken it when Join returns.
//
// It refuses to join another cluster, to take an id that another broker has,
// and to come with a data directory that is not the one known of this broker. While
// the store cannot be reached it tries again.
func (m *Member) Join(ctx context.Context, r Registration) error {
	m.self = r
	err := m.join(ctx)
	for begun := time.Now(); Passing(err) && ctx.Err() == nil && time.Since(begun) < m.cfg.JoinTimeout; {
		m.leaveOffice()
		m.logFailure(err)
		m.pause(ctx)
		err = m.join(ctx) // a busy machine may have slept through its session
	}
	m.quiet = false
	if err != nil {
		m.leaveOffice()
		return fmt.Errorf("join the cluster: %w", err)
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop, m.done = stop, make(chan struct{})
	go m.run(run)
	return nil
}

func (m *Member) join(ctx context.Context) error {
	if err := prepareTree(ctx, m.store, m.self.ClusterID); err != nil {
		return err
	}
	session, err := m.store.Session(ctx)
	if err != nil {
		return err
	}
	if err := m.register(ctx, session); err != nil {
		return err
	}
	return m.standForOffice(context.WithoutCancel(ctx), session)
}

// Leave ends the membership: the office is left, and the registration is gone
// when it returns, or at the latest with the session.
func (m *Member) Leave(ctx context.Context) error {
	m.stop()
	<-m.done
	m.leaveOffice()
	session, err := m.store.Session(ctx)
	if err == nil {
		err = errors.Join(
			m.remove(ctx, controllerPath, session),
			m.remove(ctx, brokerPath(m.self.Broker.ID), session))
	}
	if err != nil {
		return fmt.Errorf("leave the cluster: %w", err)
	}
	return nil
}

// remove removes an ephemeral node if it is of the session.
func (m *Member) remove(ctx context.Context, path string, session Session) error {
	_, stat, err := m.store.Get(ctx, path)
	if err == nil && stat.Owner == session.ID {
		err = m.store.Txn(ctx, Delete(path, stat.Version).In(session))
	}
	if errors.Is(err, ErrNoNode) || errors.Is(err, ErrSessionEnded) {
		return nil
	}
	return err
}

// Settled is closed when what this broker told of its last stop has been decided on
// and is remembered no more. Until then its followers must not catch up, nor its leaders
// let others in: a broker that is in sync with others, goes down and is still
// remembered as one that has lost records is taken out where it has everything.
func (m *Member) Settled() <-chan struct{} { return m.settled }

// Seen tells the member of an image that the controller has pushed. From it the
// member learns that what it registered has been decided on. It is meant for
// [Metadata.Subscribe].
func (m *Member) Seen(_, im *Image) {
	b, ok := im.Broker(m.self.Broker.ID)
	if ok && b.Epoch > m.decided.Load() {
		m.decided.Store(b.Epoch)
		m.wake()
	}
}

func (m *Member) wake() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// run keeps registration and office in order until ctx ends.
func (m *Member) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		changes, err := m.round(ctx)
		var displaced *displacedError
		switch {
		case errors.As(err, &displaced):
			m.leaveOffice()
			m.log.Error("this broker must stop", "error", err)
			m.cfg.Displaced(err)
			return
		case err != nil && ctx.Err() == nil:
			m.logFailure(err)
			m.pause(ctx)
		case err == nil:
			m.quiet = false
			changes.wait(ctx)
		}
	}
}

// logFailure logs the first of several failures; the store logs that it is away.
func (m *Member) logFailure(err error) {
	if !m.quiet {
		m.log.Warn("cannot keep up the membership in the cluster, trying again", "error", err)
	}
	m.quiet = true
}

func (m *Member) pause(ctx context.Context) {
	timer := time.NewTimer(m.cfg.RetryBackoff)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// changes are what a round waits for after it found all in order.
type changes struct {
	session, registration, office, poke <-chan struct{}
}

func (c changes) wait(ctx context.Context) {
	select {
	case <-c.session:
	case <-c.registration:
	case <-c.office:
	case <-c.poke:
	case <-ctx.Done():
	}
}

// round brings registration and office in order.
func (m *Member) round(ctx context.Context) (changes, error) {
	if m.reign != nil && ended(m.reign.session) {
		m.log.Warn("the controller's session has ended", "epoch", m.reign.epoch)
		m.leaveOffice() // at once: another may be elected by now
	}
	c := changes{poke: m.poke}
	session, err := m.store.Session(ctx)
	if err != nil {
		return c, err
	}
	c.session = session.Ended
	if c.registration, err = m.store.Watch(ctx, brokerPath(m.self.Broker.ID), WatchData); err != nil {
		return c, err
	}
	if c.office, err = m.store.Watch(ctx, controllerPath, WatchData); err != nil {
		return c, err
	}
	if err := m.register(ctx, session); err != nil {
		return c, err
	}
	if err := m.forgetDecided(ctx); err != nil {
		return c, err
	}
	return c, m.standForOffice(ctx, session)
}

func ended(s Session) bool {
	select {
	case <-s.Ended:
		return true
	default:
		return false
	}
}
