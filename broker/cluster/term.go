package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// term is one term of office of this controller. The controller's lock guards
// what is not constant.
type term struct {
	office Office
	ctx    context.Context // ends with the term
	end    context.CancelFunc
	pushes *pushes

	image *Image // as decided and stored
	// stale says that the store may differ from image, after a write that failed,
	// and doubted that a goroutine is about to read it.
	stale    bool
	doubted  bool
	known    known
	deleting map[string]*deletion
}

// TakeOffice implements [Officer]: it completes what earlier controllers began,
// decides what follows from the brokers that are there, and from then on tells
// all brokers everything that changes. It returns once this broker knows.
func (c *Controller) TakeOffice(ctx context.Context, office Office) error {
	select {
	case c.lock <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.term != nil {
		c.abdicate(c.term)
	}
	r := &term{office: office, deleting: map[string]*deletion{}}
	r.ctx, r.end = context.WithCancel(ctx)
	r.pushes = c.newPushes(r)
	c.term = r
	begun := time.Now()
	if err := c.takeOver(ctx, r); err != nil {
		c.abdicate(r)
		c.leave()
		return fmt.Errorf("take the controller's office in epoch %d: %w", office.Epoch, err)
	}
	c.log.Info("this broker is the controller", "broker", c.cfg.BrokerID, "controller_epoch", office.Epoch,
		"topics", r.image.TopicCount(), "brokers", len(r.image.Brokers), "took", time.Since(begun).Round(time.Millisecond))
	c.inBackground(r, c.watchBrokers)
	c.inBackground(r, c.watchDisks)
	if c.cfg.BalanceInterval > 0 {
		c.inBackground(r, c.balance)
	}
	known := c.published(r)
	c.leave()
	return known.pushes.wait(ctx, known.version, func(id int32) bool { return id == c.cfg.BrokerID })
}

func (c *Controller) inBackground(r *term, fn func(*term)) {
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		fn(r)
	}()
}

// LeaveOffice implements [Officer]. It returns when nothing of the term is under way.
func (c *Controller) LeaveOffice() {
	c.lock <- struct{}{}
	if c.term != nil {
		c.end(c.term)
	}
	c.leave()
	c.work.Wait()
}

// abdicate ends a term that cannot go on. The caller holds the lock.
func (c *Controller) abdicate(r *term) {
	if c.term != r {
		return
	}
	c.end(r)
	if r.office.Resign != nil {
		r.office.Resign()
	}
}

func (c *Controller) end(r *term) {
	c.term = nil
	r.end()
	c.log.Info("this broker is no longer the controller", "broker", c.cfg.BrokerID, "controller_epoch", r.office.Epoch)
}

// takeOver begins with what the store has, and with the brokers that the
// controller before had dealt with: those that came, left or were reborn since
// are dealt with now.
func (c *Controller) takeOver(ctx context.Context, r *term) error {
	var err error
	if r.known, err = c.loadKnown(ctx); err != nil {
		return err
	}
	r.image = NewImage("", r.known.live())
	r.stale = true
	return c.refresh(ctx, r)
}

// refresh reads the store if the image may differ from it, and completes what
// is in halves. The caller holds the lock.
func (c *Controller) refresh(ctx context.Context, r *term) error {
	if !r.stale {
		return nil
	}
	id, err := c.loadClusterID(ctx)
	if err != nil {
		return fmt.Errorf("read the cluster store: %w", err)
	}
	im, deleting, err := c.load(ctx, id, r.image.hashes)
	if err != nil {
		return fmt.Errorf("read the cluster store: %w", err)
	}
	r.image = im.WithBrokers(r.image.Brokers, c.cfg.BrokerID, r.office.Epoch).withOfflineOf(r.image)
	r.stale = false
	err = c.completeCreations(ctx, r)
	if whole := repaired(r.image); err == nil && whole != r.image {
		err = c.commit(ctx, r, whole)
	}
	if err == nil {
		err = c.meetBrokers(ctx, r)
	}
	if err != nil {
		r.stale = true
		return fmt.Errorf("complete what was begun: %w", err)
	}
	for _, name := range deleting {
		if r.deleting[name] == nil {
			c.trackDeletion(r, name)
		}
	}
	return nil
}

