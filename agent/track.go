package agent

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// track is what is known of one file's content from its beginning to its end
// as far as it is delivered: what the checkpoint stores. A file that was
// rewritten gets a new generation. Guarded by runner.mu.
type track struct {
	id         tail.ID
	born       int64
	generation uint64
	path       string // the name it was first found under
	home       uint64 // the inode of the directory that it was first found in; 0: not known
	seen       time.Time

	acked   tail.Position
	pending []step // chunks in the order read; the first is not settled
	// former is the last settled chunk of a content that the file held before: how far that is delivered while more of it is on its way.
	former step
	first  uint64 // sequence of pending[0]
	size   int64  // of the file at the last look
	// read and settled are what was read of it, and acknowledged or dropped of that, since the agent started.
	read, settled Count
	// sent is what of it went into the journal, dropped what stages dropped or was in no line.
	sent, dropped Count
	// rotations counts renames and removals, truncations times it was emptied or rewritten, lostBytes what that destroyed unread by estimate.
	rotations, truncations, lostBytes int64
	// packed is the size of a compressed file that was read to its end, packedEnd where that is.
	packed, packedEnd int64
	// followed says that a source has it.
	followed bool
	// marks are the last places that were read to, oldest first: what a copy that is shorter than what was read is known by.
	marks []tail.Position
	// ends are where copies of it ended that waited, oldest first: the same, and known for longer.
	ends []tail.Position
	// gone is when it was found that no name leads to the file, in this run; zero: not, or it is followed.
	gone time.Time
	// replaced says that the file holds another content now. It belongs to the
	// runner's loop.
	replaced bool
}

// step is one chunk on its way.
type step struct {
	end        tail.Position
	generation uint64
	settled    bool
	begun      time.Time
}

// begin adds a chunk and returns its sequence.
func (t *track) begin(end tail.Position, now time.Time) uint64 {
	t.mark(end)
	t.pending = append(t.pending, step{end: end, generation: t.generation, begun: now})
	return t.first + uint64(len(t.pending)) - 1
}

// settle notes that all of a chunk is acknowledged or dropped, and moves the
// position over the settled prefix.
func (t *track) settle(seq uint64) {
	t.pending[seq-t.first].settled = true
	n := 0
	for n < len(t.pending) && t.pending[n].settled {
		// A chunk of a content that is gone says nothing about the present one.
		if t.pending[n].generation == t.generation {
			t.acked = t.pending[n].end
		} else {
			t.former = t.pending[n]
		}
		n++
	}
	if n == 0 {
		return
	}
	t.first += uint64(n)
	if n == len(t.pending) { // most files are quiet most of the time, and hold no memory for chunks then
		t.pending = nil
		return
	}
	t.pending = append(t.pending[:0], t.pending[n:]...)
}

// marksMax bounds the marks of a content.
const marksMax = 8

func (t *track) mark(end tail.Position) { t.marks = marked(t.marks, end) }

// copyEnded notes where a copy ends.
func (t *track) copyEnded(end tail.Position) {
	if !slices.Contains(t.ends, end) {
		t.ends = marked(t.ends, end)
	}
}

// places are those before the one that it was read to which a copy may end at.
func (t *track) places() []tail.Position { return slices.Concat(t.ends, t.marks) }

// deliveredMarks are those of what is delivered. What was only read may be another content when it is read again.
func (t *track) deliveredMarks() []tail.Position {
	return slices.DeleteFunc(slices.Clone(t.marks), func(m tail.Position) bool { return m.Offset > t.acked.Offset })
}

// knownEnds are the ends that a checkpoint may hold: of a file of which nothing is delivered nothing tells whether it holds the same still.
func (t *track) knownEnds() []tail.Position {
	if t.acked.Offset == 0 {
		return nil
	}
	return t.ends
}

// marked adds a mark.
func marked(marks []tail.Position, end tail.Position) []tail.Position {
	if len(marks) >= marksMax {
		marks = append(marks[:0], marks[len(marks)-marksMax+1:]...)
	}
	return append(marks, end)
}

// readTo is how far the content was read, delivered or on its way.
func (t *track) readTo() tail.Position {
	if n := len(t.pending); n > 0 && t.pending[n-1].generation == t.generation {
		return t.pending[n-1].end
	}
	return t.acked
}

// renew begins a new generation at 0.
func (t *track) renew() {
	t.packed, t.packedEnd = 0, 0
	t.generation++
	t.acked, t.marks, t.ends = tail.Position{}, nil, nil
}

// fileID names the content, for headers. It is the same after a restart, and
// another one for a file that was rewritten or got a used inode.
func (t *track) fileID() string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %d", t.id.Dev, t.id.Ino, t.born, t.generation)
	return fmt.Sprintf("%016x", h.Sum64())
}

// lag is how many bytes of the file are not delivered.
func (t *track) lag() int64 { return max(t.size-t.acked.Offset, 0) }

func (t *track) save() savedFile {
	packed := t.packed
	if t.packedEnd != t.acked.Offset {
		packed = 0
	}
	return savedFile{
		Packed: packed, Home: t.home, Ends: saveMarks(t.knownEnds()),
		Path: t.path, Dev: t.id.Dev, Ino: t.id.Ino, Born: t.born, Generation: t.generation,
		Offset: t.acked.Offset, Skip: t.acked.Skip,
		HeadLen: t.acked.Head.Len, Head: t.acked.Head.Hash,
		TailLen: t.acked.Tail.Len, Tail: t.acked.Tail.Hash,
		Seen: t.seen.Unix(),
	}
}

func loadTrack(f savedFile) *track {
	return &track{
		id: tail.ID{Dev: f.Dev, Ino: f.Ino}, born: f.Born, generation: f.Generation,
		path: f.Path, home: f.Home, seen: time.Unix(f.Seen, 0), acked: f.position(),
		packed: f.Packed, packedEnd: f.Offset, marks: loadMarks(f.Marks), ends: loadMarks(f.Ends),
	}
}
