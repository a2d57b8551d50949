//go:build !linux || !(amd64 || arm64)

package server

import "os"

// residentBytes is how much of a file is sent at a time.
const residentBytes = 4 << 20

func (c *Conn) awaitResident(*os.File, int64, int, int) {}
