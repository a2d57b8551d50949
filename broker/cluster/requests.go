package cluster

import (
	"context"
	"errors"
	"fmt"
)

// AlterPartitions decides on what a leader asks of the in-sync replicas of its
// partitions; each answers for itself, in order, with the state as it is then.
// brokerEpoch is that of the broker that asks. Errors are those of [AlterISR],
// [ErrStaleBrokerEpoch], [ErrNotController] or the store's.
func (c *Controller) AlterPartitions(ctx context.Context, brokerID int32, brokerEpoch int64, asked []AlterPartition) []AlterPartitionResult {
	out := make([]AlterPartitionResult, len(asked))
	for i, a := range asked {
		out[i].TopicPartition, out[i].TopicID = a.TopicPartition, a.TopicID
	}
	r, err := c.enterFor(ctx, brokerID, brokerEpoch)
	if err != nil {
		for i := range out {
			out[i].Err = fmt.Errorf("change in-sync replicas: %w", err)
		}
		return out
	}
	defer c.leave()
	for i, err := range c.alterEach(ctx, r, "change in-sync replicas", len(asked),
		func(i int) TopicPartition { return asked[i].TopicPartition },
		func(im *Image, i int) (*Image, error) {
			a := asked[i]
			a.Leader = brokerID
			return AlterISR(im, a)
		}) {
		if out[i].Err = err; err == nil {
			out[i].Partition, _ = r.image.Partition(out[i].Topic, out[i].TopicPartition.Partition)
		}
	}
	return out
}

// alterEach decides on each of n partitions, stores what was decided, and goes on with
// the reassignments among them. Each answers for itself, in order; one that appears
// again is refused. The caller holds the lock.
func (c *Controller) alterEach(ctx context.Context, r *term, what string, n int, at func(int) TopicPartition, alter func(*Image, int) (*Image, error)) []error {
	errs := make([]error, n)
	next := r.image
	var altered []TopicPartition
	seen := make(map[TopicPartition]bool, n)
	for i := range n {
		tp := at(i)
		if seen[tp] {
			errs[i] = fmt.Errorf("%w: %s-%d appears more than once", ErrInvalidRequest, tp.Topic, tp.Partition)
			continue
		}
		seen[tp] = true
		im, err := alter(next, i)
		if err != nil {
			errs[i] = err
			continue
		}
		next, altered = im, append(altered, tp)
	}
	if err := c.commit(ctx, r, next); err != nil {
		return fill(errs, fmt.Errorf("%s: %w", what, err))
	}
	if err := c.continueReassignments(ctx, r, altered); err != nil {
		c.log.Warn("a reassignment cannot be gone on with; it is tried again with the next change", "error", err)
	}
	return errs
}

// enterFor is enter for a request of a broker that must be registered.
func (c *Controller) enterFor(ctx context.Context, brokerID int32, brokerEpoch int64) (*term, error) {
	r, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	b, live := r.image.Broker(brokerID)
	if !live || b.Epoch < brokerEpoch {
		// Its registration may be newer than what was seen of the store.
		if err = c.meetBrokers(ctx, r); err != nil {
			c.leave()
			return nil, err
		}
		b, live = r.image.Broker(brokerID)
	}
	if !live || b.Epoch != brokerEpoch {
		c.leave()
		return nil, fmt.Errorf("%w: broker %d asks in epoch %d, and is in epoch %d", ErrStaleBrokerEpoch, brokerID, brokerEpoch, b.Epoch)
	}
	return r, nil
}

