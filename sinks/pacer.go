package sinks

import "time"

// pacerBurst is how far batches may run ahead of their pace: so many parts as a second has.
const pacerBurst = time.Second

// pacer keeps the parts that all partitions of a worker make below a number a second. A partition asks before it seals, so while it waits its batch grows:
// the batch age stretches. Not safe for concurrent use.
type pacer struct {
	every time.Duration // between parts; 0: no limit
	due   time.Time     // when the parts made so far are paid for
	parts float64       // of a batch, as the last ones had them
}

// partsWeight is how much the last batch counts in the mean of parts a batch.
const partsWeight = 0.2

func newPacer(partsPerSecond float64) *pacer {
	if partsPerSecond <= 0 {
		return &pacer{}
	}
	return &pacer{every: time.Duration(float64(time.Second) / partsPerSecond), parts: 1}
}

// ready says that a batch may be sealed now.
func (p *pacer) ready(now time.Time) bool { return !now.Before(p.next()) }

// next is when ready will say yes.
func (p *pacer) next() time.Time {
	if p.every == 0 {
		return time.Time{}
	}
	return p.due.Add(-pacerBurst)
}

// seal counts a batch that is sealed.
func (p *pacer) seal(now time.Time) {
	if now.After(p.due) {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(float64(p.every) * p.parts))
}

// made learns how many parts a batch made.
func (p *pacer) made(parts int) {
	p.parts = max(1, p.parts+partsWeight*(float64(parts)-p.parts))
}
