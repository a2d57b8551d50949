//go:build !linux || !(amd64 || arm64)

package server

import (
	"os"
	"syscall"
)

// residentBytes is how much of a file is sent at a time.
const residentBytes = 4 << 20

func readResident(*os.File, []byte, int64) (int, syscall.Errno) { return 0, syscall.ENOSYS }

func (c *Conn) awaitResident(*os.File, int64, int, int) {}
