package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/agent/assemble"
	"github.com/sluice-io/sluice/agent/stream"
	"github.com/sluice-io/sluice/agent/tail"
)

const (
	// joinedSourcesMax bounds the records of a connection, or of a sender, that may go on: the oldest is ended.
	joinedSourcesMax = 1000
	// joinedCursorsMax bounds them where a cursor has to name each, joinedCursorBytes how long such a name may be: an entry with a longer one is
	// a record by itself. Together they fit into the journal's text of a cursor.
	joinedCursorsMax  = 100
	joinedCursorBytes = 400
	// joinedBytesMax bounds what an input holds of records that may go on: those of whoever sends more are ended.
	joinedBytesMax = 8 << 20
	// joinedLooks is how often within the idle time it is looked for records that are whole by it.
	joinedLooks = 4
)

// joinedSource is who wrote a line. Lines of one source make records.
type joinedSource struct{ host, app, process string }

// joinedFirst is what is kept of a record's first line.
type joinedFirst struct {
	raw    []byte
	text   int    // bytes of its text
	cursor string // of an input that has cursors
}

// lineReader tells who wrote a line and what its text is, and puts a text of several lines into the first. Not safe for concurrent use.
type lineReader interface {
	// read returns ok false for what is a record by itself.
	read(line []byte) (source joinedSource, text []byte, cursor string, ok bool)
	// compose returns the record: good until the next call.
	compose(first *joinedFirst, text []byte) []byte
}

// joining is a taker before another: it joins lines to records, of each source by itself, for inputs in which sources lie across each other
// and that cannot be read again. It holds lines in memory until their record is whole, or nothing came for the idle time. Safe for
// concurrent use.
//
// Lock order: joinedOrigin.mu, which is held while the other takes, stands alone; joining.mu is a leaf.
type joining struct {
	to     stream.Taker
	cfg    assemble.Config
	idle   time.Duration
	now    func() time.Time
	reader func() lineReader
	// openMax bounds the open records of an origin.
	openMax int

	held  atomic.Int64  // bytes of open records
	wake  chan struct{} // holds a token when something is held
	ended chan struct{} // closed when no more is looked for records that are whole

	resume cursorState // of an input that has cursors, which has one origin

	mu      sync.Mutex
	origins map[*stream.Origin]*joinedOrigin // guarded by mu
}

// joinedOrigin are the sources of one connection or sender.
type joinedOrigin struct {
	origin *stream.Origin

	mu      sync.Mutex
	reader  lineReader                                   // guarded by mu
	sources *assemble.Sources[joinedSource, joinedFirst] // guarded by mu
	at      int64                                        // guarded by mu: bytes handed over
	out     tail.Chunk                                   // guarded by mu: records on their way
	used    time.Time                                    // guarded by mu
	cursors cursorState                                  // guarded by mu
}

func newJoining(to stream.Taker, cfg assemble.Config, idle time.Duration, now func() time.Time, reader func() lineReader) *joining {
	return &joining{to: to, cfg: cfg, idle: idle, now: now, reader: reader, openMax: joinedSourcesMax, wake: make(chan struct{}, 1), ended: make(chan struct{}), origins: map[*stream.Origin]*joinedOrigin{}}
}

// of returns the sources of an origin, which has come to a place.
func (j *joining) of(o *stream.Origin, at int64) *joinedOrigin {
	j.mu.Lock()
	defer j.mu.Unlock()
	x := j.origins[o]
	if x == nil {
		x = &joinedOrigin{origin: o, at: at, cursors: j.resume, reader: j.reader(), sources: assemble.NewSources[joinedSource, joinedFirst](j.cfg, j.openMax)}
		j.origins[o] = x
	}
	return x
}

// Take implements stream.Taker. It returns when the records that are whole are kept.
func (j *joining) Take(o *stream.Offer) error {
	x := j.of(o.Origin, o.Chunk.From)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.used = j.now()
	for i := range o.Chunk.Lines {
		l := &o.Chunk.Lines[i]
		j.line(x, o.Chunk.Value(l), l)
	}
	x.skip(o.Chunk.Skipped)
	if o.Cursor != "" {
		x.cursors.last = o.Cursor
	}
	if j.held.Load() > joinedBytesMax {
		j.end(x, func(*assemble.Held[joinedFirst]) bool { return true }, true)
	}
	if j.held.Load() > 0 {
		select {
		case j.wake <- struct{}{}:
		default:
		}
	}
	return j.hand(x, o.More, o.Cursor != "" && o.Chunk.Bytes() == 0)
}

