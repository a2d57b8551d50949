package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// emptyHeader is the room that a Builder leaves for the header.
var emptyHeader [HeaderBytes]byte

// recordBytesMax keeps a record's length field within its 32 bits.
const recordBytesMax = math.MaxInt32 - HeaderBytes - overheadBytes

// Builder collects records and builds batches of them. The zero value is ready
// and compresses at the fastest levels. Reset keeps its buffers, so that a reused
// Builder allocates nothing per record. Not safe for concurrent use.
type Builder struct {
	// Compressor is made on first use when nil.
	Compressor *Compressor

	buf           []byte // room for the header, then the records; empty when there is none
	count         int32
	baseTimestamp int64
	maxTimestamp  int64
}

// BuildOptions are the fields of a batch that are not its records'. The zero
// value is an uncompressed batch without a producer, at offset 0 of epoch 0.
type BuildOptions struct {
	Codec       Codec
	BaseOffset  int64
	LeaderEpoch int32

	// Idempotent puts the next three into the batch; without it they must be
	// zero and the batch says that it has no producer.
	Idempotent    bool
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32

	Transactional bool
	// Control marks the records as markers, which only brokers write.
	Control bool
}

// Reset forgets the records.
func (b *Builder) Reset() { b.buf, b.count = b.buf[:0], 0 }

// Count is the number of records.
func (b *Builder) Count() int { return int(b.count) }

// Bytes is the size of the uncompressed batch so far, header included.
func (b *Builder) Bytes() int { return max(len(b.buf), HeaderBytes) }

// Append adds a record and copies what it is given. timestamp is in ms; a nil key or
// value, also of a header, is a null. Records are numbered in the order they come.
func (b *Builder) Append(timestamp int64, key, value []byte, headers []Header) {
	if b.count == 0 {
		b.baseTimestamp, b.maxTimestamp = timestamp, timestamp
		b.buf = append(b.buf[:0], emptyHeader[:]...)
	}
	b.maxTimestamp = max(b.maxTimestamp, timestamp)
	tsDelta := timestamp - b.baseTimestamp
	size := 1 + varintBytes(tsDelta) + varintBytes(int64(b.count)) +
		fieldBytes(key) + fieldBytes(value) + headersBytes(headers)
	buf := binary.AppendVarint(b.buf, int64(size))
	buf = append(buf, 0)
	buf = binary.AppendVarint(buf, tsDelta)
	buf = binary.AppendVarint(buf, int64(b.count))
	buf = appendField(buf, key)
	buf = appendField(buf, value)
	buf = binary.AppendVarint(buf, int64(len(headers)))
	for i := range headers {
		buf = binary.AppendVarint(buf, int64(len(headers[i].Key)))
		buf = append(buf, headers[i].Key...)
		buf = appendField(buf, headers[i].Value)
	}
	b.buf = buf
	b.count++
}

// RecordBytes is what Append would add to Bytes for such a record, give or take
// the three bytes that a longer offset or timestamp delta can take.
func RecordBytes(key, value []byte, headers []Header) int {
	size := 3 + fieldBytes(key) + fieldBytes(value) + headersBytes(headers)
	return size + varintBytes(int64(size))
}

// Build appends one batch of the records to dst and returns the batch, which
// aliases dst's new end: pass dst[:0] of the last one to reuse its memory. The
// records stay in the Builder, so that they can be built again in another way.
func (b *Builder) Build(opts BuildOptions, dst []byte) (Batch, error) {
	if err := b.check(opts); err != nil {
		return nil, fmt.Errorf("build record batch: %w", err)
	}
	start := len(dst)
	dst = append(dst, make([]byte, HeaderBytes)...)
	dst, err := b.appendRecords(opts.Codec, dst)
	if err != nil {
		return nil, fmt.Errorf("build record batch: %w", err)
	}
	batch := Batch(dst[start:])
	b.putHeader(batch, opts)
	return batch, nil
}

