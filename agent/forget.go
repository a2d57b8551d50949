package agent

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

const (
	// positionsKeepDefault is how long the position of a file that no name leads to is kept.
	positionsKeepDefault = 7 * 24 * time.Hour
	// vanishedMax bounds how many of them are, those of files that are certainly gone; the ones seen last stay.
	vanishedMax = 10_000
	// forgetEvery is the time between two looks for positions that expire.
	forgetEvery = time.Minute
)

// forget drops positions of files that have been gone for long. A file that comes back after that would be read from its beginning, so a
// position expires only when its file is known to be gone: a directory that is there, on the file's own file system, does not have it.
// A file system that is not mounted, or a directory that cannot be read, proves nothing. What is on its way keeps its position too.
func (r *files) forget(now time.Time) {
	r.mu.Lock()
	vanished := len(r.tracks) - len(r.sources)
	r.mu.Unlock()
	if vanished <= 0 || now.Sub(r.forgot) < forgetEvery {
		return
	}
	r.forgot = now
	r.forgetOlder(now.Add(-r.cfg.PositionsKeep), vanishedMax)
}

// forgetOlder drops the positions of files that are gone and were seen last before a time, and of the others all but the newest most.
func (r *files) forgetOlder(before time.Time, most int) (n int) {
	r.mu.Lock()
	var gone []*track
	for id, t := range r.tracks {
		if r.sources[id] == nil && len(t.pending) == 0 {
			gone = append(gone, t)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(gone, func(a, b *track) int { return cmp.Compare(b.seen.UnixNano(), a.seen.UnixNano()) })
	var out []*track
	kept := 0
	for _, t := range gone {
		if kept++; (t.seen.Before(before) || kept > most) && certainlyGone(r.reading.Looks, t.path, t.id) {
			out = append(out, t)
			kept--
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range out {
		if r.tracks[t.id] == t && len(t.pending) == 0 {
			delete(r.tracks, t.id)
			r.dirty = true
			n++
		}
	}
	return n
}

// certainlyGone says that a file is not where it was, as far as its own file system tells.
func certainlyGone(looks *tail.Looks, path string, id tail.ID) bool {
	info, err := looks.Stat(path)
	if err == nil {
		return info.ID != id
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := looks.Stat(dir)
		if err == nil {
			return info.Dev == id.Dev
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return false
		}
	}
}

// forgetVanished drops, on an operator's word, all positions of files that are gone.
func (a *Agent) forgetVanished() (n int) {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	for _, m := range a.list() {
		if f, ok := m.input.(*files); ok {
			f.stepping.Lock()
			n += f.forgetOlder(f.cfg.Now(), 0)
			f.stepping.Unlock()
		}
	}
	a.saveSoon()
	return n
}
