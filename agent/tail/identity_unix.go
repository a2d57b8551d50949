//go:build unix

package tail

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Stat looks at a path, through symbolic links. A scan does that for each file, so that it allocates nothing.
func Stat(path string) (Info, error) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return Info{}, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	return infoOfStat(&st), nil
}

func infoOfStat(st *unix.Stat_t) Info {
	kind := st.Mode & unix.S_IFMT
	return Info{ID: ID{Dev: uint64(st.Dev), Ino: st.Ino}, Size: st.Size, ModTime: st.Mtim.Nano(), Links: uint64(st.Nlink),
		Regular: kind == unix.S_IFREG, Dir: kind == unix.S_IFDIR}
}

func infoOf(fi os.FileInfo) Info {
	info := Info{
		Size: fi.Size(), ModTime: fi.ModTime().UnixNano(), Links: 1,
		Regular: fi.Mode().IsRegular(), Dir: fi.IsDir(),
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.ID = ID{Dev: uint64(st.Dev), Ino: st.Ino}
		info.Links = uint64(st.Nlink)
	}
	return info
}
