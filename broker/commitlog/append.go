package commitlog

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/sluice-io/sluice/internal/quickio"
	"github.com/sluice-io/sluice/internal/record"
)

// Appended says where an Append went.
type Appended struct {
	// First and Last are the offsets of the first and the last record.
	First, Last int64
	// LogAppendTime in ms, when the log gives its own timestamps; -1 otherwise.
	LogAppendTime int64
	Bytes         int
	// Rolled says that the append opened a new segment.
	Rolled bool
	// Epoch is the leader epoch that the caller appended in.
	Epoch int32
	// Duplicate says that the batch is one of its producer's last five: nothing
	// was appended, and First and Last are those it got the first time.
	Duplicate bool
}

// appendPlan is what an append is going to do, made before anything changes.
type appendPlan struct {
	out          Appended
	maxTimestamp int64
	maxOffset    int64
	sinceIndex   int64
	// entries are the index entries for the plan's batches; their positions are
	// relative to the first of them until the segment is known.
	entries   []plannedEntry
	producers []producerUpdate
}

type plannedEntry struct {
	lastOffset   int64
	pos          int64
	maxTimestamp int64 // so far within the append, with its offset
	maxOffset    int64
}

// Append appends the whole batches of one producer request, which the caller
// has validated, with one write. It sets their base offsets and the leader
// epoch, and with Config.LogAppendTime their timestamps, in place in batches.
//
// Errors: ErrOutOfOrderSequence and ErrInvalidProducerEpoch from the producer
// state; *CorruptionError when batches are not whole batches; ErrBatchTooLarge
// beyond the segment size; ErrNoSpace when the disk is full, after which the
// log is as before and may be tried again; ErrOffline; ErrClosed. Nothing is
// appended with any of them.
func (l *Log) Append(batches []byte, epoch int32, now time.Time) (Appended, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return Appended{}, err
	}
	cfg := l.cfg.Load()
	if int64(len(batches)) > cfg.SegmentBytes {
		return Appended{}, fmt.Errorf("append %d bytes to %s: %w of %d", len(batches), l.dir, ErrBatchTooLarge, cfg.SegmentBytes)
	}
	plan, err := l.plan(batches, now)
	if err != nil || plan.out.Duplicate {
		return plan.out, err
	}
	if err := l.admitEpoch(epoch, plan.out.First); err != nil {
		return Appended{}, err
	}
	if err := l.rollFor(plan, batches, now); err != nil {
		return Appended{}, l.appendError(err)
	}
	stamp(batches, plan.out, epoch)
	if err := l.write(batches); err != nil {
		return Appended{}, err
	}
	l.publish(plan, int64(len(batches)), now)
	l.writeDueIndexes()
	return plan.out, nil
}

// plan checks the batches and the producers' sequences and computes offsets and
// index entries. The plan is valid until the next call.
func (l *Log) plan(batches []byte, now time.Time) (*appendPlan, error) {
	p := &l.pending
	*p = appendPlan{entries: p.entries[:0], producers: p.producers[:0]}
	p.out = Appended{First: l.end, Last: l.end - 1, LogAppendTime: -1, Bytes: len(batches)}
	p.maxTimestamp, p.maxOffset = record.NoTimestamp, noOffset
	if l.cfg.Load().LogAppendTime {
		p.out.LogAppendTime = millis(now)
	}
	if len(batches) == 0 {
		return p, l.badBatch(0, errors.New("nothing to append"))
	}
	interval := l.cfg.Load().IndexIntervalBytes
	p.sinceIndex = l.active().sinceIndex
	for rest := batches; len(rest) > 0; {
		pos := int64(len(batches) - len(rest))
		b, after, err := record.Next(rest)
		if err == nil && b.LastOffsetDelta() < 0 {
			err = record.ErrCorrupt
		}
		if err != nil {
			return p, l.badBatch(pos, err)
		}
		if dup, err := l.planProducer(p, b, now); err != nil || dup {
			return p, err
		}
		p.add(b, pos, interval)
		rest = after
	}
	return p, nil
}

func (l *Log) badBatch(pos int64, cause error) error {
	return &CorruptionError{Pos: pos, Offset: l.end, Reason: cause.Error(), Cause: cause}
}

