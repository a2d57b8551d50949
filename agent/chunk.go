package agent

import (
	"time"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
)

// Classes of batches.
const (
	classLines producer.Class = 0
	classDead  producer.Class = 1 // for the dead-letter topic
)

// parcel is a bundle with what the agent must know of it: pieces of its input, read, in batches, and written to the journal as one. It
// belongs to the loop until it is shipped, then to the destination's goroutine.
type parcel struct {
	runner *runner
	bundle producer.Bundle
	pieces []piece
	opened time.Time
	prompt bool // it is shipped as soon as what is there has been read
	memory int64
	// sequence of its entry in the journal; 0: not written yet.
	sequence uint64
	done     bool            // guarded by runner.mu: all of it is settled
	kept     []chan struct{} // closed when it is in the journal, or settled
}

// release tells those who wait that the parcel is kept.
func (p *parcel) release() {
	for _, c := range p.kept {
		close(c)
	}
	p.kept = nil
}

// piece is a run of lines of one origin.
type piece struct {
	progress progress // nil when the input has no position

	headers []producer.Header // of all records of the origin
	id      []byte            // of the origin
	name    string            // of the origin
}

// progress is how far an input has come with a piece.
type progress interface {
	// settleLocked notes that all of the piece is acknowledged or dropped. It needs runner.mu.
	settleLocked()
	// journalRange is what the journal keeps of it. It is called on the destination's goroutine.
	journalRange() journal.Range
}

// writable is a progress that wants to know when its piece is in the journal.
type writable interface {
	// writtenLocked needs runner.mu.
	writtenLocked()
}

// origin is what all lines of one place have in common: a file's content, a connection's sender.
type origin struct {
	name      string            // for messages and dead letters
	headers   []producer.Header // of all its records; labels last
	identity  []byte            // names its lines in dead letters, with their offsets
	spread    []byte            // chooses the partition of its lines
	partition int32             // for records without key; -1 while not chosen
}

// reading is a chunk of lines on its way into the open parcel. It belongs to the loop and is used for one chunk at a time.
type reading struct {
	lines tail.Chunk
	// origins are what a container's runtime says of each line; nil for other inputs.
	origins []lineOrigin
	source  int32 // index of its piece in the parcel
	sent    Count
	dead    Count // lines for the dead-letter topic, part of sent
	drops   []dropped
	now     time.Time
	ms      int64
}

// dropped are lines of a chunk that a stage dropped.
type dropped struct {
	reason string
	count  Count
}

// lineOrigin is where a container wrote a line, and when. The zero value is of a line that does not tell.
type lineOrigin struct {
	stream, time []byte
	malformed    bool
}

func (c *reading) reset() {
	c.lines.Release()
	c.origins = nil
	c.sent, c.dead, c.drops = Count{}, Count{}, c.drops[:0]
}

// countOf is what a line counts in the account.
func countOf(l *tail.Line) Count { return Count{Lines: 1, Bytes: int64(l.Next - l.Start)} }

// mark is what a record's line is known by.
func (c *reading) mark(l *tail.Line) producer.Mark {
	return producer.Mark{Source: c.source, Bytes: int32(l.Next - l.Start), Offset: c.lines.Base + int64(l.Start)}
}

// drop notes a line that a stage dropped.
func (c *reading) drop(reason string, l *tail.Line) {
	n := countOf(l)
	for i := range c.drops {
		if c.drops[i].reason == reason {
			c.drops[i].count.add(n)
			return
		}
	}
	c.drops = append(c.drops, dropped{reason: reason, count: n})
}

// take puts the lines of a chunk into the open parcel, and ships it when it is full. begin is called with mu held and returns the
// input's side of it; nil when there is none.
func (r *runner) take(o *origin, c *reading, now time.Time, begin func() progress) {
	p := r.openParcel(now)
	c.source, c.now, c.ms = int32(len(p.pieces)), now, now.UnixMilli()
	before := r.packer.Bytes()
	r.work.pack(o, c)
	r.count(func(a *Account) { a.take(c) })
	grown := int64(r.packer.Bytes() - before)
	p.memory += grown
	x := piece{headers: o.headers, id: o.identity, name: o.name}
	r.mu.Lock()
	r.holdLocked(grown)
	if begin != nil {
		x.progress = begin()
	}
	p.pieces = append(p.pieces, x)
	r.mu.Unlock()
	// Or the next chunk would be cut, and its end travel as a batch of its own.
	if int64(r.packer.Bytes())+grown > int64(r.bundleBytes) || r.packer.Records() >= r.bundleLines {
		r.ship()
	}
}

// openParcel returns the parcel to fill.
func (r *runner) openParcel(now time.Time) *parcel {
	if r.parcel == nil {
		r.parcel = &parcel{runner: r, opened: now, prompt: r.prompt && now.Sub(r.opened) >= restMin}
		r.opened = now
		r.mu.Lock()
		r.parcels = append(r.parcels, r.parcel)
		r.mu.Unlock()
	}
	return r.parcel
}

