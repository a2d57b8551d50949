package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/internal/record"
	"github.com/sluice-io/sluice/pipelines"
)

const (
	// scanShare bounds the scans' part of a core: one in scanShare.
	scanShare = 500
	// hintedScanShare bounds it for scans that change events ask for.
	hintedScanShare = 10
	// scanIntervalMax bounds how far scans stretch, with all directories
	// watched and without.
	scanIntervalMax          = 10 * time.Second
	scanIntervalMaxUnwatched = 2 * time.Second
	// prepareBackoffMin and Max bound the pause between two attempts to find
	// or make the topic.
	prepareBackoffMin = 200 * time.Millisecond
	prepareBackoffMax = 5 * time.Second
	// stalledAfter is how long the oldest line may be unacknowledged before
	// that is said and the topic is looked at again.
	stalledAfter = 15 * time.Second
	// unreadyAfter is how long it may be so before the agent is not ready.
	unreadyAfter = 5 * time.Second
	// catchUpLagBytes is the lag above which a pipeline is catching up, and
	// caughtUpLagBytes that below which it no longer is.
	catchUpLagBytes  = 64 << 20
	caughtUpLagBytes = 16 << 20
	// recordOverheadBytes is what a record takes in a batch beside key and
	// value: headers and lengths.
	recordOverheadBytes = 4 << 10
)

// runner runs the collecting part of one pipeline. Its loop is one goroutine:
// it finds, reads, processes and sends, in steps. Acknowledgements come on
// goroutines of the destination. Fields without a word on it belong to the loop.
//
// Lock order: stepping before mu.
type runner struct {
	log    *slog.Logger
	cfg    Config
	pipe   *pipelines.Pipeline
	dest   Destination
	blocks *tail.Blocks

	scanner *tail.Scanner
	hints   *tail.Hints
	work    *worker
	packer  *producer.Packer
	chunk   reading
	parcel  *parcel // being filled
	linger  time.Duration
	// bundleBytes and bundleLines are what a parcel is shipped at.
	bundleBytes, bundleLines int
	memoryPool               *producer.Memory
	kept                     *kept

	sources  map[tail.ID]*source
	byPath   map[string]*source
	family   map[string][]*source // by the name first found under, in order of finding
	queue    []*source            // to be read, in turn
	timed    timeline             // sources to be looked at some time
	suspects map[tail.ID]suspect
	deferred []tail.Found     // within a scan: known files that hold another content
	missed   bool             // within a scan: a known file moved before it could be looked at
	strange  time.Time        // since when strangers wait for a scan that misses none; zero: none waits
	atEnd    map[tail.ID]bool // present at the very first start with start_at: end, not begun yet
	said     map[place]string // trouble by place, so that it is said once

	hinted        bool // the hints have something to take
	scanned       bool // once
	firstStart    bool // no checkpoint knew this pipeline
	nextScan      time.Time
	scanWanted    bool          // as soon as the share of scans allows
	scanSoon      bool          // after one scan interval, whatever the last scan took
	scanTook      time.Duration // the last scan
	shortScanTook time.Duration // the shorter of the last two
	unseen        bool          // the last scan could not look everywhere
	handles       int
	nextStall     time.Time

	helpers  sync.WaitGroup // goroutines of run
	wake     chan struct{}  // holds a token when the loop should look again
	prepared chan prepared  // the topics, once

	produceErrors atomic.Int64
	catchingUp    atomic.Bool // the files hold much that is not delivered

	// stepping is held for each step: a checkpoint is taken between two of
	// them, where a content that moves from one file to another is in one.
	stepping sync.Mutex

	mu      sync.Mutex
	tracks  map[tail.ID]*track // guarded by mu
	orphans []orphan           // guarded by mu: contents that are gone, oldest first
	account Account            // guarded by mu
	memory  int64              // guarded by mu: bytes of memory in flight
	// unsettled are the sequences of journal entries whose parcels are not settled, journalled is the sequence after the last one written.
	unsettled  map[uint64]bool // guarded by mu
	journalled uint64          // guarded by mu
	deadLetter producer.Topic  // guarded by mu, for the destination's goroutine
	dirty      bool            // guarded by mu: the checkpoint is behind
	known      bool            // guarded by mu: the first start is over, and may be stored
	ready      error           // guarded by mu: what is waited for; nil when ready
	finished   chan struct{}   // closed when nothing is in flight and the loop has ended
	ended      bool            // guarded by mu: the loop has ended
}

