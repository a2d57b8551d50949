package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Header is a record's header. A nil Value is a null, which is kept apart from
// an empty one.
type Header struct {
	Key   string
	Value []byte
}

// Record is one record of a batch. A nil Key or Value is a null, which is kept
// apart from an empty one. Slices, and the strings of header keys, alias the
// batch's bytes or the decompressor's buffer.
type Record struct {
	Offset int64
	// Timestamp in ms since 1970; NoTimestamp when there is none.
	Timestamp int64
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Causes of a record that cannot be decoded.
var (
	errTruncated     = errors.New("record ends early")
	errVarint        = errors.New("malformed varint")
	errNullHeaderKey = errors.New("null header key")
)

// Each calls fn for each record of the batch, in order, until fn returns an
// error, which it returns. The Record and everything in it are overwritten by
// the next call: keep a copy of what must stay. d may be nil when the batch is
// not compressed. A batch that cannot be decoded gives an *InvalidRecordError.
func (b Batch) Each(d *Decompressor, fn func(*Record) error) error {
	payload, err := b.records(d)
	if err != nil {
		return err
	}
	r := recordReader{batch: b, rest: payload}
	count := int(b.Count())
	for i := 0; i < count; i++ {
		if err := r.next(); err != nil {
			return &InvalidRecordError{Index: i, Reason: err.Error()}
		}
		if err := fn(&r.rec); err != nil {
			return err
		}
	}
	return nil
}

// records returns the batch's records, decompressed.
func (b Batch) records(d *Decompressor) ([]byte, error) {
	codec := b.Codec()
	if codec == None {
		return b.Payload(), nil
	}
	if d == nil {
		d = NewDecompressor(0)
	}
	payload, err := d.Decompress(codec, b.Payload())
	if err != nil {
		return nil, &InvalidRecordError{Index: -1, Reason: err.Error()}
	}
	return payload, nil
}

// recordReader decodes the records of one batch into one reused Record.
type recordReader struct {
	batch Batch
	rest  []byte
	rec   Record
}

// next decodes the next record into r.rec.
func (r *recordReader) next() error {
	body, rest, err := splitRecord(r.rest)
	if err != nil {
		return err
	}
	r.rest = rest
	return r.decode(body)
}

// splitRecord separates the first record's body from what follows it.
func splitRecord(buf []byte) (body, rest []byte, err error) {
	size, n := readVarint(buf)
	if n == 0 {
		return nil, nil, errVarint
	}
	buf = buf[n:]
	if size < 0 {
		return nil, nil, fmt.Errorf("negative record size %d", size)
	}
	if int64(size) > int64(len(buf)) {
		return nil, nil, errTruncated
	}
	return buf[:size], buf[size:], nil
}

func (r *recordReader) decode(body []byte) error {
	if len(body) == 0 {
		return errTruncated
	}
	c := cursor{buf: body[1:]} // the attributes byte has no meaning yet
	tsDelta := c.varlong()
	offsetDelta := c.varint()
	r.rec.Offset = r.batch.BaseOffset() + int64(offsetDelta)
	r.rec.Timestamp = r.timestamp(tsDelta)
	r.rec.Key = c.bytes()
	r.rec.Value = c.bytes()
	r.rec.Headers = c.headers(r.rec.Headers[:0])
	return c.finish()
}

func (r *recordReader) timestamp(delta int64) int64 {
	if r.batch.IsLogAppendTime() {
		return r.batch.MaxTimestamp()
	}
	return r.batch.BaseTimestamp() + delta
}

// cursor reads the fields of one record. The first error sticks; reads after it
// return zero values.
type cursor struct {
	buf []byte
	err error
}

func (c *cursor) varint() int32 {
	v, n := readVarint(c.buf)
	if n == 0 {
		c.fail(errVarint)
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

func (c *cursor) varlong() int64 {
	v, n := binary.Varint(c.buf)
	if n <= 0 {
		c.fail(errVarint)
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

// bytes reads a length and that many bytes; any negative length is a null, as
// Kafka's reader takes it.
func (c *cursor) bytes() []byte {
	size := c.varint()
	if size < 0 || c.err != nil {
		return nil
	}
	return c.take(size)
}

func (c *cursor) take(size int32) []byte {
	if int64(size) > int64(len(c.buf)) {
		c.fail(errTruncated)
		return nil
	}
	out := c.buf[:size:size]
	c.buf = c.buf[size:]
	return out
}

func (c *cursor) headers(dst []Header) []Header {
	count := c.varint()
	if count < 0 {
		c.fail(fmt.Errorf("negative header count %d", count))
	}
	// A header takes two bytes at least: a larger count is a lie, told
	// before anything is allocated for it.
	if int64(count) > int64(len(c.buf))/2 {
		c.fail(errTruncated)
	}
	for ; count > 0 && c.err == nil; count-- {
		size := c.varint()
		if size < 0 {
			c.fail(errNullHeaderKey)
			break
		}
		key := c.take(size)
		dst = append(dst, Header{Key: aliasString(key), Value: c.bytes()})
	}
	return dst
}

func (c *cursor) finish() error {
	if c.err == nil && len(c.buf) > 0 {
		return fmt.Errorf("%d bytes left over in the record", len(c.buf))
	}
	return c.err
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.buf = nil
}

// readVarint reads a zigzag varint of at most 32 bits; n is 0 when it is
// malformed or cut short.
func readVarint(buf []byte) (v int32, n int) {
	if len(buf) > 0 && buf[0] < 0x80 { // nearly every field of a short record
		u := uint32(buf[0])
		return int32(u>>1) ^ -int32(u&1), 1
	}
	long, n := binary.Varint(buf)
	if n <= 0 || n > 5 || long < math.MinInt32 || long > math.MaxInt32 {
		return 0, 0
	}
	return int32(long), n
}
