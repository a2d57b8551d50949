package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Embedded is the store of a one-node cluster: the tree in memory, and in a
// directory every transaction since a snapshot of the tree. See [frame] for the
// layout of the files and for what a crash at any byte leaves.
//
// An Embedded is safe for concurrent use. Its lock is held while a transaction
// is written and synced, so a reader sees only what is durable.
type Embedded struct {
	dir string
	// openLog opens a log for appending, creating it if need be; tests replace
	// it to make writes fail.
	openLog func(path string) (logFile, error)

	mu      sync.Mutex // guards what follows
	tree    *tree
	session Session
	ended   chan struct{} // closes session.Ended
	log     logFile
	// logBytes is the length of the log up to the last whole transaction.
	logBytes      int64
	snapshotBytes int64
	watches       map[watchKey]chan struct{} // one for all that wait for the same
	// broken is set when the log's state on disk is unknown; nothing is written then.
	broken error
	closed bool
}

// logFile is an append-only file.
type logFile interface {
	io.Writer
	Sync() error
	Truncate(size int64) error
	Close() error
}

type watchKey struct {
	path string
	kind WatchKind
}

// compactBytesMin is the least length of a log that is worth a new snapshot.
// Above it a log is replaced when it is several times the snapshot, so that the
// cost of snapshots stays a constant share of the cost of the transactions.
const (
	compactBytesMin = 1 << 20
	compactFactor   = 4
)

// Recovered says what opening an embedded store found.
type Recovered struct {
	// Transactions is how many were read from logs.
	Transactions int
	// CutBytes is the length of a transaction at the end that was not whole,
	// and so had not been acknowledged; it is removed.
	CutBytes int64
}

// OpenEmbedded opens the store in dir, which it creates if need be, and begins
// a session: ephemeral nodes of earlier ones are gone. A file that is damaged
// anywhere but in an unfinished last transaction is refused with a
// [*CorruptionError].
func OpenEmbedded(dir string) (*Embedded, Recovered, error) {
	return openEmbedded(dir, func(path string) (logFile, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	})
}

func openEmbedded(dir string, openLog func(string) (logFile, error)) (*Embedded, Recovered, error) {
	var rec Recovered
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, rec, fmt.Errorf("open cluster store: %w", err)
	}
	s := &Embedded{dir: dir, openLog: openLog, tree: newTree(), watches: map[watchKey]chan struct{}{}}
	if err := s.recover(&rec); err != nil {
		return nil, rec, fmt.Errorf("open cluster store: %w", err)
	}
	if err := s.beginSession(); err != nil {
		_ = s.log.Close()
		return nil, rec, fmt.Errorf("open cluster store: %w", err)
	}
	return s, rec, nil
}

// recover reads the newest snapshot and the logs after it, cuts an unfinished
// last transaction and opens the last log for appending.
func (s *Embedded) recover(rec *Recovered) error {
	files, err := listStoreFiles(s.dir)
	if err != nil {
		return err
	}
	if err := s.readSnapshot(files); err != nil {
		return err
	}
	base := s.tree.zxid
	logs := slices.DeleteFunc(files.logs, func(b int64) bool { return b < base })
	last := base
	for i, b := range logs {
		end, err := s.replay(b, i == len(logs)-1, rec)
		if err != nil {
			return err
		}
		last, s.logBytes = b, end
	}
	if err := removeOlder(s.dir, files, base); err != nil {
		return err
	}
	return s.startLog(last, s.logBytes)
}

func (s *Embedded) readSnapshot(files storeFiles) error {
	if len(files.snapshots) == 0 {
		return nil
	}
	path := snapshotName(s.dir, files.snapshots[len(files.snapshots)-1])
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	s.snapshotBytes = int64(len(data))
	payload, rest, err := nextFrame(data)
	if err == nil && len(rest) > 0 {
		err = errors.New("bytes after its end")
	}
	if err == nil {
		s.tree, err = decodeSnapshot(payload)
	}
	if err != nil {
		return &CorruptionError{Path: path, Err: err}
	}
	return nil
}