// prepared is what must be known of the topics before a line can be sent.
type prepared struct {
	topic, dead producer.Topic
}

var errNotPrepared = errors.New("waiting for the brokers to tell or make the topic")

func newRunner(log *slog.Logger, p *pipelines.Pipeline, cfg Config, blocks *tail.Blocks, skip func(string, tail.Info) bool) (*runner, error) {
	file := p.Collect.File
	scanner, err := tail.NewScanner(file.Include, file.Exclude, skip)
	if err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", p.Name, err)
	}
	work, err := newWorker(p, cfg.Hostname)
	if err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", p.Name, err)
	}
	r := &runner{
		log: log.With("pipeline", p.Name), cfg: inputConfig(cfg, file), pipe: p, blocks: blocks,
		scanner: scanner, work: work,
		sources: map[tail.ID]*source{}, byPath: map[string]*source{}, family: map[string][]*source{}, suspects: map[tail.ID]suspect{},
		said: map[place]string{}, atEnd: map[tail.ID]bool{}, tracks: map[tail.ID]*track{},
		wake: make(chan struct{}, 1), prepared: make(chan prepared, 1), finished: make(chan struct{}),
		account: Account{Pipeline: p.Name}, ready: errNotPrepared,
		unsettled: map[uint64]bool{}, kept: &kept{}, memoryPool: &producer.Memory{},
	}
	r.work.runner = r
	r.batching(p.Topic)
	return r, nil
}

// inputConfig puts the input's own settings over the agent's.
func inputConfig(cfg Config, file *pipelines.FileInput) Config {
	if file.ScanInterval > 0 {
		cfg.ScanInterval = file.ScanInterval
	}
	if file.RotateGrace > 0 {
		cfg.RotateGrace = file.RotateGrace
	}
	if file.PartialAfter > 0 {
		cfg.LineIdle = file.PartialAfter
	}
	return cfg
}

// Defaults of batching.
const (
	lingerDefault      = 2 * time.Millisecond
	bundleBytesDefault = 1 << 20
	bundleLinesDefault = 100_000
)

// batching takes the settings of the topic.
func (r *runner) batching(t pipelines.Topic) {
	r.linger, r.bundleBytes, r.bundleLines = t.Batch.Age, t.Batch.Bytes, t.Batch.Lines
	setDefault(&r.linger, lingerDefault)
	setDefault(&r.bundleBytes, bundleBytesDefault)
	setDefault(&r.bundleLines, bundleLinesDefault)
	r.packer = producer.NewPacker(r.memoryPool, r.bundleBytes, codecOf(t.Compression, r.catchingUp.Load))
}

// codecOf chooses the codec of each batch. With auto it is zstd, and snappy, at a third of the CPU, while catching up.
func codecOf(c pipelines.Compression, catchingUp func() bool) func() record.Codec {
	if codec, err := record.ParseCodec(string(c)); err == nil {
		return func() record.Codec { return codec }
	}
	return func() record.Codec {
		if catchingUp() {
			return record.Snappy
		}
		return record.Zstd
	}
}

// restore takes over what a checkpoint knows. known is false at the first start.
func (r *runner) restore(s savedPipeline, known bool) {
	r.firstStart, r.known = !known, known
	r.kept.stored.Store(known)
	for _, f := range s.Files {
		t := loadTrack(f)
		r.tracks[t.id] = t
	}
	for _, f := range s.Gone {
		if f.Offset == 0 {
			continue
		}
		r.orphans = append(r.orphans, orphan{place: f.position(), acked: f.position(), names: [2]string{f.Path, f.Path}, since: time.Unix(f.Seen, 0),
			id: tail.ID{Dev: f.Dev, Ino: f.Ino}, born: f.Born, generation: f.Generation})
	}
}

// run reads until ctx ends, or with Once until all is read.
func (r *runner) run(ctx context.Context) {
	var err error
	if r.hints, err = tail.NewHints(); err != nil {
		r.log.Warn("no change events: directories are looked at every scan interval instead", "interval", r.cfg.ScanInterval, "error", err)
	}
	helping, cancel := context.WithCancel(ctx)
	r.helpers.Go(func() { r.prepare(helping) })
	r.loop(helping)
	r.ship()
	cancel()
	r.helpers.Wait()
	r.hints.Close()
	r.closeFiles()
	r.end()
}

