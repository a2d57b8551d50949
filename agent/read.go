package agent

import (
	"errors"
	"io/fs"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// read reads one chunk of a source, as much as the extent says, and sends it.
// It returns false when the file cannot be read.
func (r *files) read(s *source, now time.Time, extent tail.Extent) bool {
	if !r.mayRead(s, now) {
		return true
	}
	if s.file.Handle() == nil && !r.unpark(s) {
		return false
	}
	if s.file.Compressed() && !r.mayUnpack(s, now) {
		return true
	}
	s.looked, s.failed = now, false
	c := &r.chunk
	defer c.reset()
	c.lines.LinesMax, c.lines.BytesMax = r.rate.allowed()
	wasPlain := !s.file.Compressed()
	outcome, lost, err := s.file.Read(&c.lines, extent)
	r.seen(s)
	if wasPlain && s.file.Compressed() {
		r.meetAgain(s)
		return false
	}
	switch {
	case err != nil:
		r.unpacked(s)
		s.failed = true
		r.say(place{"file", s.path}, "the file cannot be read; trying again at every scan", err)
		return false
	case outcome == tail.Truncated || outcome == tail.Rewritten:
		r.renew(s, outcome, lost, now)
		return true
	case c.lines.Bytes() > 0:
		s.fresh = now
		r.rate.spend(len(c.lines.Lines), c.lines.Bytes())
		if r.containers != nil {
			c.origins = r.containers.origins
		}
		r.take(s, c, now)
		c.reset()
	}
	if outcome == tail.More {
		r.enqueue(s)
		return true
	}
	if s.file.Compressed() {
		r.afterUnpacking(s)
	}
	r.idle(s, now)
	return true
}

// seen notes the file's size for the lag.
func (r *files) seen(s *source) {
	r.mu.Lock()
	s.track.size = s.file.Length()
	r.mu.Unlock()
}

// meetAgain has a scan meet a file that was empty and turns out to be compressed:
// it may be a copy.
func (r *files) meetAgain(s *source) {
	r.release(s)
	r.close(s.file)
	r.scanWanted = true
}

// renew begins with the new content of a file that was emptied or rewritten.
func (r *files) renew(s *source, outcome tail.Outcome, lost int64, now time.Time) {
	what := "the file was truncated; reading from its beginning"
	if outcome == tail.Rewritten {
		what = "the file was rewritten; reading from its beginning"
	}
	r.log.Info(what, "path", s.path, "read_to", s.file.Offset(), "size", s.file.Seen().Size, "lost_bytes_estimate", lost)
	r.orphan(s.track, s.file.Position(), s.path)
	s.file.Reset()
	r.mu.Lock()
	s.track.renew()
	s.track.truncations++
	s.track.lostBytes += lost
	r.account.Truncations++
	r.account.LostBytes += lost
	r.dirty = true
	r.mu.Unlock()
	r.label(s)
	s.partialSize = 0
	r.enqueue(s)
	if len(r.suspects) > 0 {
		r.scanWanted = true
	}
}

// label makes what all records of a source share.
func (r *files) label(s *source) {
	s.name = s.track.path
	s.identity = []byte(s.track.fileID())
	s.spread = s.identity
	s.partition = -1
	if r.containers != nil {
		s.meta = r.metaOf(s)
	}
	s.headers = r.headersOf(s)
}

// idle deals with a source that is read as far as it goes.
func (r *files) idle(s *source, now time.Time) {
	if r.cfg.Once && !s.once {
		s.once = true
		if s.file.Partial() {
			r.read(s, now, tail.All)
		}
		return
	}
	if s.detached {
		return // its own times go on
	}
	if !s.file.Partial() {
		s.partialSize = 0
		r.timed.clear(s)
		return
	}
	if size := s.file.Seen().Size; size != s.partialSize {
		s.partialSize, s.partialSince = size, now
		r.timed.set(s, now.Add(r.openIdle()))
	} else if at := s.partialSince.Add(r.cfg.LineIdle); s.due.IsZero() && at.After(now) {
		r.timed.set(s, at) // its records were taken, and an unterminated line is left
	}
}

// openIdle is how long what might go on is kept back before anything is done.
func (r *files) openIdle() time.Duration {
	if m := r.pipe.Collect.File.Multiline; m != nil {
		return min(m.Idle, r.cfg.LineIdle)
	}
	return r.cfg.LineIdle
}

// onTime looks at a source whose time has come.
func (r *files) onTime(s *source, now time.Time) {
	switch {
	case s.detached:
		r.onDetached(s, now)
	case !r.work.begun:
		r.timed.set(s, now.Add(r.openIdle()))
	case s.queued: // what is there is read first; soon, for it may stand in the queue each time that is due
		r.timed.set(s, now.Add(min(r.openIdle(), r.detachedPause())))
	case r.waitsForPod(s):
		r.enqueue(s)
	case s.file.Partial():
		extent := tail.Ripe
		if now.Sub(s.partialSince) >= r.cfg.LineIdle {
			extent = tail.All
		}
		if !r.read(s, now, extent) && !s.left { // its descriptor was given up, and there is none free, or it has another name by now
			r.scanWanted = true
			r.timed.set(s, now.Add(r.cfg.ScanInterval))
		}
	}
}

// onDetached drains a file that no name leads to, and lets go of it when it
// has been quiet for the grace period.
func (r *files) onDetached(s *source, now time.Time) {
	if r.leftOut(s) {
		r.letAlone(s)
		return
	}
	if s.queued || !r.work.begun || now.Sub(s.fresh) < r.cfg.RotateGrace {
		if r.work.begun {
			r.enqueue(s)
		}
		r.timed.set(s, now.Add(r.detachedPause()))
		return
	}
	if r.read(s, now, tail.All) && s.file.Unread() > 0 {
		r.timed.set(s, now.Add(r.detachedPause()))
		return
	}
	r.drop(s)
}

// unpark opens a file again whose descriptor was given up.
func (r *files) unpark(s *source) bool {
	if r.handles >= r.cfg.OpenFilesMax && !r.park() {
		r.enqueue(s) // those before it in the queue will be idle then
		return false
	}
	same, err := s.file.Unpark(s.path)
	if outOfHandles(err) && r.park() {
		same, err = s.file.Unpark(s.path)
	}
	if err != nil {
		s.failed = true
		if errors.Is(err, fs.ErrNotExist) { // it may have another name
			r.scanWanted = true
		}
		r.sayOpen(s.path, err)
		return false
	}
	if same {
		r.hold(1)
		if born := r.reading.Looks.BornOf(s.file.Handle()); born == s.track.born {
			return true
		}
		r.close(s.file)
	}
	// Another file has the name. This one is found by its own, if it has one.
	r.release(s)
	r.scanWanted = true
	return false
}
