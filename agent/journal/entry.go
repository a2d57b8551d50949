package journal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-io/sluice/internal/record"
)

// ID names a batch: the entry that holds it and its place there.
type ID struct {
	Entry uint64
	Index uint32
}

// TopicID is a topic's own identity, which a topic of the same name made later does not have.
type TopicID [16]byte

// Batch is one record batch.
type Batch struct {
	// ID is given by the journal.
	ID        ID
	Cluster   string
	TopicID   TopicID
	Topic     string
	Partition int32
	// Lines and SourceBytes are what the batch counts in accounts.
	Lines, SourceBytes int64
	// Class is the owner's: what kind of lines they are.
	Class uint8
	// Data are the bytes as they are sent. They are nil in what Open returns: Read gets them.
	Data record.Batch

	// The rest is read from Data and need not be set for Append.
	Producer     int64
	Epoch        int16
	BaseSequence int32
	Records      int32
	Size         int
}

// Range is a piece of a source that a bundle covers: its lines are in the bundle's batches, or were dropped.
type Range struct {
	Input      string // of the pipeline
	Path       string // the name it was first found under
	Home       uint64 // the inode of the directory that it was first found in; 0: not known
	Dev, Ino   uint64
	Born       int64
	Generation uint64 // of the content
	From       int64
	To         int64
	Skip       bool // To lies in a line whose rest is not wanted
	Head, Tail Sum  // of the content before To
	Seen       int64
}

// Sum is a checksum of some bytes of content.
type Sum struct {
	Len  uint32
	Hash uint64
}

// Bundle is what is written whole or not at all.
type Bundle struct {
	Ranges []Range
	// Replaces are batches whose records are in Batches now, or were dropped.
	Replaces []ID
	Batches  []*Batch
}

// Ack is a broker's acknowledgement.
type Ack struct {
	TopicID      TopicID
	Partition    int32
	Producer     int64
	Epoch        int16
	LastSequence int32
	BaseOffset   int64 // of the last batch; -1 when it was not told
	NextOffset   int64 // after it; -1 when it was not told
	IDs          []ID
}

// Outcome says how a batch was settled without an acknowledgement.
type Outcome uint8

// The outcomes.
const (
	// Unknown: it cannot be told whether the batch is stored.
	Unknown Outcome = 1
	// Dropped: the batch was refused and is not stored.
	Dropped Outcome = 2
)

// Settled says that batches need no more care.
type Settled struct {
	Outcome Outcome
	IDs     []ID
}

// Floor is the offset from which on a batch of this agent may lie in a partition.
type Floor struct {
	TopicID   TopicID
	Partition int32
	Offset    int64
}

// Entry is one entry: exactly one field is set.
type Entry struct {
	Bundle  *Bundle
	Ack     *Ack
	Settled *Settled
	Floors  []Floor
}

const (
	kindBundle  = 1
	kindAck     = 2
	kindSettled = 3
	kindFloors  = 4

	entryHeaderBytes = 8
	entryMinBytes    = 9 // sequence and kind
	// entryBytesMax bounds what one entry may hold; a length above it is damage.
	entryBytesMax = 256 << 20
	stringMax     = 1<<16 - 1
)

var (
	be       = binary.BigEndian
	errShort = errors.New("entry ends early")
)

// appendMeta writes an entry's sequence, kind and body to dst, but for the bytes of batches, which follow it.
func (e *Entry) appendMeta(dst []byte, seq uint64) []byte {
	dst = be.AppendUint64(dst, seq)
	switch {
	case e.Bundle != nil:
		return e.Bundle.appendTo(append(dst, kindBundle))
	case e.Ack != nil:
		return e.Ack.appendTo(append(dst, kindAck))
	case e.Settled != nil:
		return appendIDs(append(dst, kindSettled, byte(e.Settled.Outcome)), e.Settled.IDs)
	default:
		return appendFloors(append(dst, kindFloors), e.Floors)
	}
}

