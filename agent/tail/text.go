package tail

import (
	"bytes"
	"io"
)

// textBytesMax is how far before a place it is looked for what stands before the NULs there.
const textBytesMax = 64 << 10

// text is the end of what is not NUL of a content that was passed over. A hole looks like another one, so what stands before the NULs that
// a content ends with is compared too.
type text struct {
	buf [windowBytes]byte
	n   int
	end int64 // in the content
}

// note goes on to an offset, over data that ends there; known of it was passed over before.
func (t *text) note(data []byte, known int, offset int64) {
	n := len(bytes.TrimRight(data, "\x00"))
	if n > known {
		t.n = copy(t.buf[:], data[max(n-windowBytes, 0):n])
		t.end = offset - int64(len(data)-n)
	}
}

// before is what a position at an offset covers of the text.
func (t *text) before(offset int64) []byte {
	from := max(t.end-int64(t.n), offset-textBytesMax)
	if from >= t.end {
		return nil
	}
	return t.buf[t.n-int(t.end-from) : t.n]
}

// find notes what stands before an offset of a content that was not passed over.
func (t *text) find(r io.ReaderAt, offset int64) error {
	buf := make([]byte, min(offset, textBytesMax))
	if n, err := r.ReadAt(buf, offset-int64(len(buf))); n < len(buf) {
		return err
	}
	t.note(buf, 0, offset)
	return nil
}

// textBefore is what a position covers of the text when the window before it is known; nothing where that does not end in NULs.
func textBefore(r io.ReaderAt, window []byte, offset int64) ([]byte, error) {
	if !endsInNUL(window) {
		return nil, nil
	}
	var t text
	err := t.find(r, offset)
	return t.before(offset), err
}

func endsInNUL(window []byte) bool { return len(window) > 0 && window[len(window)-1] == 0 }

// tailSum covers the window before an offset, and where that ends in NULs the text before them.
func tailSum(window, text []byte) Sum {
	s := sumOf(window)
	if endsInNUL(window) {
		s.grow([]byte{1}) // else no text would look like a position of an earlier version, which did not cover it
		s.grow(text)
		s.Len = len(window)
	}
	return s
}

// isTail says that a window, and the text before its NULs, are those of a position. Earlier versions did not cover the text.
func (p *Position) isTail(window, text []byte) bool {
	return tailSum(window, text) == p.Tail || sumOf(window) == p.Tail
}
