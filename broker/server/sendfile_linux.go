package server

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// sendFile sends n bytes of f from pos on out of the page cache. The offset is
// explicit: the file's own position, which others share, is not touched.
func (c *Conn) sendFile(f *os.File, pos int64, n int) error {
	defer runtime.KeepAlive(f)
	for n > 0 {
		piece := min(n, residentBytes)
		c.awaitResident(f, pos, piece, n)
		if err := c.sendPiece(f, pos, piece); err != nil {
			return err
		}
		pos, n = pos+int64(piece), n-piece
	}
	return nil
}

func (c *Conn) sendPiece(f *os.File, pos int64, n int) error {
	fd := int(f.Fd())
	var failed error
	err := c.raw.Write(func(sock uintptr) bool {
		for n > 0 {
			sent, err := unix.Sendfile(int(sock), fd, &pos, n)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if errors.Is(err, unix.EAGAIN) {
				return false // called again when the socket takes more
			}
			if err != nil {
				failed = fmt.Errorf("sendfile: %w", err)
				return true
			}
			if sent == 0 {
				failed = fmt.Errorf("sendfile at %d of %s: %w: %d bytes are missing", pos, f.Name(), errCutShort, n)
				return true
			}
			n -= sent
			c.expectWrite()
		}
		return true
	})
	if err == nil {
		err = failed
	}
	return err
}
