package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

const (
	// scanShare bounds the scans' part of a core: one in scanShare. Changes are told by events; a scan is there for what these miss.
	scanShare = 500
	// hintedScanShare bounds it for scans that change events ask for.
	hintedScanShare = 10
	// scanIntervalMax bounds how far scans stretch, with all directories
	// watched and without.
	scanIntervalMax          = 30 * time.Second
	scanIntervalMaxUnwatched = 2 * time.Second
)

// files is the file input: it follows the files that patterns match. Its loop finds, reads, processes and sends, in steps. Fields
// without a word on it belong to the loop.
type files struct {
	*runner
	reading tail.FileConfig // of all files
	scanner *tail.Scanner
	hints   *tail.Hints
	chunk   reading
	rate    rate
	// containers is the form of containers' files; nil for others.
	containers *containerForm

	sources  map[tail.ID]*source
	byPath   map[string]*source
	family   map[kin][]*source // by the name first found under, in order of finding
	homes    map[string]uint64 // within a scan: the inodes of directories
	queue    []*source         // to be read, in turn
	timed    timeline          // sources to be looked at some time
	suspects map[tail.ID]suspect
	// surveys are of compressed files that may be copies, surveying the one under way.
	surveys   map[tail.ID]*survey
	surveying *survey
	unpacking *source          // the compressed file that is read
	packed    []*source        // those that wait for it
	deferred  []tail.Found     // within a scan: known files that hold another content
	missed    bool             // within a scan: a known file moved before it could be looked at
	strange   time.Time        // since when strangers wait for a scan that misses none; zero: none waits
	atEnd     map[tail.ID]bool // present at the very first start with start_at: end, not begun yet

	links   *links
	pods    *pods                        // nil: the API server is not asked
	own     func(string, tail.Info) bool // tells the agent's own files
	ignored bool                         // within follow: the file is too old to be read

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
	forgot        time.Time // when positions that expire were last looked for

	tracks  map[tail.ID]*track // guarded by runner.mu
	orphans []orphan           // guarded by runner.mu: contents that are gone, oldest first
}

// newFiles makes the file input of a runner. skip tells files that are not to be followed.
func newFiles(r *runner, blocks *tail.Blocks, skip func(string, tail.Info) bool) (*files, error) {
	file := r.pipe.Collect.File
	links := newLinks(file)
	pods := newPods(file, r.watches)
	scanner, err := tail.NewScanner(file.Include, file.Exclude, links.skip(skipPods(file, pods, skip)))
	if err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", r.pipe.Name, err)
	}
	r.cfg = inputConfig(r.cfg, file)
	in := &files{
		runner: r, scanner: scanner, links: links, pods: pods, own: skip, rate: newRate(file.RateLimit),
		reading: tail.FileConfig{Blocks: blocks, Encoding: encodingOf(file.Encoding)},
		sources: map[tail.ID]*source{}, byPath: map[string]*source{}, family: map[kin][]*source{}, homes: map[string]uint64{}, suspects: map[tail.ID]suspect{}, surveys: map[tail.ID]*survey{},
		atEnd: map[tail.ID]bool{}, tracks: map[tail.ID]*track{},
	}
	if err := in.shape(); err != nil {
		return nil, fmt.Errorf("pipeline %s: %w", r.pipe.Name, err)
	}
	return in, nil
}

// shape says how files are read, as far as the line limit decides.
func (r *files) shape() error {
	file, limit := r.pipe.Collect.File, r.lineBytesMax()
	r.reading.LineBytesMax, r.reading.HoldBytesMax = limit, 0
	if file.Container == nil {
		form, err := newForm(&file.LineOptions, limit)
		r.reading.Form = form
		return err
	}
	form, err := newContainerForm(file, limit)
	if err != nil {
		return err
	}
	r.containers, r.reading.Form = form, form
	r.reading.LineBytesMax, r.reading.HoldBytesMax = limit+containerLineBytes, 4*limit+containerHoldBytes
	return nil
}

