package stream

import (
	"errors"
	"os/exec"

	"golang.org/x/sys/unix"
)

// waitExited waits for the end of a process and leaves it to be reaped: until then nothing else gets its number.
func waitExited(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
