package server

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// sendFileBytes is how much one call of sendfile is asked for, so that progress
// is seen.
const sendFileBytes = 4 << 20

// sendFile sends n bytes of f from pos on out of the page cache. The offset is
// explicit: the file's own position, which others share, is not touched.
func (c *Conn) sendFile(f *os.File, pos int64, n int) error {
	fd := int(f.Fd())
	var failed error
	err := c.raw.Write(func(sock uintptr) bool {
		for n > 0 {
			sent, err := unix.Sendfile(int(sock), fd, &pos, min(n, sendFileBytes))
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
	runtime.KeepAlive(f)
	if err == nil {
		err = failed
	}
	return err
}
