package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// ControllerConfig says what a controller decides by default.
type ControllerConfig struct {
	// BrokerID is the broker that the controller runs in.
	BrokerID int32
	// DefaultPartitions is num.partitions, for a topic created with -1. Zero means 1.
	DefaultPartitions int32
	// DefaultReplicationFactor is default.replication.factor, for a topic
	// created with -1. Zero means 1.
	DefaultReplicationFactor int16
	// PartitionsPerTopicMax bounds the partitions of one topic. Zero means 10,000.
	PartitionsPerTopicMax int32
	// BrokerConfigs are the settings that a broker takes while it runs; see AlterConfigs.
	BrokerConfigs []ConfigDef
	// TopicDefaults are the properties of the broker's configuration file that
	// give topic settings their defaults, unclean.leader.election.enable among them.
	TopicDefaults map[string]string
	// BalanceInterval is how often leaders are moved back to the preferred
	// replicas (leader.imbalance.check.interval.seconds, if auto.leader.rebalance.enable
	// is set). Zero means never.
	BalanceInterval time.Duration
	// ImbalancePercent is how much of what a broker is preferred for may be led
	// elsewhere (leader.imbalance.per.broker.percentage).
	ImbalancePercent int
	// Offline tells whether a partition of this broker cannot be served because
	// its disk has failed. Nil means that none is.
	Offline func(topic string, partition int32) bool
	// Away, if not nil, says why no controller can be reached, if it knows, for the
	// answers of this broker while it is not in office itself.
	Away func() error
	// PushTimeout limits one push to a broker, which then gets everything anew.
	// Zero means 30 seconds.
	PushTimeout time.Duration
	// RetryBackoff is the pause before something that failed is tried again.
	// Zero means 100 ms.
	RetryBackoff time.Duration
	// Now is the clock for the timestamps in the store. Nil means time.Now.
	Now func() time.Time
	// NewTopicID makes topic ids. Nil means random ones.
	NewTopicID func() TopicID
}

const (
	defaultPushTimeout  = 30 * time.Second
	defaultRetryBackoff = 100 * time.Millisecond
	// othersWaitMax is how long the answer to a change waits until the other
	// brokers know of it: long enough for those that are well, and no longer
	// when one is not. Its own broker is waited for as long as the caller waits.
	othersWaitMax = time.Second
)

// Controller decides and writes every change of the cluster, while this broker
// holds the office. It keeps the newest image that it decided, which its own
// broker like the others learns of by an [Update].
//
// A Controller is safe for concurrent use. Its one lock is held over a change's
// write to the store, and not over the pushes.
type Controller struct {
	log    *slog.Logger
	store  Store
	meta   *Metadata // of the controller's own broker
	pusher Pusher    // nil: there are no other brokers
	cfg    ControllerConfig

	lock chan struct{} // holds a value while it is held; guards what follows and orders changes
	term *term         // nil out of office
	work sync.WaitGroup
}

// NewController returns a controller out of office. meta is the picture of the
// broker that it runs in; pusher reaches the other brokers, and may be nil if
// there are none.
func NewController(log *slog.Logger, store Store, meta *Metadata, pusher Pusher, cfg ControllerConfig) *Controller {
	return &Controller{log: log, store: store, meta: meta, pusher: pusher, cfg: cfg.withDefaults(), lock: make(chan struct{}, 1)}
}

