//go:build amd64 || arm64

package server

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-io/sluice/internal/quickio"
)

const (
	// residentBytes is how much of a file is sent between two looks whether the page
	// cache has it, and aheadBytes how much the disk is asked for when it has not.
	residentBytes = 512 << 10
	aheadBytes    = 2 << 20
	// coldPause is the time between two looks, and coldWaitMax when a look is given up
	// and the call waits for the disk itself.
	coldPause   = 500 * time.Microsecond
	coldWaitMax = time.Second
)

// awaitResident asks the disk for n bytes of f, of rest that will be wanted, and waits
// until they are in the page cache. A call that waits for the disk would keep one of
// the scheduler's processors, and the requests of other clients with it, until the
// scheduler looks.
func (c *Conn) awaitResident(f *os.File, pos int64, n, rest int) {
	var last [1]byte
	at := pos + int64(n) - 1
	if _, errno := quickio.ReadCached(f, last[:], at); errno != syscall.EAGAIN {
		return // it is there, or the file system cannot tell
	}
	// An error says that nothing is read ahead, no more.
	_ = unix.Fadvise(int(f.Fd()), pos, int64(min(rest, aheadBytes)), unix.FADV_WILLNEED)
	for waited := time.Duration(0); waited < coldWaitMax; waited += coldPause {
		c.expectWrite()
		time.Sleep(coldPause)
		if _, errno := quickio.ReadCached(f, last[:], at); errno != syscall.EAGAIN {
			return
		}
	}
}
