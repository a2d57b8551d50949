package commitlog

import (
	"fmt"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// AppendAsFollower appends whole batches as a leader's log has them: offsets,
// epochs and timestamps stay, producers' sequences are taken without a check, and
// where compaction left a gap in the leader's log there will be one in this one.
// epoch is the leader's; no batch may be of a later one.
//
// Errors: *CorruptionError when batches are not whole, fail their checksum or do
// not continue the log, with nothing appended; ErrNoSpace, ErrOffline and
// ErrClosed as for Append, after which some of the batches may be in the log.
func (l *Log) AppendAsFollower(batches []byte, epoch int32, now time.Time) (Appended, error) {
	out := Appended{LogAppendTime: -1, Epoch: epoch, Bytes: len(batches)}
	if err := l.checkFetched(batches, epoch); err != nil {
		return Appended{}, err
	}
	first := record.Batch(batches)
	start, err := l.makeRoom(first, now)
	if err != nil {
		return Appended{}, err
	}
	out.First = first.BaseOffset()
	for rest := batches; len(rest) > 0; {
		n, last, err := l.appendRun(rest, now)
		if err != nil {
			return out, err
		}
		rest, out.Last = rest[n:], last
	}
	if start > out.First {
		return out, l.SetStartOffset(start)
	}
	return out, nil
}

// checkFetched checks batches by themselves: their checksums and their order.
func (l *Log) checkFetched(batches []byte, epoch int32) error {
	next, latest := int64(0), int32(0)
	for rest := batches; ; {
		pos := int64(len(batches) - len(rest))
		b, after, err := record.Next(rest)
		if err == nil {
			err = b.CheckCRC()
		}
		switch {
		case err != nil:
		case b.LastOffsetDelta() < 0 || b.BaseOffset() < next:
			err = fmt.Errorf("offsets %d to %d where at least %d is due", b.BaseOffset(), b.LastOffset(), next)
		case b.LeaderEpoch() < latest || b.LeaderEpoch() > epoch:
			err = fmt.Errorf("leader epoch %d, not from %d to %d", b.LeaderEpoch(), latest, epoch)
		}
		if err != nil {
			return &CorruptionError{Pos: pos, Offset: next, Reason: err.Error(), Cause: err}
		}
		next, latest = b.LastOffset()+1, b.LeaderEpoch()
		if rest = after; len(rest) == 0 {
			return nil
		}
	}
}

// makeRoom lets a log without records start anew at the first of the batches. A
// leader whose log starts within a batch sends all of that batch, and start, where
// the log is to start, then lies within it.
func (l *Log) makeRoom(first record.Batch, now time.Time) (start int64, err error) {
	start, end := l.StartOffset(), l.EndOffset()
	if start != end || first.BaseOffset() >= end || first.LastOffset() < end {
		return start, nil
	}
	return start, l.TruncateFullyAt(first.BaseOffset(), now)
}

// appendRun appends as many of the batches as go into one segment with one write.
func (l *Log) appendRun(batches []byte, now time.Time) (n int, last int64, err error) {
	for {
		l.mu.Lock()
		var unsafe bool
		n, last, unsafe, err = l.tryRun(batches, now)
		l.mu.Unlock()
		if err != nil || !unsafe {
			return n, last, err
		}
		if _, err := l.Flush(); err != nil {
			return 0, 0, err
		}
	}
}

// tryRun is appendRun with mu held, unless the run has gaps and a segment before
// it is not durable: then the end of that one could be lost by a power cut and
// pass for one of the gaps.
func (l *Log) tryRun(batches []byte, now time.Time) (n int, last int64, unsafe bool, err error) {
	if err := l.Err(); err != nil {
		return 0, 0, false, err
	}
	run, err := l.planRun(batches)
	if err != nil {
		return 0, 0, false, err
	}
	roll, err := l.rollDue(run.plan, int64(run.bytes), now)
	if err != nil {
		return 0, 0, false, l.appendError(err)
	}
	before := l.active().base
	if roll {
		before = l.end
	}
	if run.holesBelow > 0 && l.SyncedOffset() < before {
		return 0, 0, true, nil
	}
	if err := l.prepareRun(run, roll, now); err != nil {
		return 0, 0, false, l.appendError(err)
	}
	if roll { // the index entries count from the segment's start
		if run, err = l.planRun(batches[:run.bytes]); err != nil {
			return 0, 0, false, err
		}
	}
	data := batches[:run.bytes]
	if err := l.write(data); err != nil {
		return 0, 0, false, err
	}
	l.publish(run.plan, int64(len(data)), now)
	l.replayRun(data, now)
	l.writeDueIndexes()
	return len(data), run.plan.out.Last, false, nil
}

// followedRun is a run of batches that go into one segment.
type followedRun struct {
	plan  *appendPlan
	bytes int
	// holesBelow is where the last gap ends, 0 if there is none.
	holesBelow int64
	epochs     epochHistory
}

// planRun takes as many of the batches as the active segment has room for, or, if
// it has none, as a new one has. The plan is valid until the next one. Called with
// mu held.
func (l *Log) planRun(batches []byte) (followedRun, error) {
	p := &l.pending
	*p = appendPlan{entries: p.entries[:0], producers: p.producers[:0], sinceIndex: l.active().sinceIndex}
	p.maxTimestamp, p.maxOffset = record.NoTimestamp, noOffset
	// Epochs that have not written are not in the way: this node led in them.
	run := followedRun{plan: p, epochs: l.epochs.truncateEnd(l.end)}
	room := l.roomForRun(batches)
	next := l.end
	for rest := batches; len(rest) > 0; {
		b, after, err := record.Next(rest)
		if err != nil {
			return run, l.badBatch(int64(run.bytes), err)
		}
		first := b.BaseOffset()
		if run.bytes == 0 {
			p.out = Appended{First: first, LogAppendTime: -1}
		}
		if run.bytes > 0 && (int64(run.bytes+len(b)) > room || b.LastOffset()-p.out.First > relativeOffsetMax) {
			return run, nil
		}
		if first < next || b.LeaderEpoch() < run.epochs.latest() {
			return run, l.badBatch(int64(run.bytes), fmt.Errorf("batch at %d of epoch %d follows %d of epoch %d", first, b.LeaderEpoch(), next, run.epochs.latest()))
		}
		if first > next {
			run.holesBelow = first
		}
		if b.LeaderEpoch() > run.epochs.latest() {
			// Its first batches may be compacted away: it began after the last of the
			// epoch before, at the latest.
			run.epochs = run.epochs.assign(b.LeaderEpoch(), next)
		}
		p.out.Last = first - 1
		p.add(b, int64(run.bytes), l.cfg.Load().IndexIntervalBytes)
		run.bytes += len(b)
		rest, next = after, b.LastOffset()+1
	}
	return run, nil
}

// roomForRun is how many bytes may go into the segment that takes the first of the
// batches. A batch that is larger than a segment may be gets one for itself.
func (l *Log) roomForRun(batches []byte) int64 {
	max, used := l.cfg.Load().SegmentBytes, l.active().size
	size, err := record.Size(batches)
	if err != nil || used > 0 && used+int64(size) > max {
		return max
	}
	return max - used
}

// prepareRun makes durable what must be before the run's data is in the log, and
// opens a segment for it if one is due. Called with mu held.
func (l *Log) prepareRun(run followedRun, roll bool, now time.Time) error {
	if run.holesBelow > 0 {
		if err := l.expectHoles(run.holesBelow); err != nil {
			return err
		}
	}
	if roll {
		if err := l.rollAt(run.plan.out.First, now); err != nil {
			return err
		}
	}
	return l.setEpochs(run.epochs)
}

// replayRun takes the producers' state from batches that were appended.
func (l *Log) replayRun(batches []byte, now time.Time) {
	for rest := batches; len(rest) > 0; {
		b, after, err := record.Next(rest)
		if err != nil {
			panic("commitlog: planned batches changed during the append")
		}
		l.producers.replay(b, millis(now))
		rest = after
	}
}
