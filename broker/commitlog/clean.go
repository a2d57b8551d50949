package commitlog

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-io/sluice/internal/quickio"
	"github.com/sluice-io/sluice/internal/record"
)

// ErrCleaningStopped says that a compaction gave up because the log was closed,
// truncated or lost segments to retention meanwhile. What it had finished stays.
var ErrCleaningStopped = errors.New("compaction stopped")

// Defaults of CleanerConfig.
const (
	defaultDedupeBytes = 128 << 20
	cleanIOBytes       = 256 << 10
)

// CleanerConfig are the limits of one Cleaner.
type CleanerConfig struct {
	// DedupeBytes (log.cleaner.dedupe.buffer.size) bounds the memory of the map of
	// keys, of 24 bytes a slot and three quarters filled; 0 is 128 MiB. A stretch of
	// log with more keys takes several rounds. Memory is taken as needed.
	DedupeBytes int64
	// DecompressedBytes bounds what one batch may expand to; 0 is
	// record.DecompressedBytesMax.
	DecompressedBytes int
	// Pace is called with the bytes that were read or written since the last call,
	// a few hundred KiB at most or one batch, and may wait; its error ends the
	// compaction. Nil does not wait.
	Pace func(bytes int) error
}

// Cleaner compacts logs, one at a time: of the records of each key it keeps the
// one with the largest offset, as Apache Kafka's does. It keeps its buffers
// between logs. Not safe for concurrent use.
type Cleaner struct {
	cfg    CleanerConfig
	keys   offsetMap
	filter record.Filter
	reader batchReader
}

// NewCleaner returns a cleaner.
func NewCleaner(cfg CleanerConfig) *Cleaner {
	if cfg.DedupeBytes <= 0 {
		cfg.DedupeBytes = defaultDedupeBytes
	}
	c := &Cleaner{cfg: cfg}
	c.filter.Decompressor = record.NewDecompressor(cfg.DecompressedBytes)
	return c
}

// Cleaned says what a compaction did.
type Cleaned struct {
	// From and To bound the offsets whose keys were looked at: from To on
	// the log is still dirty.
	From, To int64
	// BytesRead and BytesWritten are of data; RecordsRead and RecordsKept of
	// the segments that were rewritten.
	BytesRead, BytesWritten  int64
	RecordsRead, RecordsKept int64
	// SegmentsBefore became SegmentsAfter.
	SegmentsBefore, SegmentsAfter int
	// More says that the map of keys was full before the dirty part's end.
	More bool
}

// Clean compacts what Cleanable says, whether due or not, up to where the map of
// keys is full. In the log, older records of a key go, from the log's start on:
// a record stays at its offset, a batch keeps its first and last offset. A
// tombstone, without a value, gets a time at which it may go (KIP-534). A batch
// that lost all records stays, empty, when it is the last of a producer that the
// log remembers or of the round, so that sequences and the end stay known.
// Records without a key go. Control batches stay as they are; records of
// transactions never make older ones go, and their tombstones stay.
//
// Appends and reads go on meanwhile. Each group of segments is replaced as a
// whole, the oldest first; a crash leaves it old or new.
//
// Errors: ErrCleaningStopped; *CorruptionError for a batch that cannot be read,
// which a later try will meet again; ErrNoSpace; what Pace returned; ErrOffline;
// ErrClosed. Segments not yet replaced are as before, also with ErrNoSpace.
func (c *Cleaner) Clean(l *Log, upTo int64, now time.Time) (Cleaned, error) {
	l.cleanMu.Lock()
	defer l.cleanMu.Unlock()
	job, err := l.planClean(upTo, now)
	if err != nil || job == nil {
		return Cleaned{}, err
	}
	defer job.release()
	err = c.run(job)
	c.keys.shrink()
	if err != nil && job.obsolete() {
		err = ErrCleaningStopped // what was read was about to go
	}
	if err != nil {
		return job.out, fmt.Errorf("compact %s: %w", l.Dir(), err)
	}
	return job.out, nil
}

// cleanJob is one compaction. Its segments are closed and reserved.
type cleanJob struct {
	log      *Log
	cfg      *Config
	now      time.Time
	from, to int64
	segments []cleanSegment
	// lasts are the last offsets of the producers that the log remembers.
	lasts       map[int64]int64
	truncations int
	out         Cleaned
}

// cleanSegment is a segment as it was when the compaction began.
type cleanSegment struct {
	*segment
	size, end int64
}

