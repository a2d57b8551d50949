// Package journal keeps what an agent is about to send: every record batch is written here, whole, before its first byte goes to a
// broker, so that after a crash the very same bytes can be settled. It starts no goroutine and reads no clock.
//
// A journal is a directory of segments, each named after its number in 20 digits, with the suffix .journal. A segment is a header and
// entries, all integers big endian:
//
//	 0  8 bytes  "sluicejn"
//	 8  uint16   format version, 3; see below for 1 and 2, which are read too
//	10  uint64   sequence of the first entry
//	18  uint32   CRC-32C of bytes 0 to 17
//	22  uint64   number of the segment
//	30  uint64   how many bytes of an earlier segment were in the file when this one was begun in it
//	38  uint32   CRC-32C of bytes 0 to 37
//
// An entry:
//
//	 0  uint32   length of what follows the CRC
//	 4  uint32   CRC-32C of the segment's number, as a uint64, and of what follows
//	 8  uint64   sequence: that of the entry before and one
//	16  uint8    kind
//	17           body, by kind
//
// Strings are a uint16 length and bytes. The bodies:
//
//	1 bundle          uint32 count of ranges, the ranges; uint32 count of replaced batches, their IDs; uint32 count of batches, and for
//	                  each: string cluster ID, 16 bytes topic ID, string topic, int32 partition, int64 lines, int64 source bytes,
//	                  uint8 class, uint32 length; then the batches' bytes, one after the other
//	2 acknowledgement 16 bytes topic ID, int32 partition, int64 producer ID, int16 producer epoch, int32 last sequence,
//	                  int64 base offset, int64 next offset (-1: not known), uint32 count, the IDs of the batches that it settles
//	3 settled         uint8 outcome, uint32 count, the IDs of the batches
//	4 floors          uint32 count, and for each: 16 bytes topic ID, int32 partition, int64 offset
//
// A range is string input, string path, uint64 device, uint64 inode, int64 birth, uint64 generation, int64 from, int64 to, uint8 flags (1: skip, 2: home),
// uint32 and uint64 of the head's sum, uint32 and uint64 of the tail's sum, int64 time seen, and with its flag uint64 home. An ID is the uint64 sequence of the entry
// that holds the batch and the batch's uint32 place in it. Producer, epoch, sequences and record count of a batch are in its own bytes,
// which are a record batch of format 2.
//
// Format 2 has a header of 22 bytes, without the number and what follows it, and no number in an entry's CRC. Format 1 is like it, and its ranges have no home.
//
// # Files are used again
//
// A write into pages and blocks that a file has already costs a third of one that must get them, so a segment that is let go is kept, a few of them, under its name:
// until a new segment takes its file by a rename and writes over it. Only files that this very process began are taken, so that no number is ever
// given twice to one file, and what is left in it of an earlier segment cannot pass for the present one's: the number is in each CRC. A power cut may
// undo the rename and keep what was written, or the other way round: a header with another number than the name says is none, and the segment that was let go
// was not needed.
//
// # Recovery
//
// A journal is only appended to, and each start begins a new segment. An entry counts when its length fits, its CRC is right and its
// sequence is due. The first that does not ends its segment. A segment also ends where the next one begins: entries with the sequence of
// its first entry or a later one were written by a call that failed, and are void. When the next segment begins later than that and later than
// the snapshot, entries between are lost (a power cut): everything from there on is dropped and told, since what follows a hole would move positions over it.
// A hole before what the snapshot names is none: nothing in it is needed.
// What was dropped is read from its source again: after a power cut lines may be doubled, never lost.
//
// A batch is unsettled until an acknowledgement, a settled entry or a bundle that replaces it names its ID. A floor is the offset of a
// partition from which on a batch of this agent may lie; it is written before the first batch of a partition is sent and moves with
// acknowledgements. The floors in force are written again at the head of each segment, so that no older one is needed for them.
//
// Positions are not kept here but in a snapshot, which names the sequence of the first entry that it does not contain: whose ranges are
// not in it, or whose batches were not settled when it was taken. Ranges of later bundles are applied to it one after the other, batches of
// earlier ones are settled, whatever a power cut took of the acknowledgements. A segment is removed when the two newest snapshots name a later sequence than it holds,
// and no batch in it is unsettled, or kept to be used again. Recovery syncs what it found, because the next snapshot will contain it.
package journal
