package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

const (
	// touchedWithin is how recent a change must be for a file to be looked at
	// in a scan though size and time are as before: within it, a second write
	// may carry the same time stamp.
	touchedWithin = 3 * time.Second
)

// scan looks at all directories and brings the sources in line with them.
func (r *files) scan(now time.Time) {
	begun, before := r.cfg.Now(), r.scanTook
	r.scanWanted, r.scanSoon = false, false
	clear(r.homes)
	listing := r.scanner.Scan()
	if err := r.hints.Watch(listing.Dirs); err != nil {
		r.say(place{kind: "watch"}, "some directories give no change events; they are looked at every scan interval (fs.inotify.max_user_watches bounds the watches)", err)
	}
	r.sayProblems(listing.Problems)
	if r.firstStart && r.pipe.Collect.File.StartAt == pipelines.StartAtEnd {
		for _, f := range listing.Files {
			r.atEnd[f.ID] = true
		}
	}
	meeting := r.reconcile(listing.Files, now)
	r.forget(now)

	// The shorter of two: one of them may have waited for a busy machine.
	// What was new is not new again the next time.
	took := r.cfg.Now().Sub(begun) - meeting
	r.shortScanTook, r.scanTook = took, took
	if r.scanned {
		r.shortScanTook = min(took, before)
	}
	r.unseen = len(listing.Problems) > 0
	r.nextScan = now.Add(r.scanPause())
	if len(r.suspects) > 0 || r.scanSoon {
		r.nextScan = now.Add(min(r.scanPause(), r.cfg.ScanInterval))
	}
	r.scanned = true
	r.firstStart = false
	r.measure()
}

// measure publishes what only the loop knows.
func (r *files) measure() {
	deleted := r.boundDeleted()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.DeletedBytes = deleted
	limit := int64(catchUpLagBytes)
	if r.catchingUp.Load() {
		limit = caughtUpLagBytes
	}
	r.catchingUp.Store(r.lagLocked() > limit)
	if !r.known {
		r.known, r.dirty = true, true
		if r.kept.save != nil {
			r.kept.save() // nothing is read before it is stored what was there at the first start
		}
	}
}

