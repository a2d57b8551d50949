package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// forget takes a file out of the page cache.
func forget(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }
