//go:build amd64 || arm64

package server

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A region that the page cache does not have comes from the disk, whole and as it is.
func TestColdRegions(t *testing.T) {
	content := make([]byte, 2*aheadBytes+residentBytes+1234)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	path := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	regions := []struct{ pos, size int }{{0, len(content)}, {4097, inlineBytes}, {aheadBytes - 5, residentBytes + 7}, {len(content) - 1, 1}}
	_, addr := start(t, Config{}, func(r *Request) {
		region := regions[r.CorrelationID]
		r.Respond(Response{Parts: []Part{{File: f, Pos: int64(region.pos), Len: region.size}}})
	})
	c := dial(t, addr)
	for i, region := range regions {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		c.send(request(1, int32(i), ""))
		got := make([]byte, 8+region.size)
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[8:], content[region.pos:region.pos+region.size]) {
			t.Errorf("region %d differs", i)
		}
	}
}
