package agent

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// Compressed files are read once, when they are at rest: unchanged for the grace
// period. Their positions are those of their content, and are found again by
// decompressing up to them.
//
// A rotation that compresses a file makes a compressed copy of it, and removes
// it. What was read of the original must not be read again from the copy. So a
// compressed file that appears is surveyed, where its name comes from that of a
// file which is or was followed: its content is decompressed to the end, in steps
// between other work, and compared with what was read of these. It is read from
// where the furthest of them that it has was read to. One that has none of them
// is read whole. While an original still has something to read, or its lines are
// on their way, the copy waits.
//
// A compressed copy that turns up when the position of its original is
// forgotten, or under a name that does not come from the original's, is read
// whole.

// packedSuffixes are how compressed files are called. They only relate names;
// that a file is compressed is told by its content.
var packedSuffixes = []string{".gz", ".zst", ".zstd", ".gzip"}

// survey is a look at a compressed file's whole content.
type survey struct {
	file  *tail.File
	found tail.Found
	*tail.Survey
	done bool
}

// packedOriginal is a content that a compressed file may be a copy of.
type packedOriginal struct {
	place  tail.Position
	names  [2]string
	source *source // followed still
	orphan *orphan
	track  *track // of the checkpoint, and followed no more
	flying bool   // its lines are on their way
	// marks are places before that one that it was read to: a copy may be shorter than what was read.
	marks []tail.Position
}

// claimArchive puts a compressed file at the position of the content it is a
// copy of. wait says that this is not known yet.
func (r *files) claimArchive(file *tail.File, f tail.Found, now time.Time) (placed, wait bool, err error) {
	if r.cfg.Once || r.atEnd[f.ID] {
		return false, false, nil
	}
	if now.Sub(time.Unix(0, f.ModTime)) < r.cfg.RotateGrace {
		r.scanSoon = true
		return false, true, nil
	}
	originals := r.packedOriginals(f, r.reading.Looks.BornOf(file.Handle()), now)
	if len(originals) == 0 {
		return false, false, nil
	}
	v := r.surveys[f.ID]
	if v == nil || !v.covers(f, originals) {
		return false, true, r.beginSurvey(f, originals)
	}
	if !v.done {
		return false, true, nil
	}
	if placed, wait, err = r.claimSurveyed(file, f, v, originals); !wait {
		r.endSurvey(f.ID)
	}
	return placed, wait, err
}

// claimSurveyed decides what a surveyed file is a copy of. What is followed
// still has all that a copy of it has.
func (r *files) claimSurveyed(file *tail.File, f tail.Found, v *survey, originals []packedOriginal) (placed, wait bool, err error) {
	end := v.End()
	var followed []*source
	best, place := -1, tail.Position{}
	for i, o := range originals {
		if o.source == nil {
			if p := v.readOf(o); p.Offset > place.Offset {
				best, place = i, p
			}
			continue
		}
		followed = append(followed, o.source)
		if heldBy(o.source, end) {
			// That it was read so far says nothing when it was rewritten since.
			unread := o.place.Offset < end.Offset || !heldBy(o.source, o.place)
			if unread {
				r.enqueue(o.source)
			}
			return r.claimAt(file, f, o, end, unread)
		}
	}
	if r.emptied(followed) || r.away(followed) { // that is to be noticed first
		return false, true, nil
	}
	if best >= 0 {
		return r.claimAt(file, f, originals[best], place, false)
	}
	return false, false, nil
}

// away says that one of some files has no name and no descriptor any more. The scan under way will let go of it.
func (r *files) away(followed []*source) bool {
	gone := slices.ContainsFunc(followed, func(s *source) bool { return s.file.Handle() == nil && !r.leadsTo(s) })
	r.scanSoon = r.scanSoon || gone
	return gone
}

// readOf is up to where the content of a file that is gone was read of what was surveyed; nowhere when it is no copy of it.
func (v *survey) readOf(o packedOriginal) tail.Position {
	end := v.End()
	switch {
	case v.has(o.place):
		return o.place
	case end.Offset < o.place.Offset && slices.Contains(o.marks, end):
		return end
	}
	return tail.Position{}
}

