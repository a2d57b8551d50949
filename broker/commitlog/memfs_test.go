package commitlog

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// memFS adapts pebble's crashable file system, with its error injection, to FS.
// It adds truncation, which pebble does not need, and writes that go half way.
type memFS struct {
	mem    *vfs.MemFS
	fs     vfs.FS // mem with injected errors
	faults *faults

	mu    sync.Mutex
	nodes map[string]*memNode // by path
}

// faults are what the file system does wrong. The zero value does nothing.
type faults struct {
	mu sync.Mutex
	// limited: spaceBytes may still be written before ENOSPC.
	limited    bool
	spaceBytes int
	// shortBytes, when shortSuffix is set, is how much of the next write to
	// such a file is done.
	shortSuffix string
	shortBytes  int
	// fail makes operations of a kind on paths with a suffix fail.
	fail map[errorfs.OpKind]string
	err  error
	// before is called before each operation.
	before func() error
	// calls counts operations by kind.
	calls map[errorfs.OpKind]int
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limited, f.shortSuffix, f.fail, f.before = false, "", nil, nil
}

// inject implements errorfs's injector.
func (f *faults) inject(op errorfs.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = make(map[errorfs.OpKind]int)
	}
	f.calls[op.Kind]++
	if f.before != nil {
		if err := f.before(); err != nil {
			return err
		}
	}
	if suffix, ok := f.fail[op.Kind]; ok && strings.HasSuffix(op.Path, suffix) {
		return f.err
	}
	return nil
}

// allow is how much of a write of n bytes is done, and its error.
func (f *faults) allow(path string, n int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shortSuffix != "" && strings.HasSuffix(path, f.shortSuffix) {
		f.shortSuffix = ""
		return min(n, f.shortBytes), io.ErrShortWrite
	}
	if !f.limited || n <= f.spaceBytes {
		f.spaceBytes -= n
		return n, nil
	}
	n, f.spaceBytes = f.spaceBytes, 0
	return n, &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
}

func newMemFS(mem *vfs.MemFS) *memFS {
	m := &memFS{mem: mem, faults: &faults{}, nodes: make(map[string]*memNode)}
	m.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(m.faults.inject))
	return m
}

// crash is the file system after a power cut: what was synced, and each block
// and name that was not with the given probability.
func (m *memFS) crash(percent int, seed uint64) *memFS {
	return newMemFS(m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, seed))}))
}

// memNode is one file; every handle of it shares the node.
type memNode struct {
	mu   sync.Mutex
	path string // empty once removed
	file vfs.File
	// moved: a truncation put a new file in the place of the old one, and a
	// sync must make that durable as well.
	moved bool
}

func (m *memFS) OpenFile(name string, flag int) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	info, err := m.mem.Stat(name)
	if err == nil && info.IsDir() {
		d, err := m.fs.OpenDir(name)
		return &memDir{d}, err
	}
	if err != nil && flag&os.O_CREATE == 0 {
		return nil, err
	}
	n := m.nodes[name]
	if n == nil {
		f, err := m.openNode(name)
		if err != nil {
			return nil, err
		}
		n = &memNode{path: name, file: f}
		m.nodes[name] = n
	}
	f := &memFile{m, n}
	if flag&os.O_TRUNC != 0 {
		return f, m.truncate(n, 0)
	}
	return f, nil
}

func (m *memFS) openNode(name string) (vfs.File, error) {
	if _, err := m.mem.Stat(name); err != nil {
		f, err := m.fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, err
		}
		f.Close()
	}
	return m.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
}

func (m *memFS) MkdirAll(dir string) error { return m.fs.MkdirAll(dir, 0o755) }

func (m *memFS) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fs.Rename(oldName, newName); err != nil {
		return err
	}
	moved := make(map[string]*memNode)
	for path, n := range m.nodes {
		if path == oldName || strings.HasPrefix(path, oldName+"/") {
			delete(m.nodes, path)
			n.path = newName + strings.TrimPrefix(path, oldName)
			moved[n.path] = n
		}
	}
	if target := m.nodes[newName]; target != nil {
		target.path = ""
		delete(m.nodes, newName)
	}
	for path, n := range moved {
		m.nodes[path] = n
	}
	return nil
}

func (m *memFS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fs.Remove(name); err != nil {
		return err
	}
	if n := m.nodes[name]; n != nil {
		n.path = ""
		delete(m.nodes, name)
	}
	return nil
}

func (m *memFS) List(dir string) ([]Entry, error) {
	names, err := m.fs.List(dir)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, name := range names {
		info, err := m.mem.Stat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{Name: name, Size: info.Size(), ModTime: testTime, Dir: info.IsDir()})
	}
	return entries, nil
}

// truncate puts a copy of the right length in the file's place. Called with m.mu held.
func (m *memFS) truncate(n *memNode, size int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	info, err := n.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() == size {
		return nil
	}
	data := make([]byte, size)
	if _, err := n.file.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n.path == "" {
		n.file = vfs.NewMemFile(data)
		return nil
	}
	temp := n.path + ".truncating"
	f, err := m.mem.OpenReadWrite(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	f.Close()
	if err := m.mem.Rename(temp, n.path); err != nil {
		return err
	}
	n.file.Close()
	n.file, err = m.fs.OpenReadWrite(n.path, vfs.WriteCategoryUnspecified)
	n.moved = true
	return err
}

// memFile is one handle of a node.
type memFile struct {
	fs   *memFS
	node *memNode
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.node.file.ReadAt(p, off)
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	n, refused := f.fs.faults.allow(f.node.path, len(p))
	n, err := f.node.file.WriteAt(p[:n], off)
	if refused != nil {
		err = refused
	}
	return n, err
}

func (f *memFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.fs.truncate(f.node, size)
}

func (f *memFile) Sync() error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if err := f.node.file.Sync(); err != nil || !f.node.moved || f.node.path == "" {
		return err
	}
	f.node.moved = false
	d, err := f.fs.mem.OpenDir(filepath.Dir(f.node.path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (f *memFile) Close() error { return nil }

// memDir is an open directory.
type memDir struct{ vfs.File }

func (d *memDir) Truncate(int64) error { return errors.New("truncate of a directory") }
