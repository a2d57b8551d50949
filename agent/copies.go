package agent

import (
	"os"
	"path/filepath"
	"slices"
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
//
// So that an original is always known before its copy: only a scan meets new
// files, after all known ones, and not while a known one is on the move; a
// checkpoint holds the content of a suspect's original as if that were gone; and
// an original that is removed leaves an orphan while a copy of it waits.
//
// What content cannot tell, and comes twice or once accordingly:
//   - What was read of a file after the last checkpoint before a crash is not in
//     the checkpoint: it comes again, from the file or from its copy.
//   - A copy that no scan saw while its original was there, of which no content
//     is left to compare with after the next start: it comes again.
//   - A copy whose original is emptied only after the grace period (while the
//     agent runs) is read as a file of its own, as is one whose name does not
//     come from the original's.
//   - A file that was made before the truncation was noticed, whose name comes
//     from the truncated file's and that begins with all that was read of it, is
//     taken for the copy though it was written by itself. Copies are counted and
//     logged. Where the file system does not tell when files are made, this goes
//     for files made within orphanAge.

const (
	// orphanAge is how long a content that is gone is remembered.
	orphanAge = 10 * time.Minute
	// orphansMax bounds how many are.
	orphansMax = 256
	// originalsMax bounds the files that a new one is compared with.
	originalsMax = 32
)

// orphan is content that its file no longer has. The checkpoint keeps it: the
// copy may be found only after a restart.
type orphan struct {
	place tail.Position // how far it was read
	names [2]string     // of the file: the first and the last
	since time.Time

	// acked is how far it was acknowledged then: what a checkpoint may rely on
	// while lines are in flight.
	acked tail.Position
	// track and generation tell whether its lines are still in flight; track is
	// nil after a restart.
	track      *track
	generation uint64
	// id and born are of the file; with the generation they name the content.
	id   tail.ID
	born int64
}

// is says that the orphan's content is the one of a file that is named so.
func (o *orphan) is(id tail.ID, born int64, generation uint64) bool {
	return o.id == id && o.born == born && o.generation == generation
}

// suspect is a new file that looks like the copy of a followed one. What the
// checkpoint holds of it is the content of the original, as if that were gone:
// it may be, before the next start.
type suspect struct {
	since    time.Time
	original *source
}

// suspected says whether a file seems to have a copy that waits.
func (r *files) suspected(original *source) bool {
	for _, x := range r.suspects {
		if x.original == original {
			return true
		}
	}
	return false
}

// suspectedLocked needs runner.mu, and no step to be under way.
func (r *files) suspectedLocked() (out []savedFile) {
	for _, x := range r.suspects {
		t := x.original.track
		if t.acked.Offset > 0 {
			out = append(out, (&track{id: t.id, born: t.born, generation: t.generation, path: t.path, seen: x.since, acked: t.acked}).save())
		}
	}
	return out
}

// orphan remembers the content of a track up to a place.
func (r *files) orphan(t *track, place tail.Position, path string, now time.Time) {
	if place.Offset == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.orphans) >= orphansMax {
		r.orphans = r.orphans[1:]
	}
	r.orphans = append(r.orphans, orphan{place: place, names: [2]string{t.path, path}, acked: t.acked, track: t, generation: t.generation, id: t.id, born: t.born, since: now})
	r.dirty = true
}

// relatives returns the orphans that a file of this name may be a copy of, the
// newest first, and forgets old ones.
func (r *files) relatives(path string, now time.Time) (out []orphan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orphans = slices.DeleteFunc(r.orphans, func(o orphan) bool { return now.Sub(o.since) > orphanAge })
	for _, o := range slices.Backward(r.orphans) {
		if comesFrom(path, o.names[0]) || comesFrom(path, o.names[1]) {
			out = append(out, o)
		}
	}
	return out
}

// claimed forgets an orphan that was found again.
func (r *files) claimed(o orphan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orphans = slices.DeleteFunc(r.orphans, func(x orphan) bool { return x.place == o.place && x.names == o.names })
	r.dirty = true
}

// alive forgets orphans of a content that is not gone: the checkpoint held it while a copy waited, or the journal after it.
func (r *files) alive(t *track) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orphans = slices.DeleteFunc(r.orphans, func(x orphan) bool { return x.track == nil && x.is(t.id, t.born, t.generation) })
}