// replay applies one log. Only in the last log may a transaction be unfinished.
func (s *Embedded) replay(base int64, isLast bool, rec *Recovered) (end int64, err error) {
	path := logName(s.dir, base)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	rest := data
	for len(rest) > 0 {
		end = int64(len(data) - len(rest))
		payload, after, err := nextFrame(rest)
		if err == nil {
			err = s.tree.replay(payload)
		} else if isLast && tornTail(rest) {
			rec.CutBytes = int64(len(rest))
			return end, nil
		}
		if err != nil {
			return 0, &CorruptionError{Path: path, Offset: end, Err: err}
		}
		rec.Transactions++
		rest = after
	}
	return int64(len(data)), nil
}

// startLog opens a log for appending at size, cutting what is after it.
func (s *Embedded) startLog(base, size int64) error {
	f, err := s.openLog(logName(s.dir, base))
	if err != nil {
		return err
	}
	if err := f.Truncate(size); err != nil {
		_ = f.Close()
		return err
	}
	if err := syncDir(s.dir); err != nil {
		_ = f.Close()
		return err
	}
	s.log, s.logBytes = f, size
	return nil
}

func (s *Embedded) beginSession() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = make(chan struct{})
	s.session = Session{ID: s.tree.session + 1, Ended: s.ended}
	_, err := s.commit([]Op{{Kind: opSession, Version: int32(s.session.ID)}})
	return err
}

// Get implements [Store].
func (s *Embedded) Get(_ context.Context, path string) ([]byte, Stat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, Stat{}, ErrStoreClosed
	}
	n, ok := s.tree.nodes[path]
	if !ok {
		return nil, Stat{}, fmt.Errorf("get %s: %w", path, ErrNoNode)
	}
	return n.data, n.stat, nil
}

// Children implements [Store].
func (s *Embedded) Children(_ context.Context, path string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrStoreClosed
	}
	n, ok := s.tree.nodes[path]
	if !ok {
		return nil, fmt.Errorf("children of %s: %w", path, ErrNoNode)
	}
	return sortedKeys(n.children), nil
}

// Watch implements [Store].
func (s *Embedded) Watch(_ context.Context, path string, kind WatchKind) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrStoreClosed
	}
	if _, ok := s.tree.nodes[path]; !ok && kind == WatchChildren {
		return nil, fmt.Errorf("watch the children of %s: %w", path, ErrNoNode)
	}
	key := watchKey{path, kind}
	ch, ok := s.watches[key]
	if !ok {
		ch = make(chan struct{})
		s.watches[key] = ch
	}
	return ch, nil
}

// Session implements [Store]. An embedded session ends with Close.
func (s *Embedded) Session(context.Context) (Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Session{}, ErrStoreClosed
	}
	return s.session, nil
}

// Txn implements [Store]. When the disk is full it fails and leaves the store
// usable; when a sync fails the store refuses everything until it is opened
// again, for what the disk holds is unknown.
func (s *Embedded) Txn(_ context.Context, ops ...Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStoreClosed
	}
	if err := checkSession(ops, s.session.ID); err != nil {
		return err
	}
	changed, err := s.commit(ops)
	if err != nil {
		return err
	}
	s.fire(changed)
	return s.compactIfDue()
}

// commit applies ops to the tree and the log, or undoes them. The caller holds mu.
func (s *Embedded) commit(ops []Op) ([]watchKey, error) {
	if s.broken != nil {
		return nil, s.broken
	}
	undo := &undoLog{}
	zxid := s.tree.zxid + 1
	if err := s.tree.apply(ops, zxid, s.session.ID, undo); err != nil {
		undo.rollback()
		return nil, err
	}
	if err := s.appendLog(encodeTxn(zxid, s.session.ID, ops)); err != nil {
		undo.rollback()
		return nil, fmt.Errorf("write cluster store: %w", err)
	}
	s.tree.zxid = zxid
	return undo.changed, nil
}