// claimAt goes to a position of an original, when what it has up to there was
// read and is delivered.
func (r *files) claimAt(file *tail.File, f tail.Found, o packedOriginal, p tail.Position, unread bool) (placed, wait bool, err error) {
	if o.flying || unread {
		r.scanSoon = true
		return false, true, nil
	}
	ok, err := file.Resume(p)
	if ok {
		r.claimedPacked(f, o, p.Offset)
	}
	return ok, false, err
}

// heldBy says that a followed file has the content before a position.
func heldBy(s *source, p tail.Position) bool {
	f, done := handleOf(s)
	if f == nil {
		return false
	}
	defer done()
	ok, err := p.Matches(f)
	return ok && err == nil
}

func (r *files) claimedPacked(f tail.Found, o packedOriginal, offset int64) {
	whole := offset == o.place.Offset // a longer copy may follow one that is shorter
	if o.orphan != nil && whole {
		r.claimed(*o.orphan)
	}
	r.mu.Lock()
	if o.track != nil && whole && r.tracks[o.track.id] == o.track {
		delete(r.tracks, o.track.id)
	}
	r.account.Copies++
	r.dirty = true
	r.mu.Unlock()
	r.log.Info("the file is a compressed copy of one that was read; going on after it", "path", f.Path, "original", o.names[0], "offset", offset)
}

// packedOriginals are the contents, followed or gone, that a compressed file may
// be a copy of by its name, and by its birth: they were made before it.
func (r *files) packedOriginals(f tail.Found, born int64, now time.Time) (out []packedOriginal) {
	for _, s := range r.sources {
		if !s.file.Compressed() && !bornAfter(s.track.born, born) && s.file.ID() != f.ID && packedFrom(f.Path, s.track.path, s.path) {
			r.mu.Lock()
			flying := len(s.track.pending) > 0
			r.mu.Unlock()
			out = append(out, packedOriginal{place: s.file.Position(), names: [2]string{s.track.path, s.path}, source: s, flying: flying})
		}
	}
	slices.SortFunc(out, func(a, b packedOriginal) int { return compareIDs(a.source.file.ID(), b.source.file.ID()) })
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.orphans {
		o := r.orphans[i]
		if !o.expired(now) && !bornAfter(o.born, born) && packedFrom(f.Path, o.names[0], o.names[1]) {
			out = append(out, packedOriginal{place: o.place, names: o.names, orphan: &o, flying: o.flying(), marks: o.marks})
		}
	}
	gone := len(out)
	for id, t := range r.tracks {
		if !t.followed && id != f.ID && !bornAfter(t.born, born) && t.packed == 0 && t.readTo().Offset > 0 && packedFrom(f.Path, t.path, t.path) {
			out = append(out, packedOriginal{place: t.readTo(), names: [2]string{t.path, t.path}, track: t, flying: len(t.pending) > 0, marks: t.places()})
		}
	}
	slices.SortFunc(out[gone:], func(a, b packedOriginal) int { return compareIDs(a.track.id, b.track.id) })
	return out
}

// packedFrom says whether a compressed file's name may come from a rotation of a
// file that was called so: the names are the same up to what rotations change.
// Content decides after that.
func packedFrom(path string, names ...string) bool {
	for _, name := range names {
		a, b := stem(path), stem(name)
		telling := len(a) > 1 && len(b) > 1 || filepath.Dir(path) == filepath.Dir(name)
		if telling && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)) {
			return true
		}
	}
	return false
}

// stem is a file's name up to its first digit: app-20261130.log.gz and
// app.log.1 begin alike.
func stem(path string) string {
	base := filepath.Base(path)
	for _, suffix := range packedSuffixes {
		base = strings.TrimSuffix(base, suffix)
	}
	if i := strings.IndexAny(base, "0123456789"); i >= 0 {
		base = base[:i]
	}
	return strings.TrimRight(base, ".-_")
}

// bornAfter says that one file was made after another, where that is known.
func bornAfter(a, b int64) bool { return a != 0 && b != 0 && a > b }

// mayBePacked says whether the patterns would take a compressed copy of a file.
func (r *files) mayBePacked(s *source) bool {
	for _, path := range []string{s.path, s.track.path} {
		for _, suffix := range packedSuffixes[:2] {
			if r.scanner.Matches(path+suffix) || r.scanner.Matches(path+".1"+suffix) {
				return true
			}
		}
	}
	return false
}

