// Package sinks moves records from a topic into a destination with an exactly-once effect and no store but the broker.
//
// A [Worker] is one member of the sink's consumer group. Per partition it goes round this circle:
//
//		poll -> seal [lo,hi] -> claim -> write under an identity -> the next claim, or a plain commit of hi+1
//
//	  - Seal: a batch is closed by rows, bytes or age. Its range is fixed from then on.
//	  - Claim: offset lo is committed with metadata that names hi, the leader epoch, mapping and server (see [Claim]). The group's
//	    generation fences it: a worker that has lost the partition cannot claim.
//	  - Write: the rows go to the destination under [Claim.Identity]. However often a claim is written, by whichever worker, it is stored once.
//	  - Close: the next claim commits hi+1 and so closes this one; if none follows within the batch age, and when the partition is given up,
//	    a plain commit does.
//
// A worker that gets a partition with an open claim fetches exactly [lo,hi] again and writes it under the same identity, whatever its own limits
// are. Before its first write it reads back how far the destination is; as long as claims lie at or below that, and whenever a write is repeated, only the
// absent offsets are stored. This covers a mapping that changed, a reset group, an expired commit and a dedup window that has moved on.
//
// Generations fence commits, not writes. So a claim is good for a write only until a deadline below the session timeout, counted from before it was
// sent; after that it is committed again first. The deadline is checked right before the write and bounds it.
//
// The code that decides (partition) does no I/O; session runs it against the brokers and the destination; encode and write turn records into the
// destination's rows. What a worker computes depends on the record alone, so that a repeated claim is the same rows.
package sinks
