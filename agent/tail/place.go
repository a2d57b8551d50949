package tail

import (
	"errors"
	"fmt"
	"io"
)

// ErrWithinLine says that an offset lies within a line, where no reader of lines stops.
var ErrWithinLine = errors.New("the offset lies within a line of the file, so it is of another content")

// PositionAt is the position at an offset of a file that is read so far. The byte before the offset must end a line.
func PositionAt(r io.ReaderAt, offset int64) (Position, error) {
	p, last, err := endAt(r, offset)
	if err == nil && offset > 0 && last != '\n' {
		return Position{}, ErrWithinLine
	}
	return p, err
}

// EndOf is the position after a content of a size, which may end within a line.
func EndOf(r io.ReaderAt, size int64) (Position, error) {
	p, _, err := endAt(r, size)
	return p, err
}

// endAt returns the position at an offset, and the byte before it.
func endAt(r io.ReaderAt, offset int64) (p Position, last byte, err error) {
	if offset == 0 {
		return Position{}, 0, nil
	}
	var buf [headBytesMax]byte
	head := buf[:min(offset, headBytesMax)]
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return Position{}, 0, fmt.Errorf("read the head: %w", err)
	}
	p = Position{Offset: offset, Head: sumOf(head)}
	tail := buf[:min(offset, windowBytes)]
	if n, err := r.ReadAt(tail, offset-int64(len(tail))); n < len(tail) {
		return Position{}, 0, fmt.Errorf("read before offset %d: %w", offset, err)
	}
	text, err := textBefore(r, tail, offset)
	if err != nil {
		return Position{}, 0, fmt.Errorf("read before offset %d: %w", offset, err)
	}
	p.Tail = tailSum(tail, text)
	return p, tail[len(tail)-1], nil
}
