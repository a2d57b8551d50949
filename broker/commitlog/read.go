package commitlog

import (
	"errors"
	"fmt"
	"io"
)

// Region is a run of whole batches in one segment's file. It stays readable
// until Release, also when its segment is removed meanwhile. A truncation, which
// only a follower's log undergoes, can cut it short.
type Region struct {
	// File is an *os.File when the log is on OSFS; nil when Len is 0.
	File io.ReaderAt
	Pos  int64
	Len  int
	held *cachedFile
}

// Release lets go of the file. It must be called exactly once on every region
// that Read returned; on an empty one it does nothing.
func (r *Region) Release() {
	if r.held != nil {
		r.held.release()
		r.held = nil
	}
}

// Read returns the batches from the one that holds offset on: at most maxBytes
// of them, within one segment, and none that holds an offset at or above upTo, the
// high watermark or last stable offset. With atLeastOne the first batch is
// returned whatever its size (KIP-74). The first batch can start below offset, as
// Kafka's does; when offset lies in a hole, it is the next batch there is. At
// upTo and above the region is empty.
//
// Errors: ErrOffsetOutOfRange below the log's start or above its end;
// *CorruptionError; ErrOffline; ErrClosed.
func (l *Log) Read(offset int64, maxBytes int, upTo int64, atLeastOne bool) (Region, error) {
	for {
		s, limits, err := l.reserveSegment(offset, upTo)
		if err != nil || s == nil {
			return Region{}, err
		}
		region, err := l.readSegment(s, &limits, offset, maxBytes, atLeastOne)
		if err != nil || region.Len == 0 {
			s.file.release()
		}
		if err != nil {
			if gone := l.Err(); gone != nil {
				return Region{}, gone // deleted under the reader
			}
			return Region{}, fmt.Errorf("read offset %d of %s: %w", offset, l.Dir(), err)
		}
		if region.Len > 0 || limits.found || limits.end >= limits.upTo {
			return region, nil
		}
		offset = limits.end // the rest of this segment was a hole
	}
}

// readLimits are what a reader saw of the log at one moment.
type readLimits struct {
	size int64 // bytes of the segment
	end  int64 // the segment's end offset
	upTo int64
	// found says that the segment has a batch at or after the offset; set by readSegment.
	found bool
}

// reserveSegment finds the segment of an offset and keeps its file; none when
// there is nothing to read.
func (l *Log) reserveSegment(offset, upTo int64) (*segment, readLimits, error) {
	l.state.RLock()
	defer l.state.RUnlock()
	if err := l.usable(); err != nil {
		return nil, readLimits{}, err
	}
	if offset < l.start || offset > l.end {
		return nil, readLimits{}, fmt.Errorf("offset %d of %s, which has %d to %d: %w", offset, l.dir, l.start, l.end, ErrOffsetOutOfRange)
	}
	upTo = min(upTo, l.end)
	if offset >= upTo {
		return nil, readLimits{}, nil
	}
	i := l.segmentOf(offset)
	s := l.segments[i]
	s.file.reserve()
	return s, readLimits{size: s.size, end: l.segmentEnd(i), upTo: upTo}, nil
}

// readSegment finds the region in a reserved segment.
func (l *Log) readSegment(s *segment, lim *readLimits, offset int64, maxBytes int, atLeastOne bool) (Region, error) {
	pos, err := l.position(s, offset, lim.size)
	if err != nil || pos >= lim.size {
		return Region{}, err
	}
	lim.found = true
	limit := lim.size
	if lim.upTo < lim.end {
		if limit, err = l.position(s, lim.upTo, lim.size); err != nil {
			return Region{}, err
		}
	}
	end, err := l.regionEnd(s, pos, limit, int64(maxBytes), atLeastOne)
	if err != nil || end <= pos {
		return Region{}, err
	}
	file, err := s.file.get(0)
	if err != nil {
		return Region{}, err
	}
	return Region{File: file, Pos: pos, Len: int(end - pos), held: s.file}, nil
}

// position is where the first batch starts whose last offset is at or after
// offset; size when there is none. The scan from the index entry before it
// reads about one index interval.
func (l *Log) position(s *segment, offset, size int64) (int64, error) {
	return l.positionOrMend(s, offset, size, l.rebuildIndexes)
}

// positionHeld is position for who holds mu, and for Open.
func (l *Log) positionHeld(s *segment, offset, size int64) (int64, error) {
	return l.positionOrMend(s, offset, size, l.refillIndexes)
}

func (l *Log) positionOrMend(s *segment, offset, size int64, mend func(*segment) error) (int64, error) {
	pos, err := l.positionByIndex(s, offset, size)
	if errors.Is(err, errIndex) {
		if err = mend(s); err == nil {
			pos, err = l.positionByIndex(s, offset, size)
		}
	}
	return pos, err
}

func (l *Log) positionByIndex(s *segment, offset, size int64) (int64, error) {
	entry, indexed, err := s.index.floor(offset - s.base)
	if err != nil {
		return 0, err
	}
	if !indexed {
		entry = indexEntry{}
	}
	if indexed && entry.outside(size) {
		return 0, indexOutside(s, entry)
	}
	pos := size
	first := true
	err = l.walkFrom(s, int64(entry.val), size, func(w *walker) (bool, error) {
		if first && indexed && w.header.LastOffset() != s.base+entry.key {
			return false, indexMismatch(s, entry)
		}
		first = false
		if w.header.LastOffset() >= offset {
			pos = w.pos
			return false, nil
		}
		return true, nil
	})
	var corrupt *CorruptionError
	if first && indexed && errors.As(err, &corrupt) {
		err = indexMismatch(s, entry)
	}
	return pos, err
}

// outside says whether an entry points to where no batch of a segment of so many bytes can be.
func (e indexEntry) outside(size int64) bool { return e.val < 0 || int64(e.val) >= size }

func indexOutside(s *segment, e indexEntry) error {
	return fmt.Errorf("%s: %w: position %d is not in the data", s.index.file.path(), errIndex, e.val)
}

func indexMismatch(s *segment, e indexEntry) error {
	return fmt.Errorf("%s: %w: no batch that ends with offset %d at byte %d", s.index.file.path(), errIndex, s.base+e.key, e.val)
}

// regionEnd is the end of the last batch that lies whole within maxBytes from
// pos, or of the first one with atLeastOne.
func (l *Log) regionEnd(s *segment, pos, limit, maxBytes int64, atLeastOne bool) (int64, error) {
	cut := pos + max(maxBytes, 0)
	if cut >= limit {
		return limit, nil
	}
	from := pos
	if entry, ok, err := s.index.floorVal(cut); err != nil {
		return 0, err
	} else if ok && int64(entry.val) > pos {
		from = int64(entry.val)
	}
	end := from
	err := l.walkFrom(s, from, limit, func(w *walker) (bool, error) {
		if w.pos+w.size > cut && (w.pos > pos || !atLeastOne) {
			return false, nil
		}
		end = w.pos + w.size
		return end < cut, nil
	})
	return end, err
}
