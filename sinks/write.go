package sinks

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"
)

// errLate keeps a write from being sent after its claim's deadline, when another worker may have the partition.
var errLate = errors.New("the claim's deadline passed before the write began")

// startWrite writes the batch in hand of p on its own goroutine.
func (s *session) startWrite(p *slot) {
	deadline := p.claimSent.Add(p.limits.writeDeadline)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	p.cancel = cancel
	b := p.hand
	s.writing++
	s.inWrites += b.records.bytes
	s.writes.Go(func() {
		started := time.Now()
		t, parts, err := s.w.store(ctx, p, b)
		if err != nil {
			err = fmt.Errorf("write offsets %d to %d: %w", b.claim.Lo, b.claim.Hi, err)
		}
		cancel()
		s.w.metrics.writeSeconds.Observe(time.Since(started).Seconds())
		if err == nil {
			s.w.count(b, t, parts, time.Now())
			p.share.add(&t)
		}
		s.call(func() {
			if err == nil && t.stored > 0 {
				s.pacer.made(parts)
			}
			s.wrote(p, b, err, time.Now())
		})
	})
}

// writesPart is the part of the memory for records that may be written at the same time: each write has a block beside its records, and more where that is compressed.
const writesPart = 2

// mayWrite says that the partition's batch can be written now. One always can.
func (s *session) mayWrite(p *slot) bool {
	if s.writing == 0 || p.hand == nil {
		return s.writing < s.w.cfg.ParallelWritesMax
	}
	return s.writing < s.w.cfg.ParallelWritesMax && s.inWrites+p.hand.records.bytes <= s.w.recordMemory()/writesPart
}

func (s *session) wrote(p *slot, b *batch, err error, now time.Time) {
	s.writing--
	s.inWrites -= b.records.bytes
	p.cancel = nil
	p.trouble = err
	p.written(err, now)
	if id := b.claim.Partition; s.parts[id] == p {
		s.w.destinationSaid(id, err, now)
	}
}

func writeOf(id int32) string { return "write of " + partitionName(id) }

// store brings one batch to the destination: what is there already is left out, what cannot be stored goes to the dead-letter topic, and the
// rest is written under the claim's identity. parts is how many pieces the destination made of it.
func (w *Worker) store(ctx context.Context, p *slot, b *batch) (t tally, parts int, err error) {
	present, err := w.present(ctx, p, b)
	if err != nil {
		return tally{}, 0, fmt.Errorf("read back what is stored: %w", err)
	}
	t, parts, err = w.encodeAndWrite(ctx, p, b, present)
	if errors.Is(err, ErrSchemaChanged) {
		changed := err
		if _, err := w.check(ctx); err != nil {
			return tally{}, 0, errors.Join(err, changed)
		}
		w.encoders.renew()
		t, parts, err = w.encodeAndWrite(ctx, p, b, present)
	}
	return t, parts, err
}

func (w *Worker) encodeAndWrite(ctx context.Context, p *slot, b *batch, present []Range) (t tally, parts int, err error) {
	e, err := w.encoders.get()
	if err != nil {
		return tally{}, 0, err
	}
	defer func() {
		if e != nil {
			w.encoders.put(e)
		}
	}()
	t = e.encode(b, present)
	if t.misfits() && w.destination.Load().Alterable {
		if _, err := w.check(ctx); err != nil {
			return tally{}, 0, err
		}
		if w.encoders.outdated(e) { // by this check or by that of another
			w.encoders.put(e)
			if e, err = w.encoders.get(); err != nil {
				return tally{}, 0, err
			}
			t = e.encode(b, present)
		}
	}
	if err := p.share.check(&t, w.pipe.Errors.DeadLetterShare); err != nil {
		return tally{}, 0, err
	}
	if err := w.letters.send(ctx, b, t.letters); err != nil {
		return tally{}, 0, fmt.Errorf("write to the dead-letter topic: %w", err)
	}
	parts, err = w.write(ctx, e, b, present, t.stored)
	return t, parts, err
}

// write sends the encoder's block, in pieces where the destination takes only pieces.
func (w *Worker) write(ctx context.Context, e *encoder, b *batch, present []Range, rows int64) (parts int, err error) {
	if rows == 0 {
		return 0, nil
	}
	if !b.again.written {
		b.again.written, b.again.leftOut = true, present
	}
	out := b.out(e.block, identity(b, present))
	err = w.send(ctx, out)
	b.again.mark = out.Mark
	b.again.learn(err)
	var split *SplitError
	if errors.As(err, &split) {
		return w.writePieces(ctx, e, b, split)
	}
	return out.Parts, err
}

// out is a write of the batch, or of a part of it.
func (b *batch) out(rows Block, identity string) *Batch {
	if b.again.notKept > 0 {
		identity += fmt.Sprintf("/again-%d", b.again.notKept)
	}
	return &Batch{Claim: b.claim, Block: rows, Identity: identity, Repeat: b.repeat, Mark: b.again.mark, Again: b.again.notKept}
}

