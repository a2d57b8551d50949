package tail

// End says what is behind the last line that a Form is given.
type End uint8

// The ends.
const (
	// MayGoOn: more lines may come at any moment.
	MayGoOn End = iota
	// Quiet: none came for a while. What is open is whole.
	Quiet
	// Full: no more can be held back. What is open is taken, as split.
	Full
)

// Form makes records of lines: of several lines, or of the lines' parts. It
// keeps nothing from one call to the next: lines that it does not take stay in
// the file and are given again, with what came since.
type Form interface {
	// Shape looks at the lines of c, adds the whole records that they begin with
	// by Record, and returns how many lines these take up. Unless the end is
	// MayGoOn it takes all. A line that is cut, or is Partial, is never left.
	Shape(c *Chunk, end End) (taken int)
}

// shaped are the records that a Form makes.
type shaped struct {
	lines []Line
	texts [][]byte
}

// Record adds a record. Start, Next and the flags of l are its own. The text
// must stay good until the chunk is released: it aliases the chunk's data, or
// what Text returned.
func (c *Chunk) Record(l Line, text []byte) {
	l.End = uint32(len(c.shaped.texts))
	if l.Cut {
		c.Skipped.Cuts++
	}
	if l.Split {
		c.Skipped.Splits++
	}
	c.shaped.lines = append(c.shaped.lines, l)
	c.shaped.texts = append(c.shaped.texts, text)
}

// Records is how many were added.
func (c *Chunk) Records() int { return len(c.shaped.lines) }

// Text appends pieces to memory of the chunk and returns them as one.
func (c *Chunk) Text(pieces ...[]byte) []byte {
	from := len(c.arena)
	for _, p := range pieces {
		c.arena = append(c.arena, p...)
	}
	return c.arena[from:len(c.arena):len(c.arena)]
}

// Arena is memory for texts: what is appended to it is good until Release when
// it is given back by SetArena.
func (c *Chunk) Arena() []byte { return c.arena }

// SetArena gives the memory back, with what was appended to it.
func (c *Chunk) SetArena(p []byte) { c.arena = p }

// Truncate drops the records after the first n.
func (c *Chunk) Truncate(n int) {
	for _, l := range c.shaped.lines[n:] {
		if l.Cut {
			c.Skipped.Cuts--
		}
		if l.Split {
			c.Skipped.Splits--
		}
	}
	c.shaped.lines, c.shaped.texts = c.shaped.lines[:n], c.shaped.texts[:n]
}

// shape lets the form make records of the lines, and returns where they end.
func (t *File) shape(c *Chunk, data []byte, end int, more bool, before frameState, extent Extent) (int, bool) {
	framed := len(c.Lines)
	c.Skipped.Cuts = 0 // records count theirs
	taken := t.cfg.Form.Shape(c, endOf(extent))
	if taken == 0 && (more || len(data)-t.wlen > t.cfg.hold()) {
		c.Truncate(0)
		taken = t.cfg.Form.Shape(c, Full)
	}
	if taken < framed {
		// What stands before the first line that is left is done with.
		end = int(c.Lines[taken].Start)
		t.leave(c, data, end, before)
		more = more && taken > 0
	}
	c.Lines, c.shaped.lines = c.shaped.lines, c.Lines[:0]
	if c.texts = c.shaped.texts; c.texts == nil {
		c.texts = [][]byte{}
	}
	return end, more
}

func endOf(extent Extent) End {
	if extent == Whole {
		return MayGoOn
	}
	return Quiet
}

// leave puts the framing back to the beginning of a line that is not taken, and
// counts what was skipped up to there alone.
func (t *File) leave(c *Chunk, data []byte, end int, before frameState) {
	t.state = frameState{atStart: before.atStart && end == t.wlen}
	if c.Skipped == (Skipped{}) {
		return
	}
	cuts, splits := c.Skipped.Cuts, c.Skipped.Splits
	var again Chunk
	frame := t.cfg.framer()
	frame.frame(&again, data[:end], t.wlen, &before, false)
	c.Skipped = again.Skipped
	c.Skipped.Cuts, c.Skipped.Splits = cuts, splits
}

// Joined returns the values of some lines that follow each other, joined by
// newlines. They are not copied where they stand so in the file.
func (c *Chunk) Joined(from, to int) []byte {
	first, last := &c.Lines[from], &c.Lines[to-1]
	if to == from+1 {
		return c.Value(first)
	}
	if c.texts == nil && c.plain(from, to) {
		return c.Data[first.Start:last.End:last.End]
	}
	at := len(c.arena)
	for i := from; i < to; i++ {
		if i > from {
			c.arena = append(c.arena, '\n')
		}
		c.arena = append(c.arena, c.Value(&c.Lines[i])...)
	}
	return c.arena[at:len(c.arena):len(c.arena)]
}

// plain says that nothing but newlines stands between some lines.
func (c *Chunk) plain(from, to int) bool {
	for i := from; i < to-1; i++ {
		if l := &c.Lines[i]; l.End+1 != l.Next || l.Next != c.Lines[i+1].Start {
			return false
		}
	}
	return true
}
