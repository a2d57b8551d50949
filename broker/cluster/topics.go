package cluster

import (
	"context"
	"fmt"
)

// NewTopic asks for a topic.
type NewTopic struct {
	Name string
	// Partitions is their number; -1 means the broker's default, also where
	// Assignment says it.
	Partitions int32
	// ReplicationFactor; -1 means the broker's default, also where Assignment says it.
	ReplicationFactor int16
	// Assignment has the replicas of each partition, in order of preference.
	// Nil lets the controller choose.
	Assignment map[int32][]int32
	// Config has the topic's own settings; a nil value is refused.
	Config map[string]*string
}

// CreateResult answers for one topic: either Err or Topic is set.
type CreateResult struct {
	Name  string
	Topic *Topic
	Err   error
}

// CreateTopics makes topics; each answers for itself, in the order asked. With
// validateOnly nothing is made. It returns once the topics are durable, this
// broker serves its share of them, and the others know of them if they are
// quick; also those that existed. Errors are [ErrTopicExists],
// [*InvalidTopicError], [*InvalidConfigError], [ErrInvalidPartitions],
// [ErrInvalidReplicationFactor], [ErrInvalidAssignment], [ErrInvalidRequest],
// [ErrNotController] or the store's.
func (c *Controller) CreateTopics(ctx context.Context, topics []NewTopic, validateOnly bool) []CreateResult {
	out := make([]CreateResult, len(topics))
	r, err := c.enterUndeleted(ctx, topics)
	if err != nil {
		for i, t := range topics {
			out[i] = CreateResult{Name: t.Name, Err: fmt.Errorf("create topic %q: %w", t.Name, err)}
		}
		return out
	}
	c.createTopics(ctx, r, topics, out, validateOnly)
	done := c.published(r)
	c.leave()
	done.wait(ctx)
	return out
}

// enterUndeleted is enter when none of the topics is being deleted: their nodes
// are in the way until all brokers have dropped the old ones.
func (c *Controller) enterUndeleted(ctx context.Context, topics []NewTopic) (*term, error) {
	for {
		r, err := c.enter(ctx)
		if err != nil {
			return nil, err
		}
		var under *deletion
		for _, t := range topics {
			if d := r.deleting[t.Name]; d != nil {
				under = d
			}
		}
		if under == nil {
			return r, nil
		}
		c.leave()
		select {
		case <-under.done:
		case <-r.ctx.Done(): // enter says so
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until the earlier topic is deleted everywhere: %w", ctx.Err())
		}
	}
}

func (c *Controller) createTopics(ctx context.Context, r *term, topics []NewTopic, out []CreateResult, validateOnly bool) {
	counts := make(map[string]int, len(topics))
	for _, t := range topics {
		counts[t.Name]++
	}
	im := r.image
	var planned []int
	for i, t := range topics {
		out[i].Name = t.Name
		if counts[t.Name] > 1 {
			out[i].Err = fmt.Errorf("%w: topic %q appears more than once in the request", ErrInvalidRequest, t.Name)
			continue
		}
		if out[i].Topic, out[i].Err = planTopic(im, t, c.cfg); out[i].Err == nil {
			im = im.With(out[i].Topic) // so that a later one that collides with it is refused
			planned = append(planned, i)
		}
	}
	if validateOnly || len(planned) == 0 {
		return
	}
	if err := c.commit(ctx, r, im); err != nil {
		for _, i := range planned {
			out[i].Topic, out[i].Err = nil, fmt.Errorf("create topic %q: %w", out[i].Name, err)
		}
	}
}

// NewPartitions asks for a topic to have Total partitions.
type NewPartitions struct {
	Topic string
	Total int32
	// Assignment has the replicas of each added partition. Nil lets the controller choose.
	Assignment [][]int32
}

// CreatePartitions adds partitions to topics; each answers for itself, in
// order. Errors are [ErrUnknownTopic], [ErrInvalidPartitions],
// [ErrInvalidAssignment], [ErrInvalidRequest], [ErrNotController] or the store's.
func (c *Controller) CreatePartitions(ctx context.Context, asked []NewPartitions, validateOnly bool) []error {
	out := make([]error, len(asked))
	r, err := c.enter(ctx)
	if err != nil {
		return fill(out, fmt.Errorf("add partitions: %w", err))
	}
	counts := make(map[string]int, len(asked))
	for _, a := range asked {
		counts[a.Topic]++
	}
	for i, a := range asked {
		if counts[a.Topic] > 1 {
			out[i] = fmt.Errorf("%w: topic %q appears more than once in the request", ErrInvalidRequest, a.Topic)
			continue
		}
		out[i] = c.createPartitions(ctx, r, a, validateOnly)
	}
	done := c.published(r)
	c.leave()
	done.wait(ctx)
	return out
}

func (c *Controller) createPartitions(ctx context.Context, r *term, asked NewPartitions, validateOnly bool) error {
	if err := c.refresh(ctx, r); err != nil { // an earlier one may have failed
		return err
	}
	grown, err := planPartitions(r.image, asked, c.cfg)
	if err != nil || validateOnly {
		return err
	}
	if err := c.commit(ctx, r, r.image.With(grown)); err != nil {
		return fmt.Errorf("add partitions to topic %q: %w", asked.Topic, err)
	}
	return nil
}

// published is what a change has told the brokers, to be waited for without
// the lock.
type published struct {
	pushes  *pushes
	version int64
	self    int32
}

func (c *Controller) published(r *term) published {
	return published{r.pushes, r.pushes.versionNow(), c.cfg.BrokerID}
}

// wait returns when this broker has seen the change, and the others too unless
// they take long. The change is durable in any case.
func (p published) wait(ctx context.Context) {
	// What ends the wait early is no failure of the change.
	_ = p.pushes.wait(ctx, p.version, func(id int32) bool { return id == p.self })
	ctx, cancel := context.WithTimeout(ctx, othersWaitMax)
	defer cancel()
	_ = p.pushes.wait(ctx, p.version, func(int32) bool { return true })
}

func fill(out []error, err error) []error {
	for i := range out {
		out[i] = err
	}
	return out
}