func (s *Embedded) appendLog(frame []byte) error {
	if _, err := s.log.Write(frame); err != nil {
		// Part of it may be there. Without a clean end nothing can follow.
		if cut := s.log.Truncate(s.logBytes); cut != nil {
			s.broken = fmt.Errorf("cannot undo a failed write, restart the broker: %w", cut)
		}
		return err
	}
	if err := s.log.Sync(); err != nil {
		s.broken = fmt.Errorf("an earlier sync failed, restart the broker: %w", err)
		return s.broken
	}
	s.logBytes += int64(len(frame))
	return nil
}

// fire closes the channels of the watches that a transaction concerns.
func (s *Embedded) fire(changed []watchKey) {
	for _, key := range changed {
		if ch, ok := s.watches[key]; ok {
			close(ch)
			delete(s.watches, key)
		}
	}
}

// compactIfDue replaces a long log by a snapshot of the tree. A failure leaves
// the old files in force, which is not the transaction's failure: the next
// transaction tries again.
func (s *Embedded) compactIfDue() error {
	if s.logBytes < compactBytesMin || s.logBytes < compactFactor*s.snapshotBytes {
		return nil
	}
	_ = s.compact()
	return nil
}

func (s *Embedded) compact() error {
	frame := appendFrame(nil, encodeSnapshot(s.tree))
	if err := writeFileAtomically(snapshotName(s.dir, s.tree.zxid), frame); err != nil {
		return err
	}
	// From here on the snapshot is in force. Until a log that follows it is
	// open, nothing may be appended: it would go to a log that is ignored.
	old := s.log
	if err := s.startLog(s.tree.zxid, 0); err != nil {
		s.broken = fmt.Errorf("cannot begin a log after a snapshot, restart the broker: %w", err)
		return s.broken
	}
	s.snapshotBytes = int64(len(frame))
	_ = old.Close()
	files, err := listStoreFiles(s.dir)
	if err != nil {
		return err
	}
	return removeOlder(s.dir, files, s.tree.zxid)
}

// Close ends the session. Everything is durable already.
func (s *Embedded) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	close(s.ended)
	for _, ch := range s.watches {
		close(ch)
	}
	s.watches = nil
	return s.log.Close()
}

// storeFiles are the numbers of the files in a store's directory, ascending.
type storeFiles struct{ snapshots, logs []int64 }

const (
	snapshotSuffix = ".snapshot"
	logSuffix      = ".log"
	tempSuffix     = ".tmp"
)

func snapshotName(dir string, zxid int64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", zxid, snapshotSuffix))
}

func logName(dir string, base int64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", base, logSuffix))
}

func listStoreFiles(dir string) (storeFiles, error) {
	var out storeFiles
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out, err
	}
	for _, e := range entries {
		var n int64
		name, suffix := e.Name(), filepath.Ext(e.Name())
		if _, err := fmt.Sscanf(strings.TrimSuffix(name, suffix), "%020d", &n); err != nil {
			continue
		}
		switch suffix {
		case snapshotSuffix:
			out.snapshots = append(out.snapshots, n)
		case logSuffix:
			out.logs = append(out.logs, n)
		}
	}
	slices.Sort(out.snapshots)
	slices.Sort(out.logs)
	return out, nil
}

// removeOlder removes what the snapshot numbered base has made unneeded.
func removeOlder(dir string, files storeFiles, base int64) error {
	for _, n := range files.snapshots {
		if n < base {
			if err := os.Remove(snapshotName(dir, n)); err != nil {
				return err
			}
		}
	}
	for _, n := range files.logs {
		if n < base {
			if err := os.Remove(logName(dir, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeFileAtomically(path string, data []byte) error {
	temp := path + tempSuffix
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}