// inputConfig puts the input's own settings over the agent's.
func inputConfig(cfg Config, file *pipelines.FileInput) Config {
	if file.ScanInterval > 0 {
		cfg.ScanInterval = file.ScanInterval
	}
	if file.RotateGrace > 0 {
		cfg.RotateGrace = file.RotateGrace
	}
	if file.OpenFilesMax > 0 {
		cfg.OpenFilesMax = min(cfg.OpenFilesMax, file.OpenFilesMax)
	}
	if file.PartialAfter > 0 {
		cfg.LineIdle = file.PartialAfter
	}
	return cfg
}

// restore implements input.
func (r *files) restore(s savedPipeline, known bool) {
	r.firstStart = !known
	for _, f := range s.Files {
		t := loadTrack(f)
		r.tracks[t.id] = t
	}
	for _, f := range s.Gone {
		if f.Offset == 0 {
			continue
		}
		r.orphans = append(r.orphans, orphan{place: f.position(), acked: f.position(), names: [2]string{f.Path, f.Path}, home: f.Home, since: time.Unix(f.Seen, 0), known: r.cfg.Now(),
			id: tail.ID{Dev: f.Dev, Ino: f.Ino}, born: f.Born, generation: f.Generation, marks: loadMarks(f.Marks)})
	}
}

