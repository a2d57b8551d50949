// Package replica is a partition on one broker: as its leader, as a follower of
// another broker's, and the fetchers that bring a follower what the leader has.
//
// A [Partition] stands over one commitlog.Log. The package starts no goroutine,
// reads no clock and knows no network: appending, reading, flushing, fetching and
// asking for another in-sync set are steps that are called from outside. Whoever
// moves a mark tells those who wait for it, after the partition's lock is released.
//
// # Marks
//
// The log end is where the next record goes. The high watermark is the offset
// below which records are committed: consumers see nothing at or above it, and
// a produce with acks=all is answered when it has passed the last record.
//
//   - With several in sync it is the least of their log ends. Those whom the leader has
//     asked the controller to let in count from the question on (KIP-497).
//   - With one in sync and group fsync it is the synced offset; without group fsync it
//     is the log end. Before a leader asks to be the only one, it syncs all that it or a
//     leader before it can have committed.
//   - A follower's is the leader's, as far as its own log reaches. It does not fall but
//     with the log.
//   - Until it has reached the start of a new leader's epoch, [Partition.ListableEnd]
//     tells none (KIP-207).
//
// The last stable offset is the high watermark while there are no transactions.
//
// # Truncation
//
// A follower tells the epoch of its last record with each fetch. A leader that has
// another history answers where the epoch ended, and the follower cuts its log there
// (KIP-101, KIP-279, KIP-595), never by its high watermark. Where the leader's log
// start leaves the histories incomparable, the follower begins again at it.
//
// # Who is in sync
//
// The controller elects; a living leader alone takes out who lags or has left the
// cluster, and lets in who has everything. What the controller has not answered for
// stays open, and is bound by the higher demand, until a newer state of the partition
// is known.
//
// sim_test.go runs all this, with the controller's decisions, under faults.
//
// # Locks
//
// Partition.cutting comes first: it keeps a follower's answer and the taking of the
// lead apart. Partition.fence is taken shared for each append, leader's or
// follower's, and exclusively to change who leads or who is in sync, so that no append
// is under way when a change returns. The log's own locks come after it. Partition.mu
// guards the waits and what a leader knows of its followers; the log's state may be
// read under it, and no wait is fired while it is held. A Fetcher's lock is held over
// none of a partition's but fence, shared.
package replica
