package commitlog

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/sluice-io/sluice/internal/record"
)

// batchReader reads the batches of a closed segment whole, one after the other,
// and checks their checksums: what is written anew gets a new one. Not safe for
// concurrent use.
type batchReader struct {
	file  File
	path  string
	limit int64
	pos   int64 // of the next batch
	read  int64 // bytes read so far

	buf   []byte
	bufAt int64
	bufN  int
}

func (r *batchReader) start(file File, path string, limit int64) {
	r.file, r.path, r.limit, r.pos, r.read = file, path, limit, 0, 0
	r.bufAt, r.bufN = 0, 0
	if cap(r.buf) > 4*cleanIOBytes {
		r.buf = nil // a rare batch's
	}
}

// next returns the next batch, valid until the next call; nil at the end.
// Anything but an I/O error is a *CorruptionError.
func (r *batchReader) next() (record.Batch, error) {
	if r.pos >= r.limit {
		return nil, nil
	}
	head, err := r.view(record.HeaderBytes)
	if err != nil {
		return nil, err
	}
	size, err := record.Size(head)
	if err == nil && r.pos+int64(size) > r.limit {
		err = record.ErrShort
	}
	if err != nil {
		return nil, r.corrupt(nil, err)
	}
	b, err := r.view(size)
	if err != nil {
		return nil, err
	}
	batch := record.Batch(b)
	if err := batch.CheckCRC(); err != nil {
		return nil, r.corrupt(batch, err)
	}
	r.pos += int64(size)
	return batch, nil
}

// view returns the n bytes at pos.
func (r *batchReader) view(n int) ([]byte, error) {
	if at := r.pos - r.bufAt; at+int64(n) <= int64(r.bufN) {
		return r.buf[at : at+int64(n) : at+int64(n)], nil
	}
	if r.pos+int64(n) > r.limit {
		return nil, r.corrupt(nil, record.ErrShort)
	}
	if want := max(n, cleanIOBytes); cap(r.buf) < want {
		r.buf = make([]byte, want)
	}
	r.buf = r.buf[:cap(r.buf)]
	got, err := r.file.ReadAt(r.buf[:min(int64(len(r.buf)), r.limit-r.pos)], r.pos)
	r.bufAt, r.bufN = r.pos, got
	r.read += int64(got)
	if got >= n {
		return r.buf[:n:n], nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return nil, r.corrupt(nil, record.ErrShort)
	}
	return nil, fmt.Errorf("read %s at %d: %w", r.path, r.pos, err)
}

// corrupt is the error for the batch at pos, or for b, which was the last one.
func (r *batchReader) corrupt(b record.Batch, cause error) error {
	e := &CorruptionError{Path: r.path, Pos: r.pos, Offset: noOffset, Reason: cause.Error(), Cause: cause}
	if b != nil {
		e.Offset = b.BaseOffset()
	}
	return e
}

// rewrite is a segment that is being written to take the place of a group. Its
// files end in .cleaned. Not safe for concurrent use.
type rewrite struct {
	log      *Log
	segment  *segment
	interval int64
	file     File
	buf      []byte
	flushed  int64 // bytes in the file
	empty    record.Batch

	changed                  bool
	recordsRead, recordsKept int64
}

func newRewrite(j *cleanJob, group []cleanSegment) (*rewrite, error) {
	l := j.log
	first, last := group[0], group[len(group)-1]
	s := l.segmentNamed(segmentFiles{base: first.base, modified: last.modified}, cleanedSuffix, j.now)
	s.file.reserve()
	w := &rewrite{log: l, segment: s, interval: j.cfg.IndexIntervalBytes}
	file, err := s.file.get(os.O_CREATE | os.O_TRUNC)
	if err == nil {
		// Left-overs of a rewrite that was given up must not shine through.
		err = errors.Join(s.index.truncateFile(0), s.times.truncateFile(0))
	}
	if err != nil {
		return nil, errors.Join(j.refused(err), w.discard())
	}
	w.file = file
	return w, nil
}

// add puts a batch at the end, and returns the bytes that went to disk.
func (w *rewrite) add(b record.Batch) (written int, err error) {
	s := w.segment
	size := int64(len(b))
	if s.size+size > math.MaxInt32 {
		return 0, fmt.Errorf("segment %d would grow beyond %d bytes", s.base, math.MaxInt32)
	}
	s.takeChecked(b, s.size, size, w.interval)
	s.size += size
	w.buf = append(w.buf, b...)
	if len(w.buf) < cleanIOBytes {
		return 0, nil
	}
	return len(w.buf), w.flush()
}

// flush writes what is gathered, and the indexes when it is time.
func (w *rewrite) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	n, err := w.file.WriteAt(w.buf, w.flushed)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", w.segment.file.path(), err)
	}
	w.flushed += int64(n)
	w.buf = w.buf[:0]
	if w.segment.index.writeDue() || w.segment.times.writeDue() {
		return w.segment.writeIndexes()
	}
	return nil
}

// finish makes the segment's files, and their names, durable.
func (w *rewrite) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.segment.seal(); err != nil {
		return err
	}
	if err := w.segment.sync(); err != nil {
		return err
	}
	return SyncDir(w.log.fs, w.log.dir)
}

// discard removes the files.
func (w *rewrite) discard() error {
	w.segment.file.release()
	return w.log.removeFiles(w.segment)
}