// line takes one line of an origin. It needs the origin's mu.
func (j *joining) line(x *joinedOrigin, value []byte, l *tail.Line) {
	source, text, cursor, ok := x.reader.read(value)
	if x.cursors.passes(cursor, source) {
		return
	}
	take := func(h *assemble.Held[joinedFirst]) { j.record(x, h) }
	bytes := int64(l.Next - l.Start)
	if !ok || l.Cut || len(cursor) > joinedCursorBytes {
		x.sources.EndOf(source, take)
		x.add(value, bytes, l.Cut, false)
		return
	}
	j.held.Add(bytes)
	first := func() joinedFirst {
		return joinedFirst{raw: append([]byte{}, value...), text: len(text), cursor: cursor}
	}
	x.sources.Add(source, text, bytes, first, x.used, take)
}

// record takes a record that is whole. It needs the origin's mu.
func (j *joining) record(x *joinedOrigin, h *assemble.Held[joinedFirst]) {
	j.held.Add(-h.Bytes)
	value := h.First.raw
	if h.Lines > 1 {
		value = x.reader.compose(&h.First, h.Text)
	}
	x.add(value, h.Bytes, false, h.Split)
}

// add puts a record into the chunk. It needs mu.
func (x *joinedOrigin) add(value []byte, bytes int64, cut, split bool) {
	c := &x.out
	start := uint32(len(c.Data))
	c.Data = append(c.Data, value...)
	// Where the next begins is what its lines took in the input, which is more than its text.
	c.Lines = append(c.Lines, tail.Line{Start: start, End: uint32(len(c.Data)), Next: start + uint32(bytes), Cut: cut, Split: split})
	if split {
		c.Skipped.Splits++
	}
	c.End.Offset += bytes
}

// skip counts what is in no line. It needs mu.
func (x *joinedOrigin) skip(s tail.Skipped) {
	c := &x.out
	c.Skipped.NULs += s.NULs
	c.Skipped.Mark += s.Mark
	c.Skipped.TooLong += s.TooLong
	c.Skipped.Late += s.Late
	c.Skipped.Frame += s.Frame
	c.Skipped.Cuts += s.Cuts
	c.End.Offset += s.Bytes()
}

// end ends open records of an origin. It needs the origin's mu.
func (j *joining) end(x *joinedOrigin, which func(*assemble.Held[joinedFirst]) bool, split bool) {
	x.sources.End(which, split, func(h *assemble.Held[joinedFirst]) { j.record(x, h) })
}

// hand hands over the records that are whole, or with bare a cursor alone. It needs the origin's mu.
func (j *joining) hand(x *joinedOrigin, more, bare bool) error {
	c := &x.out
	if c.End.Offset == 0 && !bare || x.cursors.resuming() {
		return nil
	}
	o := &stream.Offer{Origin: x.origin, More: more, Chunk: *c, Cursor: x.cursors.text(x.sources)}
	o.Chunk.Base, o.Chunk.From, o.Chunk.End.Offset = x.at, x.at, x.at+c.End.Offset
	x.at += c.End.Offset
	x.out = tail.Chunk{Data: c.Data[:0], Lines: c.Lines[:0]}
	return j.to.Take(o)
}

// Drop implements stream.Taker.
func (j *joining) Drop(reason string, lines, bytes int64) { j.to.Drop(reason, lines, bytes) }

// watch ends records to which nothing was added for the idle time, until ctx ends.
func (j *joining) watch(ctx context.Context) {
	defer close(j.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wake: // something is held
		}
		for j.held.Load() > 0 {
			timer.Reset(max(j.idle/joinedLooks, time.Millisecond))
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			j.look()
		}
	}
}

// look ends records that are whole by time, and forgets origins that hold nothing.
func (j *joining) look() {
	since := j.now().Add(-j.idle)
	for _, x := range j.all() {
		if !x.mu.TryLock() {
			continue // it is busy
		}
		if !x.cursors.resuming() {
			j.end(x, func(h *assemble.Held[joinedFirst]) bool { return h.Quiet(since) }, false)
		}
		err := j.hand(x, false, false)
		if x.sources.Open() == 0 && x.used.Before(since) && x.out.End.Offset == 0 && !x.cursors.used() || err != nil {
			j.forget(x)
		}
		x.mu.Unlock()
	}
}

func (j *joining) all() (out []*joinedOrigin) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, x := range j.origins {
		out = append(out, x)
	}
	return out
}

// forget needs the origin's mu. An origin that sends again begins anew, behind what it sent.
func (j *joining) forget(x *joinedOrigin) {
	j.mu.Lock()
	delete(j.origins, x.origin)
	j.mu.Unlock()
}

// finish hands over what is held: no more will come. What can be asked for again is left.
func (j *joining) finish(once bool) {
	for _, x := range j.all() {
		x.mu.Lock()
		if !x.cursors.used() || once {
			j.end(x, func(*assemble.Held[joinedFirst]) bool { return true }, false)
			_ = j.hand(x, false, false) // it counts what nobody takes
		}
		x.mu.Unlock()
	}
}
