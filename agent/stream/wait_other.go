//go:build unix && !linux

package stream

import "os/exec"

// waitExited waits for the end of a process.
func waitExited(cmd *exec.Cmd) { _ = cmd.Wait() } // the state tells more
