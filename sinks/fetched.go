package sinks

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	recordbatch "github.com/sluice-io/sluice/internal/record"
)

// fetchPool lends the Kafka client the memory that it decompresses and decodes batches into. What was fetched is copied into runs at once, so a few
// pieces go round and round, however fast records come. Safe for concurrent use.
type fetchPool struct {
	mu            sync.Mutex // guards what follows
	records       [][]kgo.Record
	bytes         [][]byte
	decompressors []*recordbatch.Decompressor
}

// Limits of what a pool keeps: about what two fetches need.
const (
	poolPieces     = 32
	poolBytesMax   = 2 << 20 // of a piece; larger ones are a rare batch's
	poolRecordsMax = 10_000  // of a piece, of some 200 bytes each
)

var (
	_ kgo.PoolRecords         = (*fetchPool)(nil)
	_ kgo.PoolDecompressBytes = (*fetchPool)(nil)
	_ kgo.Decompressor        = (*fetchPool)(nil)
)

// GetRecords implements kgo.PoolRecords.
func (p *fetchPool) GetRecords(n int) []kgo.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return take(&p.records, n)
}

// PutRecords implements kgo.PoolRecords.
func (p *fetchPool) PutRecords(piece []kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cap(piece) <= poolRecordsMax {
		p.records = keepLarger(p.records, piece)
	}
}

// GetDecompressBytes implements kgo.PoolDecompressBytes; Decompress takes from the pool itself.
func (p *fetchPool) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte { return nil }

// PutDecompressBytes implements kgo.PoolDecompressBytes.
func (p *fetchPool) PutDecompressBytes(piece []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cap(piece) <= poolBytesMax {
		p.bytes = keepLarger(p.bytes, piece)
	}
}

// keepLarger adds a piece; a pool that is full keeps the larger ones.
func keepLarger[E any](pieces [][]E, piece []E) [][]E {
	if len(pieces) < poolPieces {
		return append(pieces, piece)
	}
	for i := range pieces {
		if cap(pieces[i]) < cap(piece) {
			pieces[i], piece = piece, pieces[i]
		}
	}
	return pieces
}

// take takes a piece of the pool with room for n, or makes one.
func take[E any](pieces *[][]E, n int) []E {
	all := *pieces
	for i, piece := range all {
		if cap(piece) >= n {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			*pieces = all[:len(all)-1]
			return piece[:0]
		}
	}
	return make([]E, 0, n)
}

func (p *fetchPool) takeBytes(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return take(&p.bytes, n)
}

// Decompress implements kgo.Decompressor.
func (p *fetchPool) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecNone {
		return src, nil
	}
	d := p.takeDecompressor()
	defer p.putDecompressor(d)
	out, err := d.Decompress(recordbatch.Codec(codec), src)
	switch {
	case errors.Is(err, recordbatch.ErrTooLarge):
		return nil, fmt.Errorf("%w: %w", kgo.ErrMaxDecompress, err)
	case err != nil:
		return nil, err
	}
	// The decompressor keeps its buffer: that has room for what blocks may expand to, which is many times what they do.
	return append(p.takeBytes(len(out)), out...), nil
}

func (p *fetchPool) takeDecompressor() *recordbatch.Decompressor {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.decompressors)
	if n == 0 {
		return recordbatch.NewDecompressor(decompressedBytesMax)
	}
	d := p.decompressors[n-1]
	p.decompressors = p.decompressors[:n-1]
	return d
}

func (p *fetchPool) putDecompressor(d *recordbatch.Decompressor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.decompressors) < poolPieces {
		p.decompressors = append(p.decompressors, d)
	}
}

// decompressedBytesMax is the most that a batch may expand to: that of the broker's own check.
const decompressedBytesMax = recordbatch.DecompressedBytesMax

// fetchedPartition is what a poll brought of one partition, records or not.
type fetchedPartition struct {
	id               int32
	runs             []run
	logStart, logEnd int64
	fetchEnd         int64 // what a transaction that is open keeps back lies behind it
}

// copyFetched takes the topic's records out of the client's memory and gives that back.
func copyFetched(fetches kgo.Fetches, topic string) (out []fetchedPartition, n int, bytes int64) {
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if f.Topic == topic && f.Err == nil {
			got := fetchedPartition{f.Partition, newRuns(f.Records), f.LogStartOffset, f.HighWatermark, f.HighWatermark}
			if f.LastStableOffset >= 0 {
				got.fetchEnd = f.LastStableOffset
			}
			for i := range got.runs {
				n += len(got.runs[i].records)
				bytes += got.runs[i].bytes
			}
			out = append(out, got)
		}
		for _, r := range f.Records {
			r.Recycle()
		}
	})
	return out, n, bytes
}

// kafkaRecordBytes is about what the client's own form of a record takes beside the record's bytes.
const kafkaRecordBytes = 216

// A fetch is asked for in bytes as they lie in the log, and takes as many as they expand to.
const (
	fetchBytesFirst = 256 << 10 // before it is known how much they expand
	fetchBytesMin   = 64 << 10
	fetchPart       = 4 // the part of the memory for records that what fetches hold may take
	fetchPartitions = 4 // how many partitions share a fetch at least: what is on its way of one that is paused is lost
)

// fetchSizer learns from what was fetched how much to ask for. Safe for concurrent use.
type fetchSizer struct {
	fetched prometheus.Counter

	mu       sync.Mutex // guards what follows
	packed   float64    // bytes of batches as fetched; older ones count less
	expanded float64    // what the same took
}

var _ kgo.HookFetchBatchRead = (*fetchSizer)(nil)

// fetchForget is how much what was fetched before counts beside a batch.
const fetchForget = 0.98

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (z *fetchSizer) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	z.fetched.Add(float64(m.NumRecords))
	z.mu.Lock()
	defer z.mu.Unlock()
	z.packed = z.packed*fetchForget + float64(m.CompressedBytes)
	z.expanded = z.expanded*fetchForget + float64(m.UncompressedBytes) + kafkaRecordBytes*float64(m.NumRecords)
}

// size is how many bytes to ask each broker for, that all of them together take no more than room.
func (z *fetchSizer) size(room int64, brokers int, most int32) int32 {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.packed == 0 {
		return min(fetchBytesFirst, most)
	}
	packed := float64(room) / float64(max(brokers, 1)) * z.packed / z.expanded
	return int32(min(max(packed, fetchBytesMin), float64(most)))
}
