// Package replica is the leader's side of a partition: which epoch it leads in,
// up to where its records are committed, and who waits for that to move.
//
// A [Partition] stands over one commitlog.Log. It starts no goroutine and reads
// no clock. Appending, reading and flushing are called from outside; whoever
// moves a mark tells those who wait for it, after the partition's lock is
// released.
//
// # Marks
//
// The log end is where the next record goes. The high watermark is the offset
// below which records are committed: consumers see nothing at or above it, and
// a produce with acks=all is answered when it has passed the last record. With
// one in-sync replica and group fsync it is the synced offset; without group
// fsync it is the log end. The last stable offset is the high watermark while
// there are no transactions.
//
// # Locks
//
// Partition.fence is taken shared for each append and exclusively to change
// who leads, so that no append is under way when a change returns. The log's
// own locks come after it. Partition.mu guards the waits; the log's state may be
// read under it, and no wait is fired while it is held.
package replica
