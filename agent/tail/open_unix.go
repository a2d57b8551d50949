//go:build unix

package tail

import (
	"os"
	"syscall"
)

// OpenFlags are those that a file is opened with.
const OpenFlags = os.O_RDONLY | syscall.O_NONBLOCK

// openFile opens for reading, never waiting for a writer of a named pipe that
// stands where a file was expected.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, OpenFlags, 0)
}
