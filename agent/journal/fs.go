package journal

import (
	"io"
	"os"
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
type OSFS struct{}

// MkdirAll implements FS.
func (OSFS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

// Create implements FS.
func (OSFS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
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

// Reuse implements FS.
func (OSFS) Reuse(name, as string) (File, error) {
	if err := os.Rename(name, as); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(as, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return f, nil
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
