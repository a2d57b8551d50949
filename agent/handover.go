package agent

import (
	"github.com/sluice-io/sluice/agent/tail"
)

// inherit implements heir: what the pipeline's input before a reload holds open is followed on, each file from its position. Files that
// were renamed out of the patterns, or removed, are read to their end by that; a path through the directories would not find them.
func (r *files) inherit(from input) {
	old, ok := from.(*files)
	if !ok {
		return
	}
	for id, s := range inOrder(old.sources) {
		if t := r.tracks[id]; t != nil && s.file.Handle() != nil && r.wants(s) {
			r.adopt(s, t)
		}
	}
}

// wants says whether a file is to be followed on: where its name leads to it still, the patterns decide by that; where it does not, by the
// name it was found under.
func (r *files) wants(s *source) bool {
	if r.leadsTo(s) {
		return r.scanner.Matches(s.path)
	}
	return r.scanner.Matches(s.track.path) || r.scanner.Matches(s.path)
}

// leadsTo says that a source's name leads to it still.
func (r *files) leadsTo(s *source) bool {
	info, err := r.reading.Looks.Stat(s.path)
	return err == nil && info.ID == s.file.ID()
}

// adopt takes over an open file. One whose content is no longer what it was at the position is left to the first scan.
func (r *files) adopt(s *source, t *track) {
	handle := s.file.Yield()
	file, err := tail.Take(handle, &r.reading)
	if err != nil {
		_ = handle.Close() // only read from
		return
	}
	r.hold(1)
	ok, err := file.Resume(t.acked)
	if file.Compressed() && !s.file.Compressed() {
		ok = false // it may be a copy that had only been begun when it was found
	}
	if !ok || err != nil {
		r.close(file)
		return
	}
	now := r.cfg.Now()
	x := &source{file: file, track: t, fresh: now, path: s.path, real: s.real, detached: s.detached}
	x.partition, x.pod = -1, s.pod
	r.sources[t.id] = x
	r.family[t.kin()] = append(r.family[t.kin()], x)
	for _, path := range []string{x.path, x.real} {
		if path != "" {
			r.byPath[path] = x
		}
	}
	r.mu.Lock()
	t.followed, t.size = true, file.Seen().Size
	r.mu.Unlock()
	r.alive(t)
	r.label(x)
	r.enqueue(x)
	if x.detached {
		r.timed.set(x, now.Add(r.detachedPause()))
	}
}

// letGo implements heir.
func (r *files) letGo() {
	for _, s := range r.sources {
		r.close(s.file)
	}
}
