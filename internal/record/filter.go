package record

import (
	"encoding/binary"
)

// Filter takes records out of stored batches, as compaction does: offsets, the
// batch's last offset, its sequences, epoch and codec stay. It keeps its
// buffers, so that reuse costs no allocation. Not safe for concurrent use.
type Filter struct {
	Compressor   Compressor
	Decompressor *Decompressor // made on first use when nil

	kept    []byte // the records that stay, uncompressed
	shifted []byte // the same with timestamps that count from the horizon
	out     []byte // the new batch
}

// Filtered says what became of a batch.
type Filtered struct {
	// Batch is the batch that takes the place of the old one: the old bytes when
	// nothing changed, else new ones, valid until the next call. Nil when no
	// record is left.
	Batch Batch
	// Records were read and Kept stay.
	Records, Kept int
	// Changed says that Batch is not the old one.
	Changed bool
}

// Apply keeps the records for which keep holds. When a tombstone, a record
// without a value, is among them and the batch has no delete horizon yet, it
// gets the given one, in ms: it becomes the batch's base timestamp (KIP-534). A
// batch that cannot be decoded gives an *InvalidRecordError.
func (f *Filter) Apply(b Batch, horizon int64, keep func(*Record) bool) (Filtered, error) {
	if f.Decompressor == nil {
		f.Decompressor = NewDecompressor(0)
	}
	payload, err := b.records(f.Decompressor)
	if err != nil {
		return Filtered{}, err
	}
	out := Filtered{Batch: b, Records: int(b.Count())}
	largest, tombstones := NoTimestamp, false
	f.kept = f.kept[:0]
	r := recordReader{batch: b, rest: payload}
	for i := 0; i < out.Records; i++ {
		before := r.rest
		if err := r.next(); err != nil {
			return Filtered{}, &InvalidRecordError{Index: i, Reason: err.Error()}
		}
		if !keep(&r.rec) {
			continue
		}
		out.Kept++
		f.kept = append(f.kept, before[:len(before)-len(r.rest)]...)
		largest = max(largest, r.rec.Timestamp)
		tombstones = tombstones || r.rec.Value == nil
	}
	if out.Kept == 0 {
		out.Batch, out.Changed = nil, true
		return out, nil
	}
	_, marked := b.DeleteHorizon()
	mark := tombstones && !marked
	if out.Kept == out.Records && !mark {
		return out, nil
	}
	out.Changed = true
	out.Batch, err = f.rebuild(b, out.Kept, largest, mark, horizon)
	return out, err
}

// rebuild makes a batch of the kept records under the old one's header.
func (f *Filter) rebuild(b Batch, count int, largest int64, mark bool, horizon int64) (Batch, error) {
	records := f.kept
	attrs := b.Attributes()
	base := b.BaseTimestamp()
	if mark {
		var err error
		if records, err = f.shift(b, count, horizon); err != nil {
			return nil, err
		}
		attrs |= attrDeleteHorizon
		base = horizon
	}
	if b.IsLogAppendTime() {
		largest = b.MaxTimestamp()
	}
	out, err := f.Compressor.Compress(b.Codec(), append(f.out[:0], b[:HeaderBytes]...), records)
	if err != nil {
		return nil, err
	}
	f.out = out
	batch := Batch(out)
	be := binary.BigEndian
	be.PutUint32(batch[lengthAt:], uint32(len(batch)-overheadBytes))
	be.PutUint16(batch[attributesAt:], uint16(attrs))
	be.PutUint64(batch[baseTimestampAt:], uint64(base))
	be.PutUint32(batch[countAt:], uint32(count))
	batch.setMaxTimestamp(largest)
	return batch, nil
}

// shift encodes the kept records again, with timestamps that count from base.
func (f *Filter) shift(b Batch, count int, base int64) ([]byte, error) {
	f.shifted = f.shifted[:0]
	r := recordReader{batch: b, rest: f.kept}
	for i := 0; i < count; i++ {
		body, rest, err := splitRecord(r.rest)
		if err != nil {
			return nil, &InvalidRecordError{Index: i, Reason: err.Error()}
		}
		r.rest = rest
		c := cursor{buf: body[1:]}
		delta := r.timestamp(c.varlong()) - base
		size := 1 + varintBytes(delta) + len(c.buf)
		f.shifted = binary.AppendVarint(f.shifted, int64(size))
		f.shifted = append(f.shifted, body[0])
		f.shifted = binary.AppendVarint(f.shifted, delta)
		f.shifted = append(f.shifted, c.buf...)
	}
	return f.shifted, nil
}

// AppendEmpty appends a batch without records that keeps b's offsets, producer,
// sequences and largest timestamp: what compaction leaves where they must still
// be known.
func (b Batch) AppendEmpty(dst []byte) Batch {
	at := len(dst)
	dst = append(dst, b[:HeaderBytes]...)
	out := Batch(dst[at:])
	noTimestamp := NoTimestamp
	be := binary.BigEndian
	be.PutUint32(out[lengthAt:], lengthMin)
	be.PutUint16(out[attributesAt:], uint16(b.Attributes()&^(codecMask|attrDeleteHorizon)))
	be.PutUint64(out[baseTimestampAt:], uint64(noTimestamp))
	be.PutUint32(out[countAt:], 0)
	out.setMaxTimestamp(b.MaxTimestamp())
	return out
}
