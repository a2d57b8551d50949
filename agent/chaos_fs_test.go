package agent

import (
	"math/rand/v2"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sluice-io/sluice/agent/journal"
)

// crashFS is pebble's crashable file system as a journal's. A fuse stops it: in the middle of a write, before or after it.
type crashFS struct {
	mem  *vfs.MemFS
	fuse *fuse
	part int
}

func newCrashFS() *crashFS { return &crashFS{mem: vfs.NewCrashableMem()} }

// powerCut is what is left: what was synced, and some of what was not.
func (c *crashFS) powerCut(rnd *rand.Rand) *crashFS {
	return &crashFS{fuse: &fuse{}, mem: c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})}
}

func (c *crashFS) step() (percent int) {
	return c.fuse.step(func() int { // a write is cut at one place or another
		c.part = (c.part + 37) % 101
		return c.part
	})
}

func (c *crashFS) MkdirAll(dir string) error { return c.mem.MkdirAll(dir, 0o700) }

func (c *crashFS) Create(name string) (journal.File, error) {
	if c.step() == 0 {
		return nil, errKilled
	}
	if _, err := c.mem.Stat(name); err == nil {
		return nil, os.ErrExist
	}
	f, err := c.mem.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return &crashFile{File: f, fs: c, name: name}, nil
}

func (c *crashFS) Open(name string) (journal.File, error) {
	info, err := c.mem.Stat(name)
	if err != nil {
		return nil, err
	}
	open := c.mem.OpenDir
	if !info.IsDir() {
		open = func(name string) (vfs.File, error) { return c.mem.Open(name) }
	}
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	return &crashFile{File: f, fs: c, name: name}, nil
}

func (c *crashFS) Remove(name string) error {
	if c.step() == 0 {
		return errKilled
	}
	return c.mem.Remove(name)
}

func (c *crashFS) List(dir string) ([]string, error) { return c.mem.List(dir) }

type crashFile struct {
	vfs.File
	fs   *crashFS
	name string
}

func (f *crashFile) Write(p []byte) (int, error) {
	percent := f.fs.step()
	n, err := f.File.Write(p[:len(p)*percent/100])
	if percent < 100 {
		return n, errKilled
	}
	return n, err
}

// ReadAt reads through a new handle: the one that writes cannot.
func (f *crashFile) ReadAt(p []byte, at int64) (int, error) {
	r, err := f.fs.mem.Open(f.name)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return r.ReadAt(p, at)
}

func (f *crashFile) Sync() error {
	if f.fs.step() < 100 {
		return errKilled
	}
	return f.File.Sync()
}

// movedFS is a crashFS whose directory has another name since.
type movedFS struct {
	fs       *crashFS
	from, to string
}

func (m movedFS) path(name string) string { return strings.Replace(name, m.to, m.from, 1) }

func (m movedFS) MkdirAll(dir string) error                { return m.fs.MkdirAll(m.path(dir)) }
func (m movedFS) Create(name string) (journal.File, error) { return m.fs.Create(m.path(name)) }
func (m movedFS) Open(name string) (journal.File, error)   { return m.fs.Open(m.path(name)) }
func (m movedFS) Remove(name string) error                 { return m.fs.Remove(m.path(name)) }
func (m movedFS) List(dir string) ([]string, error)        { return m.fs.List(m.path(dir)) }
