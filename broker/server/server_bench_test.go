package server

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkRoundTrip sends small requests one at a time: the cost of a request
// without what it asks for.
func BenchmarkRoundTrip(b *testing.B) {
	_, addr := start(b, Config{}, echo)
	c := dial(b, addr)
	req := request(1, 1, "0123456789")
	resp := make([]byte, 8+10)
	b.ReportAllocs()
	for b.Loop() {
		c.send(req)
		if _, err := io.ReadFull(c, resp); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReceive reads requests of 1 MiB and answers with nothing.
func BenchmarkReceive(b *testing.B) {
	_, addr := start(b, Config{}, func(r *Request) { r.Respond(Response{}) })
	c := dial(b, addr)
	req := request(1, 1, string(make([]byte, 1<<20-100)))
	resp := make([]byte, 8)
	b.SetBytes(int64(len(req)))
	b.ReportAllocs()
	for b.Loop() {
		c.send(req)
		if _, err := io.ReadFull(c, resp); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSendFile sends file regions over loopback to a client that discards
// them in the kernel's hands as far as it can.
func BenchmarkSendFile(b *testing.B) {
	for _, bm := range []struct {
		name string
		size int
	}{{"4KiB", 4 << 10}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}, {"8MiB", 8 << 20}} {
		b.Run(bm.name, func(b *testing.B) { benchmarkSendFile(b, bm.size) })
	}
}

func benchmarkSendFile(b *testing.B, size int) {
	path := filepath.Join(b.TempDir(), "segment")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	_, addr := start(b, Config{}, func(r *Request) {
		r.Respond(Response{Parts: []Part{{Bytes: make([]byte, 60)}, {File: f, Len: size}, {Bytes: make([]byte, 4)}}})
	})
	c := dial(b, addr)
	req := request(1, 1, "")
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		c.send(req)
		for left := 8 + 64 + size; left > 0; {
			n, err := c.Read(buf)
			if err != nil {
				b.Fatal(err)
			}
			left -= n
		}
	}
}