// learn takes what a failed write says about the next.
func (a *whole) learn(err error) {
	switch {
	case errors.Is(err, ErrForgotten):
		a.forgotten = true
	case errors.Is(err, ErrNotKept):
		a.forgotten = true
		a.notKept++
	}
}

// writePieces sends the rows in the pieces that the destination named. A piece is known by its offsets, so a repetition that finds some of the pieces stored
// sends the others as they were.
func (w *Worker) writePieces(ctx context.Context, e *encoder, b *batch, split *SplitError) (parts int, err error) {
	for i, offsets := range split.Pieces {
		t := e.encode(b, absentFrom(b.claim, offsets))
		if t.stored != int64(len(offsets)) {
			return parts, fmt.Errorf("a piece of %d rows was encoded as %d", len(offsets), t.stored)
		}
		out := b.out(e.block, offsetsIdentity(b.claim, offsets))
		if err := w.send(ctx, out); err != nil {
			b.again.learn(err)
			switch {
			case errors.As(err, new(*SplitError)):
				err = fmt.Errorf("a piece was to be split again: %v", err)
			case i > 0 && errors.Is(err, ErrSchemaChanged):
				err = fmt.Errorf("after %d of %d pieces: %v", i, len(split.Pieces), err) // not again at once: what the others stored is read back first
			}
			return parts, err
		}
		parts += out.Parts
	}
	return parts, nil
}

// send writes unless the claim's deadline has passed.
func (w *Worker) send(ctx context.Context, out *Batch) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return errLate
	}
	return w.sink.Write(ctx, out)
}

// absentFrom are the ranges of the claim between the offsets, which ascend.
func absentFrom(c Claim, offsets []int64) (out []Range) {
	next := c.Lo
	for _, o := range offsets {
		if o > next {
			out = append(out, Range{next, o - 1})
		}
		next = o + 1
	}
	if next <= c.Hi {
		out = append(out, Range{next, c.Hi})
	}
	return out
}

// present reads back which offsets of the batch are stored already, where that can be: at or below the largest offset that was at the destination when the
// worker got the partition (an open claim, a reset group, an expired commit), and before each repetition, for the destination may no longer remember the
// first write, or never have. A batch that is repeated to fill what hangs on the destination is what it was the first time.
func (w *Worker) present(ctx context.Context, p *slot, b *batch) ([]Range, error) {
	if p.verifySet && b.claim.Lo > max(p.verifyTo, b.doubtTo) && !b.repeat {
		return nil, nil
	}
	if b.again.written && !b.again.forgotten && w.destination.Load().RepeatsFill {
		return b.again.leftOut, nil
	}
	stored, err := w.sink.Stored(ctx, b.claim)
	if err != nil {
		return nil, err
	}
	if !p.verifySet {
		p.verifyTo, p.verifySet = stored.Max, true
	}
	if len(stored.Present) > 0 {
		w.log.Info("rows of the batch are at the destination already; storing only the absent",
			"partition", b.claim.Partition, "lo", b.claim.Lo, "hi", b.claim.Hi, "present", stored.Present)
	}
	return stored.Present, nil
}

// identity is the claim's own, unless some of its rows are left out: then the block is another, and needs another name.
func identity(b *batch, present []Range) string {
	if len(present) == 0 {
		return b.claim.Identity()
	}
	var offsets []int64
	b.records.each(func(_ *run, r *record) {
		if !Holds(present, r.offset) {
			offsets = append(offsets, r.offset)
		}
	})
	return offsetsIdentity(b.claim, offsets)
}

// offsetsIdentity names a part of a claim by its offsets.
func offsetsIdentity(c Claim, offsets []int64) string {
	h := fnv.New64a()
	var buf []byte
	for _, o := range offsets {
		buf = strconv.AppendInt(buf[:0], o, 10)
		h.Write(append(buf, ','))
	}
	return fmt.Sprintf("%s/absent-%016x", c.Identity(), h.Sum64())
}

// count puts a stored batch into account and metrics.
func (w *Worker) count(b *batch, t tally, parts int, now time.Time) {
	w.mu.Lock()
	w.account.add(t)
	w.mu.Unlock()
	w.metrics.rows.Add(float64(t.stored))
	w.metrics.parts.Add(float64(parts))
	w.metrics.batchRows.Observe(float64(t.consumed))
	for stage, n := range t.dropped {
		w.metrics.dropped.WithLabelValues(stage).Add(float64(n))
	}
	for reason, n := range t.rejected {
		w.metrics.deadLetters.WithLabelValues(reason).Add(float64(n))
	}
	w.metrics.bytes.Add(float64(b.records.values))
	w.metrics.endToEnd.observe(&b.records, now)
}