func (cfg ControllerConfig) withDefaults() ControllerConfig {
	if cfg.DefaultPartitions == 0 {
		cfg.DefaultPartitions = 1
	}
	if cfg.DefaultReplicationFactor == 0 {
		cfg.DefaultReplicationFactor = 1
	}
	if cfg.PartitionsPerTopicMax == 0 {
		cfg.PartitionsPerTopicMax = 10_000
	}
	if cfg.PushTimeout == 0 {
		cfg.PushTimeout = defaultPushTimeout
	}
	if cfg.RetryBackoff == 0 {
		cfg.RetryBackoff = defaultRetryBackoff
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewTopicID == nil {
		cfg.NewTopicID = randomTopicID
	}
	return cfg
}

// enter takes the lock for a change of the current term; leave gives it back.
// An image that may not be what is stored is read again first.
func (c *Controller) enter(ctx context.Context) (*term, error) {
	select {
	case c.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other changes of the cluster: %w", ctx.Err())
	}
	r := c.term
	if r == nil {
		c.leave()
		return nil, c.notInOffice()
	}
	if err := c.refresh(ctx, r); err != nil {
		c.leave()
		return nil, err
	}
	return r, nil
}

func (c *Controller) leave() { <-c.lock }

func (c *Controller) notInOffice() error {
	if c.cfg.Away != nil {
		if why := c.cfg.Away(); why != nil {
			return fmt.Errorf("%w: %w", ErrNotController, why)
		}
	}
	return ErrNotController
}

// enterTerm is enter for what belongs to one term and none that follows.
func (c *Controller) enterTerm(r *term) error {
	now, err := c.enter(r.ctx)
	if err != nil {
		return err
	}
	if now != r {
		c.leave()
		return ErrNotController
	}
	return nil
}

// commit stores a decision and makes it what is decided: what differs from the
// image so far, and then further operations. The caller holds the lock.
func (c *Controller) commit(ctx context.Context, r *term, next *Image, further ...Op) error {
	if next == r.image && len(further) == 0 {
		return nil
	}
	ops := append(StateOps(r.image, next, r.office.Epoch), further...)
	if err := c.write(ctx, r, ops); err != nil {
		c.doubt(r)
		return err
	}
	r.image = next
	r.pushes.publish(next)
	return nil
}

// doubt makes the store be read again, since it may have some of a change that
// failed, or all: before anything else is decided, and soon in any case, for
// what is there of the change is to be completed.
func (c *Controller) doubt(r *term) {
	r.stale = true
	if r.doubted || c.term != r {
		return
	}
	r.doubted = true
	c.inBackground(r, func(r *term) {
		for pause(r.ctx, c.cfg.RetryBackoff) {
			err := c.enterTerm(r)
			if err == nil {
				r.doubted = false
				c.leave()
			}
			if err == nil || errors.Is(err, ErrNotController) {
				return
			}
		}
	})
}

// Bounds of one transaction, so that it stays under the largest request that a
// ZooKeeper takes by default (jute.maxbuffer, 1 MiB). What needs more is written
// in several, in an order that another controller can complete.
const (
	txnOpsMax   = 500
	txnBytesMax = 700 << 10
)

// write applies ops while this controller is in office. Once some of them are
// applied it goes on as long as the term: ctx can end the wait for the first
// transaction only. The caller holds the lock.
func (c *Controller) write(ctx context.Context, r *term, ops []Op) error {
	for len(ops) > 0 {
		n := txnLen(ops)
		txn := append([]Op{Check(controllerEpochPath, r.office.EpochVersion).In(r.office.Session)}, ops[:n]...)
		if err := c.store.Txn(ctx, txn...); err != nil {
			return c.explain(r, err)
		}
		ops, ctx = ops[n:], r.ctx
	}
	return nil
}

// txnLen is how many of ops go into one transaction: at least one.
func txnLen(ops []Op) int {
	size := 0
	for i, op := range ops {
		if size += len(op.Path) + len(op.Data) + 64; i == txnOpsMax || size > txnBytesMax {
			return max(i, 1)
		}
	}
	return len(ops)
}

// explain turns a failed check of the epoch into ErrNotController, and ends the term.
func (c *Controller) explain(r *term, err error) error {
	var txn *TxnError
	switch {
	case errors.As(err, &txn) && txn.Index == 0:
		err = fmt.Errorf("%w: another broker has been elected since epoch %d", ErrNotController, r.office.Epoch)
	case errors.Is(err, ErrSessionEnded):
		err = fmt.Errorf("%w: the session of epoch %d has ended", ErrNotController, r.office.Epoch)
	default:
		return err
	}
	c.abdicate(r)
	return err
}