// planClean fixes what is compacted; nil when there is nothing.
func (l *Log) planClean(upTo int64, now time.Time) (*cleanJob, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return nil, err
	}
	c, n, err := l.cleanable(upTo, now)
	if err != nil {
		return nil, fmt.Errorf("compact %s: %w", l.dir, err)
	}
	if c.From == c.To {
		return nil, nil
	}
	// Should the newest snapshot be lost, this one is replayed from, and nothing
	// that compaction thinned out.
	if err := l.secureSnapshot(l.segments[n].base, millis(now)); err != nil {
		return nil, l.appendError(fmt.Errorf("compact: %w", err))
	}
	if err := l.expectHoles(c.To); err != nil {
		return nil, l.appendError(fmt.Errorf("compact: %w", err))
	}
	job := &cleanJob{log: l, cfg: l.cfg.Load(), now: now, from: c.From, to: c.To, truncations: l.truncations}
	job.out.From, job.out.To = c.From, c.From
	job.lasts = make(map[int64]int64, len(l.producers))
	for id, p := range l.producers {
		job.lasts[id] = p.last().lastOffset
	}
	for i, s := range l.segments[:n] {
		s.file.reserve()
		job.segments = append(job.segments, cleanSegment{s, s.size, l.segmentEnd(i)})
	}
	return job, nil
}

func (j *cleanJob) release() {
	for _, s := range j.segments {
		s.file.release()
	}
}

// obsolete says that the log changed under the job.
func (j *cleanJob) obsolete() bool {
	j.log.mu.Lock()
	defer j.log.mu.Unlock()
	return j.log.Err() != nil && !errors.Is(j.log.Err(), ErrOffline) || j.truncations != j.log.truncations
}

func (c *Cleaner) run(j *cleanJob) error {
	if err := c.fillMap(j); err != nil {
		return err
	}
	for _, group := range j.groups() {
		if err := c.cleanGroup(j, group); err != nil {
			return err
		}
	}
	j.log.mu.Lock()
	defer j.log.mu.Unlock()
	if j.truncations != j.log.truncations {
		return ErrCleaningStopped
	}
	j.log.cleanedTo, j.out.To = j.to, j.to
	return nil
}

// pace lets the caller's limits take hold and says whether to go on.
func (c *Cleaner) pace(l *Log, bytes int) error {
	if l.stopCleaning.Load() {
		return ErrCleaningStopped
	}
	if c.cfg.Pace == nil {
		return nil
	}
	return c.cfg.Pace(bytes)
}

// fillMap notes the newest offset of each key in the dirty part, and moves the
// job's end to where the map was full.
func (c *Cleaner) fillMap(j *cleanJob) error {
	keys, err := j.countDirty()
	if err != nil {
		return err
	}
	c.keys.reset(keys, c.cfg.DedupeBytes)
	for _, s := range j.segments {
		if s.end <= j.from {
			continue
		}
		full, err := c.mapSegment(j, s)
		if err != nil {
			return err
		}
		if full {
			j.out.More = true
			return nil
		}
	}
	return nil
}

// countDirty is how many records the dirty part has, by its batches' headers.
func (j *cleanJob) countDirty() (records int64, err error) {
	for _, s := range j.segments {
		if s.end <= j.from {
			continue
		}
		err := j.log.walkFrom(s.segment, 0, s.size, func(w *walker) (bool, error) {
			records += int64(max(w.header.Count(), 0))
			return true, nil
		})
		if err != nil {
			return 0, err
		}
	}
	return records, nil
}

