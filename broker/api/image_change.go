package api

import (
	"context"
	"sync"

	"github.com/sluice-io/sluice/broker/cluster"
)

// imageChange tells those who wait for the cluster to change. It is safe for
// concurrent use; its lock is a leaf. The zero value is ready.
type imageChange struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change; nil if nobody waits
}

func (c *imageChange) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.next
}

func (c *imageChange) announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

// ImageChanged tells that Image returns another one than before.
func (a *API) ImageChanged() { a.changes.announce() }

// awaitImage waits until the image is as wanted, or ctx ends.
func (a *API) awaitImage(ctx context.Context, wanted func(*cluster.Image) bool) error {
	for {
		changed := a.changes.wait()
		if wanted(a.Image()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
