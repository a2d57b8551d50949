package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// deletion is that of one topic, which has begun and is durable.
type deletion struct {
	version int64         // of the image without the topic
	tried   chan struct{} // closed after the first try to finish it
	err     error         // of the first try; read after tried
	done    chan struct{} // closed when the topic's nodes are gone
}

// DeleteTopics deletes topics by name, also while they are written and read.
// Each answers for itself. A deletion is noted in the store first; then every
// live broker is told to drop the topic; and when all have, its nodes go: a
// crash in between ends with the deletion done. An answer waits for that as
// long as ctx. Errors are [ErrUnknownTopic], [ErrNotController] or the store's.
func (c *Controller) DeleteTopics(ctx context.Context, names []string) []error {
	out := make([]error, len(names))
	r, err := c.enter(ctx)
	if err != nil {
		return fill(out, fmt.Errorf("delete topics: %w", err))
	}
	begun := make([]*deletion, len(names))
	for i, name := range names {
		begun[i], out[i] = c.beginDeletion(ctx, r, name)
	}
	c.leave()
	for i, d := range begun {
		if d == nil {
			continue
		}
		select {
		case <-d.tried:
			out[i] = d.err
		case <-r.ctx.Done():
			out[i] = fmt.Errorf("delete topic %q: %w: it is left to the next one", names[i], ErrNotController)
		case <-ctx.Done(): // it goes on, and can no longer fail
		}
	}
	return out
}

func (c *Controller) beginDeletion(ctx context.Context, r *term, name string) (*deletion, error) {
	if err := c.refresh(ctx, r); err != nil { // an earlier one may have failed
		return nil, fmt.Errorf("delete topic %q: %w", name, err)
	}
	if r.image.Topic(name) == nil {
		if d := r.deleting[name]; d != nil {
			return d, nil
		}
		return nil, fmt.Errorf("%w: %q", ErrUnknownTopic, name)
	}
	if err := c.write(ctx, r, []Op{Create(deleteTopicPath(name), nil)}); err != nil && !errors.Is(err, ErrNodeExists) {
		c.doubt(r)
		return nil, fmt.Errorf("delete topic %q: %w", name, err)
	}
	r.image = r.image.Without(name)
	r.pushes.publish(r.image)
	return c.trackDeletion(r, name), nil
}

// trackDeletion finishes a deletion that is noted in the store, in the
// background, once the brokers have the image as it is now.
func (c *Controller) trackDeletion(r *term, name string) *deletion {
	d := &deletion{version: r.pushes.versionNow(), tried: make(chan struct{}), done: make(chan struct{})}
	r.deleting[name] = d
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		if r.pushes.wait(r.ctx, d.version, func(int32) bool { return true }) != nil {
			return // left to the next term
		}
		d.err = c.finishDeletion(r, name)
		close(d.tried)
		for err := d.err; err != nil; err = c.finishDeletion(r, name) {
			c.log.Warn("the nodes of a deleted topic cannot be removed; it is tried again", "topic", name, "error", err)
			if !pause(r.ctx, c.cfg.RetryBackoff*backoffFactorMax) {
				return
			}
		}
		close(d.done)
	}()
	return d
}

// finishDeletion removes a topic's nodes, children first, and last of all the
// note that it is being deleted. It begins anywhere an earlier one ended.
func (c *Controller) finishDeletion(r *term, name string) error {
	if err := c.enterTerm(r); err != nil {
		return fmt.Errorf("finish deletion of topic %q: %w", name, err)
	}
	defer c.leave()
	var ops []Op
	err := c.collect(r.ctx, topicPath(name), &ops)
	if err == nil {
		err = c.collect(r.ctx, topicConfigPath(name), &ops)
	}
	if err == nil {
		err = c.write(r.ctx, r, append(ops, Delete(deleteTopicPath(name), AnyVersion)))
	}
	if err != nil {
		return fmt.Errorf("finish deletion of topic %q: %w", name, err)
	}
	delete(r.deleting, name)
	return nil
}

// collect appends deletions of path and all below it, if it exists.
func (c *Controller) collect(ctx context.Context, path string, ops *[]Op) error {
	children, err := c.store.Children(ctx, path)
	if errors.Is(err, ErrNoNode) {
		return nil
	}
	if err != nil {
		return err
	}
	found := make([][]Op, len(children))
	err = concurrently(len(children), func(i int) error {
		return c.collect(ctx, path+"/"+children[i], &found[i])
	})
	if err != nil {
		return err
	}
	*ops = append(*ops, slices.Concat(found...)...)
	*ops = append(*ops, Delete(path, AnyVersion))
	return nil
}
