package commitlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/sluice-io/sluice/internal/record"
)

const (
	// verifyBytes is what recovery reads at a time. A batch of any claimed size is
	// checked in pieces, so that a corrupt length cannot take memory.
	verifyBytes = 256 << 10
	// verifyHeadersBytes is what it reads at a time where only headers are looked at.
	verifyHeadersBytes = 4 << 10
)

// crcFrom is the first byte of a batch that is under its checksum.
const crcFrom = 21

// verifier reads the batches of a segment and checks them as far as recovery
// trusts nothing: length, checksum, base offset and leader epoch. Not safe for
// concurrent use.
type verifier struct {
	file   File
	path   string
	limit  int64
	epochs epochHistory // of the checkpoint file; nil when it was lost
	// holesBelow is the offset up to which compaction may have left gaps; base and
	// next are where the segment and the one after it start.
	holesBelow int64
	base, next int64
	// durable is the recovery point: of the batches below it only headers are read.
	durable int64

	buf     []byte
	bufAt   int64
	bufSize int

	header [record.HeaderBytes]byte
	epoch  int32 // of the batch before
}

// batch checks the batch at pos that must start with offset, or, in a compacted
// log, at or after it. The returned header is valid until the next call. Anything
// but an I/O error is a *CorruptionError.
func (v *verifier) batch(pos, offset int64) (header record.Batch, size int64, err error) {
	ahead := int64(verifyBytes)
	if offset < v.durable {
		ahead = verifyHeadersBytes
	}
	head, err := v.view(pos, record.HeaderBytes, ahead)
	if err != nil {
		return nil, 0, v.bad(pos, offset, err)
	}
	copy(v.header[:], head)
	header = v.header[:]
	n, err := record.Size(header)
	if err == nil && pos+int64(n) > v.limit {
		err = record.ErrShort
	}
	if err != nil {
		return nil, 0, v.bad(pos, offset, err)
	}
	size = int64(n)
	if !v.trusts(header) {
		err = v.checkCRC(pos, size, header.CRC())
	}
	if err != nil {
		return nil, 0, v.bad(pos, offset, err)
	}
	if err := v.checkOrder(header, offset); err != nil {
		return nil, 0, v.bad(pos, offset, err)
	}
	return header, size, nil
}

// trusts says whether a batch is known to be whole.
func (v *verifier) trusts(header record.Batch) bool { return header.LastOffset() < v.durable }

func (v *verifier) checkCRC(pos, size int64, want uint32) error {
	var crc uint32
	for at, end := pos+crcFrom, pos+size; at < end; {
		chunk, err := v.view(at, min(end-at, verifyBytes), verifyBytes)
		if err != nil {
			return err
		}
		crc = crc32.Update(crc, castagnoli, chunk)
		at += int64(len(chunk))
	}
	if crc != want {
		return fmt.Errorf("%w: stored %#08x, computed %#08x", record.ErrCRC, want, crc)
	}
	return nil
}

// checkOrder checks what the checksum does not cover.
func (v *verifier) checkOrder(header record.Batch, offset int64) error {
	if !v.follows(header, offset) {
		return fmt.Errorf("%w: offsets %d to %d where %d is due", record.ErrCorrupt, header.BaseOffset(), header.LastOffset(), offset)
	}
	epoch := header.LeaderEpoch()
	if epoch < v.epoch {
		return fmt.Errorf("%w: leader epoch %d after %d", record.ErrCorrupt, epoch, v.epoch)
	}
	if known := v.epochs.at(header.BaseOffset()); known >= 0 && epoch != known {
		return fmt.Errorf("%w: leader epoch %d where the checkpoint has %d", record.ErrCorrupt, epoch, known)
	}
	v.epoch = epoch
	return nil
}

// follows says whether a batch may come where offset is due. The base offset is
// not under the checksum, so in a compacted log its bounds are all there is to check.
func (v *verifier) follows(header record.Batch, offset int64) bool {
	first, last := header.BaseOffset(), header.LastOffset()
	if last < first || first == offset {
		return last >= first
	}
	return first > offset && first <= v.holesBelow && last < v.next && last-v.base <= relativeOffsetMax
}

// view returns the n bytes at pos and reads so many ahead, of which n are at most.
func (v *verifier) view(pos, n, ahead int64) ([]byte, error) {
	if pos+n > v.limit {
		return nil, record.ErrShort
	}
	if at := pos - v.bufAt; at >= 0 && at+n <= int64(v.bufSize) {
		return v.buf[at : at+n], nil
	}
	ahead = min(ahead, v.limit-pos)
	if int64(len(v.buf)) < ahead {
		v.buf = make([]byte, ahead)
	}
	got, err := v.file.ReadAt(v.buf[:ahead], pos)
	v.bufAt, v.bufSize = pos, got
	if int64(got) >= n {
		return v.buf[:n], nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return nil, record.ErrShort
	}
	return nil, &readError{fmt.Errorf("read %s at %d: %w", v.path, pos, err)}
}

// baseAt is the base offset in the header at pos, or noOffset when there is none.
func (v *verifier) baseAt(pos int64) int64 {
	head, err := v.view(pos, record.HeaderBytes, verifyHeadersBytes)
	if err != nil {
		return noOffset
	}
	return record.Batch(head).BaseOffset()
}

// readError is a failed read, which says nothing about the content.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

func (v *verifier) bad(pos, offset int64, cause error) error {
	var read *readError
	if errors.As(cause, &read) {
		return read.error
	}
	reason := cause.Error()
	if allZero(v.header[:]) && !errors.Is(cause, record.ErrShort) {
		reason = "zeros where a batch is due"
	}
	return &CorruptionError{Path: v.path, Pos: pos, Offset: offset, Reason: reason, Cause: cause}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
