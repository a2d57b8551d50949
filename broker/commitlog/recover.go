package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// opening is one Open in progress.
type opening struct {
	log    *Log
	opt    OpenOptions
	now    time.Time
	report Recovery
	// epochsLost says that there is no good leader-epoch checkpoint.
	epochsLost bool
	// snapshots are the offsets of the producer snapshots that were found, descending.
	snapshots []int64
	// checked is the index of the first segment that was read; -1: none.
	checked int
}

// Open opens, or makes, the log in a directory. After a clean stop it reads the
// last index entries and the header of the last batches only; otherwise it
// checks everything from the recovery point on and cuts the log off at the
// first batch that is not whole, in order and as its checksum says. What it did
// is in the Recovery, also when it returns an error.
//
// After an unclean start everything that is served was made durable, so that
// SyncedOffset equals EndOffset.
func Open(fsys FS, dir string, cfg Config, opt OpenOptions) (*Log, Recovery, error) {
	l := &Log{fs: fsys, dir: dir, log: opt.Log, files: opt.Files, producers: make(producerTable)}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.files == nil {
		l.files = NewFileCache(privateFilesMax)
	}
	l.walkers.New = func() any { return newWalker() }
	l.UpdateConfig(cfg)
	o := &opening{log: l, opt: opt, now: opt.Now, checked: -1}
	o.report.CutOffset = noOffset
	if err := o.run(); err != nil {
		for _, s := range l.segments {
			s.drop()
		}
		return nil, o.report, fmt.Errorf("open log %s: %w", dir, err)
	}
	return l, o.report, nil
}

func (o *opening) run() error {
	if err := o.log.fs.MkdirAll(o.log.dir); err != nil {
		return err
	}
	found, err := o.scanDir()
	if err != nil {
		return err
	}
	if err := o.loadEpochs(len(found) > 0); err != nil {
		return err
	}
	if err := o.loadHoles(); err != nil {
		return err
	}
	if err := o.loadSegments(found); err != nil {
		return err
	}
	return o.finish()
}

// scanDir lists the segments and removes what an interrupted step left behind.
func (o *opening) scanDir() ([]segmentFiles, error) {
	entries, err := o.settleSwaps()
	if err != nil {
		return nil, err
	}
	o.snapshots = snapshotsIn(entries)
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
	byBase := make(map[int64]*segmentFiles)
	for _, e := range entries {
		if base, ok := parseFileName(e.Name, logSuffix); ok {
			byBase[base] = &segmentFiles{base: base, size: e.Size, index: -1, time: -1, modified: e.ModTime}
		}
	}
	for _, e := range entries {
		if !o.noteIndexFile(e, byBase) {
			continue
		}
		if err := o.log.fs.Remove(filepath.Join(o.log.dir, e.Name)); err != nil && !isNotExist(err) {
			return nil, err
		}
		o.report.Removed = append(o.report.Removed, e.Name)
	}
	return sortedSegments(byBase), nil
}

func sortedSegments(byBase map[int64]*segmentFiles) []segmentFiles {
	found := make([]segmentFiles, 0, len(byBase))
	for _, f := range byBase {
		found = append(found, *f)
	}
	sort.Slice(found, func(i, j int) bool { return found[i].base < found[j].base })
	return found
}

// noteIndexFile keeps the size of a segment's index file, and says whether the
// entry is a left-over: an unfinished file, one of a removed segment, or an
// index without data.
func (o *opening) noteIndexFile(e Entry, byBase map[int64]*segmentFiles) (leftOver bool) {
	for _, suffix := range []string{deletedSuffix, cleanedSuffix, swapSuffix, tempSuffix} {
		if strings.HasSuffix(e.Name, suffix) {
			return true
		}
	}
	if base, ok := parseFileName(e.Name, indexSuffix); ok {
		if f := byBase[base]; f != nil {
			f.index = e.Size
		}
		return byBase[base] == nil
	}
	if base, ok := parseFileName(e.Name, timesSuffix); ok {
		if f := byBase[base]; f != nil {
			f.time = e.Size
		}
		return byBase[base] == nil
	}
	return false
}

