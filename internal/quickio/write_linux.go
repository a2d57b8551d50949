//go:build amd64 || arm64

package quickio

import (
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// quickPieceBytes is how much one call writes, so that a larger write lets go of
// its processor in between.
const quickPieceBytes = 4 << 20

// writeQuickly is file.WriteAt without the scheduler's knowledge. The file must not
// be closed meanwhile.
func writeQuickly(file *os.File, data []byte, at int64) (int, error) {
	n, errno := pwriteAll(file.Fd(), data, at)
	runtime.KeepAlive(file)
	switch {
	case errno != 0:
		return n, &os.PathError{Op: "write", Path: file.Name(), Err: errno}
	case n < len(data):
		return n, &os.PathError{Op: "write", Path: file.Name(), Err: io.ErrUnexpectedEOF}
	}
	return n, nil
}

// pwriteAll writes until all is written, an error comes, or a call writes nothing.
func pwriteAll(fd uintptr, data []byte, at int64) (n int, errno syscall.Errno) {
	for n < len(data) {
		piece := data[n:min(n+quickPieceBytes, len(data))]
		wrote, _, errno := syscall.RawSyscall6(syscall.SYS_PWRITE64, fd, uintptr(unsafe.Pointer(&piece[0])), uintptr(len(piece)), uintptr(at)+uintptr(n), 0, 0)
		switch {
		case errno == syscall.EINTR:
		case errno != 0:
			return n, errno
		case wrote == 0:
			return n, 0
		default:
			n += int(wrote)
		}
	}
	return n, 0
}
