package kubernetes

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// steadyAfter is how long a watch must have lived for the pauses to begin anew.
const steadyAfter = 10 * time.Second

// Ref is what a file's path tells of a pod. What it does not tell is empty.
type Ref struct{ UID, Namespace, Name, ContainerID string }

// Stats are counts of what a Pods did.
type Stats struct {
	// Pods are those that are remembered, Live those of them that are not deleted.
	Pods, Live int
	// Lists and Watches are those that were begun, Gone how often a watch had to be followed by a list, Failures how often a request failed.
	Lists, Watches, Gone, Failures int64
	// Refused are pods that were not taken in because there were too many.
	Refused int64
	// Watching says that a watch is open: what is known is as it is.
	Watching bool
}

// Pods are the pods of a node, as the API server tells. Safe for concurrent use.
type Pods struct {
	log *slog.Logger
	cfg Config

	changes atomic.Uint64

	running sync.Mutex         // held while the watch begins and ends
	users   int                // guarded by running
	stop    context.CancelFunc // guarded by running
	ended   chan struct{}      // guarded by running

	mu      sync.Mutex
	store   *store         // guarded by mu
	stats   Stats          // guarded by mu
	synced  bool           // guarded by mu: a list was complete
	trouble error          // guarded by mu: why nothing new is told; nil while a watch is open
	said    string         // guarded by mu: the failure that was said; "" when none is
	full    bool           // guarded by mu: it was said that there are too many
	tell    map[int]func() // guarded by mu: who is told of changes
	next    int            // guarded by mu
}

// New makes a Pods that knows nothing yet.
func New(log *slog.Logger, cfg Config) *Pods {
	cfg = cfg.withDefaults()
	return &Pods{log: log, cfg: cfg, store: newStore(cfg), trouble: errNotAsked, tell: map[int]func(){}}
}

var errNotAsked = errors.New("the API server has not answered yet")

// Join has the pods watched until leave is called, by whoever joined last. changed is called after each change, from another goroutine.
func (p *Pods) Join(changed func()) (leave func()) {
	p.mu.Lock()
	id := p.next
	p.next++
	p.tell[id] = changed
	p.mu.Unlock()
	p.running.Lock()
	defer p.running.Unlock()
	if p.users++; p.users == 1 {
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		p.stop, p.ended = stop, ended
		go func() {
			defer close(ended)
			p.run(ctx)
		}()
	}
	return sync.OnceFunc(func() { p.leave(id) })
}

func (p *Pods) leave(id int) {
	p.mu.Lock()
	delete(p.tell, id)
	p.mu.Unlock()
	p.running.Lock()
	defer p.running.Unlock()
	if p.users--; p.users == 0 {
		p.stop()
		<-p.ended
	}
}

// Left says that the pods were watched, and are no more.
func (p *Pods) Left() bool {
	p.running.Lock()
	defer p.running.Unlock()
	return p.users == 0 && p.stop != nil
}

// Get finds a pod; nil when it is not known, or not any more.
func (p *Pods) Get(ref Ref) *Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.store.get(ref)
}

// Changes is a number that is another one after each change.
func (p *Pods) Changes() uint64 { return p.changes.Load() }

// Trouble says why nothing new is known; nil when all is.
func (p *Pods) Trouble() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble
}

// Stats returns the counts.
func (p *Pods) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Pods, s.Live, s.Refused, s.Watching = len(p.store.pods), p.store.live, p.store.refused, p.trouble == nil
	return s
}

