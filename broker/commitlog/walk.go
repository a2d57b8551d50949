package commitlog

import (
	"errors"
	"fmt"
	"io"

	"github.com/sluice-io/sluice/internal/record"
)

// walkBytes is what a walker reads at a time: about one index interval.
const walkBytes = 4 << 10

// walker steps over the batches of a segment by their headers. Not safe for
// concurrent use; logs keep walkers in a pool.
type walker struct {
	file  File
	path  string
	limit int64 // bytes from here on are not looked at

	// The present batch, after a step that returned true.
	pos    int64
	size   int64
	header record.Batch // HeaderBytes long

	buf     []byte
	bufAt   int64
	bufSize int
}

func newWalker() *walker { return &walker{buf: make([]byte, walkBytes)} }

// start sets the walker before the batch at pos.
func (w *walker) start(file File, path string, pos, limit int64) {
	w.file, w.path, w.limit = file, path, limit
	w.pos, w.size, w.bufSize = pos, 0, 0
}

// next moves to the following batch; ok is false at the limit. A batch that
// crosses the limit, or bytes that are none, give a *CorruptionError.
func (w *walker) next() (ok bool, err error) {
	pos := w.pos + w.size
	if pos >= w.limit {
		w.pos, w.size = pos, 0
		return false, nil
	}
	w.pos, w.size = pos, 0
	if err := w.fill(pos); err != nil {
		return false, err
	}
	at := int(pos - w.bufAt)
	header := record.Batch(w.buf[at : at+record.HeaderBytes])
	size, err := record.Size(header)
	if err != nil {
		return false, w.corrupt(err)
	}
	if int64(size) > w.limit-pos {
		return false, w.corrupt(record.ErrShort)
	}
	if header.LastOffsetDelta() < 0 {
		return false, w.corrupt(fmt.Errorf("%w: last offset delta %d", record.ErrCorrupt, header.LastOffsetDelta()))
	}
	w.size, w.header = int64(size), header
	return true, nil
}

// fill makes the header at pos lie in the buffer.
func (w *walker) fill(pos int64) error {
	if pos >= w.bufAt && pos+record.HeaderBytes <= w.bufAt+int64(w.bufSize) {
		return nil
	}
	if w.limit-pos < record.HeaderBytes {
		return w.corrupt(record.ErrShort)
	}
	n, err := w.file.ReadAt(w.buf[:min(int64(len(w.buf)), w.limit-pos)], pos)
	w.bufAt, w.bufSize = pos, n
	if n >= record.HeaderBytes {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return w.corrupt(record.ErrShort)
	}
	return fmt.Errorf("read %s at %d: %w", w.path, pos, err)
}

func (w *walker) corrupt(cause error) error {
	return &CorruptionError{Path: w.path, Pos: w.pos, Offset: noOffset, Reason: cause.Error(), Cause: cause}
}

// walkFrom steps over a segment's batches from pos to limit until fn returns
// false or an error. The caller has the segment's file reserved.
func (l *Log) walkFrom(s *segment, pos, limit int64, fn func(*walker) (more bool, err error)) error {
	file, err := s.file.get(0)
	if err != nil {
		return err
	}
	w := l.walkers.Get().(*walker)
	defer l.walkers.Put(w)
	w.start(file, s.file.path(), pos, limit)
	for {
		ok, err := w.next()
		if err != nil || !ok {
			return err
		}
		if more, err := fn(w); err != nil || !more {
			return err
		}
	}
}
