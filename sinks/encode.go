package sinks

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-io/sluice/pipelines"
)

// encoder turns records into a block. Not safe for concurrent use; its parts are reused from batch to batch.
type encoder struct {
	pipe       *pipelines.Pipeline
	chain      *pipelines.Chain
	block      Block
	event      pipelines.Event
	generation int // of the schema the block has
}

// tally is what became of a batch's records.
type tally struct {
	consumed int64
	stored   int64
	found    int64
	dropped  map[string]int64 // by stage
	rejected map[string]int64 // by reason
	letters  []letter
}

// encode fills the block with the records that are not present. What it does depends on the records alone, so that the block of
// a repeated claim is the same.
func (e *encoder) encode(b *batch, present []Range) tally {
	t := tally{consumed: int64(b.records.data()), dropped: map[string]int64{}, rejected: map[string]int64{}}
	e.block.Reset()
	if x, ok := e.block.(expecter); ok {
		x.Expect(b.records.data())
	}
	b.records.each(func(x *run, r *record) {
		if len(present) > 0 && Holds(present, r.offset) {
			t.found++
			return
		}
		e.one(origins{x, r, &b.claim}, &t)
	})
	t.stored = int64(e.block.Rows())
	return t
}

// expecter is a block that makes use of how many rows to expect after a Reset.
type expecter interface{ Expect(rows int) }

// origins are a record and where it is from.
type origins struct {
	run    *run
	record *record
	claim  *Claim
}

func (e *encoder) one(r origins, t *tally) {
	if err := e.pipe.ReadRecord(&e.event, r.meta(), r.run.value(r.record)); err != nil {
		t.reject(r, "decode", "decode", err)
		return
	}
	switch result := e.chain.Apply(&e.event); result.Outcome {
	case pipelines.Drop:
		t.dropped[result.Stage]++
		return
	case pipelines.Fail:
		if !e.keep(r, result, t) {
			return
		}
	}
	if err := e.block.Append(&e.event); err != nil {
		t.reject(r, stageColumns, rejectReason(err), err)
	}
}

// keep decides on an event that a stage could not work on: true means that it is stored as the raw line.
func (e *encoder) keep(r origins, result pipelines.Result, t *tally) bool {
	switch e.pipe.Errors.Parse {
	case pipelines.ErrorsKeep:
		return true
	case pipelines.ErrorsDrop:
		t.dropped[result.Stage]++
	default:
		t.reject(r, result.Stage, result.Reason, result.Err)
	}
	return false
}

// misfits says that records were rejected because of the destination's columns.
func (t *tally) misfits() bool {
	return slices.ContainsFunc(t.letters, func(l letter) bool { return l.stage == stageColumns })
}

// stageColumns is the stage of records that do not fit the destination's columns.
const stageColumns = "columns"

func (t *tally) reject(r origins, stage, reason string, err error) {
	t.rejected[reason]++
	t.letters = append(t.letters, letter{record: r.run.kafka(r.record, r.claim), stage: stage, kind: reason, reason: err.Error()})
}

// rejectReason is the label of a counter: few values, whatever the data.
func rejectReason(err error) string {
	switch {
	case errors.Is(err, pipelines.ErrRange):
		return "range"
	case errors.Is(err, pipelines.ErrType):
		return "type"
	case errors.Is(err, pipelines.ErrNull):
		return "null"
	case errors.Is(err, ErrLate):
		return "late"
	case errors.Is(err, ErrConstraint):
		return "constraint"
	default:
		return "column"
	}
}

func (r origins) meta() pipelines.Meta {
	extra := r.run.extraOf(r.record)
	return pipelines.Meta{
		Topic: r.claim.Topic, Partition: r.claim.Partition, Offset: r.record.offset, Time: time.UnixMilli(r.record.stamp), Key: extra.key, Headers: extra.headers,
	}
}

// encoders keeps encoders for reuse. Safe for concurrent use.
type encoders struct {
	make func() (*encoder, error)

	mu         sync.Mutex // guards what follows
	free       []*encoder
	generation int
}

func (p *encoders) get() (*encoder, error) {
	p.mu.Lock()
	generation := p.generation
	if n := len(p.free); n > 0 {
		e := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return e, nil
	}
	p.mu.Unlock()
	e, err := p.make()
	if err != nil {
		return nil, err
	}
	e.generation = generation
	return e, nil
}

func (p *encoders) put(e *encoder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.generation == p.generation {
		p.free = append(p.free, e)
	}
}

// outdated says that e was made for an older schema.
func (p *encoders) outdated(e *encoder) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return e.generation != p.generation
}

// renew throws away what was made for an older schema.
func (p *encoders) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.generation++
	p.free = nil
}

func (w *Worker) newEncoder() (*encoder, error) {
	chain, err := w.spec.NewProcess()
	if err != nil {
		return nil, err
	}
	block, err := w.sink.NewBlock()
	return &encoder{pipe: w.pipe, chain: chain, block: block}, err
}
