package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

const (
	// HeaderBytes is the size of a batch's header, up to its first record.
	HeaderBytes = 61
	// overheadBytes is what precedes the bytes counted by the length field.
	overheadBytes = 12
	// lengthMin is the smallest value of the length field: a header alone.
	lengthMin = HeaderBytes - overheadBytes
	// magicV2 is the only format that is read or written.
	magicV2 = 2

	baseOffsetAt      = 0
	lengthAt          = 8
	leaderEpochAt     = 12
	magicAt           = 16
	crcAt             = 17
	attributesAt      = 21
	lastOffsetDeltaAt = 23
	baseTimestampAt   = 27
	maxTimestampAt    = 35
	producerIDAt      = 43
	producerEpochAt   = 51
	baseSequenceAt    = 53
	countAt           = 57
)

// NoTimestamp marks a record or batch without a timestamp.
const NoTimestamp int64 = -1

var (
	// ErrShort says that the buffer ends before the batch does.
	ErrShort = errors.New("record batch is incomplete")
	// ErrMagic says that the bytes are a message of format 0 or 1, which
	// ended with Kafka 4.0 (KIP-724).
	ErrMagic = errors.New("message format 0 or 1 is not supported")
	// ErrCorrupt says that the bytes are no record batch.
	ErrCorrupt = errors.New("record batch is corrupt")
	// ErrCRC says that the checksum disagrees with the content. It is an ErrCorrupt.
	ErrCRC = fmt.Errorf("%w: checksum mismatch", ErrCorrupt)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Attributes are the flags of a batch.
type Attributes int16

const (
	codecMask         Attributes = 0x07
	attrLogAppendTime Attributes = 0x08
	attrTransactional Attributes = 0x10
	attrControl       Attributes = 0x20
	attrDeleteHorizon Attributes = 0x40
)

// Batch is a view of the bytes of one whole record batch. Its accessors trust
// the length, which Next has checked, and nothing else: call Validate before
// believing the content. Not safe for use beside its setters.
type Batch []byte

// Next splits the first batch off buf. It returns ErrShort when buf ends within
// the batch, ErrMagic for the older message formats and ErrCorrupt for bytes
// that cannot be a batch. It reads the header only: content and checksum are
// checked by Validate.
func Next(buf []byte) (b Batch, rest []byte, err error) {
	size, err := Size(buf)
	if err != nil {
		return nil, buf, err
	}
	if len(buf) < size {
		return nil, buf, ErrShort
	}
	return Batch(buf[:size:size]), buf[size:], nil
}

// Size returns the length in bytes of the batch that starts buf, which must
// hold at least its first 17 bytes; otherwise, or when these are no batch's, it
// returns an error as Next does.
func Size(buf []byte) (int, error) {
	if len(buf) <= magicAt {
		return 0, ErrShort
	}
	if m := int8(buf[magicAt]); m != magicV2 {
		if m == 0 || m == 1 {
			return 0, ErrMagic
		}
		return 0, fmt.Errorf("%w: magic %d", ErrCorrupt, m)
	}
	length := int32(binary.BigEndian.Uint32(buf[lengthAt:]))
	if length < lengthMin || length > math.MaxInt32-overheadBytes {
		return 0, fmt.Errorf("%w: length %d", ErrCorrupt, length)
	}
	return int(length) + overheadBytes, nil
}

// BaseOffset is the offset of the batch's first record as it was built.
func (b Batch) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(b[baseOffsetAt:])) }

// LastOffset is the offset of the last record as it was built; compaction
// keeps it although it may remove that record.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// LastOffsetDelta is LastOffset less BaseOffset.
func (b Batch) LastOffsetDelta() int32 {
	return int32(binary.BigEndian.Uint32(b[lastOffsetDeltaAt:]))
}

// LeaderEpoch is the epoch of the partition leader that appended the batch; -1
// before it is appended.
func (b Batch) LeaderEpoch() int32 { return int32(binary.BigEndian.Uint32(b[leaderEpochAt:])) }

// CRC is the stored checksum.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[crcAt:]) }

// Attributes are the batch's flags.
func (b Batch) Attributes() Attributes {
	return Attributes(binary.BigEndian.Uint16(b[attributesAt:]))
}

// BaseTimestamp is what the records' timestamp deltas count from, in ms: the
// first record's timestamp, or the delete horizon of a batch that has one.
func (b Batch) BaseTimestamp() int64 {
	return int64(binary.BigEndian.Uint64(b[baseTimestampAt:]))
}

