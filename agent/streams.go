package agent

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/agent/assemble"
	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/journald"
	"github.com/sluice-io/sluice/agent/stream"
	"github.com/sluice-io/sluice/agent/syslog"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

const (
	// lingerOfParcel is what each parcel that waits for its acknowledgement adds to the time the next is open, and lingerMax the most there
	// can be: while the brokers are away the journal gets fewer and larger entries.
	lingerOfParcel = 10 * time.Microsecond
	lingerMax      = time.Second
	// parcelsMax bounds the parcels that wait: each takes some memory though its bytes are only in the journal.
	parcelsMax = 200_000
)

// streams is an input that hands over what it reads, and reads on when that is in the journal. Fields without a word on it belong to the
// loop.
type streams struct {
	*runner
	feed   stream.Feed
	offers chan *offering
	over   chan struct{} // closed when nothing is taken any more
	chunk  reading
	born   time.Time // names the lines of this run
	count  int64     // of lines, for the cursor; a cursor without a line counts too
	rate   rate
	// joins says how an input joins lines whose sources lie across each other.
	joins    assemble.Config
	joinIdle time.Duration
	joining  atomic.Pointer[joining] // nil while none is needed

	acked   savedCursor    // guarded by runner.mu: what is delivered
	pending []*streamPiece // guarded by runner.mu: in order; the first is not settled
}

// offering is an offer that somebody waits with.
type offering struct {
	offer *stream.Offer
	kept  chan struct{}
}

// seeker is a feed that goes on behind a cursor, or at it.
type seeker interface {
	Seek(cursor string, itself bool)
}

// newStreams makes an input of a feed.
func newStreams(r *runner, feed stream.Feed) (*streams, error) {
	r.spills = true
	s := &streams{runner: r, feed: feed, offers: make(chan *offering), over: make(chan struct{}), born: r.cfg.Now(),
		rate: newRate(r.pipe.Collect.Options().RateLimit)}
	return s, s.joinConfig()
}

// Take implements stream.Taker.
func (s *streams) Take(o *stream.Offer) error {
	x := &offering{offer: o, kept: make(chan struct{})}
	select {
	case s.offers <- x:
	case <-s.over:
		s.Drop(dropStopped, int64(len(o.Chunk.Lines)), o.Chunk.Bytes())
		return stream.ErrOver
	}
	select {
	case <-x.kept:
		return nil
	case <-s.over:
		return stream.ErrOver
	}
}

// Drop implements stream.Taker.
func (s *streams) Drop(reason string, lines, bytes int64) {
	n := Count{Lines: lines, Bytes: bytes}
	s.runner.count(func(a *Account) {
		a.Read.add(n)
		a.drop(reason, n)
	})
}

// loop implements input.
func (s *streams) loop(ctx context.Context) {
	defer close(s.over)
	s.meet()
	ended := make(chan struct{})
	run := s.collector(ctx)
	s.helpers.Go(func() {
		defer close(ended)
		run()
	})
	timer := time.NewTimer(0)
	defer timer.Stop()
	done := ctx.Done()
	var late <-chan time.Time
	for {
		now := s.cfg.Now()
		offers, due := s.look(ctx, now)
		timer.Reset(max(due.Sub(now), 0))
		select {
		case x := <-offers:
			s.takeAll(x)
		case p := <-s.prepared:
			s.begin(p)
		case <-s.wake:
		case <-timer.C:
		case <-done:
			if !s.work.begun {
				return // nothing can be taken
			}
			done, late = nil, time.After(s.cfg.DrainTimeout)
		case <-late:
			return
		case <-ended:
			return
		}
	}
}

// meet notes that the first start is over: nothing is to be looked for.
func (s *streams) meet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		s.known, s.dirty = true, true
		if s.kept.save != nil {
			s.kept.save()
		}
	}
}

// look does what is due and returns where offers come from, nil while none can be taken, and when to look again.
func (s *streams) look(ctx context.Context, now time.Time) (offers chan *offering, due time.Time) {
	s.stepping.Lock()
	defer s.stepping.Unlock()
	s.mu.Lock()
	waiting := len(s.parcels)
	s.mu.Unlock()
	linger := s.linger
	s.linger = min(linger+time.Duration(waiting)*lingerOfParcel, lingerMax)
	s.tend(ctx, now)
	due = s.shipDue(now.Add(stalledAfter))
	s.linger = linger
	if !s.rate.ready(now) {
		return nil, earlier(due, s.rate.due())
	}
	if s.work.begun && s.kept.stored.Load() && waiting < parcelsMax && s.room() {
		offers = s.offers
	}
	return offers, due
}