// lagLocked needs mu.
func (r *files) lagLocked() (lag int64) {
	for _, t := range r.tracks {
		if t.followed {
			lag += t.lag()
		}
	}
	return lag
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (r *files) sayProblems(problems []tail.Problem) {
	now := map[place]bool{}
	for _, p := range problems {
		at := place{"find", p.Path}
		now[at] = true
		r.say(at, "cannot be looked at; trying again at every scan", p.Err)
	}
	for at := range r.said {
		if at.kind == "find" && !now[at] {
			r.heal(at, "is there now")
		}
	}
}

// reconcile follows what is new, renames what moved and detaches what is gone.
// It returns the time it took for what is new.
func (r *files) reconcile(files []tail.Found, now time.Time) (meeting time.Duration) {
	present := make(map[tail.ID]bool, len(files))
	var strangers []tail.Found
	for _, f := range files {
		present[f.ID] = true
		if r.isKnown(f.ID) {
			r.found(f, now, true)
		} else {
			strangers = append(strangers, f)
		}
	}
	// Only now, when it is known which contents are no longer where they were.
	if r.mayMeet(now) {
		begun := r.cfg.Now()
		r.meet(append(strangers, r.deferred...), now)
		meeting = r.cfg.Now().Sub(begun)
	}
	r.deferred, r.missed = nil, false
	for _, s := range r.missing(present) {
		r.detach(s, now)
	}
	r.endSurveys(present)
	for id := range r.suspects {
		if !present[id] {
			delete(r.suspects, id)
		}
	}
	return meeting
}

// mayMeet says whether files that were not known can be told from copies now:
// not while a known file is on the move, for it may be their original. Where
// files never stand still they wait no longer than the grace period.
func (r *files) mayMeet(now time.Time) bool {
	if !r.missed || r.cfg.Once {
		r.strange = time.Time{}
		return true
	}
	if r.strange.IsZero() {
		r.strange = now
	}
	if now.Sub(r.strange) >= r.cfg.RotateGrace {
		return true
	}
	r.scanWanted = true
	return false
}

// missing are the sources that no name leads to any more, in order of name.
func (r *files) missing(present map[tail.ID]bool) (out []*source) {
	for id, s := range r.sources {
		if !present[id] && !s.detached {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *source) int { return cmp.Compare(a.path, b.path) })
	return out
}

func (r *files) isKnown(id tail.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tracks[id] != nil
}

// meet follows files that were not known: originals before their copies, and
// then all are read in order of age.
func (r *files) meet(files []tail.Found, now time.Time) {
	slices.SortStableFunc(files, func(a, b tail.Found) int { return cmp.Compare(len(a.Path), len(b.Path)) })
	for _, f := range files {
		r.found(f, now, false)
	}
	if len(files) > 0 {
		slices.SortStableFunc(r.queue, func(a, b *source) int { return cmp.Compare(a.file.Seen().ModTime, b.file.Seen().ModTime) })
	}
}

// found deals with one file that the patterns match. With onlyKnown a file that
// is not what the checkpoint knows of it is deferred.
func (r *files) found(f tail.Found, now time.Time, onlyKnown bool) {
	s := r.sources[f.ID]
	if s == nil {
		r.follow(f, now, onlyKnown)
		return
	}
	r.relabel(s, f, now)
	seen := s.file.Seen()
	if s.failed || f.Size != seen.Size || f.ModTime != seen.ModTime || now.UnixNano()-f.ModTime < int64(touchedWithin) {
		r.enqueue(s)
	}
}

// relabel notes the name a file has now.
func (r *files) relabel(s *source, f tail.Found, now time.Time) {
	if s.detached {
		s.detached = false
		r.timed.clear(s)
		s.partialSize = 0 // what might go on is timed anew
		r.enqueue(s)
	}
	r.mu.Lock()
	s.track.seen = now
	r.mu.Unlock()
	if s.path == f.Path && s.real == f.Real {
		return
	}
	if s.path != f.Path {
		if r.leadsTo(s) {
			return // both names do
		}
		r.log.Debug("file renamed", "from", s.path, "to", f.Path)
		r.rotated(s)
	}
	r.unname(s)
	r.name(s, f)
}

// rotated counts that a file was renamed or removed.
func (r *files) rotated(s *source) {
	r.mu.Lock()
	r.account.Rotations++
	s.track.rotations++
	r.mu.Unlock()
}

func (r *files) name(s *source, f tail.Found) {
	s.path, s.real = f.Path, f.Real
	r.byPath[f.Path] = s
	if f.Real != "" {
		r.byPath[f.Real] = s
	}
}

// unname frees a source's names, unless another file has them already.
func (r *files) unname(s *source) {
	for _, p := range []string{s.path, s.real} {
		if p != "" && r.byPath[p] == s {
			delete(r.byPath, p)
		}
	}
}

// takeHints looks at what changed.
func (r *files) takeHints(now time.Time) {
	paths, scan := r.hints.Take()
	r.scanWanted = r.scanWanted || scan
	// Originals before their copies.
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	for _, path := range paths {
		r.hint(path, now)
	}
}

func (r *files) hint(path string, now time.Time) {
	s := r.byPath[path]
	if s != nil && path == s.real {
		r.enqueue(s) // a scan tells when the link leads elsewhere
		return
	}
	f, ok := r.scanner.Look(path)
	if !ok {
		r.hintOther(path, s)
		return
	}
	if s != nil && s.file.ID() == f.ID {
		r.enqueue(s)
		return
	}
	if s != nil { // the name is another file's now; where the old one went, a scan tells
		r.unname(s)
		r.scanWanted = true
	}
	if known := r.sources[f.ID]; known != nil {
		r.relabel(known, f, now)
		r.enqueue(known)
		return
	}
	r.scanWanted = true // a scan meets originals before their copies, which a hint may tell first
}

// hintOther is a change of something that is no file to follow: perhaps a
// directory with some, or a file that is gone.
func (r *files) hintOther(path string, s *source) {
	if s != nil {
		r.scanWanted = true
		return
	}
	if info, err := r.reading.Looks.Stat(path); err == nil && info.Dir {
		r.scanWanted = true
	}
}

// follow begins with a file that is not followed.
func (r *files) follow(f tail.Found, now time.Time, onlyKnown bool) {
	file, err := r.open(f.Path)
	if err != nil {
		r.missed = r.missed || onlyKnown && errors.Is(err, syscall.ENOENT)
		r.sayOpen(f.Path, err)
		return
	}
	r.heal(place{"file", f.Path}, "the file can be read now")
	if file.ID() != f.ID { // renamed in between: the next look sees it
		r.scanWanted = true
		r.missed = r.missed || onlyKnown
		r.close(file)
		return
	}
	t, wait, err := r.identify(file, f, now, onlyKnown)
	if err != nil || wait {
		if err != nil {
			r.say(place{"file", f.Path}, "the file cannot be read; trying again at every scan", err)
		}
		r.close(file)
		return
	}
	s := &source{origin: origin{partition: -1}, file: file, track: t, fresh: now}
	r.sources[f.ID] = s
	r.family[t.kin()] = append(r.family[t.kin()], s)
	r.name(s, f)
	r.label(s)
	if r.ignored { // until it changes
		r.ignored = false
		s.once, s.tooOld = true, true
		r.close(file)
		return
	}
	r.enqueue(s)
}

// identify finds out where to begin. wait says that it cannot be told yet.
func (r *files) identify(file *tail.File, f tail.Found, now time.Time, onlyKnown bool) (t *track, wait bool, err error) {
	born := r.reading.Looks.BornOf(file.Handle())
	r.mu.Lock()
	known := r.tracks[f.ID]
	r.mu.Unlock()
	if known != nil && !known.replaced {
		again, err := r.recall(file, known, f, born, now)
		if again || err != nil {
			return known, false, err
		}
	}
	if onlyKnown {
		r.deferred = append(r.deferred, f)
		return nil, true, nil
	}
	place, wait, err := r.claim(file, f, born, now)
	if wait || err != nil {
		return nil, wait, err
	}
	t = &track{id: f.ID, born: born, path: f.Path, home: r.home(f.Path)}
	switch {
	case known != nil && !known.replaced: // nothing of it was read
		t = known
	case known != nil:
		t.generation = known.generation + 1
		r.sayReplaced(f, known)
	}
	if old := r.pipe.Collect.File.IgnoreOlder; old > 0 && now.UnixNano()-f.ModTime > int64(old) && !place {
		r.ignored = true
	}
	if !place && (r.atEnd[f.ID] || r.ignored) {
		if err := file.SkipToEnd(); err != nil {
			return nil, false, err
		}
	}
	delete(r.atEnd, f.ID)
	t.acked = file.Position()
	r.keep(t, f, now)
	r.log.Debug("file found", "path", f.Path, "id", t.fileID(), "offset", t.acked.Offset, "size", f.Size)
	return t, false, nil
}

// recall goes on with a file of which something was read, when it holds that still; else it notes that the content is gone. A file of which
// nothing was read is like a new one once it holds something: it may be a copy that had only been begun.
func (r *files) recall(file *tail.File, known *track, f tail.Found, born int64, now time.Time) (bool, error) {
	r.mu.Lock()
	read := known.readTo()
	r.mu.Unlock()
	if read.Offset == 0 && !read.Skip && f.Size > 0 && known.isBorn(born) {
		return false, nil
	}
	ok, err := r.resume(file, known, born)
	if ok {
		r.alive(known)
	}
	if ok || err != nil {
		r.keep(known, f, now)
		return ok, err
	}
	known.replaced = true
	r.orphan(known, read, known.path)
	return false, nil
}

// isBorn says that a file which was made at a time may be the track's.
func (t *track) isBorn(at int64) bool { return t.born == 0 || at == 0 || t.born == at }

// claim puts a new file at the position of the content it is a copy of.
func (r *files) claim(file *tail.File, f tail.Found, born int64, now time.Time) (placed, wait bool, err error) {
	if file.Compressed() {
		return r.claimArchive(file, f, now)
	}
	return r.claimCopy(file, f, born, now)
}

// resume goes to the stored position when it is of this content.
func (r *files) resume(file *tail.File, known *track, born int64) (bool, error) {
	if !known.isBorn(born) {
		return false, nil // made since: a used inode
	}
	r.mu.Lock()
	read, packed := known.readTo(), known.packed // what is on its way is not read again
	if known.packedEnd != read.Offset {
		packed = 0
	}
	r.mu.Unlock()
	ok, err := file.Resume(read)
	if ok && packed > 0 && packed == file.Seen().Size && file.Compressed() {
		file.Finish()
	}
	return ok, err
}

// keep puts a track among those of the checkpoint.
func (r *files) keep(t *track, f tail.Found, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.home == 0 {
		t.home = r.home(f.Path) // of an earlier version
	}
	t.seen, t.size, t.followed, t.gone = now, f.Size, true, time.Time{}
	r.tracks[t.id] = t
	r.dirty = true
}

// sayReplaced tells a truncated file from one with a used inode, as well as
// that can be told.
func (r *files) sayReplaced(f tail.Found, known *track) {
	if f.Path != known.path {
		r.log.Debug("an inode is used again by another file", "path", f.Path, "was", known.path)
		return
	}
	r.log.Info("the file was truncated or replaced while it was not followed; reading from its beginning",
		"path", f.Path, "stored_offset", known.acked.Offset, "size", f.Size)
	r.count(func(a *Account) { a.Truncations++ })
}

// errNoHandle says that the limit of open files is reached and none can be closed.
var errNoHandle = errors.New("all open files are rotated ones that are still read")

// open opens a file, parking an idle one when descriptors run out.
func (r *files) open(path string) (*tail.File, error) {
	if r.handles >= r.cfg.OpenFilesMax && !r.park() {
		return nil, errNoHandle
	}
	file, err := r.openOnce(path)
	if outOfHandles(err) && r.park() {
		file, err = r.openOnce(path)
	}
	return file, err
}

func (r *files) openOnce(path string) (*tail.File, error) {
	handle, err := r.links.open(path)
	if err != nil {
		return nil, err
	}
	file, err := tail.Take(handle, &r.reading)
	if err != nil {
		_ = handle.Close() // only read from
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r.hold(1)
	return file, nil
}

// hold counts descriptors.
func (r *files) hold(n int) {
	r.handles += n
	r.count(func(a *Account) { a.FilesOpen += int64(n) })
}

func (r *files) close(file *tail.File) {
	if file.Handle() != nil {
		r.hold(-1)
	}
	_ = file.Close() // only read from
}

// park closes the descriptor of the file that can best do without: one that
// has nothing to read, or else the one that had something longest ago.
func (r *files) park() bool {
	var best *source
	for _, s := range r.sources {
		if s.file.Handle() == nil || s.detached {
			continue
		}
		if best == nil || s.queued != best.queued && best.queued || s.queued == best.queued && s.quieter(best) {
			best = s
		}
	}
	if best == nil {
		return false
	}
	r.sayHandles()
	r.close(best.file)
	return true
}

func outOfHandles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (r *files) sayHandles() {
	r.say(place{kind: "descriptors"}, "out of file descriptors: quiet files are closed and opened again when they change, new ones wait for that (raise the limit with ulimit -n)",
		fmt.Errorf("at most %d files are held open", r.cfg.OpenFilesMax))
}

func (r *files) sayOpen(path string, err error) {
	switch {
	case errors.Is(err, syscall.ENOENT): // gone again
	case outOfHandles(err) || errors.Is(err, errNoHandle):
		r.sayHandles()
		r.scanSoon = true
		r.nextScan = earlier(r.nextScan, r.cfg.Now().Add(r.cfg.ScanInterval))
	case errors.Is(err, syscall.EACCES):
		r.say(place{"file", path}, "the file cannot be read; give this user read access (group or ACL), it is tried again at every scan", err)
	default:
		r.say(place{"file", path}, "the file cannot be opened; trying again at every scan", err)
	}
}

// detach notes that no name leads to a file: it is drained through its
// descriptor.
func (r *files) detach(s *source, now time.Time) {
	if r.leftOut(s) {
		r.letAlone(s)
		return
	}
	r.unname(s)
	if s.file.Handle() == nil { // parked: its position is kept for when it is found again
		r.release(s)
		return
	}
	s.detached = true
	s.fresh, s.gone = now, now
	r.rotated(s)
	r.enqueue(s)
	r.timed.set(s, now.Add(r.detachedPause()))
}

// detachedPause is the time between two looks at a detached file, which gives
// no change events.
func (r *files) detachedPause() time.Duration {
	return min(r.cfg.RotateGrace/4, 250*time.Millisecond)
}

// drop ends the following of a source. Its position stays in the checkpoint,
// unless the file is gone for good.
func (r *files) drop(s *source) {
	id := s.file.ID()
	if r.suspected(s) { // its copy outlives it
		r.orphan(s.track, s.file.Position(), s.path)
	}
	r.release(s)
	r.mu.Lock()
	if s.file.Seen().Links == 0 && r.tracks[id] == s.track && len(s.track.pending) == 0 && !r.mayBePacked(s) {
		delete(r.tracks, id)
	}
	r.dirty = true
	r.mu.Unlock()
	r.close(s.file)
}

// release ends the following of a source and keeps its position.
func (r *files) release(s *source) {
	r.unname(s)
	r.timed.clear(s)
	r.forgetPod(s)
	delete(r.sources, s.file.ID())
	s.left = true
	r.unpacked(s)
	delete(r.said, place{"file", s.path})
	first := s.track.kin()
	if r.family[first] = slices.DeleteFunc(r.family[first], func(x *source) bool { return x == s }); len(r.family[first]) == 0 {
		delete(r.family, first)
	}
	r.mu.Lock()
	s.track.followed, s.track.gone = false, r.cfg.Now()
	r.mu.Unlock()
}
