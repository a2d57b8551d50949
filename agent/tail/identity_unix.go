//go:build unix

package tail

import (
	"os"
	"syscall"
)

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