// takeAll takes an offer and those that wait with it, and sends them at once when an origin has more than it may hand over.
func (s *streams) takeAll(x *offering) {
	s.stepping.Lock()
	defer s.stepping.Unlock()
	more := false
	for x != nil {
		more = more || x.offer.More
		s.takeOne(x)
		if !s.room() || !s.rate.ready(s.cfg.Now()) {
			break
		}
		select {
		case x = <-s.offers:
		default:
			x = nil
		}
	}
	if more {
		s.ship()
	}
}

// takeOne puts an offer into the open parcel.
func (s *streams) takeOne(x *offering) {
	now := s.cfg.Now()
	o := s.originOf(x.offer.Origin)
	p := s.openParcel(now)
	p.kept = append(p.kept, x.kept)
	if x.offer.Chunk.Skipped.Cuts > 0 {
		s.sayCut(o.name)
	}
	if x.offer.Chunk.Skipped.Splits > 0 {
		s.saySplit(o.name)
	}
	s.rate.spend(len(x.offer.Chunk.Lines), x.offer.Chunk.Bytes())
	s.chunk.lines = x.offer.Chunk
	s.take(o, &s.chunk, now, s.mover(x.offer))
	s.chunk.lines = tail.Chunk{}
	s.chunk.reset()
}

// mover returns what makes the piece that moves the cursor over an offer; nil when there is no cursor.
func (s *streams) mover(o *stream.Offer) func() progress {
	if o.Cursor == "" {
		return nil
	}
	from := s.count
	s.count += max(int64(len(o.Chunk.Lines)), 1)
	p := &streamPiece{streams: s, from: from, end: savedCursor{Input: s.pipe.Collect.Input(), Cursor: o.Cursor, Count: s.count}}
	return func() progress {
		s.pending = append(s.pending, p)
		return p
	}
}

// streamPiece is a run of lines of an input that has a cursor.
type streamPiece struct {
	streams *streams
	from    int64
	end     savedCursor
	settled bool
}

// settleLocked implements progress.
func (p *streamPiece) settleLocked() {
	p.settled = true
	s := p.streams
	for len(s.pending) > 0 && s.pending[0].settled {
		s.acked = s.pending[0].end
		s.pending = s.pending[1:]
	}
}

// journalRange implements progress. The path of the range is the cursor.
func (p *streamPiece) journalRange() journal.Range {
	return journal.Range{Input: p.end.Input, Path: p.end.Cursor, From: p.from, To: p.end.Count}
}

// restore implements input.
func (s *streams) restore(p savedPipeline, _ bool) {
	if p.Cursor != nil && p.Cursor.Input == s.pipe.Collect.Input() {
		s.acked = *p.Cursor
	}
	s.count = s.acked.Count
}

// replay implements input.
func (s *streams) replay(moves []journal.Range) {
	at, gap := s.acked.moved(s.pipe.Collect.Input(), moves)
	if gap != nil {
		s.log.Warn("the journal goes on after a gap; what lies between is asked for again, and what follows too", "from", gap.From, "position", at.Count)
	}
	s.dirty = s.dirty || at != s.acked
	s.acked, s.count = at, at.Count
}

// moved is the cursor of an input behind what the journal holds. gap is what does not follow, if anything.
func (c savedCursor) moved(input string, moves []journal.Range) (out savedCursor, gap *journal.Range) {
	for i := range moves {
		m := &moves[i]
		switch {
		case m.Input != input || m.To <= c.Count: // of another input, or the checkpoint has it
		case m.From > c.Count:
			return c, m
		default:
			c = savedCursor{Input: m.Input, Cursor: m.Path, Count: m.To}
		}
	}
	return c, nil
}

// saveLocked implements input.
func (s *streams) saveLocked(p *savedPipeline) {
	p.Input = s.pipe.Collect.Input()
	if s.acked.Cursor != "" {
		cursor := s.acked
		p.Cursor = &cursor
	}
}

// measureLocked implements input.
func (s *streams) measureLocked(*Account) {}

// originOf returns what the records of an origin share.
func (s *streams) originOf(from *stream.Origin) *origin {
	if o, ok := from.Kept.(*origin); ok {
		return o
	}
	o := &origin{name: from.Name, partition: -1, spread: []byte(from.Name), identity: s.identityOf(from)}
	if s.pipe.Collect.Options().Headers {
		o.headers = append(o.headers, header(headerHost, s.cfg.Hostname))
		for _, h := range from.Headers {
			o.headers = append(o.headers, header(h.Key, h.Value))
		}
	}
	o.headers = append(o.headers, s.work.labels...)
	from.Kept = o
	return o
}