// changed tells those who joined.
func (p *Pods) changed() {
	p.changes.Add(1)
	p.mu.Lock()
	tell := make([]func(), 0, len(p.tell))
	for _, f := range p.tell {
		tell = append(tell, f)
	}
	p.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// position is where the watch is.
type position struct {
	version string // "": a list is due
	current bool   // the list must not come from a cache, which may be as old as what was gone
}

// run lists and watches until ctx ends.
func (p *Pods) run(ctx context.Context) {
	cfg, err := p.cfg.resolved(os.Getenv)
	if err != nil {
		p.fail(err, true) // it will not change while the process runs
		<-ctx.Done()
		return
	}
	c := &client{cfg: cfg}
	defer c.close()
	var at position
	pause := backoff{min: cfg.BackoffMin, max: cfg.BackoffMax}
	for ctx.Err() == nil {
		begun := cfg.Now()
		err := p.step(ctx, c, &at)
		if ctx.Err() != nil {
			break
		}
		if cfg.Now().Sub(begun) >= steadyAfter {
			pause.reset()
		}
		if err == nil && at.version != "" {
			continue
		}
		wait(ctx, pause.next(err))
	}
	p.mu.Lock()
	p.trouble = errNotAsked
	p.mu.Unlock()
}

// step lists, or watches until that ends. No error, with a version, says to go on at once.
func (p *Pods) step(ctx context.Context, c *client, at *position) error {
	if at.version == "" {
		version, err := p.list(ctx, c, !at.current)
		if isGone(err) {
			at.current = true // the next page was of a version that is no more
		}
		if err != nil {
			p.fail(err, true)
			return err
		}
		at.version = version
		return nil
	}
	opened, err := p.watch(ctx, c, at)
	switch {
	case isGone(err):
		p.log.Debug("the API server no longer has what followed; listing the pods anew", "version", at.version)
		p.mu.Lock()
		p.stats.Gone++
		p.mu.Unlock()
		*at = position{current: true}
		return nil
	case err != nil && ctx.Err() == nil:
		p.fail(err, !opened) // connections are cut now and then; what counts is whether another can be had
	}
	return err
}

func (p *Pods) list(ctx context.Context, c *client, cached bool) (string, error) {
	p.mu.Lock()
	p.stats.Lists++
	p.mu.Unlock()
	there, changed := map[string]bool{}, false
	version, err := c.list(ctx, cached, func(o *object) {
		there[o.Metadata.UID] = true
		changed = p.set(o) || changed
	})
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	p.store.removeOthers(there, p.cfg.Now())
	p.store.expire(p.cfg.Now())
	changed = changed || !p.synced
	p.synced = true
	p.mu.Unlock()
	if changed {
		p.changed()
	}
	return version, nil
}

// set takes in a pod.
func (p *Pods) set(o *object) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.store.refused
	changed := p.store.set(o, p.cfg.Now())
	if p.store.refused > before && !p.full {
		p.full = true
		p.log.Warn("there are more pods than are remembered; lines of others go without labels (container.kubernetes.pods_max)", "pods_max", p.cfg.PodsMax)
	}
	return changed
}

// watch takes what changes until the watch ends. opened says that there was one.
func (p *Pods) watch(ctx context.Context, c *client, at *position) (opened bool, err error) {
	p.mu.Lock()
	p.stats.Watches++
	p.mu.Unlock()
	begun := p.cfg.Now()
	live := p.cfg.WatchFor/2 + rand.N(p.cfg.WatchFor/2) // so that not all agents come back at once
	open := func() {
		opened = true
		p.heal()
	}
	err = c.watch(ctx, at.version, live, open, func(kind string, o *object) {
		if o.Metadata.ResourceVersion != "" {
			at.version = o.Metadata.ResourceVersion
		}
		p.take(kind, o)
	})
	if err == nil && p.cfg.Now().Sub(begun) < p.cfg.BackoffMin {
		err = errShortWatch
	}
	return opened, err
}

// errShortWatch says that a server ends watches as soon as they begin.
var errShortWatch = errors.New("the API server ended the watch of pods at once")

func (p *Pods) take(kind string, o *object) {
	changed := false
	switch kind {
	case eventAdded, eventModified:
		changed = p.set(o)
	case eventDeleted:
		p.mu.Lock()
		p.store.remove(o.Metadata.UID, p.cfg.Now())
		p.mu.Unlock()
	}
	p.mu.Lock()
	p.store.expire(p.cfg.Now())
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// fail notes why nothing new is known, and says it, if it is worth that, once.
func (p *Pods) fail(err error, worth bool) {
	p.mu.Lock()
	p.stats.Failures++
	p.trouble = err
	say := worth && p.said != err.Error()
	if say {
		p.said = err.Error()
	}
	p.mu.Unlock()
	if say {
		p.log.Warn("the API server does not tell of the pods; trying again without end, lines go on by what is known", "error", err)
	}
}

// heal notes that a watch is open.
func (p *Pods) heal() {
	p.mu.Lock()
	say := p.said != "" || p.stats.Watches == 1
	p.trouble, p.said = nil, ""
	p.mu.Unlock()
	if say {
		p.log.Info("the pods of this node are watched")
	}
}

func isGone(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.Code == codeGone
}

// backoff are pauses that double.
type backoff struct{ min, max, last time.Duration }

func (b *backoff) reset() { b.last = 0 }

// next is the pause after a failure, give or take a third, and no less than the server asks for.
func (b *backoff) next(err error) time.Duration {
	b.last = min(max(b.last*2, b.min), b.max)
	pause := b.last*2/3 + rand.N(b.last*2/3+1)
	var f *failure
	if errors.As(err, &f) {
		pause = max(pause, f.retryAfter)
	}
	return pause
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
