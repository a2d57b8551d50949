package commitlog

import (
	"errors"
	"fmt"
	"io"

	"github.com/sluice-io/sluice/internal/quickio"
)

var (
	// ErrOffsetOutOfRange says that an offset is below the log's start or above its end.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrOutOfOrderSequence says that a batch's sequence neither follows the
	// producer's last nor repeats one of its last five batches.
	ErrOutOfOrderSequence = errors.New("out of order sequence number")
	// ErrInvalidProducerEpoch says that a batch comes from an older epoch of its producer.
	ErrInvalidProducerEpoch = errors.New("producer epoch is older than the current one")
	// ErrBatchTooLarge says that the batches of one append exceed the segment size.
	ErrBatchTooLarge = errors.New("batches exceed the segment size")
	// ErrNoSpace says that the disk or a quota is full. The append is undone
	// and the log goes on when there is room.
	ErrNoSpace = errors.New("no space left")
	// ErrOffline says that storage failed in a way after which the log's
	// content on disk is unknown. Every later call fails too; the log comes back
	// by opening it again, which checks it.
	ErrOffline = errors.New("log is offline")
	// ErrClosed says that the log was closed, aborted or deleted.
	ErrClosed = errors.New("log is closed")
)

// OfflineError is the ErrOffline of one log, with what took it there.
type OfflineError struct {
	Dir   string
	Cause error
}

// Error says which log failed and how.
func (e *OfflineError) Error() string { return fmt.Sprintf("log %s is offline: %v", e.Dir, e.Cause) }

// Unwrap lets ErrOffline and the cause match.
func (e *OfflineError) Unwrap() []error { return []error{ErrOffline, e.Cause} }

// CorruptionError says that bytes which must be whole batches, on disk or given
// to Append, are not.
type CorruptionError struct {
	// Path of the file; empty for bytes given to Append.
	Path string
	// Pos is the byte position of the first bad batch.
	Pos int64
	// Offset is the record offset that was due there.
	Offset int64
	Reason string
	// Cause is the record package's error, when there is one.
	Cause error
}

// Error says where and why.
func (e *CorruptionError) Error() string {
	where := e.Path
	if where == "" {
		where = "append"
	}
	return fmt.Sprintf("%s: corrupt batch at byte %d, offset %d: %s", where, e.Pos, e.Offset, e.Reason)
}

// Unwrap returns the cause.
func (e *CorruptionError) Unwrap() error { return e.Cause }

// isRefusedWrite says whether a failed write leaves the disk as good as before
// once its bytes are cut off again.
func isRefusedWrite(err error) bool {
	return quickio.NoRoom(err) || errors.Is(err, io.ErrShortWrite)
}
