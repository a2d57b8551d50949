package directory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// FS is what the sink needs of a file system: one directory. Names have no slashes. Methods are safe for concurrent use.
type FS interface {
	// List returns the names of all files.
	List() ([]string, error)
	// Create makes a new file for writing; fs.ErrExist if there is one.
	Create(name string) (File, error)
	// Open opens a file for reading; fs.ErrNotExist if there is none.
	Open(name string) (io.ReadCloser, error)
	// Publish gives a finished file its final name, at once and durably. fs.ErrExist, and nothing changed, if the name is taken.
	Publish(temporary, final string) error
	// Remove removes a file; fs.ErrNotExist if there is none.
	Remove(name string) error
}

// File is a file being written.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// osFS is a directory of the operating system.
type osFS struct{ dir string }

// OSFS is the local directory dir, which is made if it is not there.
func OSFS(dir string) (FS, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return osFS{dir}, nil
}

func (f osFS) path(name string) string { return filepath.Join(f.dir, name) }

func (f osFS) List() ([]string, error) {
	d, err := os.Open(f.dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

func (f osFS) Create(name string) (File, error) {
	return os.OpenFile(f.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

func (f osFS) Open(name string) (io.ReadCloser, error) { return os.Open(f.path(name)) }

func (f osFS) Remove(name string) error { return os.Remove(f.path(name)) }

// Publish links rather than renames: a rename replaces what has the name already.
func (f osFS) Publish(temporary, final string) error {
	err := os.Link(f.path(temporary), f.path(final))
	switch {
	case err == nil:
		if err := f.sync(); err != nil {
			return err
		}
		return f.Remove(temporary) // left over after a crash here: removed with the next recovery
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist):
		return err
	default:
		return f.rename(temporary, final)
	}
}

// rename is Publish for file systems without hard links. Between the look and the rename another worker could take the name, with
// the same rows in it.
func (f osFS) rename(temporary, final string) error {
	if _, err := os.Lstat(f.path(final)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("%s: %w", final, fs.ErrExist))
	}
	if err := os.Rename(f.path(temporary), f.path(final)); err != nil {
		return err
	}
	return f.sync()
}

// sync makes the directory's entries durable.
func (f osFS) sync() error {
	d, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
