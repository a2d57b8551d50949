package cluster

import (
	"context"
	"errors"
	"sync"
	"time"
)

// backoffFactorMax is how many times the first pause the pauses between tries grow to.
const backoffFactorMax = 10

// Pusher reaches the other brokers.
type Pusher interface {
	// Push sends an update to a broker and returns once the broker has taken it:
	// offline are the partitions in it that the broker cannot serve because their
	// disk has failed. After an error the broker may have taken it or not.
	Push(ctx context.Context, to Broker, u *Update) (offline []TopicPartition, err error)
}

// pushes keeps every live broker up with what a term decides: one queue and
// goroutine each, so that a slow one holds up none of the others. What waits in
// a queue is always one update, from what the broker has to the newest image.
//
// It is safe for concurrent use.
type pushes struct {
	ctx  context.Context
	push func(ctx context.Context, to Broker, u *Update) ([]TopicPartition, error)
	// offline is told what a broker answered. It is called without locks.
	offline func(to Broker, u *Update, offline []TopicPartition)
	// failed is told of a push that failed, and whether it is the first in a row.
	// It is called without locks.
	failed  func(to Broker, err error, first bool)
	work    *sync.WaitGroup
	backoff time.Duration

	mu      sync.Mutex // guards what follows
	seq     int64      // of the last update
	version int64      // counts the images
	newest  *Image
	queues  map[int32]*pushQueue
	changed chan struct{} // closed and replaced when a queue got further or ended
}

// pushQueue is what one broker, in one broker epoch, is to be told. It belongs
// to its goroutine, but for what its pushes guards.
type pushQueue struct {
	to     Broker
	cancel context.CancelFunc
	wake   chan struct{} // has room for one
	sent   *Image        // what the broker has; nil: unknown, so that it gets everything
	acked  int64         // the version that the broker has; guarded by pushes.mu
	anew   bool          // everything is to be sent again; guarded by pushes.mu
}

// publish makes im the newest image, and returns its version.
func (p *pushes) publish(im *Image) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = im
	p.version++
	for id, q := range p.queues {
		if b, live := im.Broker(id); !live || b.Epoch != q.to.Epoch {
			q.cancel()
			delete(p.queues, id)
			p.signal()
		}
	}
	for _, b := range im.Brokers {
		q, ok := p.queues[b.ID]
		if !ok {
			q = p.start(b)
		}
		q.poke()
	}
	return p.version
}

// versionNow is that of the newest image.
func (p *pushes) versionNow() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

func (p *pushes) start(to Broker) *pushQueue {
	ctx, cancel := context.WithCancel(p.ctx)
	q := &pushQueue{to: to, cancel: cancel, wake: make(chan struct{}, 1)}
	p.queues[to.ID] = q
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		p.run(ctx, q)
	}()
	return q
}

// poke makes the queue look. It never blocks.
func (q *pushQueue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// resend sends everything to a broker again, so that it answers for all.
func (p *pushes) resend(id int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.queues[id]; q != nil {
		q.anew = true
		q.poke()
	}
}

func (p *pushes) run(ctx context.Context, q *pushQueue) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		delay := p.backoff
		for first := true; p.next(ctx, q, first) != nil; first = false {
			if !pause(ctx, delay) {
				return
			}
			delay = min(2*delay, backoffFactorMax*p.backoff)
		}
	}
}

// next pushes what the broker does not have, if anything. first says that the
// push before did not fail.
func (p *pushes) next(ctx context.Context, q *pushQueue, first bool) error {
	p.mu.Lock()
	im, version := p.newest, p.version
	if q.acked == version && !q.anew {
		p.mu.Unlock()
		return nil
	}
	if q.anew {
		q.sent, q.anew = nil, false
	}
	p.seq++
	seq := p.seq
	p.mu.Unlock()

	u := Diff(q.sent, im)
	u.Seq = seq
	offline, err := p.push(ctx, q.to, u)
	if ctx.Err() != nil {
		return nil // it is no longer this queue's business
	}
	if err != nil {
		// It may have taken the update: what it has is unknown.
		q.sent = nil
		p.failed(q.to, err, first)
		return err
	}
	q.sent = im
	p.offline(q.to, u, offline)
	p.mu.Lock()
	q.acked = version
	p.signal()
	p.mu.Unlock()
	return nil
}

