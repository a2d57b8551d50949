package agent

import (
	"bytes"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-io/sluice/agent/journal"
)

// crashFS is a journal's file system in memory that forgets what was not synced when the power is cut. A fuse stops it: in the middle of a
// write, before or after it. All that it does follows from the generator given to powerCut, so that a seed replays.
type crashFS struct {
	mu   sync.Mutex // guards all below it
	dirs map[string]*crashDir
	fuse *fuse
	part int
}

// crashDir are the names of files in a directory, and those of them that are synced.
type crashDir struct {
	files, synced map[string]*crashNode
	durable       bool // the directory above it is synced
}

// crashNode is a file's content, and what it was when it was synced. Files of a journal get shorter only by what was not synced.
type crashNode struct {
	data, synced []byte
}

// crashBlockBytes is in what pieces a power cut takes or leaves what was not synced.
const crashBlockBytes = 4 << 10

func newCrashFS() *crashFS { return &crashFS{dirs: map[string]*crashDir{}, fuse: &fuse{}} }

// powerCut is what is left: what was synced, and some of what was not.
func (c *crashFS) powerCut(rnd *rand.Rand) *crashFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, percent := newCrashFS(), rnd.IntN(101)
	stays := func() bool { return rnd.IntN(100) < percent }
	for _, dir := range slices.Sorted(maps.Keys(c.dirs)) {
		d := c.dirs[dir]
		if !d.durable && !stays() {
			continue
		}
		names := maps.Clone(d.synced)
		for _, name := range slices.Sorted(maps.Keys(d.files)) {
			if stays() {
				names[name] = d.files[name]
			}
		}
		left := map[string]*crashNode{}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			left[name] = names[name].powerCut(stays)
		}
		out.dirs[dir] = &crashDir{files: left, synced: maps.Clone(left), durable: true}
	}
	return out
}

// powerCut is the content that is left. Blocks before one that stayed are as they were synced, or zeroes, when they did not.
func (n *crashNode) powerCut(stays func() bool) *crashNode {
	data := bytes.Clone(n.synced)
	for at := 0; at < len(n.data); at += crashBlockBytes {
		end := min(at+crashBlockBytes, len(n.data))
		if end <= len(n.synced) && bytes.Equal(n.data[at:end], n.synced[at:end]) || !stays() {
			continue
		}
		data = append(data, make([]byte, max(end-len(data), 0))...)
		copy(data[at:], n.data[at:end])
	}
	return &crashNode{data: data, synced: bytes.Clone(data)}
}

func (c *crashFS) step() (percent int) {
	return c.fuse.step(func() int { // a write is cut at one place or another
		c.part = (c.part + 37) % 101
		return c.part
	})
}

func (c *crashFS) dir(name string) *crashDir { return c.dirs[filepath.Clean(name)] }

// find is a file and the directory that it is in; nil when there is none.
func (c *crashFS) find(name string) (*crashDir, *crashNode) {
	d := c.dir(filepath.Dir(name))
	if d == nil {
		return nil, nil
	}
	return d, d.files[filepath.Base(name)]
}

func (c *crashFS) MkdirAll(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	above := false // those above it stand for what was there before
	for dir = filepath.Clean(dir); c.dir(dir) == nil; dir = filepath.Dir(dir) {
		c.dirs[dir] = &crashDir{files: map[string]*crashNode{}, synced: map[string]*crashNode{}, durable: above}
		above = true
	}
	return nil
}

func (c *crashFS) Create(name string) (journal.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.step() == 0 {
		return nil, errKilled
	}
	d := c.dir(filepath.Dir(name))
	if d == nil {
		return nil, os.ErrNotExist
	}
	if d.files[filepath.Base(name)] != nil {
		return nil, os.ErrExist
	}
	n := &crashNode{}
	d.files[filepath.Base(name)] = n
	return &crashFile{fs: c, node: n}, nil
}

func (c *crashFS) Open(name string) (journal.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dir(name) != nil {
		return &crashFile{fs: c, dir: filepath.Clean(name)}, nil
	}
	if _, n := c.find(name); n != nil {
		return &crashFile{fs: c, node: n}, nil
	}
	return nil, os.ErrNotExist
}

func (c *crashFS) Remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.step() == 0 {
		return errKilled
	}
	d, n := c.find(name)
	if n == nil {
		return os.ErrNotExist
	}
	delete(d.files, filepath.Base(name))
	return nil
}

func (c *crashFS) Reuse(name, as string) (journal.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.step() == 0 {
		return nil, errKilled
	}
	d, n := c.find(name)
	if n == nil {
		return nil, os.ErrNotExist
	}
	delete(d.files, filepath.Base(name))
	d.files[filepath.Base(as)] = n
	return &crashFile{fs: c, node: n}, nil
}

func (c *crashFS) Truncate(name string, size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.step() == 0 {
		return errKilled
	}
	_, n := c.find(name)
	if n == nil {
		return os.ErrNotExist
	}
	n.data = n.data[:size]
	return nil
}

func (c *crashFS) List(dir string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.dir(dir)
	if d == nil {
		return nil, os.ErrNotExist
	}
	return slices.Sorted(maps.Keys(d.files)), nil
}

// crashFile is an open file, or an open directory.
type crashFile struct {
	fs   *crashFS
	node *crashNode
	at   int    // where the next write goes
	dir  string // of a directory
}

func (f *crashFile) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	percent := f.fs.step()
	done := p[:len(p)*percent/100]
	over := copy(f.node.data[f.at:], done)
	f.node.data = append(f.node.data, done[over:]...)
	f.at += len(done)
	if percent < 100 {
		return len(done), errKilled
	}
	return len(done), nil
}

func (f *crashFile) ReadAt(p []byte, at int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if at >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *crashFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.step() < 100 {
		return errKilled
	}
	if f.dir != "" {
		d := f.fs.dir(f.dir)
		d.synced = maps.Clone(d.files)
		for name, below := range f.fs.dirs {
			below.durable = below.durable || filepath.Dir(name) == f.dir
		}
		return nil
	}
	f.node.synced = bytes.Clone(f.node.data)
	return nil
}

func (f *crashFile) Close() error { return nil }

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
func (m movedFS) Truncate(name string, size int64) error   { return m.fs.Truncate(m.path(name), size) }
func (m movedFS) Reuse(name, as string) (journal.File, error) {
	return m.fs.Reuse(m.path(name), m.path(as))
}
func (m movedFS) List(dir string) ([]string, error) { return m.fs.List(m.path(dir)) }
