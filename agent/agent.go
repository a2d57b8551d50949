// Package agent runs the collecting part of pipelines on a host: it follows
// files, frames and processes their lines, and hands them to a destination.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/kubernetes"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/internal/dirlock"
	"github.com/sluice-io/sluice/internal/quickio"
	"github.com/sluice-io/sluice/pipelines"
)

// Destination takes bundles of batches. *producer.Kafka is the real one.
type Destination interface {
	// Prepare sees to it that the topic exists and returns what must be known
	// of it. It returns an error when it cannot now; it is called again.
	Prepare(ctx context.Context, topic producer.TopicSpec) (producer.Topic, error)
	// Send takes the bundle over until it calls Done. It does not block for
	// the destination's trouble; the agent bounds what is in flight.
	Send(b *producer.Bundle)
	// Close stops sending. Bundles not done by then stay in the journal.
	Close()
}

// Config of an agent. The zero value of each field is documented with it.
type Config struct {
	// StateDir holds the checkpoint, the journals and the lock of this agent. Required.
	StateDir string
	// AdoptState takes a state directory over that another machine made, or that is a copy. Else it is refused.
	AdoptState bool
	// JournalBytesMax bounds a pipeline's journal on disk; 0 means 1 GiB. Reading waits when it is full.
	JournalBytesMax int64
	// JournalSync makes batches durable before they are sent. Without it a power cut may double lines; a killed agent never does.
	JournalSync bool
	// JournalFS is the file system of the journals; nil means the operating system's.
	JournalFS journal.FS
	// Brokers (host:port) serve pipelines that name none.
	Brokers []string
	// Once reads what is there at the start and returns when it is acknowledged.
	Once bool
	// DrainTimeout bounds the wait for acknowledgements after a cancel; 0 means 10 s.
	DrainTimeout time.Duration
	// CheckpointInterval is the time between two checkpoints; 0 means 1 s.
	CheckpointInterval time.Duration
	// Hostname is the value of the `host` header; "" means os.Hostname.
	Hostname string
	// InFlightBytesMax bounds the memory of unacknowledged batches of a
	// pipeline; 0 means 16 MiB.
	InFlightBytesMax int64
	// MemoryMax is the memory of the whole process, in which lines on their way, of all pipelines together, get a part; 0 means 256 MiB.
	// Who owns the process sees to the runtime's own limit.
	MemoryMax int64
	// OpenFilesMax bounds the descriptors of followed files of a pipeline;
	// 0 means half the process's limit.
	OpenFilesMax int
	// ScanInterval is the shortest time between two scans of the directories
	// (the truth beside which change events are a hint); 0 means 1 s. Scans
	// stretch by themselves so that they cost no more than 0.2 % of a core.
	ScanInterval time.Duration
	// RotateGrace is how long a rotated or deleted file must be quiet before
	// it is closed; 0 means 5 s.
	RotateGrace time.Duration
	// LineIdle is how long an unterminated last line is kept back before it is
	// sent as it is; 0 means 5 s.
	LineIdle time.Duration
	// Stdin is read by the input stdin; nil means the process's own standard input.
	Stdin *os.File
	// PositionsKeep is how long the position of a file that is gone is kept; 0 means 168 h.
	PositionsKeep time.Duration
	// Kubernetes has the timings of the watches of pods; what a pipeline says goes before. Its zero values are documented there.
	Kubernetes kubernetes.Config
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Destination replaces the Kafka producer of a pipeline, and its journal
	// (benchmarks); nil means Kafka.
	Destination func(*pipelines.Pipeline, producer.Owner, *producer.Memory) (Destination, error)
}

// Defaults and limits of an agent.
const (
	drainTimeoutDefault       = 10 * time.Second
	checkpointIntervalDefault = time.Second
	inFlightBytesDefault      = 16 << 20
	journalBytesDefault       = 1 << 30
	scanIntervalDefault       = time.Second
	rotateGraceDefault        = 5 * time.Second
	lineIdleDefault           = 5 * time.Second
	openFilesDefault          = 512 // where the process's limit cannot be told
)

