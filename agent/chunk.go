package agent

import (
	"sync"
	"time"
	"unsafe"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/agent/tail"
)

// lineMemory is what a line in flight takes beside its bytes: its place, its
// record here and in the client. It counts against InFlightBytesMax.
const lineMemory = int64(unsafe.Sizeof(tail.Line{})) + int64(unsafe.Sizeof(producer.Record{})) + 200

// chunk is a run of a file's lines from read to acknowledgement. It belongs to
// the loop until it is dispatched, then to the destination until settled.
type chunk struct {
	runner  *runner
	pool    *chunkPool
	track   *track
	seq     uint64
	lines   tail.Chunk
	out     producer.Chunk
	arena   []byte            // values, keys and numbers made for this chunk
	headers []producer.Header // headers made for this chunk
	drops   []dropped         // by reason; few

	flying  Count // lines sent
	dead    Count // of them, to the dead-letter topic
	refused Count // of them, refused for themselves and taken nowhere
	memory  int64
	shared  []producer.Header // of the file
	id      []byte            // of the file's content
	path    string
}

// dropped are lines of a chunk that a stage dropped.
type dropped struct {
	reason string
	count  Count
}

// chunkPool keeps chunks with what they have grown.
type chunkPool struct{ pool sync.Pool }

func (p *chunkPool) get() *chunk {
	if c, ok := p.pool.Get().(*chunk); ok {
		return c
	}
	c := &chunk{pool: p}
	c.out.Done = c.settle
	return c
}

func (p *chunkPool) put(c *chunk) {
	c.lines.Release()
	c.runner, c.track = nil, nil
	c.out.Records = c.out.Records[:0]
	c.arena, c.headers, c.drops = c.arena[:0], c.headers[:0], c.drops[:0]
	c.flying, c.dead, c.refused, c.memory = Count{}, Count{}, Count{}, 0
	c.shared, c.id, c.path = nil, nil, ""
	p.pool.Put(c)
}

func (c *chunk) begin(r *runner, s *source, now time.Time) {
	c.runner, c.track = r, s.track
	c.shared, c.id, c.path = s.headers, s.identity, s.track.path
	c.out.Timestamp = now
}

// drop notes a line that a stage dropped.
func (c *chunk) drop(reason string, l *tail.Line) {
	n := Count{Lines: 1, Bytes: int64(l.Next - l.Start)}
	for i := range c.drops {
		if c.drops[i].reason == reason {
			c.drops[i].count.add(n)
			return
		}
	}
	c.drops = append(c.drops, dropped{reason: reason, count: n})
}

// dispatch accounts for a chunk and gives it to the destination.
func (r *runner) dispatch(c *chunk, now time.Time) {
	s := &c.lines.Skipped
	read := Count{Lines: int64(len(c.lines.Lines)), Bytes: c.lines.Bytes()}
	c.flying = Count{Lines: read.Lines, Bytes: read.Bytes - s.Bytes()}
	for _, d := range c.drops {
		c.flying.sub(d.count)
	}
	c.memory = int64(c.lines.Memory()+cap(c.arena)) + read.Lines*lineMemory

	r.mu.Lock()
	c.seq = c.track.begin(c.lines.End, now)
	a := &r.account
	a.Read.add(read)
	a.InFlight.add(c.flying)
	for _, d := range c.drops {
		a.drop(d.reason, d.count)
	}
	a.drop(dropNUL, Count{Bytes: s.NULs})
	a.drop(dropMark, Count{Bytes: s.Mark})
	a.drop(dropTooLong, Count{Bytes: s.TooLong})
	a.drop(dropLate, Count{Bytes: s.Late})
	a.CutLines += s.Cuts
	r.memory += c.memory
	r.mu.Unlock()
	if s.Cuts > 0 {
		r.sayCut(c)
	}
	r.dest.Send(&c.out)
}

// settle is called when the destination has an answer for every record.
func (c *chunk) settle() {
	r := c.runner
	refused := c.sortRefused()
	if len(refused) > 0 && c.deadLetterRefused(refused) {
		return // settled when the dead-letter topic has answered
	}
	r.mu.Lock()
	a := &r.account
	acked := c.flying
	acked.sub(c.dead)
	acked.sub(c.refused)
	a.Acked.add(acked)
	a.InFlight.sub(c.flying)
	a.drop(dropDeadLetter, c.dead)
	a.drop(dropRefused, c.refused)
	r.memory -= c.memory
	c.track.settle(c.seq)
	r.dirty = true
	r.finishLocked()
	r.mu.Unlock()
	c.pool.put(c)
	r.nudge()
}

// sortRefused counts what was refused for good and returns the lines that the
// dead-letter topic may still take.
func (c *chunk) sortRefused() (lines []uint32) {
	dead := c.runner.pipe.Errors.DeadLetter
	for i := range c.out.Records {
		rec := &c.out.Records[i]
		if rec.Err == nil {
			continue
		}
		n := c.countOf(rec.Tag)
		switch {
		case dead != "" && rec.Topic == dead:
			c.dead.sub(n)
			c.refused.add(n)
		case dead != "":
			lines = append(lines, rec.Tag)
		default:
			c.refused.add(n)
		}
	}
	return lines
}

// countOf is what a line counts in the account.
func (c *chunk) countOf(line uint32) Count {
	l := &c.lines.Lines[line]
	return Count{Lines: 1, Bytes: int64(l.Next - l.Start)}
}

// deadLetterRefused sends refused lines to the dead-letter topic.
func (c *chunk) deadLetterRefused(lines []uint32) bool {
	w := c.runner.work
	reasons := make([]string, 0, len(lines))
	for i := range c.out.Records {
		if err := c.out.Records[i].Err; err != nil && c.out.Records[i].Topic != w.pipe.Errors.DeadLetter {
			reasons = append(reasons, err.Error())
		}
	}
	c.out.Records = c.out.Records[:0]
	for i, line := range lines {
		l := &c.lines.Lines[line]
		c.dead.add(c.countOf(line))
		c.out.Records = append(c.out.Records, w.deadRecord(c, line, l, reasons[i], "produce"))
	}
	c.runner.dest.Send(&c.out)
	return true
}
