package replica_test

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-io/sluice/broker/commitlog"
)

// disk is a file system in memory that a power cut takes what was not synced
// from. It differs from pebble's in two ways that a simulation of many seeds
// needs: the same seed always leaves the same, and it costs microseconds. Of a
// file, each page written since its last sync is kept or lost; of a directory's
// names, a beginning of the changes since its last sync is kept. Directories
// themselves are durable at once.
type disk struct {
	names   map[string]*diskFile
	durable map[string]*diskFile
	dirs    map[string]bool
	journal []nameChange
	now     func() time.Time
}

type diskFile struct {
	data   []byte
	synced []byte
}

// nameChange is a change of a directory's names that is not durable yet.
type nameChange struct {
	dir   string
	apply func(map[string]*diskFile)
}

// diskPage is how much is kept or lost as a whole.
const diskPage = 64

func newDisk(now func() time.Time) *disk {
	return &disk{names: map[string]*diskFile{}, durable: map[string]*diskFile{}, dirs: map[string]bool{"/": true}, now: now}
}

// change makes a change of names that the next sync of its directory makes durable.
func (d *disk) change(dir string, apply func(map[string]*diskFile)) {
	apply(d.names)
	d.journal = append(d.journal, nameChange{dir, apply})
}

func (d *disk) syncDir(dir string) {
	rest := d.journal[:0]
	for _, c := range d.journal {
		if c.dir == dir {
			c.apply(d.durable)
		} else {
			rest = append(rest, c)
		}
	}
	clear(d.journal[len(rest):])
	d.journal = rest
}

// powerCut is the disk after a power cut.
func (d *disk) powerCut(rng *rand.Rand) *disk {
	next := newDisk(d.now)
	next.dirs = d.dirs
	kept := map[string]int{}
	for _, c := range d.journal {
		if _, ok := kept[c.dir]; !ok {
			n := 0
			for _, other := range d.journal {
				if other.dir == c.dir {
					n++
				}
			}
			kept[c.dir] = rng.IntN(n + 1)
		}
		if kept[c.dir] > 0 {
			kept[c.dir]--
			c.apply(d.durable)
		}
	}
	for _, name := range sortedNames(d.durable) {
		data := d.durable[name].powerCut(rng)
		f := &diskFile{data: data, synced: slices.Clone(data)}
		next.names[name], next.durable[name] = f, f
	}
	return next
}

func sortedNames(m map[string]*diskFile) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// powerCut is what is left of a file. The usual outcomes, all or nothing of what
// was written since the last sync, are more frequent than a mixture.
func (f *diskFile) powerCut(rng *rand.Rand) []byte {
	if slices.Equal(f.data, f.synced) {
		return slices.Clone(f.data)
	}
	switch rng.IntN(4) {
	case 0:
		return slices.Clone(f.data)
	case 1, 2:
		return slices.Clone(f.synced)
	}
	out := slices.Clone(f.synced)
	for at := 0; at < len(f.data); at += diskPage {
		end := min(at+diskPage, len(f.data))
		if at < len(f.synced) && end <= len(f.synced) && slices.Equal(f.data[at:end], f.synced[at:end]) || rng.IntN(2) == 0 {
			continue
		}
		if need := end - len(out); need > 0 {
			out = append(out, make([]byte, need)...)
		}
		copy(out[at:end], f.data[at:end])
	}
	return out
}

// OpenFile implements commitlog.FS.
func (d *disk) OpenFile(name string, flag int) (commitlog.File, error) {
	if d.dirs[name] {
		return diskDir{d, name}, nil
	}
	f := d.names[name]
	switch {
	case f == nil && flag&os.O_CREATE == 0:
		return nil, &os.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case f == nil:
		f = &diskFile{}
		d.change(filepath.Dir(name), func(m map[string]*diskFile) { m[name] = f })
	case flag&os.O_TRUNC != 0:
		f.data = nil
	}
	return f, nil
}

// MkdirAll implements commitlog.FS.
func (d *disk) MkdirAll(dir string) error {
	for ; !d.dirs[dir]; dir = filepath.Dir(dir) {
		d.dirs[dir] = true
	}
	return nil
}

// Rename implements commitlog.FS.
func (d *disk) Rename(from, to string) error {
	if d.dirs[from] {
		// What is pending belongs to this directory and not to a later one of the name.
		d.syncDir(from)
		delete(d.dirs, from)
		d.dirs[to] = true
		d.change(filepath.Dir(from), func(m map[string]*diskFile) {
			for _, name := range sortedNames(m) {
				if strings.HasPrefix(name, from+"/") {
					m[to+strings.TrimPrefix(name, from)] = m[name]
					delete(m, name)
				}
			}
		})
		return nil
	}
	if d.names[from] == nil {
		return &os.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	d.change(filepath.Dir(from), func(m map[string]*diskFile) {
		if f := m[from]; f != nil {
			m[to] = f
			delete(m, from)
		}
	})
	return nil
}

// Remove implements commitlog.FS.
func (d *disk) Remove(name string) error {
	if d.dirs[name] {
		delete(d.dirs, name)
		return nil
	}
	if d.names[name] == nil {
		return &os.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	d.change(filepath.Dir(name), func(m map[string]*diskFile) { delete(m, name) })
	return nil
}

// List implements commitlog.FS.
func (d *disk) List(dir string) ([]commitlog.Entry, error) {
	if !d.dirs[dir] {
		return nil, &os.PathError{Op: "list", Path: dir, Err: fs.ErrNotExist}
	}
	var out []commitlog.Entry
	for name, f := range d.names {
		if filepath.Dir(name) == dir {
			out = append(out, commitlog.Entry{Name: filepath.Base(name), Size: int64(len(f.data)), ModTime: d.now()})
		}
	}
	for name := range d.dirs {
		if name != dir && filepath.Dir(name) == dir {
			out = append(out, commitlog.Entry{Name: filepath.Base(name), ModTime: d.now(), Dir: true})
		}
	}
	slices.SortFunc(out, func(a, b commitlog.Entry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (f *diskFile) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	if need := int(off) + len(p) - len(f.data); need > 0 {
		f.data = append(f.data, make([]byte, need)...)
	}
	return copy(f.data[off:], p), nil
}

func (f *diskFile) Truncate(size int64) error {
	if size > int64(len(f.data)) {
		f.data = append(f.data, make([]byte, int(size)-len(f.data))...)
	}
	f.data = f.data[:size]
	return nil
}

func (f *diskFile) Sync() error {
	f.synced = append(f.synced[:0], f.data...)
	return nil
}

func (f *diskFile) Close() error { return nil }

// diskDir is an open directory.
type diskDir struct {
	d    *disk
	name string
}

var errIsDir = errors.New("is a directory")

func (d diskDir) ReadAt([]byte, int64) (int, error)  { return 0, errIsDir }
func (d diskDir) WriteAt([]byte, int64) (int, error) { return 0, errIsDir }
func (d diskDir) Truncate(int64) error               { return errIsDir }
func (d diskDir) Close() error                       { return nil }

// Sync makes the names in the directory durable.
func (d diskDir) Sync() error {
	d.d.syncDir(d.name)
	return nil
}