// identityOf names the lines of an origin in this run: no other run's lines are named so.
func (s *streams) identityOf(from *stream.Origin) []byte {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s %d", s.pipe.Name, from.Name, s.born.UnixNano())
	return fmt.Appendf(nil, "%016x", h.Sum64())
}

// newFeed makes the feed of an input that is not the file input.
func newFeed(log *slog.Logger, p *pipelines.Pipeline, cfg Config) (stream.Feed, error) {
	c := p.Collect
	build := lineBuilder{collect: c, cfg: cfg}
	log = log.With("pipeline", p.Name)
	switch {
	case c.Stdin != nil:
		lines, err := build.lines(&c.Stdin.LineOptions, "stdin")
		return stream.NewStdin(log, stream.StdinConfig{File: cfg.Stdin, Lines: lines}), err
	case c.Pipe != nil:
		lines, err := build.lines(&c.Pipe.LineOptions, c.Pipe.Path, stream.Header{Key: headerPath, Value: c.Pipe.Path})
		return stream.NewPipe(log, stream.PipeConfig{Path: c.Pipe.Path, Create: c.Pipe.Create, Once: cfg.Once, Lines: lines}), err
	case c.Exec != nil:
		x, err := build.exec(log, c.Exec)
		return stream.NewExec(log, x), err
	case c.Syslog != nil && cfg.Once:
		return nil, fmt.Errorf("pipeline %s: collect.syslog has no end, so it cannot be taken once", p.Name)
	case c.Syslog != nil:
		return newSyslog(log, c.Syslog)
	}
	j := c.Journald
	return journald.New(log, journald.Config{
		Command: j.Command, Units: j.Units, Matches: j.Matches, Boot: j.Boot, Directory: j.Directory, AtEnd: j.StartAt == pipelines.StartAtEnd, IgnoreOlder: j.IgnoreOlder,
		Once: cfg.Once, EntryBytesMax: j.LineBytesMax, Origin: &stream.Origin{Name: "journald"},
	}), nil
}

func newSyslog(log *slog.Logger, in *pipelines.SyslogInput) (stream.Feed, error) {
	cfg := syslog.Config{
		MessageBytesMax: in.LineBytesMax, ConnectionsMax: in.ConnectionsMax, IdleTimeout: in.IdleTimeout,
		ReceiveBuffer: in.ReceiveBuffer, SocketMode: os.FileMode(in.SocketMode),
	}
	for _, l := range in.Listen {
		cfg.Listen = append(cfg.Listen, syslog.Listen{Network: l.Network, Address: l.Address})
	}
	if in.TLS != nil {
		var err error
		if cfg.TLS, err = syslog.TLSConfig(in.TLS.CertFile, in.TLS.KeyFile, in.TLS.ClientCA); err != nil {
			return nil, fmt.Errorf("collect.syslog.tls: %w", err)
		}
	}
	return syslog.New(log, cfg), nil
}

// lineBuilder makes what says how an input's lines are read.
type lineBuilder struct {
	collect *pipelines.Collect
	cfg     Config
}

func (b *lineBuilder) lines(o *pipelines.LineOptions, name string, headers ...stream.Header) (stream.Lines, error) {
	limit := b.collect.Options().LineBytesMax
	form, err := newForm(o, limit)
	l := stream.Lines{LineBytesMax: limit, PartialAfter: b.cfg.LineIdle, Encoding: encodingOf(o.Encoding), Form: form,
		Origin: &stream.Origin{Name: name, Headers: headers}}
	if o.Multiline != nil {
		l.RecordAfter = o.Multiline.Idle
	}
	return l, err
}

func (b *lineBuilder) exec(log *slog.Logger, x *pipelines.ExecInput) (out stream.ExecConfig, err error) {
	out = stream.ExecConfig{
		Program:  stream.Program{Command: x.Command, Directory: x.Directory},
		Interval: x.Interval, Timeout: x.Timeout, RestartMax: x.RestartMax, Once: b.cfg.Once,
	}
	for _, e := range x.Environment {
		out.Program.Environment = append(out.Program.Environment, e.Name+"="+e.Value)
	}
	if out.Stdout, err = b.lines(&x.LineOptions, "stdout", stream.Header{Key: headerStream, Value: "stdout"}); err != nil {
		return out, err
	}
	switch x.Stderr {
	case pipelines.ExecStderrLines:
		stderr, err := b.lines(&x.LineOptions, "stderr", stream.Header{Key: headerStream, Value: "stderr"})
		out.Stderr = &stderr
		return out, err
	case pipelines.ExecStderrLog:
		out.LogFunc = func(line string) { log.Warn("the command says", "line", line) }
	}
	return out, nil
}
