package record

import (
	"fmt"
	"math"
)

// badRecordsMax is how many bad records of one batch are named, so that a batch
// of a million bad ones does not make an answer of a hundred megabytes.
const badRecordsMax = 1000

// Fault is the kind of rule that a batch broke; it chooses the error that a
// producer gets.
type Fault int8

const (
	// FaultRecord: the batch or a record in it is malformed or not allowed.
	FaultRecord Fault = iota
	// FaultTimestamp: a timestamp lies outside the topic's limits.
	FaultTimestamp
)

// RecordError names one bad record of a batch.
type RecordError struct {
	// Index counts from 0 within the batch.
	Index  int
	Reason string
}

// InvalidRecordError says what is wrong with a batch whose checksum is right.
type InvalidRecordError struct {
	// Index of the first bad record, from 0; -1 when it is the batch as a whole.
	Index  int
	Reason string
	Fault  Fault
	// Records are all bad records, up to 1,000, when the rule is one that
	// lets the rest be checked (null keys, timestamps); empty otherwise.
	Records []RecordError
}

// Error says which record and why.
func (e *InvalidRecordError) Error() string {
	if e.Index < 0 {
		return "invalid record batch: " + e.Reason
	}
	return fmt.Sprintf("invalid record %d of the batch: %s", e.Index, e.Reason)
}

// Validator holds the rules for batches that come from producers, and the
// buffers for checking them. The zero value checks the format alone. Not safe
// for concurrent use; reuse it to save its buffers.
type Validator struct {
	// RequireKey refuses null keys, which a compacted topic cannot hold.
	RequireKey bool
	// TimestampMin and TimestampMax bound each record's timestamp, in ms, both
	// inclusive; nil is no bound. A record without a timestamp passes.
	TimestampMin, TimestampMax *int64
	// Decompressor is made on first use when nil.
	Decompressor *Decompressor
	// Pieces are what is known of the batch's checksum.
	Pieces Pieces

	batch   Batch
	largest int64
	bad     *InvalidRecordError
}

// Validate checks a batch from a producer by Apache Kafka's rules: checksum,
// codec, record count, dense offsets, well-formed records with nothing between
// or after them, no control records, and v's own. It returns an ErrCRC or an
// *InvalidRecordError. A header whose max timestamp disagrees with the records
// is set right and the CRC renewed, as Kafka does, because the time index
// believes it. v may be nil.
func (b Batch) Validate(v *Validator) error {
	if v == nil {
		v = new(Validator)
	}
	if err := b.checkSum(v.Pieces.checksum(b, attributesAt)); err != nil {
		return err
	}
	if err := b.checkHeader(); err != nil {
		return err
	}
	return v.checkRecords(b)
}