// loop is the runner's one thread of work.
func (r *runner) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := r.cfg.Now()
		if r.step(ctx, now) {
			continue
		}
		if r.cfg.Once && r.allRead() {
			return
		}
		timer.Reset(max(r.dueAt().Sub(now), 0))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.wake:
		case <-r.hints.Ready():
			r.hinted = true
		case p := <-r.prepared:
			r.begin(p)
		}
	}
}

// step does what is due and reads one chunk. It returns false when there was
// none: nothing is to be done before dueAt, a change or an acknowledgement.
func (r *runner) step(ctx context.Context, now time.Time) bool {
	r.stepping.Lock()
	defer r.stepping.Unlock()
	r.look(ctx, now)
	s := r.next()
	if s == nil {
		return false
	}
	r.read(s, now, false)
	return true
}

// look does what is due: scans and looks at sources by time.
func (r *runner) look(ctx context.Context, now time.Time) {
	select {
	case <-r.hints.Ready():
		r.hinted = true
	default:
	}
	if r.hinted {
		r.hinted = false
		r.takeHints(now)
	}
	if !now.Before(r.scanDue()) {
		r.scan(now)
	}
	for s := r.timed.pop(now); s != nil; s = r.timed.pop(now) {
		r.onTime(s, now)
	}
	if r.parcel != nil && !now.Before(r.parcel.opened.Add(r.linger)) {
		r.ship()
	}
	r.watchStall(ctx, now)
}

// scanDue is when the next scan may and should be.
func (r *runner) scanDue() time.Time {
	if !r.scanWanted {
		return r.nextScan
	}
	asked := r.nextScan.Add(-r.scanPause()).Add(r.shortScanTook * hintedScanShare)
	if asked.Before(r.nextScan) {
		return asked
	}
	return r.nextScan
}

// scanPause is the time between two scans that nothing asked for.
func (r *runner) scanPause() time.Duration {
	longest := scanIntervalMaxUnwatched
	if r.hints.Complete() && !r.unseen {
		longest = scanIntervalMax
	}
	return max(r.cfg.ScanInterval, min(r.shortScanTook*scanShare, longest))
}

// dueAt is when the loop must look again if nothing else happens.
func (r *runner) dueAt() time.Time {
	due := r.scanDue()
	if t, ok := r.timed.first(); ok && t.Before(due) {
		due = t
	}
	if r.parcel != nil {
		due = earlier(due, r.parcel.opened.Add(r.linger))
	}
	return due
}

// next returns the source whose turn it is, or nil when none may be read.
func (r *runner) next() *source {
	if len(r.queue) == 0 || !r.work.begun || !r.kept.stored.Load() || !r.room() {
		return nil
	}
	s := r.queue[0]
	r.queue[0] = nil
	r.queue = r.queue[1:]
	s.queued = false
	return s
}

// room says whether another chunk may be in flight.
func (r *runner) room() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.memory < r.cfg.InFlightBytesMax
}

func (r *runner) enqueue(s *source) {
	if !s.queued {
		s.queued = true
		r.queue = append(r.queue, s)
	}
}

