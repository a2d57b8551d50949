package commitlog

import (
	"errors"
	"fmt"

	"github.com/sluice-io/sluice/internal/record"
)

// stampedRecord is a record found by its timestamp.
type stampedRecord struct {
	offset, timestamp int64
	epoch             int32
}

var errFound = errors.New("found") // ends an iteration

// OffsetForTimestamp returns the first record, in the order of offsets, whose
// timestamp is at or after ms, with its leader epoch; ok is false when there is
// none below upTo. It is right when timestamps are out of order too.
func (l *Log) OffsetForTimestamp(ms, upTo int64) (offset, timestamp int64, epoch int32, ok bool, err error) {
	from := l.StartOffset()
	for at := from; ; {
		s, lim, err := l.reserveFrom(at, upTo)
		if err != nil || s == nil {
			return noOffset, noOffset, -1, false, err
		}
		found, err := l.findInSegment(s, lim, from, ms)
		s.file.release()
		if err != nil {
			return noOffset, noOffset, -1, false, fmt.Errorf("find timestamp %d in segment %d: %w", ms, s.base, err)
		}
		if found != nil && found.offset >= lim.upTo {
			found, lim.end = nil, upTo // those after it are not below upTo either
		}
		if found != nil {
			return found.offset, found.timestamp, found.epoch, true, nil
		}
		at = lim.end
	}
}

// reserveFrom is reserveSegment for an offset, or the log's start when retention
// has gone past it meanwhile.
func (l *Log) reserveFrom(offset, upTo int64) (*segment, readLimits, error) {
	for {
		start := l.StartOffset()
		s, lim, err := l.reserveSegment(max(offset, start), upTo)
		if errors.Is(err, ErrOffsetOutOfRange) && l.StartOffset() > start {
			continue
		}
		return s, lim, err
	}
}

// findInSegment is the first record from an offset on with a timestamp of at
// least ms; nil when there is none.
func (l *Log) findInSegment(s *segment, lim readLimits, from, ms int64) (found *stampedRecord, err error) {
	if err := l.loadMaxTimestamp(s, l.rebuildIndexes); err != nil {
		return nil, err
	}
	if newest, _ := l.segmentMax(s); newest < ms {
		return nil, nil
	}
	pos, err := l.positionOfTimestamp(s, ms, lim)
	if err != nil {
		return nil, err
	}
	err = l.walkFrom(s, pos, lim.size, func(w *walker) (bool, error) {
		if w.header.MaxTimestamp() < ms || w.header.LastOffset() < from {
			return true, nil
		}
		found, err = findInBatch(w, func(r *record.Record) bool { return r.Timestamp >= ms && r.Offset >= from })
		return found == nil, err
	})
	return found, err
}

// segmentMax is a segment's largest timestamp and the last offset of the first
// batch that has it, after loadMaxTimestamp.
func (l *Log) segmentMax(s *segment) (timestamp, offset int64) {
	l.state.RLock()
	defer l.state.RUnlock()
	return s.maxTimestamp, s.maxOffset
}

// positionOfTimestamp is a position before which no batch has a timestamp of ms
// or more: an entry of the time index tells the largest timestamp up to its batch.
func (l *Log) positionOfTimestamp(s *segment, ms int64, lim readLimits) (int64, error) {
	entry, ok, err := s.times.floor(ms)
	if errors.Is(err, errIndex) {
		if err = l.rebuildIndexes(s); err == nil {
			entry, ok, err = s.times.floor(ms)
		}
	}
	if err != nil || !ok {
		return 0, err
	}
	if offset := s.base + int64(entry.val); offset < lim.end {
		return l.position(s, offset, lim.size)
	}
	return lim.size, nil // the entry came after we looked: all before it are older
}