// withOfflineOf takes over which disks have failed, which is not stored.
func (im *Image) withOfflineOf(old *Image) *Image {
	return im.mapPartitions(func(t *Topic, i int32, p Partition) Partition {
		if was := old.Topic(t.Name); was != nil && was.ID == t.ID && int(i) < len(was.Partitions) {
			p.Offline = was.Partitions[i].Offline
		}
		return p
	})
}

// completeCreations makes what the creations of topics and partitions that were
// cut short did not reach.
func (c *Controller) completeCreations(ctx context.Context, r *term) error {
	live, err := c.loadBrokers(ctx)
	if err != nil {
		return err
	}
	im := r.image
	for _, t := range im.Topics() {
		next, missing, err := c.completed(ctx, r, t, im.WithBrokers(live, im.ControllerID, im.ControllerEpoch))
		if err != nil {
			return err
		}
		if next == t {
			continue
		}
		if err := c.write(ctx, r, missing); err != nil {
			return err
		}
		im = im.With(next)
	}
	r.image = im
	return nil
}

// completed returns a topic as it was to be, and what the store lacks of it.
func (c *Controller) completed(ctx context.Context, r *term, t *Topic, live *Image) (*Topic, []Op, error) {
	if !halfMade(t) {
		return t, nil, nil
	}
	next := t.cloned()
	wanted := []Op{Create(topicConfigPath(t.Name), configNode(t.Config)), Create(partitionsPath(t.Name), nil)}
	for i := range next.Partitions {
		if next.Partitions[i].ISR == nil {
			next.Partitions[i] = firstState(live, next.Partitions[i].Replicas)
			wanted = append(wanted, createPartitionOps(next, int32(i), r.office.Epoch)...)
		}
	}
	missing, err := absent(ctx, c.store, wanted)
	return next, missing, err
}

// halfMade tells whether a topic's creation was cut short: the states of its
// partitions are what is written last.
func halfMade(t *Topic) bool {
	return len(t.Partitions) == 0 || slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.ISR == nil })
}

// meetBrokers decides what follows from the registrations as they are now, and
// notes them as dealt with. The caller holds the lock.
func (c *Controller) meetBrokers(ctx context.Context, r *term) error {
	begun := time.Now()
	live, err := c.loadBrokers(ctx)
	if err != nil {
		return err
	}
	for _, b := range live {
		c.logArrival(r.image, b)
	}
	for _, b := range r.image.Brokers {
		if !slices.ContainsFunc(live, func(other Broker) bool { return other.ID == b.ID }) {
			c.log.Warn("a broker is gone", "broker", b.ID, "epoch", b.Epoch, "controlled_shutdown", b.ShuttingDown)
		}
	}
	lost := func(id int32) bool {
		i := slices.IndexFunc(live, func(b Broker) bool { return b.ID == id })
		return i >= 0 && live[i].Lost
	}
	next := WithLive(r.image, live, lost, c.unclean(r.image))
	met := r.known.with(live)
	if err := c.commit(ctx, r, next, met.ops(r.known)...); err != nil {
		return fmt.Errorf("deal with brokers that came or left: %w", err)
	}
	if was := r.known.node(); !bytes.Equal(was, met.node()) {
		c.log.Info("brokers that came or left are dealt with", "brokers", len(live), "took", time.Since(begun).Round(time.Millisecond))
	}
	r.known = met
	var moving []TopicPartition
	for _, o := range Reassignments(r.image) {
		moving = append(moving, o.TopicPartition)
	}
	return c.continueReassignments(ctx, r, moving)
}

func (c *Controller) logArrival(im *Image, b Broker) {
	if old, ok := im.Broker(b.ID); ok && old.Epoch == b.Epoch {
		return
	}
	c.log.Info("a broker has joined", "broker", b.ID, "epoch", b.Epoch, "rack", b.Rack,
		"clean_stop", b.Clean, "lost_records", b.Lost, "other_disk", b.Replaced)
}

