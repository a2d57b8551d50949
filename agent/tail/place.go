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
	if offset == 0 {
		return Position{}, nil
	}
	var buf [headBytesMax]byte
	head := buf[:min(offset, headBytesMax)]
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return Position{}, fmt.Errorf("read the head: %w", err)
	}
	p := Position{Offset: offset, Head: sumOf(head)}
	tail := buf[:min(offset, windowBytes)]
	if n, err := r.ReadAt(tail, offset-int64(len(tail))); n < len(tail) {
		return Position{}, fmt.Errorf("read before offset %d: %w", offset, err)
	}
	if tail[len(tail)-1] != '\n' {
		return Position{}, ErrWithinLine
	}
	p.Tail = sumOf(tail)
	return p, nil
}