func (b *Bundle) appendTo(dst []byte) []byte {
	dst = be.AppendUint32(dst, uint32(len(b.Ranges)))
	for i := range b.Ranges {
		dst = b.Ranges[i].appendTo(dst)
	}
	dst = appendIDs(dst, b.Replaces)
	dst = be.AppendUint32(dst, uint32(len(b.Batches)))
	for _, x := range b.Batches {
		dst = appendString(dst, x.Cluster)
		dst = append(dst, x.TopicID[:]...)
		dst = appendString(dst, x.Topic)
		dst = be.AppendUint32(dst, uint32(x.Partition))
		dst = be.AppendUint64(dst, uint64(x.Lines))
		dst = be.AppendUint64(dst, uint64(x.SourceBytes))
		dst = append(dst, x.Class)
		dst = be.AppendUint32(dst, uint32(len(x.Data)))
	}
	return dst
}

func (r *Range) appendTo(dst []byte) []byte {
	dst = appendString(dst, r.Input)
	dst = appendString(dst, r.Path)
	dst = be.AppendUint64(dst, r.Dev)
	dst = be.AppendUint64(dst, r.Ino)
	dst = be.AppendUint64(dst, uint64(r.Born))
	dst = be.AppendUint64(dst, r.Generation)
	dst = be.AppendUint64(dst, uint64(r.From))
	dst = be.AppendUint64(dst, uint64(r.To))
	flags := byte(0)
	if r.Skip {
		flags = rangeSkips
	}
	if r.Home != 0 {
		flags |= rangeHasHome
	}
	dst = append(dst, flags)
	for _, s := range [2]Sum{r.Head, r.Tail} {
		dst = be.AppendUint32(dst, s.Len)
		dst = be.AppendUint64(dst, s.Hash)
	}
	dst = be.AppendUint64(dst, uint64(r.Seen))
	if r.Home != 0 {
		dst = be.AppendUint64(dst, r.Home)
	}
	return dst
}

// Flags of a range. Format 1 had no home.
const (
	rangeSkips   = 1
	rangeHasHome = 2
)

func (a *Ack) appendTo(dst []byte) []byte {
	dst = append(dst, a.TopicID[:]...)
	dst = be.AppendUint32(dst, uint32(a.Partition))
	dst = be.AppendUint64(dst, uint64(a.Producer))
	dst = be.AppendUint16(dst, uint16(a.Epoch))
	dst = be.AppendUint32(dst, uint32(a.LastSequence))
	dst = be.AppendUint64(dst, uint64(a.BaseOffset))
	dst = be.AppendUint64(dst, uint64(a.NextOffset))
	return appendIDs(dst, a.IDs)
}

func appendFloors(dst []byte, floors []Floor) []byte {
	dst = be.AppendUint32(dst, uint32(len(floors)))
	for _, f := range floors {
		dst = append(dst, f.TopicID[:]...)
		dst = be.AppendUint32(dst, uint32(f.Partition))
		dst = be.AppendUint64(dst, uint64(f.Offset))
	}
	return dst
}

func appendIDs(dst []byte, ids []ID) []byte {
	dst = be.AppendUint32(dst, uint32(len(ids)))
	for _, id := range ids {
		dst = be.AppendUint64(dst, id.Entry)
		dst = be.AppendUint32(dst, id.Index)
	}
	return dst
}

// appendString cuts what no path or topic reaches.
func appendString(dst []byte, s string) []byte {
	if len(s) > stringMax {
		s = s[:stringMax]
	}
	dst = be.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

// decoder reads a body. The first error sticks.
type decoder struct {
	buf []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.buf) {
		if d.err == nil {
			d.err = errShort
		}
		return nil
	}
	out := d.buf[:n:n]
	d.buf = d.buf[n:]
	return out
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if p := d.take(2); p != nil {
		return be.Uint16(p)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return be.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return be.Uint64(p)
	}
	return 0
}

func (d *decoder) text() string { return string(d.take(int(d.u16()))) }

func (d *decoder) topicID() (id TopicID) {
	copy(id[:], d.take(len(id)))
	return id
}

