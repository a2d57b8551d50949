// Package record reads, checks and builds Kafka record batches of format 2
// (magic 2, KIP-98), the unit of every produce request, fetch response and log
// file. It does no I/O and starts no goroutine.
//
// Layout of a batch, all integers big endian:
//
//	 0  int64   base offset            not under the CRC, patched by the leader
//	 8  int32   batch length           bytes after this field
//	12  int32   partition leader epoch not under the CRC, patched by the leader
//	16  int8    magic                  2
//	17  uint32  CRC-32C                of everything from byte 21 on
//	21  int16   attributes             bits 0-2 codec, 3 log append time,
//	                                   4 transactional, 5 control, 6 delete horizon
//	23  int32   last offset delta
//	27  int64   base timestamp         ms
//	35  int64   max timestamp          ms
//	43  int64   producer id            -1: none
//	51  int16   producer epoch         -1: none
//	53  int32   base sequence          -1: none
//	57  int32   record count
//	61          records                compressed as one block when a codec is set
//
// A record, after decompression (varint and varlong are zigzag, as protobuf's
// sint32 and sint64):
//
//	varint  length of what follows
//	int8    attributes, unused
//	varlong timestamp delta            from the base timestamp
//	varint  offset delta               from the base offset
//	varint  key length, key            -1: null
//	varint  value length, value        -1: null
//	varint  header count
//	        per header: varint key length, key; varint value length (-1: null), value
//
// The format is described at https://kafka.apache.org/documentation/#recordbatch.
package record
