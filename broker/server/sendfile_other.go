//go:build !linux

package server

import "os"

// sendFile sends n bytes of f from pos on through a buffer.
func (c *Conn) sendFile(f *os.File, pos int64, n int) error {
	w := writer{c: c}
	return w.copyRegion(f, pos, n)
}
