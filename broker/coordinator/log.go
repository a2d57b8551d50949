package coordinator

import (
	"errors"

	"github.com/sluice-io/sluice/internal/record"
)

// Errors that a Log answers and that a Shard answers to its callers.
var (
	// ErrNotLeader says that this broker does not lead the partition (any more), or no longer in
	// the epoch that the Log was made for.
	ErrNotLeader = errors.New("not the leader of the coordinator's partition")
	// ErrLoading says that the shard has not yet replayed its partition.
	ErrLoading = errors.New("coordinator is loading")
	// ErrUnavailable says that the shard could not write or could not load.
	ErrUnavailable = errors.New("coordinator is not available")
	// ErrTooLarge says that a write would make a batch over Config.BatchBytesMax.
	ErrTooLarge = errors.New("coordinator write is too large for one batch")
)

// Log is one partition of an internal topic under one leadership: the caller of Shard.Elect makes
// it for a leader epoch, and from the moment that this epoch ends every method answers an error
// that wraps ErrNotLeader.
//
// It must be safe for concurrent use. The shard calls Bounds and Read while it loads, from one
// goroutine, and Append with its mutex held.
type Log interface {
	// Bounds returns the log's start and its end (the offset of the next record, not the high
	// watermark): a new leader replays its whole log.
	Bounds() (start, end int64, err error)

	// Read returns whole batches from the one that holds offset on, or from the next one where
	// compaction left a hole; at least one batch even if it is larger than maxBytes. It reads up to
	// the log's end, past the high watermark. The bytes are the shard's until the next Read. At the
	// end of the log it returns none and no error.
	Read(offset int64, maxBytes int) ([]byte, error)

	// Append writes one batch as leader and returns the offset of its last record. It may set the
	// base offset and the leader epoch in the batch. An error means that nothing of the batch is in
	// the log.
	Append(b record.Batch) (last int64, err error)

	// Await calls done exactly once: with nil as soon as the high watermark is above offset, or with
	// an error when it can no longer be known whether it will be: the leadership ended, the
	// partition went away, the log failed. Any goroutine may run done, also the caller within
	// Await, but never one within Append, which is called with the shard's mutex held.
	Await(offset int64, done func(error))
}
