//go:build unix

package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/agent/producer"
	"github.com/sluice-io/sluice/pipelines"
)

const benchLines = 1_000_000

// accessLog writes access-log lines of about 200 bytes.
func accessLog(b *testing.B, path string) int64 {
	b.Helper()
	var buf bytes.Buffer
	for i := range benchLines {
		fmt.Fprintf(&buf, "10.%d.%d.%d - - [30/Nov/2026:10:%02d:%02d +0000] \"GET /products/%d?session=%08x HTTP/1.1\" 200 %d \"https://shop.example/search?q=%d\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/131.0\"\n",
			i>>16&255, i>>8&255, i&255, i/60%60, i%60, i%997, i, i%50000, i%101)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	return int64(buf.Len())
}

// BenchmarkAgent reads a file of a million lines through the whole agent into a
// destination that discards them: reading, framing, stages, records, tracking. With each codec it is the ceiling of what a real destination
// can reach.
func BenchmarkAgent(b *testing.B) {
	for _, tc := range []struct{ name, stages, collect, topic string }{
		{"raw", "", "", ""},
		{"raw-none", "", "", ", compression: none"},
		{"raw-snappy", "", "", ", compression: snappy"},
		{"raw-lz4", "", "", ", compression: lz4"},
		{"raw-zstd", "", "", ", compression: zstd"},
		{"raw-identity", "", ", identity: true", ""},
		{"nginx", "process: [{parse: nginx}]", "", ""},
	} {
		b.Run(tc.name, func(b *testing.B) {
			dir := b.TempDir()
			size := accessLog(b, filepath.Join(dir, "access.log"))
			b.SetBytes(size)
			pipes, err := pipelines.Parse("bench.yaml", []byte("pipeline: bench\ncollect:\n  file: {include: ['"+dir+"/*.log']"+tc.collect+"}\n"+tc.stages+"\ntopic: {name: lines"+tc.topic+"}\n"))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime(b)
			for range b.N {
				a, err := New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, pipes, Config{
					StateDir: b.TempDir(), Once: true,
					Destination: func(_ *pipelines.Pipeline, o producer.Owner, m *producer.Memory) (Destination, error) {
						return &producer.Discard{Settled: o.OnSettled, Memory: m}, nil
					},
				})
				if err != nil {
					b.Fatal(err)
				}
				if err := a.Run(context.Background()); err != nil {
					b.Fatal(err)
				}
				if got := a.Accounts()[0].Acked.Lines; got != benchLines {
					b.Fatalf("%d lines acknowledged", got)
				}
			}
			b.ReportMetric(float64(benchLines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
			perLine := float64(cpuTime(b)-cpu) / float64(b.N) / benchLines
			b.ReportMetric(perLine, "cpu-ns/line") // steadier than the clock on a busy machine
			b.ReportMetric(1e9/perLine, "lines/cpu-s")
			b.ReportMetric(perLine*benchLines/float64(size), "cpu-s/GB")
		})
	}
}

// cpuTime is what this process has used of all cores, in nanoseconds.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
