package tail

import (
	"os"

	"golang.org/x/sys/unix"
)

// Born is when the file was made, in nanoseconds since 1970, or 0 where the
// file system does not tell. It tells files apart that had the same inode.
func Born(f *os.File) int64 {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}
