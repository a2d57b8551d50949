package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// CanMount says whether this process may mount file systems.
func CanMount() bool { return os.Geteuid() == 0 }

// SmallDisk mounts a new file system of that many bytes at dir, until t ends. Only where CanMount.
func SmallDisk(t testing.TB, dir string, bytes int64) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", bytes), "sluice-test", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount a small disk: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// ballast is how the file is named that fills a disk.
const ballast = "ballast-of-a-test"

// FillDisk takes all the room of the file system at dir, until empty is called.
func FillDisk(t testing.TB, dir string) (empty func()) {
	t.Helper()
	name := filepath.Join(dir, ballast)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}
