//go:build unix

package agent

import "syscall"

// openFilesMax bounds the default however many descriptors a process may have.
const openFilesMax = 1 << 16

// openFilesLimit is half of the descriptors this process may have.
func openFilesLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return openFilesDefault
	}
	return int(min(uint64(l.Cur)/2, openFilesMax))
}
