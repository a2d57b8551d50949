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
//   - A copy that ends before what was read of its original, as that grew before
//     it was emptied, and that no scan saw before, unless it ends where a chunk did.
//   - A copy whose original is emptied only after the grace period (while the
//     agent runs) is read as a file of its own, as is one whose name does not
//     come from the original's.
//   - A file that was made before the truncation was noticed, whose name comes
//     from the truncated file's and that begins with all that was read of it, is
//     taken for the copy though it was written by itself. Copies are counted and
//     logged. Where the file system does not tell when files are made, this goes
//     for files made within unbornAge.

const (
	// orphanAge is how long a content that is gone is remembered, and unbornAge where the file system does not tell when files are made:
	// nothing else tells a copy then from a file that begins alike.
	orphanAge = 24 * time.Hour
	unbornAge = 10 * time.Minute
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
	home  uint64        // the inode of the directory with the first name; 0: not known
	since time.Time     // gone
	known time.Time     // to this run
	// marks are places before that one that it was read to: a copy may be shorter than what was read, when the file grew between the
	// copying and the truncation.
	marks []tail.Position

	// acked is how far it was acknowledged then: what a checkpoint may rely on
	// while lines are in flight.
	acked tail.Position
	// track and generation tell whether its lines are still in flight; track is
	// nil after a restart.
	track      *track
	generation uint64
	// vanished says that it is no orphan yet: its file is gone, and the track is kept.
	vanished bool
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
	// generation is of the original's content.
	generation uint64
	// size is how much of the original it had when they were compared; 0: they were not yet, or nothing of it was read.
	size int64
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
	for _, x := range inOrder(r.suspects) {
		t := x.original.track
		if t.acked.Offset > 0 {
			f := (&track{id: t.id, born: t.born, generation: t.generation, path: t.path, home: t.home, seen: x.since, acked: t.acked}).save()
			f.Marks = saveMarks(t.places())
			out = append(out, f)
		}
	}
	return out
}

// orphan remembers the content of a track up to a place.
func (r *files) orphan(t *track, place tail.Position, path string) {
	now := r.cfg.Now() // not when the step began, for the copy may be younger
	if place.Offset == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.orphans) >= orphansMax {
		r.orphans = r.orphans[1:]
	}
	r.orphans = append(r.orphans, orphan{place: place, names: [2]string{t.path, path}, home: t.home, acked: t.acked, track: t, generation: t.generation, id: t.id, born: t.born, since: now,
		known: now, marks: t.places()})
	r.dirty = true
}

// relatives returns the contents that are gone, or whose files are, and that a file of this name may be a copy of: the newest first. It
// forgets old ones.
func (r *files) relatives(path string, now time.Time) (out []orphan) {
	home := r.home(path)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orphans = slices.DeleteFunc(r.orphans, func(o orphan) bool { return o.expired(now) })
	for _, o := range slices.Backward(r.orphans) {
		if o.mayBe(path, home) {
			out = append(out, o)
		}
	}
	known := len(out)
	for _, t := range r.tracks {
		if place := t.readTo(); t.followed || t.replaced || place.Offset == 0 {
			continue
		}
		o := t.vanished(now)
		if o.mayBe(path, home) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out[known:], func(a, b orphan) int { return compareIDs(a.id, b.id) })
	return out
}

// vanished is the content of a file that is not there any more, as an orphan.
func (t *track) vanished(now time.Time) orphan {
	o := orphan{place: t.readTo(), names: [2]string{t.path, t.path}, home: t.home, acked: t.acked, track: t, generation: t.generation, id: t.id, born: t.born,
		since: t.gone, known: now, marks: t.places(), vanished: true}
	if t.gone.IsZero() { // while no agent ran
		o.since = now
	}
	return o
}

// mayBe says that a file may be a copy of the content, by its name.
func (o *orphan) mayBe(path string, home uint64) bool {
	return comesFrom(path, home, o.names[0], o.home) || comesFrom(path, home, o.names[1], o.home)
}

// expired says that the content is remembered no more. The time while no agent runs does not count.
func (o *orphan) expired(now time.Time) bool {
	if o.born == 0 {
		return now.Sub(o.known) > unbornAge
	}
	return now.Sub(o.known) > orphanAge
}