// findInBatch is the walker's batch's first record for which match holds.
func findInBatch(w *walker, match func(*record.Record) bool) (found *stampedRecord, err error) {
	batch := make(record.Batch, w.size)
	if _, err := w.file.ReadAt(batch, w.pos); err != nil {
		return nil, fmt.Errorf("read batch at %d: %w", w.pos, err)
	}
	err = batch.Each(nil, func(r *record.Record) error {
		if !match(r) {
			return nil
		}
		found = &stampedRecord{r.Offset, r.Timestamp, batch.LeaderEpoch()}
		return errFound
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return found, err
}

// MaxTimestamp returns the first record with the largest timestamp of those
// below upTo (KIP-734); ok is false when no record has a timestamp.
func (l *Log) MaxTimestamp(upTo int64) (offset, timestamp int64, epoch int32, ok bool, err error) {
	from := l.StartOffset()
	newest, newestAt := record.NoTimestamp, noOffset
	for at := from; ; {
		s, lim, err := l.reserveFrom(at, upTo)
		if err != nil {
			return noOffset, noOffset, -1, false, err
		}
		if s == nil {
			break
		}
		ts, batchEnd, err := l.maxWithin(s, lim, from)
		s.file.release()
		if err != nil {
			return noOffset, noOffset, -1, false, fmt.Errorf("largest timestamp of segment %d: %w", s.base, err)
		}
		if ts > newest {
			newest, newestAt = ts, batchEnd
		}
		at = lim.end
	}
	if newestAt == noOffset {
		return noOffset, noOffset, -1, false, nil
	}
	found, err := l.firstWith(newest, newestAt, from, upTo)
	if err != nil || found == nil {
		return noOffset, noOffset, -1, false, err
	}
	return found.offset, found.timestamp, found.epoch, true, nil
}

// maxWithin is the largest timestamp of a segment's batches between from and
// the limit, with the last offset of the first batch that has it. The segment's
// own maximum serves when all of it lies between; else the headers are read, and
// the records of the batch that holds from.
func (l *Log) maxWithin(s *segment, lim readLimits, from int64) (timestamp, offset int64, err error) {
	if err := l.loadMaxTimestamp(s, l.rebuildIndexes); err != nil {
		return 0, 0, err
	}
	timestamp, offset = l.segmentMax(s)
	if offset == noOffset || s.base >= from && offset < lim.upTo {
		return timestamp, offset, nil
	}
	timestamp, offset = record.NoTimestamp, noOffset
	err = l.walkFrom(s, 0, lim.size, func(w *walker) (bool, error) {
		last := w.header.LastOffset()
		if last < from || last >= lim.upTo {
			return last < lim.upTo, nil
		}
		ts := largestTimestamp(w.header)
		if w.header.BaseOffset() < from && ts > timestamp {
			var err error
			if ts, err = largestInBatch(w, from); err != nil {
				return false, err
			}
		}
		if ts > timestamp {
			timestamp, offset = ts, last
		}
		return true, nil
	})
	return timestamp, offset, err
}

// largestInBatch is the largest timestamp of the walker's batch's records from an
// offset on.
func largestInBatch(w *walker, from int64) (timestamp int64, err error) {
	timestamp = record.NoTimestamp
	_, err = findInBatch(w, func(r *record.Record) bool {
		if r.Offset >= from {
			timestamp = max(timestamp, r.Timestamp)
		}
		return false
	})
	return timestamp, err
}

// firstWith is the first record with a timestamp, from an offset on, in the batch
// that holds another.
func (l *Log) firstWith(ms, offset, from, upTo int64) (found *stampedRecord, err error) {
	s, lim, err := l.reserveFrom(offset, upTo)
	if err != nil || s == nil {
		return nil, err
	}
	defer s.file.release()
	pos, err := l.position(s, offset, lim.size)
	if err != nil {
		return nil, err
	}
	err = l.walkFrom(s, pos, lim.size, func(w *walker) (bool, error) {
		found, err = findInBatch(w, func(r *record.Record) bool { return r.Timestamp == ms && r.Offset >= from })
		return false, err
	})
	return found, err
}
