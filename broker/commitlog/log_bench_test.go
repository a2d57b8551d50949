package commitlog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-io/sluice/internal/record"
)

// benchBatch is a batch of records of 100 bytes.
func benchBatch(b *testing.B, records int) []byte {
	values := make([]string, records)
	for i := range values {
		values[i] = fmt.Sprintf("%093d", i)
	}
	return buildBatch(b, record.BuildOptions{}, 1, values...)
}

// benchLog fills a log with the given number of segments.
func benchLog(b *testing.B, segments int) *Log {
	l, _ := openTest(b, b.TempDir()+"/t-0", Config{SegmentBytes: 256 << 10, RetentionBytes: 1 << 30}, OpenOptions{Files: NewFileCache(4096)})
	batch := benchBatch(b, 10)
	for len(l.Segments()) < segments || l.active().size < 200<<10 {
		if _, err := l.Append(batch, 0, testTime); err != nil {
			b.Fatal(err)
		}
	}
	return l
}

// BenchmarkAppend appends one batch of records of 100 bytes per operation. The
// log is emptied each 256 MiB.
func BenchmarkAppend(b *testing.B) {
	for _, records := range []int{1, 10, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			l, _ := openTest(b, b.TempDir()+"/t-0", Config{}, OpenOptions{})
			batch := benchBatch(b, records)
			b.ReportAllocs()
			b.SetBytes(int64(len(batch)))
			for b.Loop() {
				if _, err := l.Append(batch, 0, testTime); err != nil {
					b.Fatal(err)
				}
				if l.Size() > 256<<20 {
					b.StopTimer()
					if err := l.TruncateFullyAt(l.EndOffset(), testTime); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkAppendIdempotent is BenchmarkAppend with producer state, ten records a batch.
func BenchmarkAppendIdempotent(b *testing.B) {
	l, _ := openTest(b, b.TempDir()+"/t-0", Config{}, OpenOptions{})
	var builder record.Builder
	for range 10 {
		builder.Append(1, nil, make([]byte, 93), nil)
	}
	var batch record.Batch
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var err error
		batch, err = builder.Build(record.BuildOptions{Idempotent: true, ProducerID: 1, BaseSequence: record.AddSequence(0, int32(10*i))}, batch[:0])
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.Append(batch, 0, testTime); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads a region of 64 KiB at a random offset per operation, of logs
// of 1 to 1,000 segments of 256 KiB.
func BenchmarkRead(b *testing.B) {
	for _, segments := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("segments=%d", segments), func(b *testing.B) {
			l := benchLog(b, segments)
			end := l.EndOffset()
			rng := rand.New(rand.NewPCG(1, 1))
			b.ReportAllocs()
			for b.Loop() {
				r, err := l.Read(rng.Int64N(end), 64<<10, end, true)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
		})
	}
}

// BenchmarkReadTail reads the last batch per operation, as a waiting consumer does.
func BenchmarkReadTail(b *testing.B) {
	l := benchLog(b, 1)
	end := l.EndOffset()
	b.ReportAllocs()
	for b.Loop() {
		r, err := l.Read(end-10, 1<<20, end, true)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}

// BenchmarkOpen opens a log of three segments per operation.
func BenchmarkOpen(b *testing.B) {
	for _, clean := range []bool{true, false} {
		b.Run(fmt.Sprintf("clean=%v", clean), func(b *testing.B) {
			l := benchLog(b, 3)
			dir, end := l.Dir(), l.EndOffset()
			cfg := l.Config()
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				l, rec, err := Open(OSFS{}, dir, cfg, OpenOptions{Clean: clean, RecoveryPoint: end, Now: testTime})
				if err != nil || rec.Clean != clean {
					b.Fatal(rec, err)
				}
				l.Abort()
			}
		})
	}
}

// BenchmarkFlush appends and flushes one batch of 1,000 records per operation.
func BenchmarkFlush(b *testing.B) {
	l, _ := openTest(b, b.TempDir()+"/t-0", Config{}, OpenOptions{})
	batch := benchBatch(b, 1000)
	for b.Loop() {
		if _, err := l.Append(batch, 0, testTime); err != nil {
			b.Fatal(err)
		}
		if _, err := l.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}