// mapSegment takes a segment's records into the map; full when it has no room
// for one, at which the job then ends.
func (c *Cleaner) mapSegment(j *cleanJob, s cleanSegment) (full bool, err error) {
	err = c.each(j, s, func(b record.Batch) error {
		if full || b.LastOffset() < j.from || b.IsControl() || b.IsTransactional() {
			return nil
		}
		return b.Each(c.filter.Decompressor, func(r *record.Record) error {
			if r.Key == nil || r.Offset < j.from || c.keys.put(r.Key, r.Offset) {
				return nil
			}
			j.to, full = r.Offset, true
			return errFound
		})
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return full, err
}

// each reads a segment's batches one after the other and checks them.
func (c *Cleaner) each(j *cleanJob, s cleanSegment, fn func(record.Batch) error) error {
	file, err := s.file.get(0)
	if err != nil {
		return err
	}
	r := &c.reader
	r.start(file, s.file.path(), s.size)
	for {
		before := r.read
		b, err := r.next()
		if err != nil || b == nil {
			return err
		}
		if n := r.read - before; n > 0 {
			j.out.BytesRead += n
			if err := c.pace(j.log, int(n)); err != nil {
				return err
			}
		}
		if err := fn(b); err != nil {
			var invalid *record.InvalidRecordError
			if errors.As(err, &invalid) {
				return r.corrupt(b, err)
			}
			return err
		}
	}
}

// groups puts neighbouring segments together whose content surely fits into one
// segment, as small ones would otherwise stay small for ever.
func (j *cleanJob) groups() [][]cleanSegment {
	var groups [][]cleanSegment
	var size, offsets, times int64
	for i := range j.segments {
		s := j.segments[i]
		if s.base >= j.to {
			break // beyond what the map knows
		}
		size, offsets, times = size+s.size, offsets+s.index.bytes(), times+s.times.bytes()
		n := len(groups)
		if n > 0 && size <= j.cfg.SegmentBytes && offsets <= j.cfg.IndexBytes && times <= j.cfg.IndexBytes &&
			s.end-1-groups[n-1][0].base <= relativeOffsetMax {
			groups[n-1] = append(groups[n-1], s)
			continue
		}
		groups = append(groups, []cleanSegment{s})
		size, offsets, times = s.size, s.index.bytes(), s.times.bytes()
	}
	return groups
}

// cleanGroup writes the segments of a group anew, as one, and puts it in their
// place; when nothing changes it leaves them.
func (c *Cleaner) cleanGroup(j *cleanJob, group []cleanSegment) error {
	w, err := newRewrite(j, group)
	if err != nil {
		return err
	}
	err = c.rewriteGroup(j, w, group)
	if err == nil && len(group) == 1 && !w.changed {
		j.count(w, group)
		return w.discard()
	}
	if err == nil {
		err = w.finish()
	}
	if err != nil {
		return errors.Join(j.refused(err), w.discard())
	}
	if err := j.log.swapIn(j, w.segment, group); err != nil {
		return err
	}
	j.count(w, group)
	return nil
}

// refused marks a full disk: what was written is removed and the log as before.
func (j *cleanJob) refused(err error) error {
	if quickio.NoRoom(err) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

func (j *cleanJob) count(w *rewrite, group []cleanSegment) {
	j.out.BytesWritten += w.flushed
	j.out.RecordsRead += w.recordsRead
	j.out.RecordsKept += w.recordsKept
	j.out.SegmentsBefore += len(group)
	j.out.SegmentsAfter++
}

func (c *Cleaner) rewriteGroup(j *cleanJob, w *rewrite, group []cleanSegment) error {
	for _, s := range group {
		err := c.each(j, s, func(b record.Batch) error {
			n, err := c.cleanBatch(j, w, b)
			if err == nil && n > 0 {
				err = c.pace(j.log, n)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cleanBatch writes what stays of a batch, and returns the bytes that went to disk.
func (c *Cleaner) cleanBatch(j *cleanJob, w *rewrite, b record.Batch) (written int, err error) {
	w.recordsRead += int64(b.Count())
	if b.IsControl() || b.BaseOffset() >= j.to {
		w.recordsKept += int64(b.Count())
		return w.add(b)
	}
	horizon, marked := b.DeleteHorizon()
	tombstones := !marked || millis(j.now) < horizon || b.IsTransactional()
	out, err := c.filter.Apply(b, millis(j.now.Add(j.cfg.TombstoneRetention)), func(r *record.Record) bool {
		switch {
		case r.Offset >= j.to:
			return true // beyond the map
		case r.Key == nil || c.keys.newest(r.Key) > r.Offset:
			return false
		}
		return r.Value != nil || tombstones
	})
	if err != nil {
		return 0, err
	}
	w.recordsKept += int64(out.Kept)
	w.changed = w.changed || out.Changed
	if out.Batch != nil {
		return w.add(out.Batch)
	}
	last, known := j.lasts[b.ProducerID()]
	if known && last == b.LastOffset() || b.LastOffset()+1 == j.to {
		w.changed = w.changed || b.Count() > 0
		w.empty = b.AppendEmpty(w.empty[:0])
		return w.add(w.empty)
	}
	w.changed = true
	return 0, nil
}
