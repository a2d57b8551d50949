package broker

import (
	"fmt"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

// offsetsLog is a partition of an internal topic as its coordinator sees it,
// under one leadership. It implements [coordinator.Log].
type offsetsLog struct {
	p     *replica.Partition
	epoch int32
	now   func() time.Time
	buf   []byte // of Read, which one goroutine calls
}

func newOffsetsLog(p *replica.Partition, epoch int32, now func() time.Time) *offsetsLog {
	return &offsetsLog{p: p, epoch: epoch, now: now}
}

// lead says whether the leadership that this log was made for still stands.
func (l *offsetsLog) lead() error {
	if err := l.p.Check(l.epoch); err != nil {
		return fmt.Errorf("%w: %w", coordinator.ErrNotLeader, err)
	}
	return nil
}

// Bounds implements coordinator.Log.
func (l *offsetsLog) Bounds() (start, end int64, err error) {
	if err := l.lead(); err != nil {
		return 0, 0, err
	}
	return l.p.Log().StartOffset(), l.p.Log().EndOffset(), nil
}

// Read implements coordinator.Log.
func (l *offsetsLog) Read(offset int64, maxBytes int) ([]byte, error) {
	if err := l.lead(); err != nil {
		return nil, err
	}
	end := l.p.Log().EndOffset()
	if offset >= end {
		return nil, nil
	}
	region, err := l.p.Log().Read(offset, maxBytes, end, true)
	if err != nil {
		return nil, err
	}
	defer region.Release()
	if cap(l.buf) < region.Len {
		l.buf = make([]byte, region.Len)
	}
	l.buf = l.buf[:region.Len]
	if len(l.buf) == 0 {
		return nil, nil
	}
	if _, err := region.File.ReadAt(l.buf, region.Pos); err != nil {
		return nil, fmt.Errorf("read %s-%d at offset %d: %w", l.p.Topic(), l.p.Index(), offset, err)
	}
	return l.buf, nil
}

// Append implements coordinator.Log. Coordinators' writes are always made as
// acks=all, under the topic's min.insync.replicas.
func (l *offsetsLog) Append(b record.Batch) (last int64, err error) {
	if err := l.lead(); err != nil {
		return 0, err
	}
	done, err := l.p.Append(b, l.p.Config().MinInSync, l.now())
	if err != nil {
		if lost := l.lead(); lost != nil {
			return 0, lost
		}
		return 0, err
	}
	return done.Last, nil
}

// Await implements coordinator.Log.
func (l *offsetsLog) Await(offset int64, done func(error)) {
	w := &offsetsWait{log: l, done: done}
	w.wait = replica.Wait{Waiter: w, Offset: offset + 1}
	armed, err := l.p.AwaitCommit(&w.wait, l.epoch)
	switch {
	case armed:
	case err == nil:
		done(nil)
	default:
		done(fmt.Errorf("%w: %w", coordinator.ErrNotLeader, err))
	}
}

// offsetsWait is one wait for the high watermark.
type offsetsWait struct {
	log  *offsetsLog
	wait replica.Wait
	done func(error)
}

// Fire implements replica.Waiter. A failure is told on a goroutine of its own:
// it may come out of an append that the coordinator makes with its mutex held,
// and done takes that mutex. The mark moves only where the mutex is not held:
// in the flusher, or, without group fsync, in an append before its own Await,
// when no earlier wait is left.
func (w *offsetsWait) Fire(_ *replica.Wait, err error) {
	if err == nil {
		w.done(nil)
		return
	}
	go w.done(fmt.Errorf("%w: %w", coordinator.ErrNotLeader, err))
}
