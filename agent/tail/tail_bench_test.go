package tail

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// writeAccessLog writes n access-log lines of about 200 bytes.
func writeAccessLog(tb testing.TB, path string, n int) int64 {
	tb.Helper()
	var buf bytes.Buffer
	for i := range n {
		fmt.Fprintf(&buf, "10.%d.%d.%d - - [30/Nov/2026:10:%02d:%02d +0000] \"GET /products/%d?session=%08x HTTP/1.1\" 200 %d \"https://shop.example/search?q=%d\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/131.0\"\n",
			i>>16&255, i>>8&255, i&255, i/60%60, i%60, i%997, i, i%50000, i%101)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
		tb.Fatal(err)
	}
	return int64(buf.Len())
}

func BenchmarkReadFrame(b *testing.B) {
	const lines = 1_000_000
	path := filepath.Join(b.TempDir(), "access.log")
	size := writeAccessLog(b, path, lines)
	blocks := &Blocks{}
	b.SetBytes(size)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		f, err := Open(path, &FileConfig{Blocks: blocks})
		if err != nil {
			b.Fatal(err)
		}
		var c Chunk
		got := 0
		for {
			o, _, err := f.Read(&c, Whole)
			if err != nil {
				b.Fatal(err)
			}
			got += len(c.Lines)
			c.Release()
			if o != More {
				break
			}
		}
		if got != lines {
			b.Fatalf("%d lines, want %d", got, lines)
		}
		f.Close()
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
