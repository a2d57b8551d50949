package agent

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// A rotation by copytruncate makes a copy beside the file and empties the file.
// Where the patterns match the copy too, what was read of the original must not
// be read again from the copy, and what was not must be.
//
// Content decides: an orphan is a content that a file held up to a position and
// holds no more. A new file whose name comes from the orphan's and that shows
// the same content up to that position is its copy and is read from there on.
// A copy that is seen before its original was emptied is a suspect, and waits
// until that happens, or until both stand still long enough to be two files.

const (
	// orphanAge is how long a content that is gone is remembered.
	orphanAge = 10 * time.Minute
	// orphansMax bounds how many are.
	orphansMax = 256
)

// orphan is content that its file no longer has.
type orphan struct {
	place      tail.Position // how far it was read
	path       string
	track      *track
	generation uint64
	since      time.Time
}

// orphan remembers the content of a track up to a place.
func (r *runner) orphan(t *track, place tail.Position, path string) {
	if place.Offset == 0 {
		return
	}
	if len(r.orphans) >= orphansMax {
		r.orphans = r.orphans[1:]
	}
	r.orphans = append(r.orphans, orphan{place: place, path: path, track: t, generation: t.generation, since: time.Now()})
}

// claimCopy puts a new file at the position of the content it is a copy of.
// wait says that it may become one.
func (r *runner) claimCopy(file *tail.File, f tail.Found, now time.Time) (placed, wait bool, err error) {
	if f.Size == 0 { // a copy begins empty; there is nothing to miss yet
		return false, r.original(f) != nil, nil
	}
	for i, o := range r.orphans {
		if now.Sub(o.since) > orphanAge || !comesFrom(f.Path, o.path) {
			continue
		}
		if r.flying(o) { // its lines are not delivered yet: not to be passed
			if same, err := o.place.Matches(file.Handle()); same || err != nil {
				r.scanWanted = true
				return false, same, err
			}
			continue
		}
		if ok, err := file.Resume(o.place); ok || err != nil {
			r.orphans = append(r.orphans[:i], r.orphans[i+1:]...)
			return ok, false, err
		}
	}
	wait, err = r.suspect(file, f, now)
	return false, wait, err
}

// flying says that chunks of an orphan are not settled.
func (r *runner) flying(o orphan) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range o.track.pending {
		if p.generation == o.generation {
			return true
		}
	}
	return false
}

// suspect says whether a new file looks like the copy of a file that is still
// followed and may be emptied at any moment.
func (r *runner) suspect(file *tail.File, f tail.Found, now time.Time) (bool, error) {
	original := r.original(f)
	if original == nil || original.file.Offset() == 0 {
		return false, nil
	}
	same, err := looksCopied(original, file, f.Size)
	if err != nil || !same {
		delete(r.suspects, f.ID)
		return false, err
	}
	if _, ok := r.suspects[f.ID]; !ok {
		r.suspects[f.ID] = now
	}
	if now.Sub(r.suspects[f.ID]) > r.cfg.RotateGrace && now.UnixNano()-f.ModTime > int64(r.cfg.RotateGrace) {
		delete(r.suspects, f.ID)
		return false, nil
	}
	r.nextScan = now.Add(min(r.cfg.ScanInterval, r.cfg.RotateGrace/4))
	r.enqueue(original)
	return true, nil
}

// looksCopied says whether a file holds what was read of the original, or, while
// it is shorter, what the original begins with. The original itself may have
// been emptied a moment ago.
func looksCopied(original *source, file *tail.File, size int64) (bool, error) {
	if size >= original.file.Offset() {
		return original.file.Position().Matches(file.Handle())
	}
	return sameContent(original.file.Handle(), file.Handle(), size)
}

// original returns the followed file that a new file of this name may become a
// copy of. What was there at the start is no copy in the making.
func (r *runner) original(f tail.Found) *source {
	if r.cfg.Once || r.firstStart || !r.scanned {
		return nil
	}
	dir, base := filepath.Split(f.Path)
	ext := filepath.Ext(base)
	for n := len(base) - 1; n > 0; n-- {
		s := r.byPath[dir+base[:n]]
		if s == nil && n < len(base)-len(ext) {
			s = r.byPath[dir+base[:n]+ext]
		}
		if s != nil && !s.detached && s.file.ID() != f.ID {
			return s
		}
	}
	return nil
}

// comesFrom says whether a rotation would give the name to a copy of original:
// log.1, log-20261130 and app-20261130.log come from log and app.log.
func comesFrom(path, original string) bool {
	if filepath.Dir(path) != filepath.Dir(original) || path == original {
		return false
	}
	if strings.HasPrefix(path, original) {
		return true
	}
	ext := filepath.Ext(original)
	return strings.HasPrefix(path, strings.TrimSuffix(original, ext)) && strings.HasSuffix(path, ext)
}

// sameContent compares the beginnings of two files, and what stands before the
// end of the second.
func sameContent(a, b *os.File, size int64) (bool, error) {
	if a == nil || b == nil {
		return false, nil
	}
	var x, y [4096]byte
	for _, at := range []int64{0, max(size-int64(len(x)), 0)} {
		n := min(size-at, int64(len(x)))
		nx, err := a.ReadAt(x[:n], at)
		if nx < int(n) {
			return false, nil // the original is shorter: emptied, or another
		}
		if err != nil {
			return false, err
		}
		ny, _ := b.ReadAt(y[:n], at)
		if ny < int(n) || x != y {
			return false, nil
		}
	}
	return true, nil
}