func (c Config) withDefaults() Config {
	setDefault(&c.DrainTimeout, drainTimeoutDefault)
	setDefault(&c.CheckpointInterval, checkpointIntervalDefault)
	setDefault(&c.InFlightBytesMax, inFlightBytesDefault)
	setDefault(&c.JournalBytesMax, journalBytesDefault)
	if c.JournalFS == nil {
		c.JournalFS = journal.OSFS{Writes: quickio.NewWrites(runtime.GOMAXPROCS(0))}
	}
	setDefault(&c.ScanInterval, scanIntervalDefault)
	setDefault(&c.RotateGrace, rotateGraceDefault)
	setDefault(&c.LineIdle, lineIdleDefault)
	setDefault(&c.MemoryMax, MemoryMaxDefault)
	setDefault(&c.PositionsKeep, positionsKeepDefault)
	setDefault(&c.OpenFilesMax, openFilesLimit())
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Hostname == "" {
		c.Hostname, _ = os.Hostname()
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Agent runs the collecting part of some pipelines. Its methods are safe for
// concurrent use.
//
// Lock order: reloading before saving before mu.
type Agent struct {
	log     *slog.Logger
	cfg     Config
	lock    *dirlock.Lock
	blocks  *tail.Blocks
	skip    func(string, tail.Info) bool
	budget  *budget
	watches *podWatches
	soon    chan struct{} // holds a token when a checkpoint is due at once

	// reloading is held while pipelines come and go.
	reloading sync.Mutex
	ctx       context.Context // guarded by reloading: of Run; nil before it and after it
	begun     chan struct{}   // closed when Run has begun

	// saving is held over a checkpoint, and where a pipeline changes hands between two of them.
	saving     sync.Mutex
	checkpoint checkpointFile           // guarded by saving
	others     map[string]savedPipeline // guarded by saving: of the checkpoint, pipelines not run here
	moved      bool                     // guarded by saving: others are not as in the last checkpoint
	saidBad    bool                     // guarded by saving: the last checkpoint could not be written
	written    atomic.Int64             // when the last checkpoint was written, nanoseconds since 1970

	mu      sync.Mutex
	members []*member        // guarded by mu: in the order of the files; replaced, never changed
	failed  map[string]error // guarded by mu: pipelines that a reload could not start
}

// member is a pipeline that is run.
type member struct {
	*runner
	stop  context.CancelFunc // ends its loop; nil until started
	ended chan struct{}      // closed when its loop has ended
}

// list are the pipelines that are run now.
func (a *Agent) list() []*member {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.members
}

// saveSoon asks for a checkpoint.
func (a *Agent) saveSoon() {
	select {
	case a.soon <- struct{}{}:
	default:
	}
}

// New checks the configuration, takes the lock on the state directory and
// loads the checkpoint. It fails when another agent holds the directory or
// the checkpoint was written by a newer version ([*VersionError]). Pipelines
// that collect nothing are passed over.
func New(log *slog.Logger, reg prometheus.Registerer, pipes []*pipelines.Pipeline, cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	if cfg.StateDir == "" {
		return nil, errors.New("the agent needs a state directory (--state)")
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := lockDir(context.Background(), cfg.StateDir)
	if err != nil {
		return nil, err
	}
	a := &Agent{log: log, cfg: cfg, lock: lock, checkpoint: checkpointFile{dir: cfg.StateDir, log: log}, soon: make(chan struct{}, 1), begun: make(chan struct{}),
		blocks: &tail.Blocks{}, skip: ownFiles(cfg.StateDir), budget: newBudget(cfg.MemoryMax), watches: newPodWatches(log, cfg.Kubernetes)}
	if err := a.setUp(pipes); err != nil {
		return nil, errors.Join(err, a.release())
	}
	if reg != nil {
		if err := reg.Register(newCollector(a)); err != nil {
			return nil, errors.Join(fmt.Errorf("register metrics: %w", err), a.release())
		}
	}
	return a, nil
}

// setUp makes the runners and gives them what the checkpoint knows.
func (a *Agent) setUp(pipes []*pipelines.Pipeline) error {
	if err := checkOwner(a.cfg.StateDir, a.cfg.AdoptState); err != nil {
		return err
	}
	stored, err := a.checkpoint.load()
	if err != nil {
		return err
	}
	if a.others = stored.Pipelines; a.others == nil {
		a.others = map[string]savedPipeline{}
	}
	a.written.Store(a.cfg.Now().UnixNano())
	for _, p := range pipes {
		if p.Collect == nil {
			continue
		}
		r, err := a.build(p)
		if err != nil {
			return err
		}
		if err := a.open(r, Account{}); err != nil {
			return err
		}
		a.members = append(a.members, &member{runner: r, ended: make(chan struct{})})
	}
	return a.sayAbandoned()
}

// build makes a runner that holds nothing yet.
func (a *Agent) build(p *pipelines.Pipeline) (*runner, error) {
	if err := checkMemory(p, a.cfg.MemoryMax); err != nil {
		return nil, err
	}
	r, err := newRunner(a.log, p, a.cfg)
	if err != nil {
		return nil, err
	}
	r.watches = a.watches
	if p.Collect.File != nil {
		r.input, err = newFiles(r, a.blocks, a.skip)
		return r, err
	}
	feed, err := newFeed(a.log, p, a.cfg)
	if err != nil {
		return nil, err
	}
	if r.input, err = newStreams(r, feed); err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", p.Name, err)
	}
	return r, nil
}

// open gives a runner what the checkpoint knows of its pipeline, the account to go on with, and its destination.
func (a *Agent) open(r *runner, account Account) error {
	files, known := a.others[r.pipe.Name]
	r.share = a.budget.join(r.nudge)
	account.Pipeline, account.Input = r.pipe.Name, r.pipe.Collect.Input()
	r.account = account
	r.restore(files, known)
	if err := a.destination(r, files); err != nil {
		r.share.leave()
		return errors.Join(fmt.Errorf("pipeline %s: %w", r.pipe.Name, err), r.kept.close())
	}
	r.kept.save = a.saveSoon
	delete(a.others, r.pipe.Name)
	return nil
}

// sayAbandoned tells of journals whose pipelines are not run here.
func (a *Agent) sayAbandoned() error {
	dirs, err := os.ReadDir(filepath.Join(a.cfg.StateDir, journalsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for journals: %w", err)
	}
	for _, d := range dirs {
		if !slices.ContainsFunc(a.members, func(r *member) bool { return r.pipe.Name == d.Name() }) {
			a.log.Info("the journal of a pipeline that is not run here is kept; what is unsettled in it is settled when the pipeline is run again", "pipeline", d.Name())
		}
	}
	return nil
}

func (a *Agent) release() error {
	var errs []error
	for _, r := range a.list() {
		r.dest.Close()
		errs = append(errs, r.kept.close())
	}
	return errors.Join(append(errs, a.lock.Release())...)
}

// Run follows the files until ctx is cancelled and then drains: it reads no
// more and waits up to DrainTimeout for acknowledgements. With Once it ends
// when everything present at the start is acknowledged. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	keeping, stopKeeping := context.WithCancel(context.Background())
	var kept sync.WaitGroup
	kept.Go(func() { a.keepCheckpoint(keeping) })

	a.reloading.Lock()
	a.ctx = ctx
	for _, m := range a.list() {
		a.start(m)
	}
	a.reloading.Unlock()
	close(a.begun)
	stopSocket := a.serveSocket()
	a.await(ctx)
	a.drain(ctx)
	stopSocket()

	stopKeeping()
	kept.Wait()
	for _, r := range a.list() {
		r.dest.Close()
	}
	errs := []error{a.save()}
	for _, r := range a.list() {
		errs = append(errs, r.kept.close())
	}
	return errors.Join(append(errs, a.lock.Release())...)
}

// start runs a member. It needs reloading.
func (a *Agent) start(m *member) {
	ctx, stop := context.WithCancel(a.ctx)
	m.stop = stop
	go func() {
		defer close(m.ended)
		defer stop()
		m.run(ctx)
	}()
}

// await waits until no pipeline reads any more, and none will.
func (a *Agent) await(ctx context.Context) {
	for {
		members := a.list()
		for _, m := range members {
			<-m.ended
		}
		a.reloading.Lock() // a reload that goes on may bring others
		now := a.list()
		done := ctx.Err() != nil && allEnded(now) || slices.Equal(members, now)
		if done {
			a.ctx = nil
		}
		a.reloading.Unlock()
		if done {
			return
		}
	}
}

func allEnded(members []*member) bool {
	return !slices.ContainsFunc(members, func(m *member) bool { return !closed(m.ended) })
}

// drain waits for acknowledgements: without limit until ctx ends, and from
// then for DrainTimeout.
func (a *Agent) drain(ctx context.Context) {
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(a.cfg.DrainTimeout, func() { close(late) })
	})
	defer stop()
	for _, r := range a.list() {
		select {
		case <-r.finished:
		case <-late:
			a.sayLeft()
			return
		}
	}
}

