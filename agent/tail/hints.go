package tail

import (
	"fmt"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// hintsMax bounds the paths that wait to be looked at; beyond it a scan
	// is asked for instead.
	hintsMax = 4096
	// hintPause is how long events are left to gather after hintBurst of them
	// told nothing new: the kernel folds repeated events of one file while they
	// wait. It bounds what a file costs that is written to in small pieces.
	hintPause = 4 * time.Millisecond
	hintBurst = 128
)

// Hints gathers change events of directories. It may lose events and may not
// work at all: a scan is the truth. Safe for concurrent use.
type Hints struct {
	watcher *fsnotify.Watcher // nil when the system gives none
	ready   chan struct{}     // holds one token while there is something to take
	closing chan struct{}
	done    chan struct{}
	failed  map[string]error // guarded by mu: directories without watch
	mu      sync.Mutex
	paths   map[string]bool // guarded by mu: paths that changed
	scan    bool            // guarded by mu: names changed in ways that only a scan tells
	watched map[string]ID   // guarded by mu: what is watched under each name
}

// NewHints starts to gather. When the system gives no watcher the error says
// why, and the returned Hints work without giving any.
func NewHints() (*Hints, error) {
	h := Unwatched()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return h, fmt.Errorf("watch directories: %w", err)
	}
	h.watcher = w
	h.done = make(chan struct{})
	go h.gather()
	return h, nil
}

// Unwatched returns Hints that watch nothing: what changed is told by Changed.
func Unwatched() *Hints {
	h := &Hints{
		ready: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
		paths: map[string]bool{}, watched: map[string]ID{}, failed: map[string]error{},
	}
	close(h.done)
	return h
}

// Changed notes that a file was made, written or touched.
func (h *Hints) Changed(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(path)
	h.wake()
}

// Renamed notes that names changed in ways that only a scan tells.
func (h *Hints) Renamed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scan = true
	h.wake()
}

// add needs mu. Beyond hintsMax paths a scan is asked for instead.
func (h *Hints) add(path string) {
	h.paths[path] = true
	if len(h.paths) > hintsMax {
		clear(h.paths)
		h.scan = true
	}
}

// Ready receives when there are hints to take.
func (h *Hints) Ready() <-chan struct{} { return h.ready }

// Take returns the paths that changed and whether a scan is called for.
func (h *Hints) Take() (paths []string, scan bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	paths = make([]string, 0, len(h.paths))
	for p := range h.paths {
		paths = append(paths, p)
	}
	clear(h.paths)
	scan, h.scan = h.scan, false
	return paths, scan
}

// Watch sets the directories to watch. The error names the first that cannot
// be watched; it is returned once for each.
func (h *Hints) Watch(dirs []Dir) error {
	if h.watcher == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unwatch(dirs)
	var first error
	for _, dir := range dirs {
		if _, ok := h.watched[dir.Path]; ok {
			continue
		}
		err := h.watcher.Add(dir.Path)
		if err == nil {
			h.watched[dir.Path] = dir.ID
			delete(h.failed, dir.Path)
			h.scan = true // what happened between the listing and the watch
			h.wake()
			continue
		}
		if h.failed[dir.Path] == nil && first == nil {
			first = fmt.Errorf("watch %s: %w", dir.Path, err)
		}
		h.failed[dir.Path] = err
	}
	return first
}

// unwatch drops the watches of directories that are not asked for, or whose
// name leads to another directory now.
func (h *Hints) unwatch(keep []Dir) {
	wanted := make(map[string]ID, len(keep))
	for _, d := range keep {
		wanted[d.Path] = d.ID
	}
	for path, id := range h.watched {
		if now, ok := wanted[path]; !ok || now != id {
			_ = h.watcher.Remove(path) // an error means that it is gone already
			delete(h.watched, path)
		}
	}
	for path := range h.failed {
		if _, ok := wanted[path]; !ok {
			delete(h.failed, path)
		}
	}
}

// Complete says that every directory given to Watch is watched.
func (h *Hints) Complete() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watcher != nil && len(h.failed) == 0
}

// Close stops gathering. It may be called once.
func (h *Hints) Close() {
	close(h.closing)
	if h.watcher != nil {
		h.watcher.Close()
	}
	<-h.done
}

func (h *Hints) gather() {
	defer close(h.done)
	stale := 0
	for {
		select {
		case e, ok := <-h.watcher.Events:
			if !ok {
				return
			}
			if h.note(e) {
				stale++
			}
			if stale == hintBurst {
				stale = 0
				h.pause()
			}
		case _, ok := <-h.watcher.Errors:
			if !ok {
				return
			}
			h.Renamed() // whatever the error, events may be missing; mostly the queue overflowed
		}
	}
}

// pause lets events gather in the kernel, unless Close is called.
func (h *Hints) pause() {
	timer := time.NewTimer(hintPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.closing:
	}
}

// note files an event and says whether it was known already.
func (h *Hints) note(e fsnotify.Event) (known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case e.Op == fsnotify.Chmod && h.paths[e.Name]:
		return true
	case (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) && h.isWatched(e.Name):
		_ = h.watcher.Remove(e.Name) // the directory itself went; mostly the watch with it
		delete(h.watched, e.Name)
		h.scan = true
	case e.Op == fsnotify.Write || e.Op == fsnotify.Chmod || e.Has(fsnotify.Create):
		known = h.paths[e.Name]
		h.add(e.Name)
	default:
		h.scan = true
	}
	h.wake()
	return known
}

func (h *Hints) isWatched(path string) bool {
	_, ok := h.watched[path]
	return ok
}

func (h *Hints) wake() {
	select {
	case h.ready <- struct{}{}:
	default:
	}
}