// MaxTimestamp is the largest timestamp of the records, in ms; with
// IsLogAppendTime it is every record's timestamp.
func (b Batch) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[maxTimestampAt:])) }

// ProducerID is the idempotent producer's id, or -1.
func (b Batch) ProducerID() int64 { return int64(binary.BigEndian.Uint64(b[producerIDAt:])) }

// ProducerEpoch is the idempotent producer's epoch, or -1.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[producerEpochAt:])) }

// BaseSequence is the sequence number of the first record, or -1.
func (b Batch) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(b[baseSequenceAt:])) }

// LastSequence is the sequence number of the last record, or -1. Sequences wrap
// from 2147483647 to 0.
func (b Batch) LastSequence() int32 {
	base := b.BaseSequence()
	if base < 0 {
		return base
	}
	return AddSequence(base, b.LastOffsetDelta())
}

// AddSequence returns the sequence number n records after seq; it wraps from
// 2147483647 to 0.
func AddSequence(seq, n int32) int32 {
	return int32((int64(seq) + int64(n)) & math.MaxInt32)
}

// Count is the number of records the header declares.
func (b Batch) Count() int32 { return int32(binary.BigEndian.Uint32(b[countAt:])) }

// Codec is the compression of the records.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & codecMask) }

// IsLogAppendTime says that the broker's time at the append, in MaxTimestamp,
// replaces the records' own.
func (b Batch) IsLogAppendTime() bool { return b.Attributes()&attrLogAppendTime != 0 }

// IsTransactional says that the batch is part of a transaction.
func (b Batch) IsTransactional() bool { return b.Attributes()&attrTransactional != 0 }

// IsControl says that the records are markers for the broker and clients'
// libraries, never for applications.
func (b Batch) IsControl() bool { return b.Attributes()&attrControl != 0 }

// DeleteHorizon is the time, in ms, from which on compaction may remove the
// batch's tombstones and markers; ok is false when none is set yet (KIP-534).
func (b Batch) DeleteHorizon() (ms int64, ok bool) {
	return b.BaseTimestamp(), b.Attributes()&attrDeleteHorizon != 0
}

// Payload is the records' bytes as stored, compressed when a codec is set.
func (b Batch) Payload() []byte { return b[HeaderBytes:] }

// SetBaseOffset moves the batch to another offset. The field is not under the CRC.
func (b Batch) SetBaseOffset(offset int64) {
	binary.BigEndian.PutUint64(b[baseOffsetAt:], uint64(offset))
}

// SetLeaderEpoch sets the leader's epoch. The field is not under the CRC.
func (b Batch) SetLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[leaderEpochAt:], uint32(epoch))
}

// SetProducer makes the batch that of an idempotent producer, with the given sequence of its first record, and brings the CRC in line with
// that: one that was wrong stays wrong.
func (b Batch) SetProducer(id int64, epoch int16, baseSequence int32) {
	before := b.headerSum()
	binary.BigEndian.PutUint64(b[producerIDAt:], uint64(id))
	binary.BigEndian.PutUint16(b[producerEpochAt:], uint16(epoch))
	binary.BigEndian.PutUint32(b[baseSequenceAt:], uint32(baseSequence))
	b.renewCRC(before)
}

// SetLogAppendTime gives every record the broker's time in ms and renews the CRC.
func (b Batch) SetLogAppendTime(ms int64) {
	binary.BigEndian.PutUint16(b[attributesAt:], uint16(b.Attributes()|attrLogAppendTime))
	b.setMaxTimestamp(ms)
}

// setMaxTimestamp sets the header's max timestamp and renews the CRC.
func (b Batch) setMaxTimestamp(ms int64) {
	binary.BigEndian.PutUint64(b[maxTimestampAt:], uint64(ms))
	binary.BigEndian.PutUint32(b[crcAt:], b.computeCRC())
}

func (b Batch) computeCRC() uint32 { return crc32.Checksum(b[attributesAt:], castagnoli) }

// CheckCRC returns an ErrCRC when the checksum disagrees with the content.
func (b Batch) CheckCRC() error { return b.checkSum(b.computeCRC()) }

func (b Batch) checkSum(got uint32) error {
	if got != b.CRC() {
		return fmt.Errorf("%w: stored %#08x, computed %#08x", ErrCRC, b.CRC(), got)
	}
	return nil
}
