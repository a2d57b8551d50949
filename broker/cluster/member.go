package cluster

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

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
	// its broker. Zero means 6 seconds.
	SessionTimeout time.Duration
	// RetryBackoff is the pause after a failure before the next try. Zero means 500 ms.
	RetryBackoff time.Duration
	// Now is the clock for the timestamps in the store. Nil means time.Now.
	Now func() time.Time
}

// Member is one broker's membership in the cluster: its registration, which it
// keeps up over the ends of its sessions, and its candidacy for the office of
// the controller. It watches only the office and its own registration.
//
// A Member is safe for concurrent use.
type Member struct {
	log     *slog.Logger
	store   Store
	officer Officer
	cfg     MemberConfig

	epoch      atomic.Int64
	controller atomic.Int32
}

// NewMember returns a member that has not joined.
func NewMember(log *slog.Logger, store Store, officer Officer, cfg MemberConfig) *Member {
	return &Member{log: log, store: store, officer: officer, cfg: cfg}
}
