package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/replica"
)

// alterPartitions implements the isrKeeper's question to the controller.
func (b *Broker) alterPartitions(ctx context.Context, asked []cluster.AlterPartition) ([]cluster.AlterPartitionResult, error) {
	id, epoch := b.member.ControllerID(), b.member.Epoch()
	if id == b.cfg.NodeID {
		return b.controller.AlterPartitions(ctx, id, epoch, asked), nil
	}
	to, err := b.controllerBroker(id)
	if err != nil {
		return nil, err
	}
	return b.peers.AlterPartitions(ctx, to, b.cfg.NodeID, epoch, asked)
}

// controllerBroker is how to reach the controller.
func (b *Broker) controllerBroker(id int32) (cluster.Broker, error) {
	to, live := b.metadata.Image().Broker(id)
	if !live {
		return to, fmt.Errorf("%w: none is known", cluster.ErrNotController)
	}
	return to, nil
}

// controllerAway says why no controller can be reached, for who asks for a change.
func (b *Broker) controllerAway() error {
	if store, ok := b.clusterStore.(*cluster.ZooKeeper); ok {
		if err := store.Away(); err != nil {
			return err
		}
	}
	if id := b.member.ControllerID(); id >= 0 && id != b.cfg.NodeID {
		return fmt.Errorf("broker %d is, and cannot be reached", id)
	}
	return errors.New("none is in office yet")
}

// awaitSettled returns when this broker may come to be in sync, and let others in,
// or when ctx ends. By then what it told of its last stop has been decided on and is
// forgotten, in the store and in its own directory: it is not told again by a start
// that finds everything there.
func (b *Broker) awaitSettled(ctx context.Context) {
	for _, done := range []<-chan struct{}{b.noted, b.member.Settled()} {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// keepISR starts telling the controller who is in sync with this broker's
// leaders, and returns what ends it.
func (b *Broker) keepISR(ctx context.Context) (stop func()) {
	if b.isr == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.isr.run(ctx, b.awaitSettled, b.cfg.ReplicaLagMax)
	}()
	return func() {
		cancel()
		<-done
	}
}

// isrDue is told of a partition that has something to ask the controller for.
func (b *Broker) isrDue(p *replica.Partition) {
	if b.isr != nil {
		b.isr.due(p)
	}
}

// isLive tells whether a follower is to be waited for, as far as this broker knows:
// its broker is in the cluster and does not shut down.
func (b *Broker) isLive(broker int32) bool {
	peer, live := b.metadata.Image().Broker(broker)
	return live && !peer.ShuttingDown
}

// reviewISR has the leaders take out the followers that are not live any more. The
// controller leaves that to them.
func (b *Broker) reviewISR(old, im *cluster.Image, wanted []assignment) {
	if b.isr == nil {
		return
	}
	list := make([]*replica.Partition, 0, len(wanted))
	for _, a := range wanted {
		if p := b.partitions.GetByID(a.topic.ID, a.index); p != nil {
			list = append(list, p)
		}
	}
	same := func(x, y cluster.Broker) bool { return sameLife(x, y) && x.ShuttingDown == y.ShuttingDown }
	if !slices.EqualFunc(brokersOf(old), im.Brokers, same) {
		list = b.partitions.All()
	}
	for _, p := range list {
		if p.Err() == nil {
			b.isr.due(p)
		}
	}
}

// stopReplication ends what copies from other brokers.
func (b *Broker) stopReplication() {
	if b.fetchers != nil {
		b.fetchers.stop()
		b.peers.Close()
	}
}

// isDisplaced is told that another process has this broker's place.
func (b *Broker) isDisplaced(why error) {
	b.notReady("another broker has this one's place")
	b.displaced <- why // once
}

// reportDisk tells the controller that what this broker can serve has changed.
func (b *Broker) reportDisk() {
	if !b.ownRegistration() {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), reportDiskWait)
		defer cancel()
		if err := cluster.ReportDisk(ctx, b.clusterStore, b.cfg.NodeID, b.member.Epoch()); err != nil {
			b.log.Warn("the controller was not told of a disk", "error", err)
		}
	}()
}

// reportDiskWait bounds the wait for the store.
const reportDiskWait = 30 * time.Second