// count reads a count of things of at least size bytes each, so that a false one allocates nothing.
func (d *decoder) count(size int) int {
	n := int(d.u32())
	if n > len(d.buf)/size {
		d.take(len(d.buf) + 1)
		return 0
	}
	return n
}

func (d *decoder) ids() []ID {
	out := make([]ID, d.count(12))
	for i := range out {
		out[i] = ID{Entry: d.u64(), Index: d.u32()}
	}
	return out
}

func (d *decoder) sum() Sum { return Sum{Len: d.u32(), Hash: d.u64()} }

func (d *decoder) readRange() Range {
	r := Range{Input: d.text(), Path: d.text(), Dev: d.u64(), Ino: d.u64(), Born: int64(d.u64()), Generation: d.u64(),
		From: int64(d.u64()), To: int64(d.u64())}
	flags := d.u8()
	r.Skip = flags&rangeSkips != 0
	r.Head, r.Tail = d.sum(), d.sum()
	r.Seen = int64(d.u64())
	if flags&rangeHasHome != 0 {
		r.Home = d.u64()
	}
	return r
}

// decodeBody reads what follows the CRC. Batches' Data alias body.
func decodeBody(body []byte) (seq uint64, e Entry, err error) {
	d := decoder{buf: body}
	seq = d.u64()
	switch kind := d.u8(); kind {
	case kindBundle:
		e.Bundle = d.bundle(seq)
	case kindAck:
		e.Ack = &Ack{TopicID: d.topicID(), Partition: int32(d.u32()), Producer: int64(d.u64()), Epoch: int16(d.u16()),
			LastSequence: int32(d.u32()), BaseOffset: int64(d.u64()), NextOffset: int64(d.u64()), IDs: d.ids()}
	case kindSettled:
		e.Settled = &Settled{Outcome: Outcome(d.u8()), IDs: d.ids()}
	case kindFloors:
		e.Floors = make([]Floor, d.count(28))
		for i := range e.Floors {
			e.Floors[i] = Floor{TopicID: d.topicID(), Partition: int32(d.u32()), Offset: int64(d.u64())}
		}
	default:
		d.err = fmt.Errorf("unknown kind %d of entry", kind)
	}
	if d.err == nil && len(d.buf) > 0 {
		d.err = fmt.Errorf("%d bytes left over in the entry", len(d.buf))
	}
	return seq, e, d.err
}

func (d *decoder) bundle(seq uint64) *Bundle {
	const rangeBytesMin, batchBytesMin = 2 + 2 + 6*8 + 1 + 2*12 + 8, 2 + 16 + 2 + 4 + 16 + 1 + 4
	b := &Bundle{Ranges: make([]Range, d.count(rangeBytesMin))}
	for i := range b.Ranges {
		b.Ranges[i] = d.readRange()
	}
	b.Replaces = d.ids()
	b.Batches = make([]*Batch, d.count(batchBytesMin))
	for i := range b.Batches {
		b.Batches[i] = &Batch{ID: ID{Entry: seq, Index: uint32(i)}, Cluster: d.text(), TopicID: d.topicID(), Topic: d.text(),
			Partition: int32(d.u32()), Lines: int64(d.u64()), SourceBytes: int64(d.u64()), Class: d.u8(), Size: int(d.u32())}
	}
	for _, x := range b.Batches {
		x.Data = record.Batch(d.take(x.Size))
		if d.err == nil {
			d.err = x.readHeader()
		}
	}
	return b
}

// readHeader takes from the batch's own bytes what a sender must know of them.
func (b *Batch) readHeader() error {
	size, err := record.Size(b.Data)
	if err != nil {
		return fmt.Errorf("batch %d of the entry: %w", b.ID.Index, err)
	}
	if size != len(b.Data) {
		return fmt.Errorf("batch %d of the entry says that it has %d bytes, and has %d", b.ID.Index, size, len(b.Data))
	}
	b.Producer, b.Epoch, b.BaseSequence = b.Data.ProducerID(), b.Data.ProducerEpoch(), b.Data.BaseSequence()
	b.Records, b.Size = b.Data.Count(), len(b.Data)
	return nil
}
