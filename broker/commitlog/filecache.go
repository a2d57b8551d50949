package commitlog

import (
	"container/list"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/sluice-io/sluice/internal/quickio"
)

// privateFilesMax is the limit of unused open files of a log that shares no FileCache.
const privateFilesMax = 16

// FileCache bounds the files that the logs which share it keep open without
// using them: index files and the data files of closed segments. They are opened
// when they are read and closed in the order of their last use. Files in use stay
// open whatever the limit, so open files number at most the limit, plus one per
// log for its active segment, plus one per region on its way to a client.
// Safe for concurrent use.
type FileCache struct {
	// pages are buffers for index lookups, one for a moment each.
	pages  sync.Pool
	writes *quickio.Writes

	mu      sync.Mutex
	maxIdle int
	// idle holds the open files nobody uses, the longest unused at the back.
	idle *list.List
	open int
}

// NewFileCache returns a cache that keeps at most maxIdle unused files open.
func NewFileCache(maxIdle int) *FileCache {
	c := &FileCache{maxIdle: max(maxIdle, 0), idle: list.New(), writes: quickio.NewWrites(runtime.GOMAXPROCS(0))}
	c.pages.New = func() any { return new(indexPage) }
	return c
}

// OpenFiles is the number of files that are open now.
func (c *FileCache) OpenFiles() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// cachedFile is a file that a FileCache opens and closes. Every use lies
// between reserve and release.
type cachedFile struct {
	cache *FileCache
	fs    FS

	// openMu keeps opening and renaming apart; it is taken before cache.mu.
	openMu sync.Mutex
	name   string

	// Guarded by cache.mu.
	file    File
	uses    int
	idleAt  *list.Element
	dropped bool
}

func (c *FileCache) add(fs FS, name string) *cachedFile {
	return &cachedFile{cache: c, fs: fs, name: name}
}

// reserve keeps the file from being closed or removed until release. It does no
// I/O, so that it can be called under a log's state lock.
func (f *cachedFile) reserve() {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	f.uses++
	if f.idleAt != nil {
		f.cache.idle.Remove(f.idleAt)
		f.idleAt = nil
	}
}

// release ends a use. After the last one the file counts against the cache's
// limit, or is closed when it was dropped meanwhile.
func (f *cachedFile) release() {
	c := f.cache
	c.mu.Lock()
	f.uses--
	var victims []File
	if f.uses == 0 && f.file != nil {
		if f.dropped {
			victims = append(victims, c.closing(f))
		} else {
			f.idleAt = c.idle.PushFront(f)
			victims = c.trim()
		}
	}
	c.mu.Unlock()
	closeAll(victims)
}

// trim takes unused files out of the cache until they are within its limit. Called
// with c.mu held; the caller closes what it returns, after unlocking.
func (c *FileCache) trim() (victims []File) {
	for c.idle.Len() > c.maxIdle {
		victims = append(victims, c.closing(c.idle.Back().Value.(*cachedFile)))
	}
	return victims
}

// closing takes an unused file out of the cache. Called with c.mu held.
func (c *FileCache) closing(f *cachedFile) File {
	if f.idleAt != nil {
		c.idle.Remove(f.idleAt)
		f.idleAt = nil
	}
	file := f.file
	f.file = nil
	c.open--
	return file
}

// closeAll closes files that were only read or synced: a failed close tells nothing.
func closeAll(files []File) {
	for _, f := range files {
		f.Close()
	}
}

// get returns the open file of a reserved cachedFile, opening it if need be.
func (f *cachedFile) get(flag int) (File, error) {
	if file := f.current(); file != nil {
		return file, nil
	}
	f.openMu.Lock()
	defer f.openMu.Unlock()
	if file := f.current(); file != nil {
		return file, nil
	}
	file, err := f.fs.OpenFile(f.name, os.O_RDWR|flag)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.name, err)
	}
	c := f.cache
	c.mu.Lock()
	f.file = file
	c.open++
	c.mu.Unlock()
	return file, nil
}

func (f *cachedFile) current() File {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	return f.file
}

// with runs fn on the open file.
func (f *cachedFile) with(flag int, fn func(File) error) error {
	f.reserve()
	defer f.release()
	file, err := f.get(flag)
	if err != nil {
		return err
	}
	return fn(file)
}

// rename moves the file on disk; an open one stays open.
func (f *cachedFile) rename(name string) error {
	f.openMu.Lock()
	defer f.openMu.Unlock()
	if err := f.fs.Rename(f.name, name); err != nil {
		return err
	}
	f.name = name
	return nil
}

// setName gives another name to a file that is not on disk.
func (f *cachedFile) setName(name string) {
	f.openMu.Lock()
	defer f.openMu.Unlock()
	f.name = name
}

// path is the file's present name.
func (f *cachedFile) path() string {
	f.openMu.Lock()
	defer f.openMu.Unlock()
	return f.name
}

// inUse says whether anybody has the file reserved.
func (f *cachedFile) inUse() bool {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	return f.uses > 0
}

// drop closes the file as soon as nobody uses it.
func (f *cachedFile) drop() {
	c := f.cache
	c.mu.Lock()
	f.dropped = true
	var file File
	if f.uses == 0 && f.file != nil {
		file = c.closing(f)
	}
	c.mu.Unlock()
	if file != nil {
		file.Close()
	}
}

// writeAt is file.WriteAt, without telling Go's scheduler if that may be.
func (c *FileCache) writeAt(file File, data []byte, at int64) (int, error) {
	if f, ok := file.(*os.File); ok {
		return c.writes.WriteAt(f, data, at)
	}
	return file.WriteAt(data, at)
}
