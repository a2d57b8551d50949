//go:build unix

package tail

import (
	"os"
	"syscall"
)

// openFile opens for reading, never waiting for a writer of a named pipe that
// stands where a file was expected.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
