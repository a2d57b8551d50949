package commitlog

import (
	"fmt"
	"path/filepath"
)

// snapshotIntervalBytes is how much may be appended until Checkpoint writes a
// producer snapshot, and so what an unclean start replays at most.
const snapshotIntervalBytes = 16 << 20

// flushJob is what a Flush has to make durable; its segments are reserved.
type flushJob struct {
	end    int64
	active *segment
	closed []*segment
	files  []string
	dirs   []string // with new names
}

// Flush makes everything durable that was appended before the call, and returns
// the offset below which all is. Appends and reads go on meanwhile. A failed
// sync takes the log offline with ErrOffline and is never tried again: the
// kernel may have dropped the data that it could not write.
func (l *Log) Flush() (synced int64, err error) {
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	return l.flush()
}

// ClosedUnsynced says that closed segments wait for a Flush. Apache Kafka flushes
// a segment when it is closed, also where acknowledgements do not wait for that:
// it bounds what an unclean start checks, and compaction takes only what is durable.
func (l *Log) ClosedUnsynced() bool {
	l.state.RLock()
	defer l.state.RUnlock()
	return len(l.unsynced) > 0
}

// flush is Flush with flushMu held.
func (l *Log) flush() (synced int64, err error) {
	job, synced, err := l.takeFlushJob()
	if err != nil || job == nil {
		return synced, err
	}
	err = job.run(l.fs)
	job.release()
	if err != nil {
		return synced, l.fail(fmt.Errorf("flush: %w", err))
	}
	l.state.Lock()
	defer l.state.Unlock()
	l.synced = max(l.synced, job.end)
	return l.synced, nil
}

// takeFlushJob takes what is not durable off the log's lists; nil when all is.
func (l *Log) takeFlushJob() (*flushJob, int64, error) {
	l.state.Lock()
	defer l.state.Unlock()
	if err := l.usable(); err != nil {
		return nil, l.synced, err
	}
	if l.synced == l.end && len(l.unsynced) == 0 && !l.dirDirty && !l.undone {
		return nil, l.synced, nil
	}
	job := &flushJob{end: l.end, active: l.active(), closed: l.unsynced, files: l.unsyncedFiles}
	if l.dirDirty {
		job.dirs = append(job.dirs, l.dir)
	}
	if l.parentDirty {
		job.dirs = append(job.dirs, filepath.Dir(l.dir))
	}
	l.unsynced, l.unsyncedFiles, l.dirDirty, l.parentDirty, l.undone = nil, nil, false, false, false
	job.active.file.reserve()
	for _, s := range job.closed {
		s.file.reserve()
	}
	return job, l.synced, nil
}

func (j *flushJob) release() {
	j.active.file.release()
	for _, s := range j.closed {
		s.file.release()
	}
}

func (j *flushJob) run(fs FS) error {
	for _, s := range j.closed {
		if err := s.sync(); err != nil {
			return err
		}
	}
	for _, path := range j.files {
		if err := syncFile(fs, path); err != nil && !isNotExist(err) {
			return err
		}
	}
	if err := j.active.file.with(0, syncData); err != nil {
		return fmt.Errorf("sync %s: %w", j.active.file.path(), err)
	}
	for _, dir := range j.dirs {
		if err := SyncDir(fs, dir); err != nil {
			return err
		}
	}
	return nil
}

// Checkpoint writes out, durably, what makes a later unclean start short: the
// active segment's indexes, and from time to time a producer snapshot. It
// returns the recovery point: the only value that may go into the recovery
// point file, because below it the indexes are durable like the data. It does
// not sync data: Flush does.
func (l *Log) Checkpoint() (recoveryPoint int64, err error) {
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	cp, err := l.prepareCheckpoint()
	if err != nil || cp == nil {
		return l.recoveryPoint, err
	}
	err = l.runCheckpoint(cp)
	for _, s := range cp.segments {
		s.file.release()
	}
	if err != nil {
		return l.recoveryPoint, l.appendError(fmt.Errorf("checkpoint: %w", err))
	}
	l.recoveryPoint = cp.recoveryPoint
	return l.recoveryPoint, nil
}

// RecoveryPoint is what the last Checkpoint returned, or less if the log was cut
// below it since.
func (l *Log) RecoveryPoint() int64 {
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	return l.recoveryPoint
}

// checkpointJob is a checkpoint whose content is fixed; its segments are reserved.
type checkpointJob struct {
	recoveryPoint int64
	segments      []*segment
	snapshotAt    int64 // offset; noOffset: no snapshot
	snapshot      []byte
	stale         string // the snapshot that the new one replaces; empty: none
}

// prepareCheckpoint writes the index tails under the append lock; nil when
// nothing changed since the last checkpoint.
func (l *Log) prepareCheckpoint() (*checkpointJob, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.RLock()
	err, synced := l.usable(), l.synced
	segments := append([]*segment{l.active()}, l.unsynced...)
	for _, s := range segments {
		s.file.reserve()
	}
	l.state.RUnlock()
	cp := &checkpointJob{recoveryPoint: synced, segments: segments, snapshotAt: noOffset}
	if err == nil && synced != l.recoveryPoint {
		if err = l.active().seal(); err != nil {
			err = l.appendError(err)
		}
	}
	if err != nil || synced == l.recoveryPoint {
		for _, s := range segments {
			s.file.release()
		}
		return nil, err
	}
	if l.appended-l.appendedAtSnapshot >= snapshotIntervalBytes {
		l.takeSnapshot(cp)
	}
	return cp, nil
}

// takeSnapshot fixes the producer state for the checkpoint. Called with mu held.
func (l *Log) takeSnapshot(cp *checkpointJob) {
	cp.snapshotAt, cp.snapshot = l.end, encodeSnapshot(l.producers)
	if l.snapshotAt != l.end && !l.isSegmentBase(l.snapshotAt) {
		cp.stale = l.snapshotPath(l.snapshotAt)
	}
	l.snapshotAt, l.appendedAtSnapshot = l.end, l.appended
}

// isSegmentBase says whether a segment starts at an offset. Called with mu held.
func (l *Log) isSegmentBase(offset int64) bool {
	i := l.segmentOf(offset)
	return i >= 0 && l.segments[i].base == offset
}

func (l *Log) runCheckpoint(cp *checkpointJob) error {
	for _, s := range cp.segments {
		if err := s.syncIndexes(); err != nil {
			return l.fail(err) // also when it says that there is no room
		}
	}
	if cp.snapshotAt == noOffset {
		return SyncDir(l.fs, l.dir)
	}
	if err := writeSynced(l.fs, l.snapshotPath(cp.snapshotAt), cp.snapshot); err != nil {
		return fmt.Errorf("write producer snapshot: %w", err)
	}
	if cp.stale != "" {
		if err := l.fs.Remove(cp.stale); err != nil && !isNotExist(err) {
			return fmt.Errorf("remove %s: %w", filepath.Base(cp.stale), err)
		}
	}
	return SyncDir(l.fs, l.dir)
}