// sayLeft tells what is not acknowledged at the end. It is no error: it is in
// the journal, or is read again at the next start.
func (a *Agent) sayLeft() {
	for _, acc := range a.Accounts() {
		if acc.InFlight.Lines > 0 {
			a.log.Warn("lines were not acknowledged in time; they are kept in the journal and settled at the next start",
				"pipeline", acc.Pipeline, "lines", acc.InFlight.Lines, "waited", a.cfg.DrainTimeout)
		}
	}
}

// checkpointShare bounds the part of the time that checkpoints take: with very
// many files, or on a slow disk, they become rarer than the interval says, up
// to checkpointStretchMax times.
const (
	checkpointShare      = 20
	checkpointStretchMax = 5
)

// keepCheckpoint writes the checkpoint when it is due and something moved.
func (a *Agent) keepCheckpoint(ctx context.Context) {
	timer := time.NewTimer(a.cfg.CheckpointInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.soon:
			a.saveSaying()
		case <-timer.C:
			begun := time.Now()
			a.saveSaying()
			pause := min(time.Since(begun)*checkpointShare, a.cfg.CheckpointInterval*checkpointStretchMax)
			timer.Reset(max(a.cfg.CheckpointInterval, pause))
		}
	}
}

func (a *Agent) saveSaying() {
	err := a.save()
	a.saving.Lock()
	defer a.saving.Unlock()
	switch {
	case err != nil && !a.saidBad:
		a.log.Error("the checkpoint cannot be written; the journal grows until it can", "error", err)
	case err == nil && a.saidBad:
		a.log.Info("the checkpoint is written again")
	}
	a.saidBad = err != nil
}

