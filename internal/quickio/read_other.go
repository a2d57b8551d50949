//go:build !linux || !(amd64 || arm64)

package quickio

import (
	"os"
	"syscall"
)

// ReadCached says that there are no such reads.
func ReadCached(*os.File, []byte, int64) (int, syscall.Errno) { return 0, syscall.ENOSYS }