// beginSurvey begins, unless another survey is under way.
func (r *files) beginSurvey(f tail.Found, originals []packedOriginal) error {
	if r.surveying != nil {
		r.scanSoon = true
		return nil
	}
	file, err := r.open(f.Path)
	if err != nil {
		return err
	}
	if file.ID() != f.ID || !file.Compressed() {
		r.close(file)
		r.scanSoon = true
		return nil
	}
	var places []tail.Position
	for _, o := range originals {
		if o.source == nil {
			places = append(places, o.place)
		}
	}
	r.endSurvey(f.ID)
	v := &survey{file: file, found: f, Survey: file.Survey(places)}
	r.surveys[f.ID], r.surveying = v, v
	return nil
}

// surveyStep goes on with the survey under way, and returns false when there is none.
func (r *files) surveyStep() bool {
	v := r.surveying
	if v == nil {
		return false
	}
	if v.Step() {
		v.done = true
		r.surveying = nil
		r.close(v.file)
		r.scanWanted = true
	}
	return true
}

// endSurvey forgets a survey.
func (r *files) endSurvey(id tail.ID) {
	v := r.surveys[id]
	if v == nil {
		return
	}
	v.Close()
	if !v.done {
		r.close(v.file)
	}
	if r.surveying == v {
		r.surveying = nil
	}
	delete(r.surveys, id)
}

// endSurveys forgets the surveys of files that are gone.
func (r *files) endSurveys(present map[tail.ID]bool) {
	for id := range r.surveys {
		if !present[id] {
			r.endSurvey(id)
		}
	}
}

// covers says that the survey answers for a file as it is now.
func (v *survey) covers(f tail.Found, originals []packedOriginal) bool {
	if v.found.Size != f.Size || v.found.ModTime != f.ModTime {
		return false
	}
	return !slices.ContainsFunc(originals, func(o packedOriginal) bool {
		return o.source == nil && !slices.Contains(v.Positions(), o.place)
	})
}

func (v *survey) has(p tail.Position) bool {
	i := slices.Index(v.Positions(), p)
	return i >= 0 && v.Has(i)
}

// mayUnpack says whether a compressed file may be read now: when it is at rest,
// and one at a time, for each takes the memory of a decompressor.
func (r *files) mayUnpack(s *source, now time.Time) bool {
	info, err := r.reading.Looks.InfoOf(s.file.Handle())
	if err != nil {
		return true // reading will say it
	}
	if at := time.Unix(0, info.ModTime).Add(r.cfg.RotateGrace); now.Before(at) && !r.cfg.Once {
		r.timed.set(s, at)
		return false
	}
	if r.unpacking != nil && r.unpacking != s {
		if !slices.Contains(r.packed, s) {
			r.packed = append(r.packed, s)
		}
		return false
	}
	r.unpacking = s
	return true
}

// unpacked lets the next compressed file be read when this one is through.
func (r *files) unpacked(s *source) {
	r.packed = slices.DeleteFunc(r.packed, func(x *source) bool { return x == s })
	if r.unpacking != s {
		return
	}
	r.unpacking = nil
	if len(r.packed) > 0 {
		r.enqueue(r.packed[0])
		r.packed = r.packed[1:]
	}
}

// afterUnpacking is what is to be done when a compressed file was read from.
func (r *files) afterUnpacking(s *source) {
	if s.file.Reading() {
		return
	}
	r.unpacked(s)
	if err := s.file.Damage(); err != nil && !s.damaged {
		s.damaged = true
		r.say(place{"file", s.path}, "the compressed file cannot be read to its end; what comes before is sent, and it is tried again when it changes", err)
		r.count(func(a *Account) { a.DamagedFiles++ })
	}
	if s.file.Unread() > 0 {
		return
	}
	r.mu.Lock()
	if s.file.Damage() == nil {
		s.track.packed, s.track.packedEnd = s.file.Seen().Size, s.file.Offset()
		r.dirty = true
	}
	r.mu.Unlock()
	if !s.detached { // nothing more is wanted of it
		r.close(s.file)
	}
}
