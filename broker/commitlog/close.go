package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Close makes everything durable, writes what a fast start needs and closes the
// files. After a Close of every log without an error the broker may start with
// OpenOptions.Clean. Regions that are out stay readable until their release.
func (l *Log) Close() error {
	defer l.awaitCleaning()()
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		l.closeFiles()
		return err
	}
	err := l.closeClean()
	l.closeFiles()
	if err != nil {
		return fmt.Errorf("close log %s: %w", l.dir, err)
	}
	return nil
}

// awaitCleaning keeps compaction off the log from now on and waits for the one
// under way, which stops soon. The caller calls what it returns in the end.
func (l *Log) awaitCleaning() (release func()) {
	l.stopCleaning.Store(true)
	l.cleanMu.Lock()
	return l.cleanMu.Unlock
}

func (l *Log) closeClean() error {
	if err := l.active().seal(); err != nil {
		return err
	}
	snapshot, err := l.writeSnapshot(l.end)
	if err != nil {
		return err
	}
	l.state.Lock()
	l.unsyncedFiles = append(l.unsyncedFiles, snapshot)
	l.dirDirty = true
	l.state.Unlock()
	if _, err := l.flush(); err != nil {
		return err
	}
	if err := l.active().syncIndexes(); err != nil {
		return err
	}
	l.recoveryPoint = l.end
	return nil
}

// Abort closes the files and leaves everything else as a crash would.
func (l *Log) Abort() {
	defer l.awaitCleaning()()
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeFiles()
}

// closeFiles ends all use of the log. Called with flushMu and mu held.
func (l *Log) closeFiles() {
	l.state.Lock()
	defer l.state.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	l.active().file.release()
	for _, s := range l.segments {
		s.drop()
	}
	for _, d := range l.deleted {
		d.segment.drop()
	}
}

// DeletedDirSuffix ends the name, after a dot, of a directory that is being removed.
const DeletedDirSuffix = "-delete"

// dirNameBytesMax is the longest name that file systems take.
const dirNameBytesMax = 255

// Delete closes the log and removes its directory: it is renamed first, so that
// a crash on the way leaves something that RemoveDeletedDirs removes and never a
// log with holes. Regions that are out stay readable until their release.
func (l *Log) Delete() error {
	target, err := l.Bury()
	if err != nil {
		return err
	}
	if err := removeDir(l.fs, target); err != nil {
		return fmt.Errorf("delete log %s: %w", l.dir, err)
	}
	return nil
}

// Bury closes the log and renames its directory to one that RemoveDeletedDirs
// removes, which it returns: Delete for those who must not wait for the removal.
func (l *Log) Bury() (dir string, err error) {
	defer l.awaitCleaning()()
	l.flushMu.Lock()
	defer l.flushMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeFiles()
	target, err := l.freeDeletedName()
	if err != nil {
		return "", fmt.Errorf("delete log %s: %w", l.dir, err)
	}
	if err := l.fs.Rename(l.dir, target); err != nil {
		return "", fmt.Errorf("delete log %s: %w", l.dir, err)
	}
	if err := SyncDir(l.fs, filepath.Dir(target)); err != nil {
		return "", fmt.Errorf("delete log %s: %w", l.dir, err)
	}
	return target, nil
}

// freeDeletedName is a name for the directory that nothing has: an earlier log
// of the same name may still be about to go. It looks at the candidates only,
// not at the directory: a topic's partitions may be thousands.
func (l *Log) freeDeletedName() (string, error) {
	parent, name := filepath.Split(l.dir)
	for i := 0; ; i++ {
		suffix := fmt.Sprintf(".%032x%s", i, DeletedDirSuffix)
		candidate := filepath.Join(parent, name[:min(len(name), dirNameBytesMax-len(suffix))]+suffix)
		if _, err := l.fs.List(candidate); isNotExist(err) {
			return candidate, nil
		} else if err != nil {
			return "", err
		}
	}
}

// removeDir removes a log's directory and the files in it.
func removeDir(fs FS, dir string) error {
	entries, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := fs.Remove(filepath.Join(dir, e.Name)); err != nil && !isNotExist(err) {
			return err
		}
	}
	return fs.Remove(dir)
}

// RemoveDeletedDirs removes, in a data directory, what is left of logs whose
// Delete did not finish. It goes on after an error and returns the names that went.
func RemoveDeletedDirs(fs FS, dataDir string) (removed []string, err error) {
	entries, err := fs.List(dataDir)
	if err != nil {
		return nil, fmt.Errorf("remove deleted logs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.Dir || !strings.HasSuffix(e.Name, DeletedDirSuffix) || !strings.Contains(e.Name, ".") {
			continue
		}
		if err := removeDir(fs, filepath.Join(dataDir, e.Name)); err != nil {
			errs = append(errs, fmt.Errorf("remove deleted log %s: %w", e.Name, err))
			continue
		}
		removed = append(removed, e.Name)
	}
	return removed, errors.Join(errs...)
}

// DirName is the name of a partition's directory, TOPIC-PARTITION.
func DirName(topic string, partition int32) string {
	return topic + "-" + strconv.Itoa(int(partition))
}

// ParseDirName reads what DirName made; ok is false for any other name, also
// for the directory of a deleted log.
func ParseDirName(name string) (topic string, partition int32, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(name[i+1:], 10, 32)
	if err != nil || n < 0 || name[i+1] == '+' {
		return "", 0, false
	}
	return name[:i], int32(n), true
}