func (b *Broker) ownRegistration() bool { return b.member != nil && b.member.Epoch() != 0 }

// throttles bound the copying of replicas that are named for it, and of logs from one
// data directory to another.
type throttles struct{ leader, follower, moves *replica.Throttle }

func newThrottles() *throttles {
	return &throttles{new(replica.Throttle), new(replica.Throttle), new(replica.Throttle)}
}

const (
	leaderThrottleProperty   = "leader.replication.throttled.rate"
	followerThrottleProperty = "follower.replication.throttled.rate"
	movesThrottleProperty    = "replica.alter.log.dirs.io.max.bytes.per.second"
)

// set takes the rates of what was set while the broker runs; the first that has
// one counts.
func (t *throttles) set(log *slog.Logger, settings ...map[string]string) {
	for name, throttle := range map[string]*replica.Throttle{leaderThrottleProperty: t.leader, followerThrottleProperty: t.follower, movesThrottleProperty: t.moves} {
		rate := int64(0)
		for _, m := range settings {
			value, ok := m[name]
			if !ok {
				continue
			}
			var err error
			if rate, err = strconv.ParseInt(value, 10, 64); err != nil {
				log.Error("a stored setting is not usable and has no effect", "property", name, "value", value, "error", err)
				rate = 0
			}
			break
		}
		throttle.SetRate(rate)
	}
}

// isThrottled tells whether this broker's replica is named for throttling.
func (b *Broker) isThrottled(p *replica.Partition) bool {
	return p.Config().ThrottledFollowers.Has(p.Index(), b.cfg.NodeID)
}

// handOver has the controller move what this broker leads to others, so that
// they serve before this one stops.
func (b *Broker) handOver(ctx context.Context) {
	if !b.clustered() || b.cfg.NoControlledShutdown {
		return
	}
	begun := time.Now()
	changed := make(chan struct{}, 1)
	b.metadata.Subscribe(func(_, _ *cluster.Image) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	told := false
	for tries := max(b.cfg.ControlledShutdownRetries, 0); ; {
		remaining, err := b.askToStop(ctx)
		if err == nil && len(remaining) == 0 {
			b.log.Info("what this broker led is led by others", "took", time.Since(begun).Round(time.Millisecond))
			return
		}
		if err != nil && !told {
			b.log.Warn("the controller has not moved what this broker leads, asking again", "error", err)
		} else if err == nil {
			b.log.Warn("no other replica is in sync for some of what this broker leads", "partitions", len(remaining), "first", remaining[0])
		}
		told = err != nil
		if tries == 0 || err == nil && !b.othersLive() {
			return
		}
		pause := b.cfg.ControlledShutdownBackoff
		switch {
		case err == nil:
			tries--
		case time.Since(begun) > time.Duration(tries)*pause:
			return
		default: // it may stop as well, and another take its place
			pause = min(pause, notControllerPause)
		}
		if !b.pauseStop(ctx, pause, changed) {
			return
		}
	}
}

// pauseStop waits until the controller is to be asked again; false says that there is
// nobody left who could take over, or no time.
func (b *Broker) pauseStop(ctx context.Context, pause time.Duration, changed <-chan struct{}) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-over.C:
			return true
		case <-changed:
			if !b.othersLive() {
				return false
			}
		}
	}
}

// othersLive tells whether there is another broker that could take over.
func (b *Broker) othersLive() bool {
	return slices.ContainsFunc(b.metadata.Image().Brokers, func(other cluster.Broker) bool {
		return other.ID != b.cfg.NodeID && !other.ShuttingDown
	})
}

// notControllerPause is the pause until a new controller is asked.
const notControllerPause = 200 * time.Millisecond

func (b *Broker) askToStop(ctx context.Context) ([]cluster.TopicPartition, error) {
	id, epoch := b.member.ControllerID(), b.member.Epoch()
	if id == b.cfg.NodeID {
		return b.controller.ControlledShutdown(ctx, id, epoch)
	}
	to, err := b.controllerBroker(id)
	if err != nil {
		return nil, err
	}
	return b.peers.ControlledShutdown(ctx, to, b.cfg.NodeID, epoch)
}
