package commitlog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-io/sluice/internal/record"
)

// BenchmarkClean compacts 64 MiB of 200-byte records of 50,000 keys.
func BenchmarkClean(b *testing.B) {
	for _, codec := range []record.Codec{record.None, record.LZ4, record.Zstd} {
		b.Run(codec.String(), func(b *testing.B) {
			var builder record.Builder
			random := rand.New(rand.NewPCG(1, 2))
			value := make([]byte, 180)
			for b.Loop() {
				b.StopTimer()
				l, _ := openTest(b, b.TempDir()+"/t-0", Config{SegmentBytes: 4 << 20, Compact: true}, OpenOptions{})
				for n := 0; n < 320_000; {
					builder.Reset()
					for range 400 {
						for i := range value {
							value[i] = byte('a' + random.IntN(16))
						}
						builder.Append(int64(n), fmt.Appendf(nil, "key-%d", n*7919%50_000), value, nil)
						n++
					}
					batch, err := builder.Build(record.BuildOptions{Codec: codec}, nil)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := l.Append(batch, 0, testTime); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := l.Flush(); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(l.Size())
				b.StartTimer()
				out, err := NewCleaner(CleanerConfig{}).Clean(l, l.EndOffset(), testTime)
				if err != nil || out.RecordsKept*3 > out.RecordsRead {
					b.Fatalf("%+v, %v", out, err)
				}
				b.ReportMetric(float64(out.RecordsRead), "records/op")
				b.StopTimer()
				l.Abort()
				b.StartTimer()
			}
		})
	}
}
