package journal

import (
	"io"
	"os"

	"github.com/sluice-io/sluice/internal/quickio"
)

// FS is what a journal asks of a file system.
type FS interface {
	MkdirAll(dir string) error
	// Create makes a file to append to; one that is there is an error.
	Create(name string) (File, error)
	// Open opens a file for reading, or a file or a directory for Sync.
	Open(name string) (File, error)
	Remove(name string) error
	// Reuse gives a file another name and opens it to be written over from its beginning; what was in it stays until then.
	Reuse(name, as string) (File, error)
	// Truncate gives back what a file has beyond size bytes.
	Truncate(name string, size int64) error
	// List returns the names in a directory, in any order.
	List(dir string) ([]string, error)
}

// File is an open file. Writes go on where the one before ended.
type File interface {
	io.Writer
	io.ReaderAt
	// Sync makes the file's content, or a directory's names, durable.
	Sync() error
	Close() error
}

// OSFS is the operating system's file system.
type OSFS struct {
	// Writes are the quick writes of those that share it; nil means that all are ordinary.
	Writes *quickio.Writes
}

// MkdirAll implements FS.
func (OSFS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

// Create implements FS.
func (fs OSFS) Create(name string) (File, error) {
	return fs.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func (fs OSFS) open(name string, flag int, perm os.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &osFile{File: f, writes: fs.Writes}, nil
}

// osFile is a file that is written from its beginning on.
type osFile struct {
	*os.File
	writes *quickio.Writes
	at     int64
}

// Write implements io.Writer.
func (f *osFile) Write(p []byte) (n int, err error) {
	if f.writes == nil {
		n, err = f.File.WriteAt(p, f.at)
	} else {
		n, err = f.writes.WriteAt(f.File, p, f.at)
	}
	f.at += int64(n)
	return n, err
}

// Open implements FS.
func (OSFS) Open(name string) (File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Remove implements FS.
func (OSFS) Remove(name string) error { return os.Remove(name) }

// Truncate implements FS.
func (OSFS) Truncate(name string, size int64) error { return os.Truncate(name, size) }

// Reuse implements FS.
func (fs OSFS) Reuse(name, as string) (File, error) {
	if err := os.Rename(name, as); err != nil {
		return nil, err
	}
	return fs.open(as, os.O_RDWR, 0)
}

// List implements FS.
func (OSFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}