// claimed forgets an orphan that was found again.
func (r *files) claimed(o orphan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.vanished {
		delete(r.tracks, o.id)
	} else {
		r.orphans = slices.DeleteFunc(r.orphans, func(x orphan) bool { return x.place == o.place && x.names == o.names })
	}
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
	var gone []orphan
	for _, o := range r.relatives(f.Path, now) {
		if !o.endedBefore(born) && o.id != f.ID {
			gone = append(gone, o)
		}
	}
	best, place, err := r.bestOf(gone, file, f)
	if best == nil || err != nil {
		if err == nil {
			wait, err = r.suspect(file, f, now)
		}
		return false, wait, err
	}
	// What is followed may have more of it: what is gone may be no more than a hole, which begins many files.
	s, err := r.originalOf(file, f)
	switch {
	case err != nil:
	case s == nil: // or may have had: what was emptied a moment ago
		wait = r.emptied(r.originals(f))
	case f.Size > place.Offset: // read or not yet
		wait, err = r.suspect(file, f, now)
	}
	if wait || err != nil {
		return false, wait, err
	}
	return r.goOn(file, f, best, place)
}

// bestOf returns the content of which a file has the most, and up to where.
func (r *files) bestOf(gone []orphan, file *tail.File, f tail.Found) (best *orphan, place tail.Position, err error) {
	for i := range gone {
		o := &gone[i]
		p := o.place
		same, err := p.Matches(file.Handle())
		if !same && err == nil {
			p, err = o.shortCopy(file, f)
			same = p.Offset > 0
		}
		if err != nil {
			return nil, p, err
		}
		if same && p.Offset > place.Offset {
			best, place = o, p
		}
	}
	return best, place, nil
}

// goOn goes to a place of a copy that its original was read to, when what was read is delivered: it is not to be passed before.
func (r *files) goOn(file *tail.File, f tail.Found, o *orphan, place tail.Position) (placed, wait bool, err error) {
	if r.flying(*o) {
		r.scanSoon = true
		return false, true, nil
	}
	ok, err := file.Resume(place)
	if ok {
		if place.Offset == o.place.Offset { // a longer copy may follow one that is shorter
			r.claimed(*o)
		}
		r.log.Info("the file is a copy of one that was read; going on after it", "path", f.Path, "original", o.names[0], "offset", place.Offset)
		r.count(func(a *Account) { a.Copies++ })
	}
	return ok, false, err
}

// shortCopy says where a file ends that holds less than what was read of a content and is a copy of its beginning all the same: the content
// grew between the copying and the truncation. It was compared with the original while that had it, or ends where a chunk did that was
// read. Of one that no scan saw before the truncation and that ends elsewhere nothing is left to compare its end with.
func (o *orphan) shortCopy(file *tail.File, f tail.Found) (end tail.Position, err error) {
	if f.Size >= o.place.Offset {
		return tail.Position{}, nil
	}
	for _, m := range slices.Backward(o.marks) {
		if m.Offset != f.Size {
			continue
		}
		same, err := m.Matches(file.Handle())
		if err != nil {
			return tail.Position{}, err
		}
		if same {
			return tail.EndOf(file.Handle(), f.Size)
		}
	}
	return tail.Position{}, nil
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
	if o.flying() { // the journal is kept from there on, and no longer from where it was acknowledged when the content was gone
		place = o.acked
		if f := o.track.former; f.generation == o.generation && f.end.Offset > place.Offset {
			place = f.end
		}
	}
	f := (&track{id: o.id, born: o.born, generation: o.generation, path: o.names[0], home: o.home, seen: o.since, acked: place}).save()
	f.Marks = saveMarks(o.marks)
	return f
}