// loop implements input.
func (r *files) loop(ctx context.Context) {
	var err error
	if r.hints, err = tail.NewHints(); err != nil {
		r.log.Warn("no change events: directories are looked at every scan interval instead", "interval", r.cfg.ScanInterval, "error", err)
	}
	defer r.closeFiles()
	if r.pods != nil {
		defer r.pods.Join(r.nudge)()
	}
	defer r.hints.Close()
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
func (r *files) step(ctx context.Context, now time.Time) bool {
	r.stepping.Lock()
	defer r.stepping.Unlock()
	r.look(ctx, now)
	surveyed := r.surveyStep()
	s := r.next()
	if s == nil {
		return surveyed
	}
	r.read(s, now, tail.Whole)
	return true
}

// look does what is due: scans and looks at sources by time.
func (r *files) look(ctx context.Context, now time.Time) {
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
	r.lookAtPods()
	for s := r.timed.pop(now); s != nil; s = r.timed.pop(now) {
		r.onTime(s, now)
	}
	r.tend(ctx, now)
}

// scanDue is when the next scan may and should be.
func (r *files) scanDue() time.Time {
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
func (r *files) scanPause() time.Duration {
	longest := scanIntervalMaxUnwatched
	if r.hints.Complete() && !r.unseen {
		longest = scanIntervalMax
	}
	return max(r.cfg.ScanInterval, min(r.shortScanTook*scanShare, longest))
}

// dueAt is when the loop must look again if nothing else happens.
func (r *files) dueAt() time.Time {
	r.stepping.Lock() // an explanation looks at the rate too
	defer r.stepping.Unlock()
	due := r.scanDue()
	if t, ok := r.timed.first(); ok && t.Before(due) {
		due = t
	}
	if at := r.rate.due(); len(r.queue) > 0 && !at.IsZero() {
		due = earlier(due, at)
	}
	return r.shipDue(due)
}

// next returns the source whose turn it is, or nil when none may be read.
func (r *files) next() *source {
	for len(r.queue) > 0 && r.queue[0].left {
		r.queue[0] = nil
		r.queue = r.queue[1:]
	}
	if len(r.queue) == 0 || !r.work.begun || !r.kept.stored.Load() || !r.room() || !r.rate.ready(r.cfg.Now()) {
		return nil
	}
	s := r.queue[0]
	r.queue[0] = nil
	r.queue = r.queue[1:]
	s.queued = false
	return s
}

func (r *files) enqueue(s *source) {
	if !s.queued && !s.left {
		s.queued = true
		r.queue = append(r.queue, s)
	}
}

// allRead says that everything present at the first scan was read.
func (r *files) allRead() bool {
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

// closeFiles closes what is open, unless a successor takes it over.
func (r *files) closeFiles() {
	if r.handing.Load() {
		return
	}
	for _, s := range r.sources {
		r.close(s.file)
	}
	r.endSurveys(nil)
}

// begin starts reading. The topic may take less than the settings allow.
func (r *files) begin(p prepared) {
	r.stepping.Lock()
	defer r.stepping.Unlock()
	r.runner.begin(p)
	if err := r.shape(); err != nil {
		r.log.Error("the form of lines cannot be made again", "error", err) // it was made of the same before
	}
}

// saveLocked implements input.
func (r *files) saveLocked(p *savedPipeline) {
	p.Files = make([]savedFile, 0, len(r.tracks))
	for _, t := range r.tracks {
		f := t.save()
		if r.ended { // a copy that no scan saw yet may be shorter than what was read
			f.Marks = saveMarks(t.deliveredMarks())
		}
		p.Files = append(p.Files, f)
	}
	for i := range r.orphans {
		if f := r.orphans[i].save(); f.Offset > 0 { // else nothing of it is delivered
			p.Gone = append(p.Gone, f)
		}
	}
	p.Gone = append(p.Gone, r.suspectedLocked()...)
}

// measureLocked implements input.
func (r *files) measureLocked(a *Account) {
	for _, t := range r.tracks {
		if t.followed {
			a.LagBytes += t.lag()
			a.FilesFollowed++
		}
	}
}

// headersOf are those that every raw line of a file has.
func (r *files) headersOf(s *source) []producer.Header {
	var h []producer.Header
	if r.pipe.Collect.File.Headers {
		h = append(h, r.work.hostHeader, header(headerPath, s.track.path))
	}
	if r.pipe.Collect.File.Identity {
		h = append(h, producer.Header{Key: headerFileID, Value: s.identity})
	}
	return append(append(h, s.meta...), r.work.labels...)
}

// take hands over a chunk of a file.
func (r *files) take(s *source, c *reading, now time.Time) {
	if c.lines.Skipped.Cuts > 0 {
		r.sayCut(s.track.path)
	}
	if c.lines.Skipped.Splits > 0 {
		r.saySplit(s.track.path)
	}
	if r.withoutLabels(s) {
		r.count(func(a *Account) { a.UnlabelledLines += int64(len(c.lines.Lines)) })
	}
	from, end := c.lines.From, c.lines.End
	n := Count{Lines: int64(len(c.lines.Lines)), Bytes: c.lines.Bytes()}
	r.runner.take(&s.origin, c, now, func() progress {
		t := s.track
		t.read.add(n)
		t.dropped.add(n)
		t.dropped.sub(c.sent)
		return &filePiece{sent: c.sent, track: t, step: t.begin(end, now), generation: t.generation, from: from, end: end, seen: now, count: n}
	})
}

// filePiece is a run of a file's lines.
type filePiece struct {
	track      *track
	step       uint64 // of the track
	generation uint64
	from       int64
	end        tail.Position
	seen       time.Time
	count      Count
	sent       Count // of it
}

// writtenLocked implements writable.
func (p *filePiece) writtenLocked() { p.track.sent.add(p.sent) }

// settleLocked implements progress.
func (p *filePiece) settleLocked() {
	p.track.settle(p.step)
	p.track.settled.add(p.count)
}

// journalRange implements progress.
func (p *filePiece) journalRange() journal.Range {
	t, end := p.track, &p.end
	return journal.Range{
		Input: inputFile, Path: t.path, Home: t.home, Dev: t.id.Dev, Ino: t.id.Ino, Born: t.born, Generation: p.generation,
		From: p.from, To: end.Offset, Skip: end.Skip, Seen: p.seen.Unix(),
		Head: journal.Sum{Len: uint32(end.Head.Len), Hash: end.Head.Hash}, Tail: journal.Sum{Len: uint32(end.Tail.Len), Hash: end.Tail.Hash},
	}
}
