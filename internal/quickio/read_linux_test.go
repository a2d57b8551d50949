package quickio

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadCached(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("0123456789"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	n, errno := ReadCached(f, got, 3)
	if errno == unix.EOPNOTSUPP {
		t.Skip("the file system cannot read without waiting")
	}
	if n != 4 || errno != 0 || string(got) != "3456" {
		t.Errorf("%d bytes, %v: %q", n, errno, got)
	}
	if n, errno := ReadCached(f, got, 8); n != 2 || errno != 0 {
		t.Errorf("at the end: %d bytes, %v", n, errno)
	}
}
