package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-io/sluice/broker/api"
	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/coordinator/group"
	"github.com/sluice-io/sluice/broker/peer"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
	"github.com/sluice-io/sluice/internal/quickio"
)

// Broker is one node. Start, Run and Shutdown are called once each; the other
// methods are safe for concurrent use.
type Broker struct {
	log     *slog.Logger
	reg     prometheus.Registerer
	cfg     Config
	listen  []listener
	metrics *metrics
	// advertise is what clients are told instead of a listener's own address, by name.
	advertise map[string]string
	bound     []net.Addr // of listen

	dirs         []*dataDir           // the first holds the cluster store
	identity     commitlog.Properties // of the first
	membership   commitlog.Membership // of the first, as it was at the start
	clusterStore closableStore
	metadata     *cluster.Metadata
	controller   *cluster.Controller
	member       *cluster.Member
	partitions   replica.Partitions
	groups       *group.Coordinator
	api          *api.API
	server       *server.Server
	flusher      *flusher
	cleaner      *cleaner
	peers        *peer.Client // nil if the broker is alone, as the three that follow
	fetchers     *fetchers
	isr          *isrKeeper
	throttles    *throttles
	mover        *mover
	files        *commitlog.FileCache

	// located has the directories of the partitions' logs. It and recovered
	// belong to whoever holds the metadata's lock.
	located   map[commitlog.TopicPartition]*dataDir
	recovered recoveryReport
	storing   sync.Mutex // guards what is written of the data directories
	live      atomic.Pointer[liveConfig]
	holdFor   atomic.Pointer[map[string][]string]
	held      atomic.Pointer[map[string]int64] // bytes that are kept for groups only, by topic
	offline   sync.Map                         // commitlog.TopicPartition to offlinePartition

	addr      atomic.Pointer[string]
	ready     atomic.Pointer[string] // why not; nil is ready
	stopSteps context.CancelFunc
	stepsDone chan struct{}
	joined    bool // a member of the cluster, which is to be left

	displaced chan error    // has room for one
	noted     chan struct{} // closed when the directory knows of this membership
}

// New checks the configuration and returns a broker that has touched nothing
// yet. Its metrics are registered with reg, which may be nil, when it starts.
func New(log *slog.Logger, reg prometheus.Registerer, cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	b := &Broker{log: log, reg: reg, cfg: cfg, displaced: make(chan error, 1), noted: make(chan struct{})}
	if reg == nil {
		b.reg = prometheus.NewRegistry()
	}
	var err error
	if b.listen, b.advertise, err = cfg.parseListeners(); err != nil {
		return nil, err
	}
	if err := b.checkCluster(); err != nil {
		return nil, err
	}
	for name, value := range cfg.TopicDefaults {
		known, err := cluster.CheckTopicDefault(name, value)
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, fmt.Errorf("unknown property %q%s", name, suggestion(name))
		}
	}
	b.SetHoldFor(cfg.HoldFor)
	b.live.Store(b.resolveLive(nil, nil))
	b.notReady("the broker has not been started")
	return b, nil
}

func (b *Broker) notReady(why string) { b.ready.Store(&why) }

// Addr is the first address that the broker listens on, with the port that was
// taken; empty before Start.
func (b *Broker) Addr() string {
	if a := b.addr.Load(); a != nil {
		return *a
	}
	return ""
}

// Ready says why the broker does not serve, nil if it does. A partition that is
// offline is not a reason: the others are served.
func (b *Broker) Ready() error {
	if why := b.ready.Load(); why != nil {
		return errors.New(*why)
	}
	return nil
}

// Start brings the broker up; see the package comment for the order. When it
// fails, it has stopped again what it had started, and its error names what is
// wrong and how to mend it.
func (b *Broker) Start(ctx context.Context) (err error) {
	begun := time.Now()
	b.notReady("the broker is starting")
	var undo []func()
	defer func() {
		if err == nil {
			return
		}
		err = b.explainNoRoom(err)
		b.notReady("the broker could not start")
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}()
	undo = append(undo, b.releaseDirs)
	if err := b.prepareDataDirs(ctx); err != nil {
		return err
	}
	undo = append(undo, func() { _ = b.closeStore() })
	if err := b.openStore(ctx); err != nil {
		return err
	}
	b.build()
	undo = append(undo, b.flusher.stop)
	if b.bound, err = b.server.Listen(); err != nil {
		return explainListen(err)
	}
	undo = append(undo, func() { b.closeServer() })
	at, err := endpoints(b.listen, b.advertise, b.bound)
	if err != nil {
		return err
	}
	undo = append(undo, b.abortLogs, b.leave, b.stopReplication, b.groups.Close)
	if err := b.join(ctx, cluster.Broker{ID: b.cfg.NodeID, Host: at[0].Host, Port: at[0].Port, Rack: b.cfg.Rack, Endpoints: at}); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.server.Serve() // a controller elsewhere tells what there is to serve
	if err := b.awaitImage(ctx); err != nil {
		return err
	}
	b.startSteps()
	address := b.bound[0].String()
	b.addr.Store(&address)
	b.ready.Store(nil)
	b.log.Info("broker is ready", "address", address, "advertised", fmt.Sprintf("%s:%d", at[0].Host, at[0].Port),
		"data", b.cfg.DataDir, "cluster", b.identity.ClusterID, "node", b.cfg.NodeID, "took", time.Since(begun).Round(time.Millisecond))
	return nil
}

