package producer

import (
	"fmt"
	"sync"

	"github.com/sluice-io/sluice/internal/record"
)

// Limits of building.
const (
	// batchBytesDefault is how large a batch grows before it is compressed, where nothing else is said.
	batchBytesDefault = 1 << 20
	// keptBytesMin is the smallest batch whose memory is kept for another.
	keptBytesMin = 64 << 10
	// keptBytesMax is the largest: that of a batch which holds one long record is not kept.
	keptBytesMax = 2 << 20
	// recordSlackBytes is what a record takes beside key, value and headers.
	recordSlackBytes = 24
)

// Header is one record header.
type Header = record.Header

// Packer builds record batches from lines: each is copied once, into the batch of its partition. Not safe for concurrent use.
type Packer struct {
	// BytesMax is how large a batch grows before it is compressed; 0 means 1 MiB. A larger record is a batch by itself.
	BytesMax int
	// Codec is asked for each batch.
	Codec func() record.Codec

	memory     *Memory
	compressor *record.Compressor
	open       []*Pack
	free       []*Pack
	done       []*Batch
	bytes      int
	records    int
}

// Pack is the open batch of one partition.
type Pack struct {
	packer    *Packer
	topic     string
	partition int32
	class     Class
	builder   record.Builder
	marks     []Mark
	bytes     int64

	headers     *Header // of the last record
	headerBytes int
}

// Memory keeps the memory of batches for others. Safe for concurrent use.
type Memory struct{ data, marks sync.Pool }

// release takes back the memory of a batch that is settled.
func (m *Memory) release(b *Batch) {
	if data := b.Data; cap(data) >= keptBytesMin && cap(data) <= keptBytesMax {
		keep := []byte(data[:0])
		m.data.Put(&keep)
	}
	if marks := b.Marks; cap(marks) > 0 && !b.piece {
		keep := marks[:0]
		m.marks.Put(&keep)
	}
	b.Data, b.Marks = nil, nil
}

// Spill gives the memory of a batch back that is in the journal and not sent yet: its bytes are read from there when it is its turn. It is
// called within Written.
func (m *Memory) Spill(b *Batch) { m.release(b) }

func (m *Memory) forData(size int) []byte {
	if size < keptBytesMin {
		return nil
	}
	if p, ok := m.data.Get().(*[]byte); ok && cap(*p) >= size {
		return *p
	}
	return make([]byte, 0, size)
}

func (m *Memory) forMarks() []Mark {
	if p, ok := m.marks.Get().(*[]Mark); ok {
		return *p
	}
	return nil
}

// NewPacker makes a packer.
func NewPacker(memory *Memory, bytesMax int, codec func() record.Codec) *Packer {
	if bytesMax <= 0 {
		bytesMax = batchBytesDefault
	}
	return &Packer{BytesMax: bytesMax, Codec: codec, memory: memory, compressor: record.NewCompressor(record.CompressorConfig{})}
}

// To returns the open batch of a partition. It is valid until Take.
func (p *Packer) To(topic string, partition int32, class Class) *Pack {
	for _, k := range p.open {
		if k.partition == partition && k.class == class && k.topic == topic {
			return k
		}
	}
	k := &Pack{}
	if n := len(p.free); n > 0 {
		k, p.free = p.free[n-1], p.free[:n-1]
	}
	k.packer, k.topic, k.partition, k.class = p, topic, partition, class
	k.builder.Compressor = p.compressor
	p.open = append(p.open, k)
	return k
}

// Add appends a record. Everything is copied. timestamp is in ms.
func (k *Pack) Add(timestamp int64, key, value []byte, headers []Header, mark Mark) error {
	size := len(key) + len(value) + k.sizeOf(headers) + recordSlackBytes
	if n := k.builder.Count(); n > 0 && k.builder.Bytes()+size > k.packer.BytesMax {
		if err := k.close(); err != nil {
			return err
		}
	}
	before := k.builder.Bytes()
	if k.marks == nil {
		k.marks = k.packer.memory.forMarks()
	}
	k.builder.Append(timestamp, key, value, headers)
	k.marks = append(k.marks, mark)
	k.bytes += int64(mark.Bytes)
	k.packer.bytes += k.builder.Bytes() - before
	k.packer.records++
	return nil
}

// sizeOf is what headers take; those of one file's lines are the same slice.
func (k *Pack) sizeOf(headers []Header) int {
	if len(headers) == 0 {
		return 0
	}
	if k.headers != &headers[0] {
		k.headers, k.headerBytes = &headers[0], 0
		for i := range headers {
			k.headerBytes += len(headers[i].Key) + len(headers[i].Value) + 6
		}
	}
	return k.headerBytes
}

// close compresses the batch.
func (k *Pack) close() error {
	p := k.packer
	count, size := k.builder.Count(), k.builder.Bytes()
	data, err := k.build(p.Codec(), p.memory.forData(size))
	if err != nil {
		return fmt.Errorf("build a batch for topic %s: %w", k.topic, err)
	}
	p.done = append(p.done, &Batch{
		Topic: k.topic, Partition: k.partition, Class: k.class, Data: data, Marks: k.marks,
		Lines: int64(count), SourceBytes: k.bytes, Records: int32(count), Size: len(data),
	})
	if size > keptBytesMax {
		k.builder = record.Builder{Compressor: p.compressor}
	}
	k.builder.Reset()
	k.marks, k.bytes, k.headers = nil, 0, nil
	return nil
}

// build makes the batch. Without compression it is where its records were put, and memory is for the next one's.
func (k *Pack) build(codec record.Codec, memory []byte) (record.Batch, error) {
	opts := record.BuildOptions{Codec: codec}
	if codec == record.None {
		return k.builder.BuildInPlace(opts, memory)
	}
	return k.builder.Build(opts, memory)
}

// Bytes is how much was added since Take, uncompressed, and Records how many.
func (p *Packer) Bytes() int   { return p.bytes }
func (p *Packer) Records() int { return p.records }

// Take closes all open batches and returns them, those of a partition in order.
func (p *Packer) Take() ([]*Batch, error) {
	for _, k := range p.open {
		if k.builder.Count() > 0 {
			if err := k.close(); err != nil {
				return nil, err
			}
		}
	}
	p.free = append(p.free, p.open...)
	p.open = p.open[:0]
	out := p.done
	p.done, p.bytes, p.records = nil, 0, 0
	return out, nil
}

// MemoryOf is what a batch keeps in memory.
func MemoryOf(b *Batch) int64 { return int64(cap(b.Data) + cap(b.Marks)*markBytes) }

const markBytes = 16