// loadEpochs reads the leader epochs; a log with data whose file is missing or
// malformed gets them from its batches later.
func (o *opening) loadEpochs(hasData bool) error {
	h, err := readEpochs(o.log.fs, filepath.Join(o.log.dir, LeaderEpochFile))
	var corrupt *CorruptionError
	switch {
	case err == nil:
		o.log.epochs = h
	case errors.Is(err, fs.ErrNotExist) || errors.As(err, &corrupt):
		o.epochsLost = hasData
		if corrupt != nil {
			o.log.log.Warn("leader epochs are read from the batches", "dir", o.log.dir, "error", err)
		}
	default:
		return err
	}
	return nil
}

// loadSegments takes up the segments, trusting or checking them.
func (o *opening) loadSegments(found []segmentFiles) error {
	l := o.log
	if len(found) == 0 {
		return o.createFirst()
	}
	for _, f := range found {
		l.segments = append(l.segments, l.newSegment(f, o.now))
	}
	l.active().file.reserve()
	if o.opt.Clean {
		ok, err := o.trust(found)
		if err != nil || ok {
			return err
		}
	}
	return o.check(found)
}

func (o *opening) createFirst() error {
	l := o.log
	s, err := l.createSegment(max(o.opt.LogStart, 0), o.now)
	if err != nil {
		return err
	}
	l.segments = []*segment{s}
	l.end, l.synced, l.dirDirty, l.parentDirty = s.base, s.base, true, true
	o.report.Clean = true
	return nil
}

