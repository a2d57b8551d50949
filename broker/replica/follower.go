package replica

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/internal/record"
)

// errSuperseded says that an answer is for what the follower no longer asks.
var errSuperseded = errors.New("the follower has moved on")

// asks is what this node has to ask a leader for; ok is false when it does not
// follow that leader.
func (p *Partition) asks(leader int32) (q FetchPartition, ok bool) {
	p.fence.RLock()
	defer p.fence.RUnlock()
	r := p.role.Load()
	if r.err != nil || r.leader || r.from != leader {
		return q, false
	}
	q = FetchPartition{Partition: p, LeaderEpoch: r.epoch, LogStart: p.log.StartOffset()}
	q.Offset, q.LastEpoch = p.tail()
	return q, true
}

// tail is the log's end and the epoch of the record before it, -1 if there is
// none. The newest epoch that the log knows may be one in which this node led
// and wrote nothing: it says nothing of the log's content.
func (p *Partition) tail() (end int64, lastEpoch int32) {
	end = p.log.EndOffset()
	if p.log.StartOffset() >= end {
		return end, -1
	}
	return end, p.log.EpochForOffset(end - 1)
}

// answered takes a leader's answer: it appends what came, or cuts the log where
// it differs from the leader's.
func (p *Partition) answered(q *FetchPartition, leader int32, a *FetchedPartition, now time.Time) error {
	p.cutting.Lock()
	defer p.cutting.Unlock()
	p.cutFrom = 0
	fired, err := p.followed(q, leader, a, now)
	fire(fired, nil)
	if p.opt.Cut != nil && p.cutFrom > 0 && p.log.RecoveryPoint() < p.cutFrom {
		if lower := p.opt.Cut(p); lower != nil {
			err = fmt.Errorf("%w: store the recovery point of %s-%d: %w", commitlog.ErrOffline, p.opt.Topic, p.opt.Partition, lower)
		}
	}
	if errors.Is(err, commitlog.ErrOffline) {
		p.storageFailed(err)
	}
	return err
}

func (p *Partition) followed(q *FetchPartition, leader int32, a *FetchedPartition, now time.Time) (*Wait, error) {
	p.fence.RLock() // so that this node does not become the leader meanwhile
	defer p.fence.RUnlock()
	r := p.role.Load()
	if r.err != nil || r.leader || r.from != leader || r.epoch != q.LeaderEpoch {
		return nil, errSuperseded
	}
	if end, last := p.tail(); end != q.Offset || last != q.LastEpoch {
		return nil, errSuperseded
	}
	switch {
	case errors.Is(a.Err, commitlog.ErrOffsetOutOfRange) && a.LogStart > q.Offset:
		return nil, p.startAgain(a.LogStart, now)
	case a.Err != nil:
		return nil, a.Err
	case a.Diverging != nil && a.Diverging.End <= a.LogStart:
		// Of what lies before the leader's start nobody can say any more whether it is
		// the same here, and the start that hides it is not durable at once.
		return nil, p.startAgain(a.LogStart, now)
	case a.Diverging != nil:
		return nil, p.cut(*a.Diverging, now)
	}
	return p.appendFetched(r, a, now)
}

// startAgain is for a follower that ends before the leader's log starts.
func (p *Partition) startAgain(start int64, now time.Time) error {
	p.cutFrom = p.log.RecoveryPoint()
	if err := p.log.TruncateFullyAt(start, now); err != nil {
		return fmt.Errorf("start %s-%d again at offset %d: %w", p.opt.Topic, p.opt.Partition, start, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hw.Store(start)
	return nil
}

// cut removes what the leader does not have, as far as one answer tells: if this
// log does not know the epoch that the leader named, only down to the end of the
// largest one below it, and the next fetch is answered from there (KIP-279).
func (p *Partition) cut(leaders EpochEnd, now time.Time) error {
	to := leaders.End
	if epoch, end := p.log.EndOffsetForEpoch(leaders.Epoch); epoch == leaders.Epoch {
		to = min(end, leaders.End)
	} else if epoch >= 0 {
		to = end
	}
	p.cutFrom = p.log.RecoveryPoint()
	if err := p.log.TruncateTo(to, now); err != nil {
		return fmt.Errorf("cut %s-%d to offset %d: %w", p.opt.Topic, p.opt.Partition, to, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hw.Store(min(p.hw.Load(), p.log.EndOffset()))
	return nil
}

// appendFetched appends the leader's batches, which stay as they are, and follows
// its high watermark and its log's start.
func (p *Partition) appendFetched(r *role, a *FetchedPartition, now time.Time) (*Wait, error) {
	if len(a.Records) > 0 {
		if b, _, err := record.Next(a.Records); err == nil && b.BaseOffset() < p.log.EndOffset() && p.log.StartOffset() < p.log.EndOffset() {
			// The leader's log starts within this batch, and of what lies before nobody
			// can say any more whether it is the same here.
			return nil, p.startAgain(max(a.LogStart, b.BaseOffset()), now)
		}
		done, err := p.log.AppendAsFollower(a.Records, r.epoch, now)
		if err != nil {
			return nil, fmt.Errorf("append what %s-%d fetched: %w", p.opt.Topic, p.opt.Partition, err)
		}
		p.appended.Add(int64(done.Bytes))
		p.unsyncedSince.CompareAndSwap(0, now.UnixMilli())
		if n := p.cfg.Load().FlushRecords; n > 0 && done.Last+1-p.log.SyncedOffset() >= n {
			p.unsyncedSince.Store(0)
			if _, err := p.log.Flush(); err != nil {
				return nil, fmt.Errorf("flush %s-%d: %w", p.opt.Topic, p.opt.Partition, err)
			}
		}
	}
	fired := p.followMark(a.HighWatermark)
	if start := min(a.LogStart, p.hw.Load()); start > p.log.StartOffset() {
		if err := p.log.SetStartOffset(start); err != nil {
			return fired, fmt.Errorf("start of %s-%d: %w", p.opt.Topic, p.opt.Partition, err)
		}
	}
	return fired, nil
}

// followMark moves the high watermark to the leader's, as far as this log reaches.
// It does not fall: a new leader knows less of what is committed than the one before.
func (p *Partition) followMark(leaders int64) (fired *Wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.log.EndOffset()
	fired = p.waits[LogEnd].passed(end, math.MaxInt, nil)
	if p.fetched[1].end != end {
		p.fetched[0], p.fetched[1].end, p.fetched[1].bytes = p.fetched[1], end, p.appended.Load()
	}
	hw := min(leaders, end)
	if hw <= p.hw.Load() {
		return fired
	}
	p.hw.Store(hw)
	for _, known := range p.fetched {
		if known.end <= hw && known.bytes > p.visible.Load() {
			p.visible.Store(known.bytes)
		}
	}
	return p.waits[HighWatermark].passed(hw, math.MaxInt, fired)
}