// BuildInPlace builds one batch of the records without compression, where they are: the batch is given away with the Builder's memory, and
// the Builder goes on without records in next's, which may be nil.
func (b *Builder) BuildInPlace(opts BuildOptions, next []byte) (Batch, error) {
	if err := b.check(opts); err != nil {
		return nil, fmt.Errorf("build record batch: %w", err)
	}
	if opts.Codec != None {
		return nil, fmt.Errorf("build record batch: %s in place", opts.Codec)
	}
	batch := Batch(b.buf)
	b.putHeader(batch, opts)
	b.buf, b.count = next[:0], 0
	return batch, nil
}

func (b *Builder) check(opts BuildOptions) error {
	switch {
	case b.count == 0:
		return errors.New("no records")
	case len(b.buf)-HeaderBytes > recordBytesMax:
		return fmt.Errorf("%d bytes of records", len(b.buf)-HeaderBytes)
	case !opts.Idempotent && (opts.ProducerID > 0 || opts.ProducerEpoch > 0 || opts.BaseSequence > 0):
		return errors.New("a producer id, epoch or sequence without Idempotent")
	case opts.Idempotent && (opts.ProducerID < 0 || opts.ProducerEpoch < 0):
		return fmt.Errorf("producer id %d, epoch %d", opts.ProducerID, opts.ProducerEpoch)
	}
	return nil
}

func (b *Builder) appendRecords(codec Codec, dst []byte) ([]byte, error) {
	if codec == None {
		return append(dst, b.buf[HeaderBytes:]...), nil
	}
	if b.Compressor == nil {
		b.Compressor = NewCompressor(CompressorConfig{})
	}
	return b.Compressor.Compress(codec, dst, b.buf[HeaderBytes:])
}

func (b *Builder) putHeader(batch Batch, opts BuildOptions) {
	attrs := Attributes(opts.Codec)
	if opts.Transactional {
		attrs |= attrTransactional
	}
	if opts.Control {
		attrs |= attrControl
	}
	pid, epoch, seq := int64(-1), int16(-1), int32(-1)
	if opts.Idempotent {
		pid, epoch, seq = opts.ProducerID, opts.ProducerEpoch, opts.BaseSequence
	}
	be := binary.BigEndian
	be.PutUint64(batch[baseOffsetAt:], uint64(opts.BaseOffset))
	be.PutUint32(batch[lengthAt:], uint32(len(batch)-overheadBytes))
	be.PutUint32(batch[leaderEpochAt:], uint32(opts.LeaderEpoch))
	batch[magicAt] = magicV2
	be.PutUint16(batch[attributesAt:], uint16(attrs))
	be.PutUint32(batch[lastOffsetDeltaAt:], uint32(b.count-1))
	be.PutUint64(batch[baseTimestampAt:], uint64(b.baseTimestamp))
	be.PutUint64(batch[maxTimestampAt:], uint64(b.maxTimestamp))
	be.PutUint64(batch[producerIDAt:], uint64(pid))
	be.PutUint16(batch[producerEpochAt:], uint16(epoch))
	be.PutUint32(batch[baseSequenceAt:], uint32(seq))
	be.PutUint32(batch[countAt:], uint32(b.count))
	be.PutUint32(batch[crcAt:], batch.computeCRC())
}

func appendField(buf, field []byte) []byte {
	if field == nil {
		return append(buf, 1) // zigzag of -1
	}
	buf = binary.AppendVarint(buf, int64(len(field)))
	return append(buf, field...)
}

func fieldBytes(field []byte) int {
	if field == nil {
		return 1
	}
	return varintBytes(int64(len(field))) + len(field)
}

func headersBytes(headers []Header) int {
	size := varintBytes(int64(len(headers)))
	for i := range headers {
		size += varintBytes(int64(len(headers[i].Key))) + len(headers[i].Key) + fieldBytes(headers[i].Value)
	}
	return size
}

// varintBytes is the length of v as a zigzag varint.
func varintBytes(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	return (bits.Len64(u|1) + 6) / 7
}
