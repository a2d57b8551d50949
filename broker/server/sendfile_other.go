//go:build !linux

package server

import "os"

// sendFile sends n bytes of f from pos on through a buffer.
func (c *Conn) sendFile(f *os.File, pos int64, n int) error {
	w := writer{c: c}
	return w.copyRegion(f, pos, n)
}

// send writes b. There is no portable way to hold back the end of it.
func (c *Conn) send(b []byte, _ bool) error {
	_, err := c.nc.Write(b)
	return err
}