// explainNoRoom says what helps when the cluster's state cannot be written.
func (b *Broker) explainNoRoom(err error) error {
	if !quickio.NoRoom(err) {
		return err
	}
	return fmt.Errorf("%w; the first of log.dirs, %s, holds the cluster's state and has to have some room: make some and start again", err, b.cfg.DataDir)
}

// awaitImage waits for the first picture of the cluster that has this broker in
// it: before, no log is known to be wanted.
func (b *Broker) awaitImage(ctx context.Context) error {
	first := make(chan struct{})
	var once sync.Once
	b.metadata.Subscribe(func(_, im *cluster.Image) {
		if self, ok := im.Broker(b.cfg.NodeID); ok && self.Epoch == b.member.Epoch() {
			once.Do(func() { close(first) })
		}
	})
	select {
	case <-first:
		return nil
	default:
		b.notReady("the broker waits for the cluster's controller")
		b.log.Info("waiting for the cluster's controller", "controller", b.member.ControllerID())
	}
	select {
	case <-first:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the cluster's controller: %w", ctx.Err())
	}
}

func (b *Broker) startSteps() {
	ctx, cancel := context.WithCancel(context.Background())
	b.stopSteps, b.stepsDone = cancel, make(chan struct{})
	go func() {
		defer close(b.stepsDone)
		defer b.cleaner.start(ctx)()
		defer b.mover.start(ctx)()
		defer b.keepISR(ctx)()
		runSteps(ctx, b.steps())
	}()
}

// Run starts the broker, serves until ctx ends, and stops it within drain.
func (b *Broker) Run(ctx context.Context, drain time.Duration) error {
	if err := b.Start(ctx); err != nil {
		return err
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-b.displaced:
	}
	stop, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	return errors.Join(failed, b.Shutdown(stop))
}

// Displaced tells when another process has taken this broker's place in the
// cluster, so that this one has to stop, and which.
func (b *Broker) Displaced() <-chan error { return b.displaced }

// Shutdown stops the broker in good order; see the package comment. When ctx
// ends before all requests are answered, their connections are closed, and the
// stop is a clean one all the same: the error only says so.
func (b *Broker) Shutdown(ctx context.Context) error {
	b.notReady("the broker is stopping")
	b.log.Info("broker is stopping")
	b.handOver(ctx)
	cut := b.drain(ctx)
	b.stopSteps()
	<-b.stepsDone
	b.stopReplication()
	b.leave()
	err := b.closeLogs()
	if closeErr := b.clusterStore.Close(); err == nil {
		err = closeErr
	}
	b.releaseDirs()
	if err != nil {
		return fmt.Errorf("stop broker: %w", err)
	}
	b.log.Info("broker has stopped")
	return cut
}

// leave ends the membership in the cluster. What cannot be told to the store
// ends with its session.
func (b *Broker) leave() {
	if !b.joined {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	if err := b.member.Leave(ctx); err != nil {
		b.log.Debug("the cluster store was not told that the broker leaves", "error", err)
	}
}

// leaveWait bounds how long a stop waits for the cluster store.
const leaveWait = 5 * time.Second

// drain ends all requests. Records that wait for the disk are synced and
// acknowledged; what waits for other records, or for other members of a group,
// is answered with what there is.
func (b *Broker) drain(ctx context.Context) error {
	b.api.Drain()
	stopped := make(chan error, 1)
	go func() { stopped <- b.server.Shutdown(ctx) }()
	b.groups.Close()
	cut := <-stopped
	b.flusher.wait()
	b.flusher.stop()
	return cut
}

// closeLogs closes all logs, several at a time, stores the checkpoints, and
// leaves the mark of a clean stop in each directory where all went well.
func (b *Broker) closeLogs() error {
	b.highWatermarkStep()
	var mu sync.Mutex // guards failed
	failed := map[*dataDir]error{}
	var g errgroup.Group
	g.SetLimit(b.recoveryThreads())
	all := b.partitions.All()
	for _, p := range all {
		g.Go(func() error {
			if err := closeLog(p); err != nil {
				mu.Lock()
				failed[b.dirOf(p)] = err
				mu.Unlock()
			}
			return nil // the others are closed all the same
		})
	}
	_ = g.Wait() // no function fails
	b.storeFinal(all)
	epoch := int64(-1)
	if self, ok := b.metadata.Image().Broker(b.cfg.NodeID); ok {
		epoch = self.Epoch
	}
	var errs []error
	for _, d := range b.dirs {
		err := failed[d]
		if err == nil {
			err = b.markClean(d, epoch)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("close the logs in %s, which are checked at the next start: %w", d.path, err))
		}
	}
	return errors.Join(errs...)
}

func closeLog(p *replica.Partition) error {
	err := p.Log().Close()
	if errors.Is(err, commitlog.ErrOffline) {
		return fmt.Errorf("%s-%d is offline: %w", p.Topic(), p.Index(), err)
	}
	return err
}

// abort ends the broker as a kill would: nothing is synced, nothing is marked.
func (b *Broker) abort() {
	b.notReady("the broker was aborted")
	b.closeServer()
	b.groups.Close()
	b.stopSteps()
	<-b.stepsDone
	b.flusher.stop()
	b.stopReplication()
	_ = b.clusterStore.Close()
	b.leave()
	b.abortLogs()
	b.releaseDirs()
}

// closeServer closes the listeners and all connections at once.
func (b *Broker) closeServer() {
	b.api.Drain()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = b.server.Shutdown(now) // says only that it was cut short
}

func (b *Broker) abortLogs() {
	for _, p := range b.partitions.All() {
		p.Log().Abort()
	}
}