// continueReassignments goes on with those that can be, and ends those that have
// come to their end.
func (c *Controller) continueReassignments(ctx context.Context, r *term, among []TopicPartition) error {
	next := r.image
	for _, tp := range among {
		was := next
		if next = ContinueReassignment(was, tp); next == was {
			continue
		}
		if p, _ := next.Partition(tp.Topic, tp.Partition); !p.Reassigning() {
			c.log.Info("a reassignment is done", "topic", tp.Topic, "partition", tp.Partition, "replicas", p.Replicas)
		}
	}
	if next == r.image {
		return nil
	}
	return c.commit(ctx, r, next)
}

// watchBrokers follows who comes and goes.
func (c *Controller) watchBrokers(r *term) {
	c.follow(r, brokerIDsPath, func() error { return c.meetBrokers(r.ctx, r) })
}

// follow calls fn, with the lock held, whenever the children of a node change,
// and once at the beginning. What fails is tried again.
func (c *Controller) follow(r *term, path string, fn func() error) {
	for {
		changed, err := c.store.Watch(r.ctx, path, WatchChildren)
		if err == nil {
			if err = c.enterTerm(r); err == nil {
				err = fn()
				c.leave()
			}
		}
		switch {
		case errors.Is(err, ErrNotController):
			return
		case err != nil:
			if r.ctx.Err() == nil {
				c.log.Warn("the controller cannot follow the cluster store; it tries again", "path", path, "error", err)
			}
			if !pause(r.ctx, c.cfg.RetryBackoff) {
				return
			}
			continue
		}
		select {
		case <-changed:
		case <-r.ctx.Done():
			return
		}
	}
}

// watchDisks follows the brokers' notes that a disk failed or is back: the
// broker is told everything anew, and answers for all of it.
func (c *Controller) watchDisks(r *term) {
	c.follow(r, diskEventsPath, func() error {
		names, err := c.store.Children(r.ctx, diskEventsPath)
		if err != nil {
			return err
		}
		var ops []Op
		for _, name := range names {
			id, err := parseDiskEvent(name)
			if err != nil {
				c.log.Warn("a note of a failed disk is of no broker; it is removed", "note", name)
			}
			r.pushes.resend(id)
			ops = append(ops, Delete(diskEventsPath+"/"+name, AnyVersion))
		}
		return c.write(r.ctx, r, ops)
	})
}

// balance moves leaders back to the preferred replicas from time to time.
func (c *Controller) balance(r *term) {
	for pause(r.ctx, c.cfg.BalanceInterval) {
		if err := c.balanceLeaders(r); err != nil && r.ctx.Err() == nil {
			c.log.Warn("leaders cannot be balanced; it is tried again", "error", err)
		}
	}
}

func (c *Controller) balanceLeaders(r *term) error {
	if err := c.enterTerm(r); err != nil {
		return err
	}
	defer c.leave()
	next := BalanceLeaders(r.image, c.cfg.ImbalancePercent)
	if next == r.image {
		return nil
	}
	c.log.Info("leaders are moved back to the preferred replicas")
	return c.commit(r.ctx, r, next)
}

// unclean tells which topics may have an unclean election, by their settings
// and those of the brokers.
func (c *Controller) unclean(im *Image) func(topic string) bool {
	d, _ := LookupTopicConfig(uncleanElectionConfig)
	broker := BrokerSettings{
		Dynamic: im.BrokerConfig(fmt.Sprint(c.cfg.BrokerID)),
		Default: im.BrokerConfig(AllBrokers),
		Static:  c.cfg.TopicDefaults,
	}
	return func(topic string) bool {
		t := im.Topic(topic)
		if t == nil {
			return false
		}
		value, _ := d.Resolve(t.Config, broker)
		return isTrue(value)
	}
}

const uncleanElectionConfig = "unclean.leader.election.enable"