// ControlledShutdown prepares the stop of a broker; see [ShutDown]. The broker
// is to ask again until nothing remains, as long as it is willing to wait.
// Errors are [ErrStaleBrokerEpoch], [ErrNotController] or the store's.
func (c *Controller) ControlledShutdown(ctx context.Context, brokerID int32, brokerEpoch int64) ([]TopicPartition, error) {
	r, err := c.enterFor(ctx, brokerID, brokerEpoch)
	if err != nil {
		return nil, fmt.Errorf("controlled shutdown of broker %d: %w", brokerID, err)
	}
	next, remaining := ShutDown(r.image, brokerID)
	err = c.commit(ctx, r, next)
	done := c.published(r)
	c.leave()
	if err != nil {
		return nil, fmt.Errorf("controlled shutdown of broker %d: %w", brokerID, err)
	}
	c.log.Info("a broker shuts down", "broker", brokerID, "still_leads", len(remaining))
	done.wait(ctx)
	return remaining, nil
}

// ElectResult answers for the election of one partition.
type ElectResult struct {
	TopicPartition
	Err error
}

// ElectLeaders holds elections; each partition answers for itself, in order.
// With no partitions it holds one wherever one is needed, and answers for those
// only. Errors are those of [Elect], [ErrNotController] or the store's.
func (c *Controller) ElectLeaders(ctx context.Context, kind ElectionKind, asked []TopicPartition) ([]ElectResult, error) {
	r, err := c.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("elect leaders: %w", err)
	}
	out, next := elections(r.image, kind, asked)
	err = c.commit(ctx, r, next)
	done := c.published(r)
	c.leave()
	if err != nil {
		return nil, fmt.Errorf("elect leaders: %w", err)
	}
	done.wait(ctx)
	return out, nil
}

func elections(im *Image, kind ElectionKind, asked []TopicPartition) (out []ElectResult, next *Image) {
	everywhere := asked == nil
	if everywhere {
		for _, t := range im.Topics() {
			for i := range t.Partitions {
				asked = append(asked, TopicPartition{t.Name, int32(i)})
			}
		}
	}
	next = im
	for _, tp := range asked {
		// Of one that is asked for twice, the second finds nothing to do.
		elected, err := Elect(next, tp, kind)
		if err == nil {
			next = elected
		}
		if !everywhere || !errors.Is(err, ErrElectionNotNeeded) {
			out = append(out, ElectResult{tp, err})
		}
	}
	return out, next
}

// Reassignment asks for other replicas of a partition.
type Reassignment struct {
	TopicPartition
	// Replicas in order of preference; nil cancels a reassignment.
	Replicas []int32
}

// AlterReassignments begins or cancels reassignments; each answers for itself,
// in order. It does not wait for the moves. Errors are those of
// [StartReassignment], [CancelReassignment], [ErrInvalidReplicationFactor]
// unless mayChangeFactor, [ErrNotController] or the store's.
func (c *Controller) AlterReassignments(ctx context.Context, asked []Reassignment, mayChangeFactor bool) []error {
	out := make([]error, len(asked))
	r, err := c.enter(ctx)
	if err != nil {
		return fill(out, fmt.Errorf("reassign partitions: %w", err))
	}
	defer c.leave()
	return c.alterEach(ctx, r, "reassign partitions", len(asked),
		func(i int) TopicPartition { return asked[i].TopicPartition },
		func(im *Image, i int) (*Image, error) { return alterReassignment(im, asked[i], mayChangeFactor) })
}

func alterReassignment(im *Image, a Reassignment, mayChangeFactor bool) (*Image, error) {
	if a.Replicas == nil {
		return CancelReassignment(im, a.TopicPartition)
	}
	_, p, err := im.partition(a.TopicPartition)
	if err != nil {
		return nil, err
	}
	if err := CheckReassignment(im, a.Partition, p, a.Replicas, mayChangeFactor); err != nil {
		return nil, err
	}
	return StartReassignment(im, a.TopicPartition, a.Replicas)
}

// ListReassignments returns the reassignments that are under way. Every broker
// can tell from its own image; see [Reassignments].
func (c *Controller) ListReassignments(ctx context.Context) ([]Ongoing, error) {
	r, err := c.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("list reassignments: %w", err)
	}
	defer c.leave()
	return Reassignments(r.image), nil
}
