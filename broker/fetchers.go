package broker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/peer"
	"github.com/sluice-io/sluice/broker/replica"
)

// fetchers keep this broker's followers close to their leaders: for each leader
// a fixed number of goroutines, among which its partitions are spread. It is
// safe for concurrent use.
type fetchers struct {
	log      *slog.Logger
	client   *peer.Client
	perPeer  int
	fetch    peer.FetchConfig
	follower replica.FetcherConfig
	settled  func(context.Context) // nothing is fetched before it returns
	now      func() time.Time

	mu      sync.Mutex // guards what follows; no other lock is taken under it but the fetchers' own
	leaders map[int32]*leaderFetchers
	at      map[*replica.Partition]*fetchLoop
	work    sync.WaitGroup
	stopped bool
}

// leaderFetchers are those for one leader in one life.
type leaderFetchers struct {
	to    cluster.Broker
	loops []*fetchLoop
}

func newFetchers(log *slog.Logger, client *peer.Client, perPeer int, fetch peer.FetchConfig, follower replica.FetcherConfig, settled func(context.Context), now func() time.Time) *fetchers {
	return &fetchers{
		log: log, client: client, perPeer: perPeer, fetch: fetch, follower: follower, settled: settled, now: now,
		leaders: map[int32]*leaderFetchers{}, at: map[*replica.Partition]*fetchLoop{},
	}
}

// follow has partitions fetched from the leaders that they follow, and those
// that follow none no more.
func (fs *fetchers) follow(im *cluster.Image, partitions []*replica.Partition) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.stopped {
		return
	}
	fs.renew(im)
	added, kept := map[*fetchLoop][]*replica.Partition{}, map[*fetchLoop][]*replica.Partition{}
	removed := map[*fetchLoop][]*replica.Partition{}
	for _, p := range partitions {
		loop := fs.loopFor(im, p)
		was := fs.at[p]
		if was != nil && was != loop {
			removed[was] = append(removed[was], p)
			delete(fs.at, p)
		}
		switch {
		case loop == nil:
		case loop == was:
			kept[loop] = append(kept[loop], p)
		default:
			added[loop] = append(added[loop], p)
			fs.at[p] = loop
		}
	}
	for loop, list := range removed {
		loop.fetcher.Remove(list...)
	}
	for loop, list := range kept {
		loop.again(list)
	}
	for loop, list := range added {
		loop.add(list)
	}
}

// loopFor is the loop that is to fetch a partition, nil if there is nobody to
// fetch it from. fs.mu is held.
func (fs *fetchers) loopFor(im *cluster.Image, p *replica.Partition) *fetchLoop {
	leader, following := p.Following()
	to, live := im.Broker(leader)
	if !following || !live {
		return nil
	}
	lf := fs.leaders[leader]
	if lf == nil {
		lf = &leaderFetchers{to: to}
		for range fs.perPeer {
			lf.loops = append(lf.loops, fs.start(to))
		}
		fs.leaders[leader] = lf
	}
	return lf.loops[spread(p)%uint32(len(lf.loops))]
}

// spread puts the partitions of a topic on different fetchers.
func spread(p *replica.Partition) uint32 {
	id := p.TopicID()
	return uint32(p.Index()) + uint32(id[0]) + uint32(id[15])<<8
}

// renew ends the loops to brokers that are gone or have begun another life, and
// has what they fetched fetched from the new one. fs.mu is held.
func (fs *fetchers) renew(im *cluster.Image) {
	for id, lf := range fs.leaders {
		to, live := im.Broker(id)
		if live && to.Epoch == lf.to.Epoch && slices.Equal(to.Endpoints, lf.to.Endpoints) {
			continue
		}
		delete(fs.leaders, id)
		var orphans []*replica.Partition
		for p, loop := range fs.at {
			if slices.Contains(lf.loops, loop) {
				orphans = append(orphans, p)
				delete(fs.at, p)
			}
		}
		for _, loop := range lf.loops {
			loop.stop()
		}
		for _, p := range orphans {
			if loop := fs.loopFor(im, p); loop != nil {
				fs.at[p] = loop
				loop.add([]*replica.Partition{p})
			}
		}
	}
}

