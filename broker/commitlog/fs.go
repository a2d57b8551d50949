package commitlog

import (
	"fmt"
	"io"
	"os"
	"time"
)

// FS is what a log asks of a file system. Names are paths as the caller of Open
// writes them. Safe for concurrent use.
type FS interface {
	// OpenFile opens a file, or a directory for File.Sync, with the os
	// package's flags; made files are for their owner and group to read.
	OpenFile(name string, flag int) (File, error)
	// MkdirAll makes a directory and its parents; one that is there is no error.
	MkdirAll(dir string) error
	Rename(oldName, newName string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// List returns a directory's entries in any order; a missing one gives fs.ErrNotExist.
	List(dir string) ([]Entry, error)
}

// File is an open file. *os.File is one. Safe for concurrent use.
type File interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	// Sync makes the file's content and size, or a directory's entries, durable.
	Sync() error
	Close() error
}

// Entry is one name in a directory.
type Entry struct {
	Name    string
	Size    int64
	ModTime time.Time
	Dir     bool
}

// OSFS is the operating system's file system. Its files are *os.File, so that a
// Region of one can be sent with sendfile.
type OSFS struct{}

// OpenFile implements FS.
func (OSFS) OpenFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o640)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// MkdirAll implements FS.
func (OSFS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o750) }

// Rename implements FS.
func (OSFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// Remove implements FS.
func (OSFS) Remove(name string) error { return os.Remove(name) }

// List implements FS.
func (OSFS) List(dir string) ([]Entry, error) {
	des, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(des))
	for _, de := range des {
		info, err := de.Info()
		if os.IsNotExist(err) {
			continue // removed since the directory was read
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{Name: de.Name(), Size: info.Size(), ModTime: info.ModTime(), Dir: de.IsDir()})
	}
	return entries, nil
}

// SyncDir makes a directory's entries durable.
func SyncDir(fs FS, dir string) error {
	d, err := fs.OpenFile(dir, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}