// suspect says whether a new file looks like the copy of a file that is still
// followed and may be emptied at any moment.
func (r *files) suspect(file *tail.File, f tail.Found, now time.Time) (bool, error) {
	original, err := r.originalOf(file, f)
	if err != nil || original == nil {
		emptied := r.emptied(r.originals(f))
		if !emptied { // else what was compared is what tells the copy when that is noticed
			delete(r.suspects, f.ID)
		}
		return emptied, err
	}
	x, ok := r.suspects[f.ID]
	if !ok {
		x.since = now
		r.soil()
	}
	if x.original != original || x.generation != original.track.generation {
		x.original, x.generation, x.size = original, original.track.generation, 0
	}
	// What was not begun may hold another content since, and would not tell.
	if f.Size != x.size && original.file.Offset() > 0 && !r.emptied([]*source{original}) {
		end, err := tail.EndOf(file.Handle(), f.Size)
		if err != nil {
			return false, err
		}
		r.mu.Lock()
		original.track.copyEnded(end)
		r.mu.Unlock()
		if x.size = f.Size; r.kept.save != nil {
			r.kept.save() // where it ends is to be known after a crash, when more than that may have been read of the original
		}
	}
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

// emptied says that one of the files that a new one may be a copy of, by its name, no longer holds what was read of it. That is to be
// noticed first: it leaves an orphan.
func (r *files) emptied(originals []*source) (wait bool) {
	for _, s := range originals {
		whole, done := handleOf(s)
		if whole == nil {
			continue // it is on the move, or gone
		}
		same, err := s.file.Position().Matches(whole)
		done()
		if !same && err == nil {
			r.enqueue(s)
			r.scanSoon = true
			wait = true
		}
	}
	return wait
}

// handleOf is the open file of a source, which may be parked: then it is opened, until done. It is nil when it is not where it was.
func handleOf(s *source) (f *os.File, done func()) {
	if f := s.file.Handle(); f != nil {
		return f, func() {}
	}
	f, err := os.Open(s.path)
	if err != nil {
		return nil, nil
	}
	if !s.file.Is(f) {
		_ = f.Close() // only looked at
		return nil, nil
	}
	return f, func() { _ = f.Close() } // only read from
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
	whole, done := handleOf(original)
	if whole == nil {
		return false, nil // it is on the move, or gone
	}
	defer done()
	return sameContent(whole, file.Handle(), size)
}

// originals returns the followed files that, by their names, a new file may
// become a copy of: the newest first.
func (r *files) originals(f tail.Found) (out []*source) {
	if r.cfg.Once { // takes what is there as it is
		return nil
	}
	home, base := r.home(f.Path), filepath.Base(f.Path)
	ext := filepath.Ext(base)
	for n := len(base) - 1; n > 0; n-- {
		out = r.addFamily(out, kin{home, base[:n]}, f.ID)
		if n < len(base)-len(ext) {
			out = r.addFamily(out, kin{home, base[:n] + ext}, f.ID)
		}
	}
	return out
}

// kin is what files have in common that were first found under one name, whatever their directory was called.
type kin struct {
	home uint64
	base string
}

func (t *track) kin() kin { return kin{t.home, filepath.Base(t.path)} }

// home is the inode of a path's directory, 0 when it is not there. A directory has several names where links lead to it, and gets another
// one when it is moved.
func (r *files) home(path string) uint64 {
	dir := filepath.Dir(path)
	ino, ok := r.homes[dir]
	if !ok {
		info, _ := r.reading.Looks.Stat(dir) // 0 then
		ino = info.Ino
		r.homes[dir] = ino
	}
	return ino
}

// addFamily adds the files that were first found under a name, whatever they
// are called since.
func (r *files) addFamily(out []*source, name kin, not tail.ID) []*source {
	for _, s := range slices.Backward(r.family[name]) {
		if len(out) < originalsMax && s.file.ID() != not {
			out = append(out, s)
		}
	}
	return out
}

// comesFrom says whether a rotation would give the name to a copy of original, in the same directory: log.1, log-20261130 and
// app-20261130.log come from log and app.log.
func comesFrom(path string, home uint64, original string, originalHome uint64) bool {
	if filepath.Dir(path) != filepath.Dir(original) && (home == 0 || home != originalHome) {
		return false
	}
	name, first := filepath.Base(path), filepath.Base(original)
	if name == first {
		return false
	}
	if strings.HasPrefix(name, first) {
		return true
	}
	ext := filepath.Ext(first)
	return strings.HasPrefix(name, strings.TrimSuffix(first, ext)) && strings.HasSuffix(name, ext)
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
