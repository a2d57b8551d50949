package tail

import "slices"

// Survey decompresses a file to its end and finds out which positions its
// content has: whether it is a compressed copy. Not safe for concurrent use.
type Survey struct {
	arch      *archive
	block     []byte
	positions []Position
	has       []bool
	end       past
}

// Survey begins with the content of a compressed file.
func (t *File) Survey(positions []Position) *Survey {
	s := &Survey{arch: &archive{kind: t.arch.kind}, positions: slices.Clone(positions), has: make([]bool, len(positions)), block: make([]byte, BlockBytes)}
	s.arch.open(t.f, t.seen, Position{})
	return s
}

// Step decompresses some more and returns true at the end.
func (s *Survey) Step() (done bool) {
	from := s.arch.at
	n := s.arch.read(s.block)
	for i, p := range s.positions {
		if p.Offset > from && p.Offset <= from+int64(n) {
			there := s.end.clone()
			there.add(s.block[:p.Offset-from])
			s.has[i] = there.is(&p)
		}
	}
	s.end.add(s.block[:n])
	return s.arch.ended
}

// Has says that the content is at a position what it was there.
func (s *Survey) Has(i int) bool { return s.has[i] }

// Positions are those that are looked for.
func (s *Survey) Positions() []Position { return s.positions }

// End is the position after all of the content.
func (s *Survey) End() Position {
	return s.end.position()
}

// Close gives the memory back.
func (s *Survey) Close() {
	s.arch.release()
	s.block = nil
}
