package record

import (
	"fmt"
	"testing"
)

const benchRecords = 1000

func benchValue() []byte {
	const line = `203.0.113.7 - - [30/Nov/2026:10:00:00 +0000] "GET /item/%06d HTTP/1.1" 200 512 "-" "curl/8.0"`
	return []byte(fmt.Sprintf(line, 42))[:90]
}

func benchBatch(b *testing.B, codec Codec) Batch {
	records := make([]Record, benchRecords)
	for i := range records {
		records[i] = Record{Timestamp: int64(i), Value: []byte(fmt.Sprintf("%s%06d", benchValue(), i))}
	}
	return build(b, BuildOptions{Codec: codec}, records)
}

// BenchmarkBuilder adds a record of 100 bytes with two headers per operation and
// builds a batch every 1,000.
func BenchmarkBuilder(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			value := benchValue()
			headers := []Header{{"host", []byte("web-1")}, {"path", []byte("/var/log/nginx/access.log")}}
			var builder Builder
			var batch Batch
			var err error
			b.ReportAllocs()
			b.SetBytes(int64(len(value)))
			for i := 0; b.Loop(); i++ {
				builder.Append(int64(i), nil, value, headers)
				if builder.Count() == benchRecords {
					if batch, err = builder.Build(BuildOptions{Codec: codec}, batch[:0]); err != nil {
						b.Fatal(err)
					}
					builder.Reset()
				}
			}
		})
	}
}

// BenchmarkValidate checks a batch of 1,000 records of 100 bytes per operation.
func BenchmarkValidate(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			batch := benchBatch(b, codec)
			var v Validator
			b.ReportAllocs()
			b.SetBytes(int64(benchRecords * 100))
			for b.Loop() {
				if err := batch.Validate(&v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEach decodes a batch of 1,000 records of 100 bytes per operation.
func BenchmarkEach(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			batch := benchBatch(b, codec)
			d := NewDecompressor(0)
			b.ReportAllocs()
			b.SetBytes(int64(benchRecords * 100))
			for b.Loop() {
				if err := batch.Each(d, func(*Record) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkValidateCold checks batches of 1 MB, of records of 1 KiB, that are no longer in the processor's cache.
func BenchmarkValidateCold(b *testing.B) {
	records := make([]Record, benchRecords)
	for i := range records {
		records[i] = Record{Timestamp: int64(i), Value: make([]byte, 1024)}
	}
	batches := make([]Batch, 8)
	for i := range batches {
		batches[i] = build(b, BuildOptions{}, records)
	}
	var v Validator
	b.SetBytes(int64(len(batches[0])))
	i := 0
	for b.Loop() {
		if err := v.checkRecords(batches[i%len(batches)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
