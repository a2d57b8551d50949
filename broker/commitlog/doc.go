// Package commitlog keeps the log of one partition in files of Apache Kafka's
// own formats. It knows no network and no replication, starts no goroutine and
// reads no clock: append, flush, roll, retain and checkpoint are steps that the
// broker schedules.
//
// A log is a directory, TOPIC-PARTITION, of segments named by their first offset
// in twenty digits:
//
//	.log        record batches, as internal/record describes them, one after the other
//	.index      per entry, big endian: int32 last offset of a batch less the
//	            segment's base, int32 position of that batch in the .log
//	.timeindex  per entry: int64 largest timestamp so far in ms, int32 last offset
//	            of the first batch that has it, less the segment's base
//	.snapshot   the idempotent producers before that offset; see snapshot.go
//
// and leader-epoch-checkpoint, partition.metadata and, once the log was compacted,
// compaction-checkpoint, in text. Both indexes are
// sparse: one entry each IndexIntervalBytes of data, none for a segment's first
// batch; a closed segment's time index ends with its largest timestamp. Entries of
// the active segment are written a page at a time, so after a kill the files lag
// behind; recovery adds what is missing.
//
// What holds:
//
//   - Batches lie without an overlap in offsets, and without a gap from the offset
//     in compaction-checkpoint on; leader epochs never fall,
//     and a batch's epoch is in leader-epoch-checkpoint before the batch is in the log.
//   - An append is one write at the end of the active segment. Readers see it
//     only when it is complete; one that fails is cut off again.
//   - Below the recovery point, which Checkpoint returns, data and indexes are
//     durable; below SyncedOffset the data is.
//   - The directory holds a run of segments without a hole, also after a power
//     cut: segments go oldest first, each durably before the next.
//   - Each segment has a producer snapshot at its base, durable before the
//     segments before it go.
//
// Recovery, after an unclean stop, trusts segments that end at or below the
// recovery point. In the one that holds it, it starts at the last index entry below
// it; from there on every batch must have the right length, checksum, base offset
// and leader epoch. At the first that has not, the log is cut, with all
// that follows. Missing or malformed indexes are made from the data, producers are
// read from the newest good snapshot and the batches after it, and everything kept
// is synced before it is served. Files ending in .deleted, .cleaned or .tmp are
// left-overs and are removed; a swap of segments that was under way is finished or
// undone, as swap.go tells. After a clean stop only the end of the active segment
// is looked at.
//
// Compaction, by a Cleaner, reads closed segments that lie below the high
// watermark, on disk, and writes what stays into new ones: the newest record of
// each key, at its offset, in a batch that keeps its first and last offset, its
// sequences and its epoch. A batch without records stays where a producer's last
// sequence, or the end of what was compacted, must be known. The active segment is
// never compacted, so a log's end and the next sequences do not depend on what
// compaction left.
//
// A failed write is undone and refused when the disk is full; any other failure of
// storage, a failed sync above all, takes the log offline until it is opened again.
package commitlog