// add takes one more batch into the plan.
func (p *appendPlan) add(b record.Batch, pos, interval int64) {
	p.out.Last += int64(b.LastOffsetDelta()) + 1
	ts := b.MaxTimestamp()
	if p.out.LogAppendTime >= 0 {
		ts = p.out.LogAppendTime
	}
	if ts > p.maxTimestamp {
		p.maxTimestamp, p.maxOffset = ts, p.out.Last
	}
	if p.sinceIndex > interval {
		p.entries = append(p.entries, plannedEntry{p.out.Last, pos, p.maxTimestamp, p.maxOffset})
		p.sinceIndex = 0
	}
	p.sinceIndex += int64(len(b))
}

// stamp writes offsets, epoch and time into the batches.
func stamp(batches []byte, out Appended, epoch int32) {
	next := out.First
	for rest := batches; len(rest) > 0; {
		b, after, err := record.Next(rest)
		if err != nil {
			panic("commitlog: planned batches changed during the append")
		}
		b.SetBaseOffset(next)
		b.SetLeaderEpoch(epoch)
		if out.LogAppendTime >= 0 {
			b.SetLogAppendTime(out.LogAppendTime)
		}
		next += int64(b.LastOffsetDelta()) + 1
		rest = after
	}
}

// write puts the bytes behind the active segment's. When that fails it cuts off
// what was written; a failure that says more than "no room", or a failed cut,
// takes the log offline.
func (l *Log) write(data []byte) error {
	s := l.active()
	file, err := s.file.get(0)
	if err != nil {
		return l.fail(err)
	}
	n, err := l.files.writeAt(file, data, s.size)
	if err == nil && n == len(data) {
		return nil
	}
	if err == nil {
		err = &os.PathError{Op: "write", Path: s.file.path(), Err: io.ErrShortWrite}
	}
	if cut := file.Truncate(s.size); cut != nil {
		return l.fail(fmt.Errorf("undo a write that failed with %q: %w", err, cut))
	}
	l.state.Lock()
	l.undone = true
	l.state.Unlock()
	return l.appendError(err)
}

// appendError is the answer to an append that storage refused and that left the
// log as it was, or takes the log offline when more than room is missing.
func (l *Log) appendError(err error) error {
	switch {
	case quickio.NoRoom(err):
		return fmt.Errorf("append to %s: %w: %w", l.dir, ErrNoSpace, err)
	case isRefusedWrite(err):
		return fmt.Errorf("append to %s: %w", l.dir, err)
	default:
		return l.fail(fmt.Errorf("append: %w", err))
	}
}

// publish makes what was written visible to readers and to the next append.
func (l *Log) publish(p *appendPlan, n int64, now time.Time) {
	s := l.active()
	if s.size == 0 {
		s.firstTimestamp, s.firstKnown = p.maxTimestamp, true
	}
	for _, e := range p.entries {
		s.addIndexEntry(s.size+e.pos, e)
	}
	s.sinceIndex = p.sinceIndex
	l.appended += n
	for i := range p.producers {
		l.producers.apply(&p.producers[i])
	}
	l.state.Lock()
	defer l.state.Unlock()
	s.size += n
	s.noteTimestamp(p.maxTimestamp, p.maxOffset)
	s.modified = now
	l.bytes += n
	l.end = p.out.Last + 1
}

// addIndexEntry adds to the offset index, and to the time index when the
// timestamp is larger than all before. Called with mu held, before the entry's
// batch is counted into maxTimestamp.
func (s *segment) addIndexEntry(pos int64, e plannedEntry) {
	s.index.append(indexEntry{e.lastOffset - s.base, int32(pos)})
	ts, offset := s.maxTimestamp, s.maxOffset
	if e.maxTimestamp > ts {
		ts, offset = e.maxTimestamp, e.maxOffset
	}
	if ts < 0 {
		return
	}
	// The last entry is in memory since the segment became the active one.
	if last, ok, err := s.times.lastEntry(); err == nil && (!ok || ts > last.key) {
		s.times.append(indexEntry{ts, int32(offset - s.base)})
	}
}

// writeDueIndexes writes index tails that have grown to a page, so that they
// neither grow in memory nor cost a write per append. The tails stay in memory
// when there is no room for them.
func (l *Log) writeDueIndexes() {
	s := l.active()
	if !s.index.writeDue() && !s.times.writeDue() {
		return
	}
	if err := s.writeIndexes(); err != nil && !isRefusedWrite(err) {
		l.fail(err)
	}
}

// relativeOffsetMax is the largest offset that an index entry of a segment can tell.
const relativeOffsetMax = math.MaxInt32