// signal wakes those who wait. The caller holds mu.
func (p *pushes) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// wait returns when the brokers that pass have a version of the image, or are
// gone. It ends with ctx.
func (p *pushes) wait(ctx context.Context, version int64, pass func(id int32) bool) error {
	for {
		p.mu.Lock()
		behind := false
		for id, q := range p.queues {
			behind = behind || pass(id) && q.acked < version
		}
		changed := p.changed
		p.mu.Unlock()
		if !behind {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
}

// newPushes returns the queues of a term.
func (c *Controller) newPushes(r *term) *pushes {
	return &pushes{
		ctx:     r.ctx,
		push:    c.pushTo,
		offline: func(to Broker, u *Update, offline []TopicPartition) { c.answered(r, to, u, offline) },
		failed:  func(to Broker, err error, first bool) { c.pushFailed(r, to, err, first) },
		work:    &c.work,
		backoff: c.cfg.RetryBackoff,
		queues:  map[int32]*pushQueue{},
		changed: make(chan struct{}),
	}
}

// pushTo sends an update; to the controller's own broker, directly.
func (c *Controller) pushTo(ctx context.Context, to Broker, u *Update) ([]TopicPartition, error) {
	if to.ID == c.cfg.BrokerID {
		if err := c.meta.Receive(u); err != nil {
			return nil, err
		}
		return c.ownOffline(u), nil
	}
	if c.pusher == nil {
		return nil, errors.New("this controller reaches no other broker")
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.PushTimeout)
	defer cancel()
	return c.pusher.Push(ctx, to, u)
}

func (c *Controller) ownOffline(u *Update) []TopicPartition {
	var out []TopicPartition
	for _, t := range u.Topics {
		for _, p := range t.Partitions {
			if c.cfg.Offline != nil && c.cfg.Offline(t.Name, p.Index) {
				out = append(out, TopicPartition{t.Name, p.Index})
			}
		}
	}
	return out
}

func (c *Controller) pushFailed(r *term, to Broker, err error, first bool) {
	if first {
		c.log.Warn("a broker could not be told of changes; it is tried again until it can or is gone",
			"broker", to.ID, "controller_epoch", r.office.Epoch, "error", err)
	}
	if !errors.Is(err, ErrStaleControllerEpoch) || c.enterTerm(r) != nil {
		return
	}
	defer c.leave()
	c.abdicate(r)
}

// answered takes note of the disks that a broker says have failed or are well again.
func (c *Controller) answered(r *term, to Broker, u *Update, offline []TopicPartition) {
	for {
		done, err := c.noteOffline(r, to, u, offline)
		if done || err == nil {
			return
		}
		c.log.Warn("cannot note which partitions a broker does not serve; it is tried again", "broker", to.ID, "error", err)
		if !pause(r.ctx, c.cfg.RetryBackoff) {
			return
		}
	}
}

func (c *Controller) noteOffline(r *term, to Broker, u *Update, offline []TopicPartition) (done bool, err error) {
	if len(offline) == 0 && !anyOffline(u, to.ID) {
		return true, nil // as nearly always
	}
	if err := c.enterTerm(r); err != nil {
		return r.ctx.Err() != nil || errors.Is(err, ErrNotController), err
	}
	defer c.leave()
	if b, live := r.image.Broker(to.ID); !live || b.Epoch != to.Epoch {
		return true, nil
	}
	next := WithOffline(r.image, to.ID, u, offline, c.unclean(r.image))
	if next == r.image {
		return true, nil
	}
	c.log.Info("disks of a broker have failed or are back", "broker", to.ID, "offline_partitions", len(offline))
	return false, c.commit(r.ctx, r, next)
}

// anyOffline tells whether an update holds a broker's replica for failed.
func anyOffline(u *Update, broker int32) bool {
	for _, t := range u.Topics {
		for _, p := range t.Partitions {
			for _, id := range p.Offline {
				if id == broker {
					return true
				}
			}
		}
	}
	return false
}

// pause waits a while; false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
