package sinks

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
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
	s.writes.Go(func() {
		started := time.Now()
		t, err := s.w.store(ctx, p, b)
		if err != nil {
			err = fmt.Errorf("write offsets %d to %d: %w", b.claim.Lo, b.claim.Hi, err)
		}
		cancel()
		s.w.metrics.writeSeconds.Observe(time.Since(started).Seconds())
		if err == nil {
			s.w.count(b, t, time.Now())
		}
		s.call(func() { s.wrote(p, b, err, time.Now()) })
	})
}

func (s *session) wrote(p *slot, b *batch, err error, now time.Time) {
	s.writing--
	p.cancel = nil
	p.written(err, now)
	if id := b.claim.Partition; s.parts[id] == p {
		s.w.destinationSaid(id, err, now)
	}
}

func writeOf(id int32) string { return "write of " + partitionName(id) }

// store brings one batch to the destination: what is there already is left out, what cannot be stored goes to the dead-letter topic, and the
// rest is written under the claim's identity.
func (w *Worker) store(ctx context.Context, p *slot, b *batch) (tally, error) {
	present, err := w.present(ctx, p, b)
	if err != nil {
		return tally{}, fmt.Errorf("read back what is stored: %w", err)
	}
	t, err := w.encodeAndWrite(ctx, b, present)
	if errors.Is(err, ErrSchemaChanged) {
		changed := err
		if _, err := w.check(ctx); err != nil {
			return tally{}, errors.Join(err, changed)
		}
		w.encoders.renew()
		t, err = w.encodeAndWrite(ctx, b, present)
	}
	return t, err
}

func (w *Worker) encodeAndWrite(ctx context.Context, b *batch, present []Range) (tally, error) {
	e, err := w.encoders.get()
	if err != nil {
		return tally{}, err
	}
	defer func() {
		if e != nil {
			w.encoders.put(e)
		}
	}()
	t := e.encode(b.records, present)
	if t.misfits() && w.destination.Load().Alterable {
		changed, err := w.check(ctx)
		if err != nil {
			return tally{}, err
		}
		if changed {
			w.encoders.put(e)
			if e, err = w.encoders.get(); err != nil {
				return tally{}, err
			}
			t = e.encode(b.records, present)
		}
	}
	if err := w.letters.send(ctx, b, t.letters); err != nil {
		return tally{}, fmt.Errorf("write to the dead-letter topic: %w", err)
	}
	if e.block.Rows() == 0 {
		return t, nil
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return tally{}, errLate
	}
	err = w.sink.Write(ctx, &Batch{Claim: b.claim, Block: e.block, Identity: identity(b, present), Repeat: b.repeat})
	return t, err
}

// present reads back which offsets of the batch are stored already, where that can be: at or below the largest offset that was at the destination when the
// worker got the partition (an open claim, a reset group, an expired commit), and before each repetition, for the destination may no longer remember the
// first write, or never have.
func (w *Worker) present(ctx context.Context, p *slot, b *batch) ([]Range, error) {
	if p.verifySet && b.claim.Lo > p.verifyTo && !b.repeat {
		return nil, nil
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
	h := fnv.New64a()
	var buf []byte
	for _, r := range b.records {
		if !holds(present, r.Offset) {
			buf = strconv.AppendInt(buf[:0], r.Offset, 10)
			h.Write(append(buf, ','))
		}
	}
	return fmt.Sprintf("%s/absent-%016x", b.claim.Identity(), h.Sum64())
}

// count puts a stored batch into account and metrics.
func (w *Worker) count(b *batch, t tally, now time.Time) {
	w.mu.Lock()
	w.account.add(t)
	w.mu.Unlock()
	w.metrics.rows.Add(float64(t.stored))
	for stage, n := range t.dropped {
		w.metrics.dropped.WithLabelValues(stage).Add(float64(n))
	}
	for reason, n := range t.rejected {
		w.metrics.deadLetters.WithLabelValues(reason).Add(float64(n))
	}
	w.metrics.bytes.Add(float64(valueBytes(b.records)))
	for _, r := range b.records {
		w.metrics.endToEnd.Observe(now.Sub(r.Timestamp).Seconds())
	}
}

func valueBytes(records []*kgo.Record) (n int64) {
	for _, r := range records {
		n += int64(len(r.Value))
	}
	return n
}
