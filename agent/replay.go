package agent

import (
	"slices"
	"time"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/tail"
)

// inputFile is the input that ranges of files name in the journal.
const inputFile = "file"

// replay moves the positions over what the journal holds beyond the checkpoint. Contents that were read since then may be gone, and
// copies of them be there that waited to be told from other files: they are remembered as the checkpoint does with those.
func (r *files) replay(moves []journal.Range) {
	var moved []*track
	for i := range moves {
		if t := r.replayOne(&moves[i]); t != nil && !slices.Contains(moved[max(len(moved)-orphansMax/2, 0):], t) {
			moved = append(moved, t)
		}
	}
	for _, t := range moved[max(len(moved)-orphansMax/2, 0):] {
		r.orphans = append(r.orphans, orphan{place: t.acked, acked: t.acked, names: [2]string{t.path, t.path}, home: t.home, since: r.cfg.Now(), known: r.cfg.Now(),
			id: t.id, born: t.born, generation: t.generation, marks: t.places()})
	}
}

// replayOne moves a position over a range that lies in the journal, and returns what it moved.
func (r *files) replayOne(m *journal.Range) *track {
	if m.Input != inputFile {
		return nil
	}
	id := tail.ID{Dev: m.Dev, Ino: m.Ino}
	end := tail.Position{Offset: m.To, Skip: m.Skip, Head: tail.Sum{Len: int(m.Head.Len), Hash: m.Head.Hash}, Tail: tail.Sum{Len: int(m.Tail.Len), Hash: m.Tail.Hash}}
	t := r.tracks[id]
	switch {
	case t == nil:
		t = &track{id: id, born: m.Born, generation: m.Generation, path: m.Path, home: m.Home, seen: time.Unix(m.Seen, 0), acked: end}
		r.tracks[id] = t
	case m.Generation > t.generation || m.Born != t.born:
		r.outlived(t, m.Seen)
		t.born, t.generation, t.path, t.home, t.seen, t.acked = m.Born, m.Generation, m.Path, m.Home, time.Unix(m.Seen, 0), end
	case m.Generation < t.generation && m.Born == t.born:
		r.outlivedTo(m, end, t.seen)
		return nil
	case m.Generation < t.generation || m.To <= t.acked.Offset: // the checkpoint has it
		return nil
	case m.From > t.acked.Offset && t.acked.Offset > 0: // from 0 a copy goes to where its original was read to
		r.log.Warn("the journal goes on after a gap in a file; what lies between is read again, and what follows too", "path", m.Path, "from", m.From, "position", t.acked.Offset)
		return nil
	default:
		t.acked = end
	}
	t.mark(end)
	r.dirty = true
	return t
}

// outlived remembers the content of a file that holds another one since: a copy of it may turn up. It was gone when the other one was read,
// which is long after it was looked at last, perhaps.
func (r *files) outlived(t *track, read int64) {
	if t.acked.Offset > 0 {
		r.orphans = append(r.orphans, orphan{place: t.acked, acked: t.acked, names: [2]string{t.path, t.path}, home: t.home, since: time.Unix(read, 0), known: r.cfg.Now(), marks: t.places(),
			id: t.id, born: t.born, generation: t.generation})
		t.marks, t.ends = nil, nil
	}
}

// outlivedTo moves how far a content was read that its file held no more when the checkpoint looked at that.
func (r *files) outlivedTo(m *journal.Range, end tail.Position, looked time.Time) {
	known := false
	for i := range r.orphans { // a checkpoint may hold it twice: a copy of it waited when it was emptied
		if o := &r.orphans[i]; o.is(tail.ID{Dev: m.Dev, Ino: m.Ino}, m.Born, m.Generation) {
			known = true
			if o.place.Offset == m.From {
				o.place, o.acked, o.marks = end, end, marked(o.marks, end)
			}
		}
	}
	if known {
		return
	}
	r.orphans = append(r.orphans, orphan{place: end, acked: end, marks: []tail.Position{end}, names: [2]string{m.Path, m.Path}, home: m.Home, since: looked, known: r.cfg.Now(),
		id: tail.ID{Dev: m.Dev, Ino: m.Ino}, born: m.Born, generation: m.Generation})
}
