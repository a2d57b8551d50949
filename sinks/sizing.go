package sinks

import (
	"errors"
	"time"
)

// What a destination may answer to a write, beside that it failed. A sink wraps these in the errors of Write.
var (
	// ErrTooMuch says that the destination refused the batch for its size, by an answer that ends the write: smaller batches may go through.
	ErrTooMuch = errors.New("the batch is too large for the destination")
	// ErrTooOften says that the destination has more to do than it can: the same batch later, and no smaller ones.
	ErrTooOften = errors.New("the destination is asked too often")
)

// A batch is never made smaller than this because of the destination's answers.
const (
	sizeRowsMin  = 1000
	sizeBytesMin = 256 << 10
)

// slowWrite is the part of the write deadline past which a successful write counts as slow.
const slowWrite = 2

// sizing is how large the next batches are made: the limits, less what the destination's answers have taken away.
type sizing struct {
	rows  int
	bytes int64
}

// shrink halves the size, counted from the batch that was in trouble when that is smaller.
func (z *sizing) shrink(rows int, bytes int64, l *limits) {
	z.rows = max(min(z.rows, rows)/2, min(sizeRowsMin, l.rows))
	z.bytes = max(min(z.bytes, bytes)/2, min(sizeBytesMin, l.bytes))
}

func (z *sizing) grow(l *limits) {
	z.rows = min(z.rows*2, l.rows)
	z.bytes = min(z.bytes*2, l.bytes)
}

// adapt follows the destination's answer to the batch in hand.
func (p *partition) adapt(err error, now time.Time) {
	took := now.Sub(p.writeBegan)
	slow := p.limits.writeDeadline / slowWrite
	switch {
	case errors.Is(err, ErrTooOften), errors.Is(err, errTooManyLetters):
	case err != nil, took >= slow:
		p.size.shrink(p.hand.records.data(), p.hand.records.values, &p.limits)
	case took < slow/2:
		p.size.grow(&p.limits)
	}
}

// reseal makes the batch in hand smaller after the destination refused it for its size. That is only safe while nothing of an earlier write can still
// arrive: all writes of the claim so far were answered, and it is no predecessor's. What the refused write left behind, if anything, is found by reading
// back, up to the old claim's end.
func (p *partition) reseal(err error) {
	b := p.hand
	if !errors.Is(err, ErrTooMuch) || b.uncertain || b.records.data() < 2 || p.draining || p.failed != nil {
		return
	}
	b.again = whole{}
	p.doubtTo = max(p.doubtTo, b.claim.Hi)
	rest := b.records
	b.records = rest.cut(rest.dataPrefix(rest.data() / 2))
	p.filling = rest.joined(p.filling)
	last := b.records.last()
	b.claim.Hi, b.claim.Epoch = last.offset, last.epoch
	p.sealed = last.offset + 1
}