// save writes a checkpoint if a position moved since the last one.
func (a *Agent) save() error {
	a.saving.Lock()
	defer a.saving.Unlock()
	members := a.list()
	// On a full disk the second of two checkpoints makes room, though nothing has moved since the first.
	if !a.moved && !slices.ContainsFunc(members, func(m *member) bool { return m.soiled() || m.kept.trouble() != nil }) {
		a.written.Store(a.cfg.Now().UnixNano()) // it is as good as new
		return nil
	}
	s := saved{Pipelines: map[string]savedPipeline{}}
	var stored []*member
	for name, p := range a.others {
		s.Pipelines[name] = p
	}
	for _, r := range members {
		p, _, known := r.snapshot()
		if known {
			s.Pipelines[r.pipe.Name] = p
			stored = append(stored, r)
		}
	}
	err := a.checkpoint.save(s)
	if quickio.NoRoom(err) {
		for _, r := range members {
			r.kept.yield()
		}
		err = a.checkpoint.save(s)
	}
	if err != nil {
		for _, r := range members {
			r.soil()
		}
		return err
	}
	a.moved = false
	a.written.Store(a.cfg.Now().UnixNano())
	for _, r := range stored {
		if err := r.kept.checkpointed(s.Pipelines[r.pipe.Name].Journal); err != nil {
			a.log.Warn("segments of the journal cannot be removed", "pipeline", r.pipe.Name, "error", err)
		}
		if r.kept.wantsCheckpoint() {
			r.soil()
			a.saveSoon()
		}
		r.nudge()
	}
	return nil
}

// Accounts returns one account per pipeline that collects, in the order given
// to New.
func (a *Agent) Accounts() []Account {
	var out []Account
	for _, r := range a.list() {
		out = append(out, r.snapshotAccount())
	}
	return out
}

// waitsFor is what keeps a runner from reading; nil when nothing does.
func (r *runner) waitsFor() error {
	r.mu.Lock()
	err := r.ready
	r.mu.Unlock()
	if s, ok := r.input.(*streams); ok && err == nil {
		err = s.feed.Stats().Waiting
	}
	return err
}

// Ready returns nil when every pipeline has its topic, has looked for its
// files once, and has its lines acknowledged; else what it waits for.
func (a *Agent) Ready() error {
	if err := a.failure(); err != nil {
		return err
	}
	for _, r := range a.list() {
		err := r.waitsFor()
		if err == nil && r.kept.trouble() != nil {
			err = fmt.Errorf("the state directory takes no lines; %s: %w", r.keeps(), r.kept.trouble())
		}
		if age := r.oldestUnacked(r.cfg.Now()); err == nil && age > unreadyAfter {
			err = fmt.Errorf("the brokers of topic %s have acknowledged nothing for %s; %s", r.pipe.Topic.Name, age.Round(time.Second), r.keeps())
		}
		if err != nil {
			return fmt.Errorf("pipeline %s: %w", r.pipe.Name, err)
		}
	}
	return nil
}
