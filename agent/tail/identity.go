package tail

import (
	"fmt"
	"io"
	"os"
)

const (
	// headBytesMax is how much of a file's beginning its fingerprint covers
	// once the file is that long. It is longer than most banners.
	headBytesMax = 4096
	// windowBytes is how much before the position is compared at every read.
	windowBytes = 128
)

// ID is what the file system knows a file by. It is reused after a deletion,
// so it never decides alone.
type ID struct {
	Dev, Ino uint64
}

// Sum is a checksum (FNV-1a) of Len bytes of content.
type Sum struct {
	Len  int
	Hash uint64
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// grow extends the sum by more content.
func (s *Sum) grow(p []byte) {
	h := s.Hash
	if s.Len == 0 {
		h = fnvOffset
	}
	for _, b := range p {
		h = (h ^ uint64(b)) * fnvPrime
	}
	s.Hash = h
	s.Len += len(p)
}

func sumOf(p []byte) Sum {
	var s Sum
	s.grow(p)
	return s
}

// Position is a place between two lines of a file and what the file looked
// like up to there.
type Position struct {
	// Offset is the first byte not delivered.
	Offset int64
	// Skip says that Offset lies in a line that was cut: the rest of it, up to
	// the next newline, is not to be delivered.
	Skip bool
	// Head covers the file's first min(Offset, 4096) bytes.
	Head Sum
	// Tail covers the last min(Offset, 128) bytes before Offset, and where these end in NULs the last 128 bytes before the NULs.
	Tail Sum
}

// Matches says whether the content that r holds is what it was at the
// position. Content after it does not matter. An error is one of reading.
func (p Position) Matches(r io.ReaderAt) (bool, error) {
	if p.Offset == 0 {
		return true, nil
	}
	var buf [headBytesMax]byte
	head, err := p.part(r, buf[:], p.Head, 0)
	if head == nil || err != nil || sumOf(head) != p.Head {
		return false, err
	}
	window, err := p.part(r, buf[:], p.Tail, p.Offset-int64(p.Tail.Len))
	if window == nil || err != nil {
		return false, err
	}
	text, err := textBefore(r, window, p.Offset)
	if err != nil && err != io.EOF {
		return false, fmt.Errorf("verify the content before offset %d: %w", p.Offset, err)
	}
	return p.isTail(window, text), nil
}

// part reads what a sum covers; nil when there is less.
func (p *Position) part(r io.ReaderAt, buf []byte, sum Sum, at int64) ([]byte, error) {
	if sum.Len > len(buf) || at < 0 {
		return nil, nil
	}
	n, err := r.ReadAt(buf[:sum.Len], at)
	if n == sum.Len {
		return buf[:n], nil
	}
	if err == io.EOF {
		return nil, nil
	}
	return nil, fmt.Errorf("verify the content before offset %d: %w", p.Offset, err)
}

// Info is what a look at a file says.
type Info struct {
	ID
	Size    int64
	ModTime int64 // nanoseconds since 1970
	Links   uint64
	Regular bool
	Dir     bool
}

// InfoOf looks at an open file.
func InfoOf(f *os.File) (Info, error) {
	fi, err := f.Stat()
	if err != nil {
		return Info{}, err
	}
	return infoOf(fi), nil
}
