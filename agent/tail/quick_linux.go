//go:build amd64 || arm64

package tail

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-io/sluice/internal/quickio"
)

// readAt is f.ReadAt. What the page cache has of it is read without telling Go's scheduler; quick says that this was all.
func readAt(f *os.File, dst []byte, at int64) (n int, quick bool, err error) {
	n, _ = quickio.ReadCached(f, dst, at)
	if n == len(dst) {
		return n, true, nil
	}
	rest, err := f.ReadAt(dst[n:], at+int64(n))
	return n + rest, false, err
}

// quickInfoOf is InfoOf without telling Go's scheduler, for files of which a read just now was quick: their file system waits for no other
// machine.
func quickInfoOf(f *os.File) (Info, error) {
	var st unix.Stat_t
	if errno := quickio.Stat(f, &st); errno != 0 {
		return Info{}, &os.PathError{Op: "stat", Path: f.Name(), Err: errno}
	}
	return infoOfStat(&st), nil
}