func (r *runner) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// prepare finds or makes the topics, however long that takes.
func (r *runner) prepare(ctx context.Context) {
	pause := prepareBackoffMin
	for {
		p, err := r.prepareOnce(ctx)
		if err == nil {
			r.prepared <- p
			return
		}
		if ctx.Err() != nil {
			return
		}
		r.setReady(err)
		if pause == prepareBackoffMin {
			r.log.Warn("the topic cannot be had from the brokers; trying again without end, the files keep the lines", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(pause*2, prepareBackoffMax)
	}
}

func (r *runner) prepareOnce(ctx context.Context) (p prepared, err error) {
	p.topic, err = r.dest.Prepare(ctx, topicSpec(r.pipe))
	if err != nil || r.pipe.Errors.DeadLetter == "" {
		return p, err
	}
	p.dead, err = r.dest.Prepare(ctx, producer.TopicSpec{Name: r.pipe.Errors.DeadLetter, Replicas: r.pipe.Topic.Replicas})
	return p, err
}

func topicSpec(p *pipelines.Pipeline) producer.TopicSpec {
	spec := producer.TopicSpec{Name: p.Topic.Name, Partitions: p.Topic.Partitions, Replicas: p.Topic.Replicas}
	for _, l := range p.Topic.Config {
		if spec.Config == nil {
			spec.Config = map[string]string{}
		}
		spec.Config[l.Name] = l.Value
	}
	return spec
}

// begin starts reading.
func (r *runner) begin(p prepared) {
	r.work.begin(p)
	r.mu.Lock()
	r.deadLetter, r.ready = p.dead, nil
	r.mu.Unlock()
	limit := r.lineBytesMax()
	for _, s := range r.sources {
		s.file.LimitLines(limit)
	}
}

// lineBytesMax is the setting, and no more than the topic takes.
func (r *runner) lineBytesMax() int {
	limit := r.pipe.Collect.File.LineBytesMax
	if limit == 0 {
		limit = tail.LineBytesMaxDefault
	}
	if most := r.work.topic.RecordBytesMax; most > 2*recordOverheadBytes {
		limit = min(limit, most-recordOverheadBytes)
	}
	return limit
}

func (r *runner) deadTopic() producer.Topic {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deadLetter
}

func (r *runner) setReady(err error) {
	r.mu.Lock()
	r.ready = err
	r.mu.Unlock()
}

// place is where trouble is: of which kind, and at which path, if at one.
type place struct{ kind, path string }

func (p place) attrs(more ...any) []any {
	if p.path == "" {
		return more
	}
	return append([]any{"path", p.path}, more...)
}

// say logs trouble at a place once, until it changes or heals.
func (r *runner) say(at place, what string, err error) {
	if r.said[at] == err.Error() {
		return
	}
	r.said[at] = err.Error()
	r.log.Warn(what, at.attrs("error", err)...)
}

func (r *runner) heal(at place, what string) {
	if _, ok := r.said[at]; ok {
		delete(r.said, at)
		r.log.Info(what, at.attrs()...)
	}
}

// watchStall says once when nothing is acknowledged for long, and looks at the
// topic again: it may have been deleted.
func (r *runner) watchStall(ctx context.Context, now time.Time) {
	if now.Before(r.nextStall) {
		return
	}
	r.nextStall = now.Add(stalledAfter)
	age := r.oldestUnacked(now)
	if age < stalledAfter {
		r.heal(place{kind: "brokers"}, "lines are acknowledged again")
		return
	}
	r.say(place{kind: "brokers"}, "no line was acknowledged for a while; waiting without end, the files keep the lines",
		fmt.Errorf("the brokers of topic %s do not answer", r.pipe.Topic.Name))
	r.helpers.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, stalledAfter)
		defer cancel()
		_, _ = r.prepareOnce(ctx) // its only use here is to make a topic that is gone
	})
}

func (r *runner) oldestUnacked(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var age time.Duration
	for _, t := range r.tracks {
		if len(t.pending) > 0 {
			age = max(age, now.Sub(t.pending[0].begun))
		}
	}
	return age
}

// allRead says that everything present at the first scan was read.
func (r *runner) allRead() bool {
	if !r.scanned {
		return false
	}
	for _, s := range r.sources {
		if !s.once {
			return false
		}
	}
	return r.work.begun || len(r.sources) == 0
}

// end notes that no chunk will be sent any more.
func (r *runner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.finishLocked()
}

// finishLocked closes finished when nothing is left to wait for.
func (r *runner) finishLocked() {
	if r.ended && r.account.InFlight == (Count{}) && !closed(r.finished) {
		close(r.finished)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (r *runner) closeFiles() {
	for _, s := range r.sources {
		r.close(s.file)
	}
}

// snapshot returns what the checkpoint stores, whether it moved since the last
// one, and whether the pipeline may be stored: not before its first scan, which
// alone knows what was there at the first start.
func (r *runner) snapshot() (p savedPipeline, moved, known bool) {
	r.stepping.Lock()
	defer r.stepping.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	p = savedPipeline{Files: make([]savedFile, 0, len(r.tracks)), Journal: r.keepFromLocked()}
	for _, t := range r.tracks {
		p.Files = append(p.Files, t.save())
	}
	for i := range r.orphans {
		if f := r.orphans[i].save(); f.Offset > 0 { // else nothing of it is delivered
			p.Gone = append(p.Gone, f)
		}
	}
	p.Gone = append(p.Gone, r.suspectedLocked()...)
	moved = r.dirty
	r.dirty = false
	return p, moved, r.known
}

// soil makes the next snapshot count as moved: the last one was not stored.
func (r *runner) soil() {
	r.mu.Lock()
	r.dirty = true
	r.mu.Unlock()
}

// snapshotAccount returns the account with what is counted on demand.
func (r *runner) snapshotAccount() Account {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.account.clone()
	for _, t := range r.tracks {
		if t.followed {
			a.LagBytes += t.lag()
			a.FilesFollowed++
		}
	}
	a.JournalBytes, a.JournalBatches = r.kept.size()
	return a
}