// forget gives up partitions that are deleted.
func (fs *fetchers) forget(partitions ...*replica.Partition) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, p := range partitions {
		if loop := fs.at[p]; loop != nil {
			loop.fetcher.Remove(p)
			delete(fs.at, p)
		}
	}
}

// stop ends all loops and returns when they have.
func (fs *fetchers) stop() {
	fs.mu.Lock()
	fs.stopped = true
	for _, lf := range fs.leaders {
		for _, loop := range lf.loops {
			loop.stop()
		}
	}
	fs.mu.Unlock()
	fs.work.Wait()
}

func (fs *fetchers) start(to cluster.Broker) *fetchLoop {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := fs.follower
	cfg.Leader = to.ID
	cfg.Failed = fs.failed
	loop := &fetchLoop{
		fetcher: replica.NewFetcher(cfg), conn: fs.client.Fetcher(to, fs.fetch),
		log: fs.log.With("leader", to.ID), settled: fs.settled, now: fs.now,
		wake: make(chan struct{}, 1), stop: cancel,
	}
	fs.work.Go(func() { loop.run(ctx) })
	return loop
}

// failed is told of a follower that cannot go on by itself.
func (fs *fetchers) failed(p *replica.Partition, err error) {
	if errors.Is(err, commitlog.ErrClosed) {
		return
	}
	fs.log.Error("a follower cannot take what its leader has; it is tried again", "topic", p.Topic(), "partition", p.Index(), "error", err)
}

// fetchLoop is one connection's worth of followers of one leader.
type fetchLoop struct {
	fetcher *replica.Fetcher
	conn    *peer.FetchConn
	log     *slog.Logger
	settled func(context.Context)
	now     func() time.Time
	wake    chan struct{} // has room for one
	stop    context.CancelFunc

	mu        sync.Mutex // guards interrupt
	interrupt context.CancelCauseFunc
}

// errInterrupted ends a fetch that waits, for there is more to ask for.
var errInterrupted = errors.New("there is more to fetch")

// add takes up partitions; a fetch that waits for records of others is not
// waited for.
func (l *fetchLoop) add(list []*replica.Partition) {
	l.again(list)
	l.mu.Lock()
	if l.interrupt != nil {
		l.interrupt(errInterrupted)
	}
	l.mu.Unlock()
}

// again takes up partitions that are there already, perhaps in another epoch:
// their leader has ended what waits in the one before.
func (l *fetchLoop) again(list []*replica.Partition) {
	l.fetcher.Add(list...)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *fetchLoop) run(ctx context.Context) {
	defer l.conn.Close()
	l.settled(ctx)
	lost := false
	for ctx.Err() == nil {
		now := l.now()
		req, at := l.fetcher.Next(now)
		if req == nil {
			l.pause(ctx, now, at)
			continue
		}
		err := l.fetchOnce(ctx, req)
		if lost != (err != nil) && ctx.Err() == nil {
			l.logConnection(err)
		}
		lost = err != nil
	}
}

func (l *fetchLoop) logConnection(err error) {
	if err != nil {
		l.log.Warn("cannot fetch from a leader, trying again", "error", err)
		return
	}
	l.log.Info("fetching from a leader again")
}

// fetchOnce sends one request and has its answer taken.
func (l *fetchLoop) fetchOnce(ctx context.Context, req *replica.FetchRequest) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.setInterrupt(cancel)
	resp, err := l.conn.Fetch(ctx, req)
	l.setInterrupt(nil)
	if err != nil && errors.Is(context.Cause(ctx), errInterrupted) {
		resp, err = &replica.FetchResponse{}, nil
	}
	l.fetcher.Answer(req, resp, err, l.now())
	return err
}

func (l *fetchLoop) setInterrupt(cancel context.CancelCauseFunc) {
	l.mu.Lock()
	l.interrupt = cancel
	l.mu.Unlock()
}

// pause waits until at, which is zero for no time, or until there is more to fetch.
func (l *fetchLoop) pause(ctx context.Context, now, at time.Time) {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(max(at.Sub(now), 0))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-l.wake:
	case <-due:
	}
}
