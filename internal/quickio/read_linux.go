//go:build amd64 || arm64

package quickio

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadCached reads what the page cache has of f at pos, up to where it has not, without waiting for the disk. The file must not be closed
// meanwhile. File systems that wait for another machine do not know such reads, and give an error.
func ReadCached(f *os.File, dst []byte, pos int64) (int, syscall.Errno) {
	vec := unix.Iovec{Base: unsafe.SliceData(dst)}
	vec.SetLen(len(dst))
	n, _, errno := syscall.RawSyscall6(unix.SYS_PREADV2, f.Fd(), uintptr(unsafe.Pointer(&vec)), 1, uintptr(pos), 0, unix.RWF_NOWAIT)
	runtime.KeepAlive(f)
	runtime.KeepAlive(dst)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// Stat looks at an open file of a file system that waits for no other machine. The file must not be closed meanwhile.
func Stat(f *os.File, st *unix.Stat_t) syscall.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_FSTAT, f.Fd(), uintptr(unsafe.Pointer(st)), 0)
	runtime.KeepAlive(f)
	return errno
}
