package filetest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks/directory"
)

// childVariable tells a test binary that it is to be a worker: NAME of the file system, steps until it kills itself, and format.
const childVariable = "SLUICE_FILETEST_CHILD"

// Child is called by TestMain. In a process that SIGKILLed has started it lives a worker's life on the file system of the name, and does not return.
func Child(open func(name string) (directory.FS, error)) {
	told := os.Getenv(childVariable)
	if told == "" {
		return
	}
	name, rest, _ := strings.Cut(told, " ")
	stepsText, format, _ := strings.Cut(rest, " ")
	steps, err := strconv.Atoi(stepsText)
	var pipes []*pipelines.Pipeline
	if err == nil {
		pipes, err = pipelines.Parse("child.yaml", fmt.Appendf(nil, partitioned, format))
	}
	var f directory.FS
	if err == nil {
		f, err = open(name)
	}
	if err == nil {
		err = life(pipes[0], &killFS{FS: f, left: steps, onKill: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// SIGKILLed is Killed with real processes and real kills. fresh gives an empty file system and the name by which Child opens it.
func SIGKILLed(t *testing.T, fresh func(t testing.TB) (name string, f directory.FS), format string, first, stride int) {
	pipe := parse(t, fmt.Sprintf(partitioned, format))
	kills := 0
	for steps := first; ; steps += stride {
		name, f := fresh(t)
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", childVariable, name, steps, format))
		out, err := child.CombinedOutput()
		killed := child.ProcessState != nil && child.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if err != nil && !killed {
			t.Fatalf("after %d steps: %v: %s", steps, err, out)
		}
		nextLife(t, pipe, f, fmt.Sprintf("killed after %d steps", steps))
		if !killed {
			break
		}
		kills++
	}
	if kills == 0 {
		t.Fatal("nobody was killed")
	}
	t.Logf("%d kills", kills)
}
