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

// send writes b. With more set, the kernel may keep the end of it until more
// is written, so that a response's head and its records share packets.
func (c *Conn) send(b []byte, more bool) error {
	if !more || c.raw == nil {
		_, err := c.nc.Write(b)
		return err
	}
	var failed error
	err := c.raw.Write(func(sock uintptr) bool {
		for len(b) > 0 {
			n, err := unix.SendmsgN(int(sock), b, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			if err != nil {
				failed = os.NewSyscallError("sendmsg", err)
				return true
			}
			b = b[n:]
		}
		return true
	})
	if err == nil {
		err = failed
	}
	return err
}
