package commitlog

import (
	"log/slog"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// Log is the log of one partition. Safe for concurrent use.
//
// Locks, in the order in which they may be taken together:
//
//  0. cleanMu: one compaction at a time. Held while it reads and writes segments;
//     Close, Abort and Delete tell it to stop and wait for it.
//  1. flushMu: one Flush, Checkpoint, truncation or Close at a time. Held over
//     fsync; Append and Read never take it.
//  2. mu, the append lock: one change of the log's content at a time. Held over
//     the write of an Append; Flush and Read never take it.
//  3. state: what readers see. Held for a few memory accesses, never over I/O.
//
// Locks of indexes, the file cache and its files are leaves below these.
type Log struct {
	fs    FS
	log   *slog.Logger
	files *FileCache
	cfg   atomic.Pointer[Config]
	// walkers are pooled per log, because a fetch needs one for a moment only.
	walkers sync.Pool

	cleanMu sync.Mutex
	// stopCleaning makes a compaction under way give up.
	stopCleaning atomic.Bool

	flushMu sync.Mutex
	// recoveryPoint is what the last Checkpoint returned. Guarded by flushMu.
	recoveryPoint int64

	mu sync.Mutex
	// All guarded by mu, up to state. snapshotAt is the offset of the newest producer
	// snapshot; appended counts bytes, at the last snapshot and now.
	producers          producerTable
	snapshotAt         int64
	appended           int64
	appendedAtSnapshot int64
	pending            appendPlan // scratch that is reused
	// cleanedTo is the offset below which the log was compacted, holesBelow the one
	// up to which there may be gaps between offsets. truncations counts
	// what makes a compaction under way worthless; deletedSerial tells the
	// removed segments of one offset apart.
	cleanedTo     int64
	holesBelow    int64
	truncations   int
	deletedSerial int
	// epochUnsaved says that the newest epoch is not in its file yet.
	epochUnsaved bool

	state sync.RWMutex
	// All guarded by state. What stands before synced changes only with mu held
	// too, so that who holds mu may read it without.
	dir      string
	segments []*segment // ascending; the last one is active; never empty while open
	start    int64
	end      int64
	bytes    int64 // of all segments
	epochs   epochHistory
	deleted  []deletedSegment
	closed   bool
	// synced is the offset below which data survives a power cut.
	synced int64
	// unsynced are closed segments, and newly written snapshots, that the next
	// Flush makes durable; dirDirty says that the directory has new names too,
	// parentDirty that it is one itself, and undone that a refused write was
	// cut off again, which must be durable as well.
	unsynced      []*segment
	unsyncedFiles []string
	dirDirty      bool
	parentDirty   bool
	undone        bool
	failed        *OfflineError
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	BaseOffset int64
	// EndOffset is where the next segment starts, or the log's end.
	EndOffset int64
	Bytes     int64
}

// Dir is the log's directory.
func (l *Log) Dir() string {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.dir
}

// StartOffset is the first offset that can be read.
func (l *Log) StartOffset() int64 {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.start
}

// EndOffset is the offset that the next record gets.
func (l *Log) EndOffset() int64 {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.end
}

// SyncedOffset is the offset below which every record survives a power cut.
func (l *Log) SyncedOffset() int64 {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.synced
}

// Size is the bytes of data of all segments, without indexes.
func (l *Log) Size() int64 {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.bytes
}

// Segments describes the segments from the oldest on; the last one is active.
func (l *Log) Segments() []SegmentInfo {
	l.state.RLock()
	defer l.state.RUnlock()
	infos := make([]SegmentInfo, len(l.segments))
	for i, s := range l.segments {
		infos[i] = SegmentInfo{BaseOffset: s.base, EndOffset: l.segmentEnd(i), Bytes: s.size}
	}
	return infos
}

// Config returns the settings in use, with the defaults filled in.
func (l *Log) Config() Config { return *l.cfg.Load() }

// UpdateConfig changes the settings from the next call on.
func (l *Log) UpdateConfig(cfg Config) {
	cfg = cfg.withDefaults()
	l.cfg.Store(&cfg)
}

// Err is the error that every call gets because the log is offline or closed; nil
// while it works.
func (l *Log) Err() error {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.usable()
}

// usable is Err with the state lock held.
func (l *Log) usable() error {
	if l.failed != nil {
		return l.failed
	}
	if l.closed {
		return ErrClosed
	}
	return nil
}

// fail takes the log offline for good and returns the error that says so. The
// first cause stays.
func (l *Log) fail(cause error) error {
	l.state.Lock()
	defer l.state.Unlock()
	if l.failed == nil {
		l.failed = &OfflineError{Dir: l.dir, Cause: cause}
		l.log.Error("log taken offline", "dir", l.dir, "error", cause)
	}
	return l.failed
}

// active is the last segment. Called with mu or the state lock held.
func (l *Log) active() *segment { return l.segments[len(l.segments)-1] }

// segmentEnd is where segment i ends. Called with mu or the state lock held.
func (l *Log) segmentEnd(i int) int64 {
	if i+1 < len(l.segments) {
		return l.segments[i+1].base
	}
	return l.end
}

// segmentOf is the index of the segment that holds an offset of at least the
// first segment's base. Called with mu or the state lock held.
func (l *Log) segmentOf(offset int64) int {
	return sort.Search(len(l.segments), func(i int) bool { return l.segments[i].base > offset }) - 1
}

// millis is a time as record timestamps have it.
func millis(t time.Time) int64 { return t.UnixMilli() }
