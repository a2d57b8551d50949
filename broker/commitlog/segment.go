package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// Suffixes of the files of a segment and of their passing states.
const (
	logSuffix      = ".log"
	indexSuffix    = ".index"
	timesSuffix    = ".timeindex"
	snapshotSuffix = ".snapshot"
	deletedSuffix  = ".deleted" // removed from the log, waiting for RemoveDeleted
	cleanedSuffix  = ".cleaned" // an unfinished rewrite
	swapSuffix     = ".swap"    // a finished rewrite that takes the place of segments
	tempSuffix     = ".tmp"     // an unfinished checkpoint file
)

// noOffset is an offset that is not known or does not exist.
const noOffset int64 = -1

// segment is a run of the log in one file, named by its first offset, with an
// index by offset and one by time. All but the last of a log are closed: their
// bytes no longer change.
type segment struct {
	base  int64
	file  *cachedFile
	index *index
	times *index

	// Guarded by the log's state lock; written under its append lock too.
	size int64
	// maxTimestamp is the largest timestamp and maxOffset the last offset of the
	// first batch that has it; valid when maxKnown.
	maxTimestamp int64
	maxOffset    int64
	maxKnown     bool
	// modified stands in for a largest timestamp when no record has one.
	modified time.Time

	// Guarded by the log's append lock.
	//
	// sinceIndex counts the bytes since the batch of the last index entry, it included.
	sinceIndex int64
	// firstTimestamp is the max timestamp of the first batch; valid when firstKnown.
	firstTimestamp int64
	firstKnown     bool
	created        time.Time
}

// segmentFiles are the sizes of a segment's files as found on disk; -1: missing.
type segmentFiles struct {
	base              int64
	size, index, time int64
	modified          time.Time
}

// indexesBroken says that a segment with data lacks an index or has one that is
// no whole number of entries.
func (f segmentFiles) indexesBroken() bool {
	return f.size > 0 && (f.index < 0 || f.index%offsetEntryBytes != 0 || f.time < 0 || f.time%timeEntryBytes != 0)
}

func fileName(base int64, suffix string) string {
	return fmt.Sprintf("%020d%s", base, suffix)
}

// parseFileName returns the offset of a name that fileName made with the suffix.
func parseFileName(name, suffix string) (int64, bool) {
	if len(name) != 20+len(suffix) || name[20:] != suffix {
		return 0, false
	}
	base, err := strconv.ParseInt(name[:20], 10, 64)
	return base, err == nil && base >= 0
}

// newSegment is the segment of the given files; it does no I/O.
func (l *Log) newSegment(f segmentFiles, now time.Time) *segment {
	return l.segmentNamed(f, "", now)
}

// segmentNamed is newSegment for files whose names have one more suffix.
func (l *Log) segmentNamed(f segmentFiles, suffix string, now time.Time) *segment {
	path := filepath.Join(l.dir, fileName(f.base, ""))
	return &segment{
		base:     f.base,
		file:     l.files.add(l.fs, path+logSuffix+suffix),
		index:    newIndex(l.files.add(l.fs, path+indexSuffix+suffix), offsetEntryBytes, max(f.index, 0)),
		times:    newIndex(l.files.add(l.fs, path+timesSuffix+suffix), timeEntryBytes, max(f.time, 0)),
		size:     f.size,
		maxKnown: f.size == 0, maxTimestamp: noOffset, maxOffset: noOffset,
		modified: f.modified,
		created:  now,
	}
}

// createSegment makes the files of an empty segment and opens its data file,
// which stays reserved while the segment is the active one.
func (l *Log) createSegment(base int64, now time.Time) (*segment, error) {
	s := l.newSegment(segmentFiles{base: base, modified: now}, now)
	s.file.reserve()
	if _, err := s.file.get(os.O_CREATE | os.O_TRUNC); err != nil {
		s.file.release()
		return nil, err
	}
	return s, nil
}

// allFiles are the segment's files, the data first.
func (s *segment) allFiles() []*cachedFile {
	return []*cachedFile{s.file, s.index.file, s.times.file}
}

// inUse says whether a reader holds one of the segment's files.
func (s *segment) inUse() bool {
	return s.file.inUse() || s.index.file.inUse() || s.times.file.inUse()
}

// drop lets go of the segment's files.
func (s *segment) drop() {
	for _, f := range s.allFiles() {
		f.drop()
	}
}

// markDeleted adds a suffix to the names of the segment's files, the data first:
// what is left of a segment without data is removed at the next start.
func (s *segment) markDeleted(suffix string) error {
	for _, f := range s.allFiles() {
		name := f.path() + suffix
		if err := f.rename(name); isNotExist(err) {
			f.setName(name) // or the segment that takes its place would lose the file
		} else if err != nil {
			return err
		}
	}
	return nil
}

// noteTimestamp keeps the largest timestamp. Called with the state lock held.
func (s *segment) noteTimestamp(ts, lastOffset int64) {
	if ts > s.maxTimestamp {
		s.maxTimestamp, s.maxOffset = ts, lastOffset
	}
}

// largestTimestamp is that of a batch's records. One that compaction has emptied
// has none: it must not be found for the timestamp that its header still tells.
func largestTimestamp(h record.Batch) int64 {
	if h.Count() == 0 {
		return record.NoTimestamp
	}
	return h.MaxTimestamp()
}

// seal puts the last entry into the time index, so that it tells the segment's
// largest timestamp, and writes both indexes out. The time index goes first:
// after a crash the offset index then never knows more than it.
func (s *segment) seal() error {
	if err := s.appendTime(); err != nil {
		return err
	}
	return s.writeIndexes()
}

// appendTime adds the largest timestamp so far to the time index, unless it is there.
func (s *segment) appendTime() error {
	if !s.maxKnown || s.maxTimestamp < 0 {
		return nil
	}
	last, ok, err := s.times.lastEntry()
	if err != nil {
		return err
	}
	if !ok || s.maxTimestamp > last.key {
		s.times.append(indexEntry{s.maxTimestamp, int32(s.maxOffset - s.base)})
	}
	return nil
}

func (s *segment) writeIndexes() error {
	if err := s.times.writeOut(); err != nil {
		return err
	}
	return s.index.writeOut()
}

// sync makes a segment's data and indexes durable.
func (s *segment) sync() error {
	if err := s.file.with(0, syncData); err != nil {
		return fmt.Errorf("sync %s: %w", s.file.path(), err)
	}
	return s.syncIndexes()
}

func (s *segment) syncIndexes() error {
	for _, x := range []*index{s.times, s.index} {
		if err := x.sync(); err != nil {
			return fmt.Errorf("sync %s: %w", x.file.path(), err)
		}
	}
	return nil
}

// resetIndexes empties both indexes, to be filled from the data.
func (s *segment) resetIndexes() error {
	s.sinceIndex = 0
	s.maxTimestamp, s.maxOffset, s.maxKnown = record.NoTimestamp, noOffset, true
	if err := s.times.reset(); err != nil {
		return err
	}
	return s.index.reset()
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
