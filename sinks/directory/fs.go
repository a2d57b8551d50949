package directory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// FS is what the sink needs of a file system: a tree below one directory, the root. Names are relative to it, with slashes; "" is the root itself. Methods are
// safe for concurrent use. A method that failed may have done its work all the same, now or a little later: the sink counts on that.
type FS interface {
	// List returns what is in a directory; fs.ErrNotExist if there is none.
	List(dir string) ([]Entry, error)
	// Create makes a new file for writing, and the directories above it but the root: fs.ErrNotExist if that is not there, fs.ErrExist if the file is.
	Create(name string) (File, error)
	// Open opens a file for reading; fs.ErrNotExist if there is none.
	Open(name string) (io.ReadCloser, error)
	// Rename gives a file or a directory another name, at once and durably, and makes the directories above it. A file takes the place of a file;
	// a directory never that of one that holds anything: fs.ErrExist, and nothing changed. fs.ErrNotExist if there is no such file.
	Rename(from, to string) error
	// Remove removes a file, or a directory with all that it holds; fs.ErrNotExist if there is none.
	Remove(name string) error
}

// Entry is a name in a directory.
type Entry struct {
	Name string
	Dir  bool
}

// File is a file being written. It counts as written when Close has returned nil; after an error of any method it is lost.
type File interface {
	io.Writer
	// Close ends the file. Where the file system can, and is told to, the content is durable then.
	Close() error
}

// OSConfig says how files of a local directory are made.
type OSConfig struct {
	FileMode, DirMode fs.FileMode // zero: 0644 and 0755
	NoSync            bool        // a power cut may cost what counts as stored
}

// osFS is a directory of the operating system.
type osFS struct {
	dir string
	cfg OSConfig
}

// OSFS is the local directory dir, which is made if it is not there.
func OSFS(dir string, cfg OSConfig) (FS, error) {
	if cfg.FileMode == 0 {
		cfg.FileMode = 0o644
	}
	if cfg.DirMode == 0 {
		cfg.DirMode = 0o755
	}
	return osFS{dir, cfg}, os.MkdirAll(dir, cfg.DirMode)
}

func (f osFS) path(name string) string { return filepath.Join(f.dir, filepath.FromSlash(name)) }

func (f osFS) List(dir string) ([]Entry, error) {
	d, err := os.Open(f.path(dir))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	found, err := d.ReadDir(-1)
	entries := make([]Entry, len(found))
	for i, e := range found {
		entries[i] = Entry{Name: e.Name(), Dir: e.IsDir()}
	}
	return entries, err
}

func (f osFS) Create(name string) (File, error) {
	if err := f.makeParents(name); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(f.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.cfg.FileMode)
	if err != nil {
		return nil, err
	}
	if err := file.Chmod(f.cfg.FileMode); err != nil { // whatever the umask says
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return osFile{file, f.cfg.NoSync}, nil
}

// makeParents makes the directories above name, below the root.
func (f osFS) makeParents(name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	if st, err := os.Stat(f.path(dir)); err == nil && st.IsDir() {
		return nil
	}
	at := ""
	for _, segment := range strings.Split(dir, "/") {
		above := at
		at = path.Join(at, segment)
		err := os.Mkdir(f.path(at), f.cfg.DirMode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = os.Chmod(f.path(at), f.cfg.DirMode)
		}
		if err == nil {
			err = f.sync(above)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// osFile is a file that is synced when it is closed.
type osFile struct {
	*os.File
	noSync bool
}

func (f osFile) Close() error {
	var err error
	if !f.noSync {
		err = f.Sync()
	}
	return errors.Join(err, f.File.Close())
}

func (f osFS) Open(name string) (io.ReadCloser, error) { return os.Open(f.path(name)) }

func (f osFS) Remove(name string) error {
	if _, err := os.Lstat(f.path(name)); err != nil {
		return err
	}
	return os.RemoveAll(f.path(name))
}

func (f osFS) Rename(from, to string) error {
	if err := f.makeParents(to); err != nil {
		return err
	}
	err := os.Rename(f.path(from), f.path(to))
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("%s: %w", to, fs.ErrExist)
	}
	if err != nil {
		return err
	}
	return f.sync(parentOf(to))
}

// parentOf is the directory of a name, "" for the root.
func parentOf(name string) string {
	if dir := path.Dir(name); dir != "." {
		return dir
	}
	return ""
}

// sync makes a directory's entries durable.
func (f osFS) sync(dir string) error {
	if f.cfg.NoSync {
		return nil
	}
	d, err := os.Open(f.path(dir))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