// trust takes the segments as they are when the end of the last one bears out
// that the stop was clean.
func (o *opening) trust(found []segmentFiles) (ok bool, err error) {
	l := o.log
	for i, f := range found {
		if err := o.mendIndexes(l.segments[i], f); err != nil {
			return false, err
		}
	}
	end, err := o.readTail(l.active())
	if errors.Is(err, errIndex) {
		o.report.IndexesRebuilt++
		if err = l.refillIndexes(l.active()); err == nil {
			end, err = o.readTail(l.active())
		}
	}
	var corrupt *CorruptionError
	if errors.As(err, &corrupt) {
		l.log.Warn("log is recovered although the stop was clean", "dir", l.dir, "error", err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.end, l.synced = end, end
	o.report.Clean = true
	return true, nil
}

// mendIndexes rebuilds the indexes of a segment when a file of them is missing
// or no whole number of entries.
func (o *opening) mendIndexes(s *segment, f segmentFiles) error {
	if !f.indexesBroken() {
		return nil
	}
	o.report.IndexesRebuilt++
	s.file.reserve()
	defer s.file.release()
	return o.log.refillIndexes(s)
}

// readTail finds a log's end from the last index entry on, and what the active
// segment's next append must know.
func (o *opening) readTail(s *segment) (end int64, err error) {
	l := o.log
	last, indexed, err := s.index.lastEntry()
	if err != nil {
		return 0, err
	}
	if indexed && last.outside(s.size) {
		return 0, indexOutside(s, last)
	}
	if err := l.loadMaxTimestamp(s, l.refillIndexes); err != nil {
		return 0, err
	}
	end, s.sinceIndex = s.base, 0
	first, interval := true, l.cfg.Load().IndexIntervalBytes
	err = l.walkFrom(s, int64(last.val), s.size, func(w *walker) (bool, error) {
		h := w.header
		switch {
		case first && indexed && h.LastOffset() != s.base+last.key:
			return false, indexMismatch(s, last)
		case !(first && indexed) && h.BaseOffset() != end && !(h.BaseOffset() > end && h.BaseOffset() <= l.holesBelow):
			return false, w.corrupt(fmt.Errorf("offset %d where %d is due", h.BaseOffset(), end))
		case s.sinceIndex > interval:
			return false, fmt.Errorf("%s: %w: short", s.index.file.path(), errIndex)
		}
		first, end = false, h.LastOffset()+1
		s.sinceIndex += w.size
		s.noteTimestamp(largestTimestamp(h), h.LastOffset())
		return true, nil
	})
	return end, err
}

// finish settles start, epochs and producers once segments and end are known.
func (o *opening) finish() error {
	l := o.log
	for _, s := range l.segments {
		l.bytes += s.size
	}
	l.start = max(o.opt.LogStart, l.segments[0].base)
	if l.start > l.end {
		if err := o.restartAt(l.start); err != nil {
			return err
		}
	}
	if err := o.settleEpochs(); err != nil {
		return err
	}
	if err := l.loadProducersOf(o.snapshots, millis(o.now)); err != nil {
		return err
	}
	if err := l.removeStraySnapshots(o.snapshots); err != nil {
		return err
	}
	l.recoveryPoint = min(o.opt.RecoveryPoint, l.end)
	l.cleanedTo = min(max(o.opt.CleanedTo, 0), l.end)
	return o.syncChecked()
}

// restartAt empties a log that ends before its checkpointed start: what was
// deleted must not come back, and the lost end cannot.
func (o *opening) restartAt(start int64) error {
	l := o.log
	o.report.CutBytes += l.bytes
	o.report.CutOffset = l.segments[0].base
	o.report.CutReason = fmt.Sprintf("the log ends at offset %d, before its start %d", l.end, start)
	return l.replaceAll(start, o.now)
}

func (o *opening) settleEpochs() error {
	l := o.log
	if o.epochsLost || l.epochsLack() {
		if err := l.rebuildEpochs(); err != nil {
			return err
		}
	}
	return l.setEpochs(l.epochs.truncateEnd(l.end).truncateStart(l.start))
}

// epochsLack says that the log begins with records of no known epoch: a move of its
// start cut the history in its file, and was lost itself, being stored elsewhere.
func (l *Log) epochsLack() bool {
	h := l.epochs.truncateEnd(l.end)
	return l.start < l.end && (len(h) == 0 || h[0].start > l.start)
}

// rebuildEpochs reads the leader epochs from the batches' headers.
func (l *Log) rebuildEpochs() error {
	var h epochHistory
	next := l.segments[0].base
	for _, s := range l.segments {
		s.file.reserve()
		err := l.walkFrom(s, 0, s.size, func(w *walker) (bool, error) {
			if epoch := w.header.LeaderEpoch(); epoch > h.latest() {
				// What it began with may be compacted away.
				h = h.assign(epoch, min(next, w.header.BaseOffset()))
			}
			next = w.header.LastOffset() + 1
			return true, nil
		})
		s.file.release()
		if err != nil {
			return err
		}
	}
	l.epochs = h
	if len(h) == 0 { // no file says the same
		return nil
	}
	return writeEpochs(l.fs, filepath.Join(l.dir, LeaderEpochFile), h)
}

// syncChecked makes durable what was read without knowing that it is, so that
// what is served from now on stays.
func (o *opening) syncChecked() error {
	l := o.log
	if o.checked < 0 {
		return nil
	}
	if o.nothingNew() {
		return o.leaveToFlush()
	}
	for _, s := range l.segments[min(o.checked, len(l.segments)-1):] {
		// The indexes too: below the recovery point they count as durable. That point
		// does not move here, so on a full disk the active one's can wait, in memory, for
		// the Checkpoint that moves it: reads are served meanwhile.
		if err := s.seal(); err != nil && !(s == l.active() && isRefusedWrite(err)) {
			return err
		}
		if err := s.sync(); err != nil {
			return err
		}
	}
	if err := o.syncSnapshots(); err != nil {
		return err
	}
	l.synced = l.end
	// The last process may have died between making the directory and its first flush.
	return errors.Join(SyncDir(l.fs, l.dir), SyncDir(l.fs, filepath.Dir(l.dir)))
}

// nothingNew says that the log ends at its recovery point, below which data and
// indexes are durable, as the last process left them.
func (o *opening) nothingNew() bool {
	return o.opt.RecoveryPoint == o.log.end && o.report.CutReason == "" && o.report.IndexesRebuilt == 0
}

// leaveToFlush has the next Flush make durable what else there may be: the
// directory with an empty segment in it, and that segment's producer snapshot.
// Until then nothing depends on them.
func (o *opening) leaveToFlush() error {
	l := o.log
	offsets, err := l.snapshots()
	if err != nil {
		return err
	}
	for _, offset := range offsets { // descending
		if offset < o.opt.RecoveryPoint {
			break
		}
		l.unsyncedFiles = append(l.unsyncedFiles, l.snapshotPath(offset))
	}
	l.dirDirty, l.parentDirty = true, true
	return nil
}

// syncSnapshots makes the producer snapshots durable that the last process may
// not have got to.
func (o *opening) syncSnapshots() error {
	offsets, err := o.log.snapshots()
	if err != nil {
		return err
	}
	for _, offset := range offsets {
		if offset < o.opt.RecoveryPoint {
			break
		}
		if err := syncFile(o.log.fs, o.log.snapshotPath(offset)); err != nil {
			return err
		}
	}
	return nil
}