// checkHeader checks what the header alone can tell.
func (b Batch) checkHeader() error {
	switch count, delta := b.Count(), b.LastOffsetDelta(); {
	case !b.Codec().Valid():
		return invalidBatch("unknown compression codec %d", b.Codec())
	case count <= 0:
		return invalidBatch("record count %d", count)
	case delta < 0:
		return invalidBatch("last offset delta %d", delta)
	case int64(delta)+1 != int64(count):
		return invalidBatch("offsets from 0 to %d but %d records", delta, count)
	case b.IsControl():
		return invalidBatch("clients may not write control records")
	case b.ProducerID() >= 0 && (b.BaseSequence() < 0 || b.ProducerEpoch() < 0):
		return invalidBatch("producer %d with epoch %d and sequence %d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
	case b.IsLogAppendTime():
		return &InvalidRecordError{Index: -1, Fault: FaultTimestamp, Reason: "only the broker may set the log append time"}
	}
	return nil
}

func invalidBatch(format string, args ...any) error {
	return &InvalidRecordError{Index: -1, Reason: fmt.Sprintf(format, args...)}
}

func (v *Validator) checkRecords(b Batch) error {
	payload, err := v.payload(b)
	if err != nil {
		return err
	}
	v.batch, v.largest, v.bad = b, NoTimestamp, nil
	count := int(b.Count())
	for i := 0; i < count; {
		run := commonRecords(payload, i, count, v.RequireKey)
		if run.records > 0 && v.takeTimestamps(run) {
			payload = payload[run.bytes:]
			i += run.records
			continue
		}
		for range max(run.records, 1) {
			if payload, err = v.checkOne(payload, i); err != nil {
				return err
			}
			i++
		}
	}
	if len(payload) > 0 {
		return invalidBatch("%d bytes left over after %d records", len(payload), count)
	}
	if v.bad != nil {
		return v.bad
	}
	if v.largest != b.MaxTimestamp() {
		b.setMaxTimestamp(v.largest)
	}
	return nil
}

func (v *Validator) payload(b Batch) ([]byte, error) {
	if b.Codec() != None && v.Decompressor == nil {
		v.Decompressor = NewDecompressor(0)
	}
	return b.records(v.Decompressor)
}

// takeTimestamps takes those of a run of records if they are within the bounds. If
// not, each record has to be looked at.
func (v *Validator) takeTimestamps(run commonRun) bool {
	base := v.batch.BaseTimestamp()
	if base < 0 || base > math.MaxInt64/2 || base+run.least < 0 { // none, or beyond what can be told
		return false
	}
	if v.TimestampMin != nil && base+run.least < *v.TimestampMin || v.TimestampMax != nil && base+run.most > *v.TimestampMax {
		return false
	}
	v.largest = max(v.largest, base+run.most)
	return true
}

// checkOne checks the record at the start of payload and returns what follows it.
func (v *Validator) checkOne(payload []byte, i int) (rest []byte, err error) {
	body, rest, err := splitRecord(payload)
	if err == nil {
		err = v.checkRecord(i, body)
	}
	if err != nil {
		return nil, &InvalidRecordError{Index: i, Reason: err.Error()}
	}
	return rest, nil
}

// checkRecord checks the record at index i. Malformed bytes are an error at
// once; a broken rule is noted in v.bad and checking goes on.
func (v *Validator) checkRecord(i int, body []byte) error {
	if len(body) == 0 {
		return errTruncated
	}
	c := cursor{buf: body[1:]}
	tsDelta := c.varlong()
	if delta := c.varint(); c.err == nil && int(delta) != i {
		return fmt.Errorf("offset delta %d where %d is due", delta, i)
	}
	keyLen := c.varint()
	if keyLen > 0 {
		c.take(keyLen)
	}
	c.bytes()
	c.skipHeaders()
	if err := c.finish(); err != nil {
		return err
	}
	if keyLen < 0 && v.RequireKey {
		v.note(i, FaultRecord, "a compacted topic needs a key in every record")
	}
	v.checkTimestamp(i, tsDelta)
	return nil
}

func (v *Validator) checkTimestamp(i int, delta int64) {
	ts := v.batch.BaseTimestamp() + delta
	if ts == NoTimestamp {
		return
	}
	v.largest = max(v.largest, ts)
	switch {
	case v.TimestampMin != nil && ts < *v.TimestampMin:
		v.note(i, FaultTimestamp, fmt.Sprintf("timestamp %d is before the earliest allowed, %d", ts, *v.TimestampMin))
	case v.TimestampMax != nil && ts > *v.TimestampMax:
		v.note(i, FaultTimestamp, fmt.Sprintf("timestamp %d is after the latest allowed, %d", ts, *v.TimestampMax))
	}
}

// note adds a bad record. The first one's kind stands for the batch.
func (v *Validator) note(i int, f Fault, reason string) {
	if v.bad == nil {
		v.bad = &InvalidRecordError{Index: i, Reason: reason, Fault: f}
	}
	if len(v.bad.Records) < badRecordsMax {
		v.bad.Records = append(v.bad.Records, RecordError{Index: i, Reason: reason})
	}
}

// skipHeaders checks a record's headers without keeping them.
func (c *cursor) skipHeaders() {
	count := c.varint()
	if count < 0 {
		c.fail(fmt.Errorf("negative header count %d", count))
	}
	for ; count > 0 && c.err == nil; count-- {
		size := c.varint()
		if size < 0 {
			c.fail(errNullHeaderKey)
			return
		}
		c.take(size)
		c.bytes()
	}
}