// take counts a chunk.
func (a *Account) take(c *reading) {
	s := &c.lines.Skipped
	a.Read.add(Count{Lines: int64(len(c.lines.Lines)), Bytes: c.lines.Bytes()})
	a.InFlight.add(c.sent)
	for _, d := range c.drops {
		a.drop(d.reason, d.count)
	}
	a.drop(dropNUL, Count{Bytes: s.NULs})
	a.drop(dropMark, Count{Bytes: s.Mark})
	a.drop(dropTooLong, Count{Bytes: s.TooLong})
	a.drop(dropLate, Count{Bytes: s.Late})
	a.drop(dropFrame, Count{Bytes: s.Frame})
	a.CutLines += s.Cuts
	a.SplitRecords += s.Splits
	for i := range c.origins {
		if c.origins[i].malformed {
			a.MalformedLines++
		}
	}
}

// ship hands the open parcel to the destination.
func (r *runner) ship() {
	p := r.parcel
	if p == nil {
		return
	}
	r.parcel = nil
	r.work.turn = (r.work.turn + 1) & (1<<31 - 1)
	batches, err := r.packer.Take()
	if err != nil {
		// The compressors fail on nothing that lines could hold; what cannot be built cannot be sent, and is not passed over.
		r.log.Error("a batch cannot be built; the lines stay unsent until a restart", "error", err)
		return
	}
	p.bundle = producer.Bundle{Batches: batches, Ranges: p, Written: p.written, Done: p.settled}
	memory := int64(0)
	for _, b := range batches {
		memory += producer.MemoryOf(b)
	}
	r.mu.Lock()
	r.holdLocked(memory - p.memory)
	r.mu.Unlock()
	p.memory = memory
	r.dest.Send(&p.bundle)
}

// written notes that the journal holds the parcel.
func (p *parcel) written(sequence uint64) {
	r := p.runner
	r.mu.Lock()
	p.sequence = sequence
	for _, b := range p.bundle.Batches {
		r.account.Sent.add(Count{Lines: b.Lines, Bytes: b.SourceBytes})
	}
	for i := range p.pieces {
		if x, ok := p.pieces[i].progress.(writable); ok {
			x.writtenLocked()
		}
	}
	r.unsettled[sequence] = true
	r.journalled = max(r.journalled, sequence+1)
	if r.spills && r.memory > r.cfg.InFlightBytesMax/spillShare {
		p.spillLocked()
	}
	r.mu.Unlock()
	p.release()
	r.kept.grown()
}

// spillShare is the part of the memory for batches in flight beyond which those of an input without files are left to the journal.
const spillShare = 2

// spillLocked leaves the parcel's batches to the journal. It needs runner.mu.
func (p *parcel) spillLocked() {
	for _, b := range p.bundle.Batches {
		p.runner.memoryPool.Spill(b)
	}
	p.runner.memory -= p.memory
	p.memory = 0
}

// settled is called when all of a parcel's batches are.
func (p *parcel) settled() {
	r := p.runner
	p.release()
	r.mu.Lock()
	for i := range p.pieces {
		if x := p.pieces[i].progress; x != nil {
			x.settleLocked()
		}
	}
	p.done = true
	for len(r.parcels) > 0 && r.parcels[0].done {
		r.parcels = r.parcels[1:]
	}
	r.holdLocked(-p.memory)
	delete(r.unsettled, p.sequence)
	r.dirty = true
	r.finishLocked()
	r.mu.Unlock()
	r.nudge()
}

// owner is what the destination tells.
func (r *runner) owner() producer.Owner {
	return producer.Owner{OnSettled: r.batchSettled, OnRefused: r.batchRefused, OnUnknown: r.batchesUnknown}
}

// batchSettled counts an acknowledged batch.
func (r *runner) batchSettled(b *producer.Batch) {
	n := Count{Lines: b.Lines, Bytes: b.SourceBytes}
	r.count(func(a *Account) {
		a.InFlight.sub(n)
		if b.Class == classDead {
			a.drop(dropDeadLetter, n)
		} else {
			a.Acked.add(n)
		}
	})
}

// batchesUnknown counts batches of which it cannot be told whether they are stored.
func (r *runner) batchesUnknown(batches []*producer.Batch) {
	r.count(func(a *Account) {
		for _, b := range batches {
			a.Unknown.add(Count{Lines: b.Lines, Bytes: b.SourceBytes})
		}
	})
}

// batchRefused counts lines that the brokers refused for themselves, and makes dead letters of them where there is a topic for that.
func (r *runner) batchRefused(of *producer.Batch, records []producer.Refused) []*producer.Batch {
	if of.Class != classDead && r.pipe.Errors.DeadLetter != "" {
		dead, err := r.work.deadLetters(of, records)
		if err == nil {
			return dead
		}
		r.log.Error("dead letters cannot be built; the lines are dropped", "error", err)
	}
	r.count(func(a *Account) {
		for _, x := range records {
			n := Count{Lines: 1, Bytes: int64(x.Mark.Bytes)}
			a.InFlight.sub(n)
			a.drop(dropRefused, n)
		}
	})
	return nil
}
