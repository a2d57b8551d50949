package cluster

import (
	"context"
	"fmt"
	"sync"
)

// Memory is a tree in memory that several clients share, each with a session of
// its own, as ZooKeeper is shared: for simulations and tests of a cluster whose
// store can be lost and whose sessions end at a call.
//
// A Memory and its clients are safe for concurrent use; one lock guards all.
type Memory struct {
	mu       sync.Mutex
	tree     *tree
	sessions int64
	clients  []*MemoryClient
}

// NewMemory returns an empty tree.
func NewMemory() *Memory { return &Memory{tree: newTree()} }

// MemoryClient is one client's [Store].
type MemoryClient struct {
	m       *Memory
	session Session
	ended   chan struct{}
	watches map[watchKey]chan struct{}
	closed  bool
	away    bool // the client cannot reach the tree
	mute    int  // how many transactions from now on are applied but not answered
}

// Open returns a client with a new session.
func (m *Memory) Open() *MemoryClient {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &MemoryClient{m: m, watches: map[watchKey]chan struct{}{}}
	c.begin()
	m.clients = append(m.clients, c)
	return c
}

// begin begins a session. The caller holds the lock, as for all helpers here.
func (c *MemoryClient) begin() {
	c.m.sessions++
	c.ended = make(chan struct{})
	c.session = Session{ID: c.m.sessions, Ended: c.ended}
}

// end ends the session: its nodes go, all its watches fire, as those of other
// clients do that wait for these nodes.
func (c *MemoryClient) end() {
	undo := &undoLog{}
	c.m.tree.endSession(c.session.ID, undo)
	c.m.tree.zxid++
	c.m.fire(undo.changed)
	for key, ch := range c.watches {
		close(ch)
		delete(c.watches, key)
	}
	close(c.ended)
}

// Expire ends the client's session and begins another.
func (c *MemoryClient) Expire() {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if !c.closed {
		c.end()
		c.begin()
	}
}

// Close ends the session for good.
func (c *MemoryClient) Close() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.end()
	}
	return nil
}

// SetAway cuts the client off, or lets it reach the tree again. Its session
// stays, and its watches wait.
func (c *MemoryClient) SetAway(away bool) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.away = away
}

// LoseAnswers makes the client's next n transactions end in ErrUncertain,
// though they are applied.
func (c *MemoryClient) LoseAnswers(n int) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.mute = n
}

// usable says why nothing can be asked now.
func (c *MemoryClient) usable(ctx context.Context) error {
	switch {
	case c.closed:
		return ErrStoreClosed
	case c.away:
		return ErrUnavailable
	}
	return ctx.Err()
}

// Get implements [Store].
func (c *MemoryClient) Get(ctx context.Context, path string) ([]byte, Stat, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.usable(ctx); err != nil {
		return nil, Stat{}, err
	}
	n, ok := c.m.tree.nodes[path]
	if !ok {
		return nil, Stat{}, fmt.Errorf("get %s: %w", path, ErrNoNode)
	}
	return n.data, n.stat, nil
}

// Children implements [Store].
func (c *MemoryClient) Children(ctx context.Context, path string) ([]string, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	n, ok := c.m.tree.nodes[path]
	if !ok {
		return nil, fmt.Errorf("children of %s: %w", path, ErrNoNode)
	}
	return sortedKeys(n.children), nil
}

// Watch implements [Store].
func (c *MemoryClient) Watch(ctx context.Context, path string, kind WatchKind) (<-chan struct{}, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	if _, ok := c.m.tree.nodes[path]; !ok && kind == WatchChildren {
		return nil, fmt.Errorf("watch the children of %s: %w", path, ErrNoNode)
	}
	key := watchKey{path, kind}
	ch, ok := c.watches[key]
	if !ok {
		ch = make(chan struct{})
		c.watches[key] = ch
	}
	return ch, nil
}

// Session implements [Store].
func (c *MemoryClient) Session(ctx context.Context) (Session, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.usable(ctx); err != nil {
		return Session{}, err
	}
	return c.session, nil
}

// Txn implements [Store].
func (c *MemoryClient) Txn(ctx context.Context, ops ...Op) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if err := c.usable(ctx); err != nil {
		return err
	}
	if err := checkSession(ops, c.session.ID); err != nil {
		return err
	}
	undo := &undoLog{}
	if err := c.m.tree.apply(ops, c.m.tree.zxid+1, c.session.ID, undo); err != nil {
		undo.rollback()
		return err
	}
	c.m.tree.zxid++
	c.m.fire(undo.changed)
	if c.mute > 0 {
		c.mute--
		return ErrUncertain
	}
	return nil
}

func (m *Memory) fire(changed []watchKey) {
	for _, c := range m.clients {
		for _, key := range changed {
			if ch, ok := c.watches[key]; ok {
				close(ch)
				delete(c.watches, key)
			}
		}
	}
}