// claimCopy puts a new file at the position of the content it is a copy of.
// wait says that it may become one.
func (r *files) claimCopy(file *tail.File, f tail.Found, born int64, now time.Time) (placed, wait bool, err error) {
	if f.Size == 0 { // a copy begins empty; there is nothing to miss yet
		return false, len(r.originals(f)) > 0, nil
	}
	for _, o := range r.relatives(f.Path, now) {
		if o.endedBefore(born) {
			continue
		}
		same, err := o.place.Matches(file.Handle())
		if err != nil {
			return false, false, err
		}
		if !same {
			continue
		}
		if r.flying(o) { // its lines are not delivered yet: not to be passed
			r.scanSoon = true
			return false, true, nil
		}
		ok, err := file.Resume(o.place)
		if ok {
			r.claimed(o)
			r.log.Info("the file is a copy of one that was read; going on after it", "path", f.Path, "original", o.names[0], "offset", o.place.Offset)
			r.count(func(a *Account) { a.Copies++ })
		}
		return ok, false, err
	}
	wait, err = r.suspect(file, f, now)
	return false, wait, err
}

// endedBefore says that the content was gone before a file was made, which then
// is no copy of it.
func (o *orphan) endedBefore(born int64) bool {
	gone := o.since
	if o.track == nil { // of a checkpoint, which holds whole seconds
		gone = gone.Add(time.Second)
	}
	return born != 0 && born > gone.UnixNano()
}

// flying says that chunks of an orphan are not settled.
func (r *files) flying(o orphan) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return o.flying()
}

// flying needs runner.mu.
func (o *orphan) flying() bool {
	return o.track != nil && slices.ContainsFunc(o.track.pending, func(p step) bool { return p.generation == o.generation })
}

// save needs runner.mu.
func (o *orphan) save() savedFile {
	place := o.place
	if o.flying() {
		place = o.acked
	}
	return (&track{id: o.id, born: o.born, generation: o.generation, path: o.names[0], seen: o.since, acked: place}).save()
}

// suspect says whether a new file looks like the copy of a file that is still
// followed and may be emptied at any moment.
func (r *files) suspect(file *tail.File, f tail.Found, now time.Time) (bool, error) {
	original, err := r.originalOf(file, f)
	if err != nil || original == nil {
		delete(r.suspects, f.ID)
		return false, err
	}
	x, ok := r.suspects[f.ID]
	if !ok {
		x.since = now
		r.soil()
	}
	x.original = original
	r.suspects[f.ID] = x
	// The original must have been looked at since: it may wait for the brokers.
	if original.looked.Sub(x.since) > r.cfg.RotateGrace && now.UnixNano()-f.ModTime > int64(r.cfg.RotateGrace) {
		delete(r.suspects, f.ID)
		return false, nil
	}
	r.nextScan = earlier(r.nextScan, now.Add(min(r.cfg.ScanInterval, r.cfg.RotateGrace/4)))
	r.enqueue(original)
	return true, nil
}

// originalOf returns the followed file that a new one looks like a copy of.
func (r *files) originalOf(file *tail.File, f tail.Found) (*source, error) {
	for _, s := range r.originals(f) {
		same, err := looksCopied(s, file, f.Size)
		if err != nil {
			return nil, err
		}
		if same {
			return s, nil
		}
	}
	return nil, nil
}

// looksCopied says whether a file holds what was read of the original, which may
// have been emptied a moment ago, or what the original holds now, which may not
// have been read yet.
func looksCopied(original *source, file *tail.File, size int64) (bool, error) {
	if at := original.file.Offset(); at > 0 && size >= at {
		if same, err := original.file.Position().Matches(file.Handle()); same || err != nil {
			return same, err
		}
	}
	return sameContent(original.file.Handle(), file.Handle(), size)
}

// originals returns the followed files that, by their names, a new file may
// become a copy of: the newest first.
func (r *files) originals(f tail.Found) (out []*source) {
	if r.cfg.Once { // takes what is there as it is
		return nil
	}
	dir, base := filepath.Split(f.Path)
	ext := filepath.Ext(base)
	for n := len(base) - 1; n > 0; n-- {
		out = r.addFamily(out, dir+base[:n], f.ID)
		if n < len(base)-len(ext) {
			out = r.addFamily(out, dir+base[:n]+ext, f.ID)
		}
	}
	return out
}

// addFamily adds the files that were first found under a name, whatever they
// are called since.
func (r *files) addFamily(out []*source, name string, not tail.ID) []*source {
	for _, s := range slices.Backward(r.family[name]) {
		if len(out) < originalsMax && s.file.ID() != not {
			out = append(out, s)
		}
	}
	return out
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
