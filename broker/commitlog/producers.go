package commitlog

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// producerBatchesMax is how many of a producer's last batches are known for
// telling a repeated one: a client has at most five requests in flight.
const producerBatchesMax = 5

// producerBatch is one batch of an idempotent producer.
type producerBatch struct {
	firstSequence, lastSequence int32
	firstOffset, lastOffset     int64
	timestamp                   int64 // ms, the batch's largest
}

// producer is what is known of one idempotent producer. Values are copied on change.
type producer struct {
	id      int64
	epoch   int16
	count   int
	batches [producerBatchesMax]producerBatch // the oldest first
	// active is when it appended last, by the broker's clock in ms. A batch may
	// carry any timestamp: an hour-old one must not make its producer forgotten.
	active int64
}

func (p *producer) last() *producerBatch { return &p.batches[p.count-1] }

// add takes one more batch, and with a new epoch forgets those of the old one.
func (p *producer) add(epoch int16, b producerBatch) {
	if epoch != p.epoch {
		p.epoch, p.count = epoch, 0
	}
	if p.count == producerBatchesMax {
		copy(p.batches[:], p.batches[1:])
		p.count--
	}
	p.batches[p.count] = b
	p.count++
}

// duplicate is the batch, of those known, that has the same sequences.
func (p *producer) duplicate(b record.Batch) (producerBatch, bool) {
	if b.ProducerEpoch() != p.epoch {
		return producerBatch{}, false
	}
	for _, known := range p.batches[:p.count] {
		if known.firstSequence == b.BaseSequence() && known.lastSequence == b.LastSequence() {
			return known, true
		}
	}
	return producerBatch{}, false
}

// check says whether the batch may follow what is known.
func (p *producer) check(b record.Batch) error {
	switch epoch, first := b.ProducerEpoch(), b.BaseSequence(); {
	case epoch < p.epoch:
		return fmt.Errorf("producer %d: epoch %d after %d: %w", p.id, epoch, p.epoch, ErrInvalidProducerEpoch)
	case epoch > p.epoch:
		if first != 0 {
			return fmt.Errorf("producer %d: epoch %d starts with sequence %d: %w", p.id, epoch, first, ErrOutOfOrderSequence)
		}
	case p.count > 0 && first != record.AddSequence(p.last().lastSequence, 1):
		return fmt.Errorf("producer %d: sequence %d after %d: %w", p.id, first, p.last().lastSequence, ErrOutOfOrderSequence)
	}
	return nil
}

// producerTable is the producers of one log by id. Guarded by the log's append lock.
type producerTable map[int64]*producer

// producerUpdate is a producer's state after an append that is not yet written.
type producerUpdate struct {
	state producer
}

// planProducer checks a batch against its producer's state and notes the new
// state in the plan. With dup the plan's outcome is that of the first time.
// Called with mu held.
func (l *Log) planProducer(p *appendPlan, b record.Batch, now time.Time) (dup bool, err error) {
	if b.ProducerID() < 0 || b.IsControl() {
		return false, nil
	}
	u := p.update(b.ProducerID(), l.producers)
	if u.state.count > 0 {
		if known, ok := u.state.duplicate(b); ok {
			p.out = duplicateOf(known, p.out.LogAppendTime)
			return true, nil
		}
		if err := u.state.check(b); err != nil {
			return false, fmt.Errorf("append to %s: %w", l.dir, err)
		}
	}
	first := p.out.Last + 1
	timestamp := b.MaxTimestamp()
	if p.out.LogAppendTime >= 0 {
		timestamp = p.out.LogAppendTime
	}
	u.state.add(b.ProducerEpoch(), producerBatch{
		firstSequence: b.BaseSequence(), lastSequence: b.LastSequence(),
		firstOffset: first, lastOffset: first + int64(b.LastOffsetDelta()), timestamp: timestamp,
	})
	u.state.active = millis(now)
	return false, nil
}

func duplicateOf(known producerBatch, logAppendTime int64) Appended {
	out := Appended{First: known.firstOffset, Last: known.lastOffset, LogAppendTime: -1, Duplicate: true}
	if logAppendTime >= 0 {
		out.LogAppendTime = known.timestamp
	}
	return out
}

// update returns the plan's copy of a producer's state, which starts as the
// table has it.
func (p *appendPlan) update(id int64, table producerTable) *producerUpdate {
	for i := range p.producers {
		if p.producers[i].state.id == id {
			return &p.producers[i]
		}
	}
	state := producer{id: id, epoch: -1}
	if known := table[id]; known != nil {
		state = *known
	}
	p.producers = append(p.producers, producerUpdate{state: state})
	return &p.producers[len(p.producers)-1]
}

func (t producerTable) apply(u *producerUpdate) {
	if known := t[u.state.id]; known != nil {
		*known = u.state
		return
	}
	state := u.state
	t[state.id] = &state
}

// replay takes a batch that is in the log, without checking its sequence.
func (t producerTable) replay(b record.Batch, now int64) {
	if b.ProducerID() < 0 || b.IsControl() || b.BaseSequence() < 0 {
		return
	}
	p := t[b.ProducerID()]
	if p == nil {
		p = &producer{id: b.ProducerID(), epoch: -1}
		t[p.id] = p
	}
	p.add(b.ProducerEpoch(), producerBatch{
		firstSequence: b.BaseSequence(), lastSequence: b.LastSequence(),
		firstOffset: b.BaseOffset(), lastOffset: b.LastOffset(), timestamp: b.MaxTimestamp(),
	})
	p.active = now
}

// ids are the producers' ids, ascending.
func (t producerTable) ids() []int64 {
	ids := make([]int64, 0, len(t))
	for id := range t {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// ProducerState describes an idempotent producer, as DescribeProducers wants it (KIP-664).
type ProducerState struct {
	ProducerID   int64
	Epoch        int16
	LastSequence int32
	// LastOffset is the offset of its last record.
	LastOffset int64
	// LastTimestamp is its last batch's largest record timestamp, in ms.
	LastTimestamp int64
}

// ActiveProducers describes the producers that the log remembers, by id.
func (l *Log) ActiveProducers() []ProducerState {
	l.mu.Lock()
	defer l.mu.Unlock()
	states := make([]ProducerState, 0, len(l.producers))
	for _, id := range l.producers.ids() {
		p := l.producers[id]
		states = append(states, ProducerState{
			ProducerID: id, Epoch: p.epoch, LastSequence: p.last().lastSequence,
			LastOffset: p.last().lastOffset, LastTimestamp: p.last().timestamp,
		})
	}
	return states
}

// ExpireProducers forgets the producers that appended nothing for
// Config.ProducerExpiry by the broker's clock, and returns how many. A start
// counts as a sign of life, because no clock is stored.
func (l *Log) ExpireProducers(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := millis(now.Add(-l.cfg.Load().ProducerExpiry))
	n := 0
	for id, p := range l.producers {
		if p.active <= before {
			delete(l.producers, id)
			n++
		}
	}
	return n
}

// firstOfBatch is a batch's first sequence, from its last and the number of
// records less one; sequences wrap.
func firstOfBatch(lastSequence, delta int32) int32 {
	return int32((int64(lastSequence) - int64(delta)) & math.MaxInt32)
}
