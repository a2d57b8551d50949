package testenv

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// WallStep is how far one signal moves the wall clock of a SluiceWithWallClock. It is
// less than the hour by which Kafka and we refuse timestamps that lie ahead.
const WallStep = 50 * time.Minute

// Signals that move it.
const (
	WallClockAhead = syscall.SIGUSR1
	WallClockBack  = syscall.SIGUSR2
)

var sluiceWithWallClock = binary{pkg: "./cmd/sluice", overlay: wallClockOverlay}

// SluiceWithWallClock is Sluice with a wall clock that signals move, while its
// monotonic clock goes on: what a process sees when the machine's time is set. A static
// program asks the kernel itself, so that no library can come between; and only the
// monotonic clock has namespaces. So it is the standard library's time package that is
// another one. Building it takes a minute or two, once.
func SluiceWithWallClock(t testing.TB) string {
	t.Helper()
	notShort(t)
	path, err := sluiceWithWallClock.path()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const wallClockMain = `package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

func init() {
	moves := make(chan os.Signal, 8)
	signal.Notify(moves, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range moves {
			step := int64(STEP)
			if s == syscall.SIGUSR2 {
				step = -step
			}
			time.WallStep.Add(step)
		}
	}()
}
`

// wallClockOverlay writes what takes the place of which files, for go build -overlay.
func wallClockOverlay(root, dir string) (string, error) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	original := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	const now, imports = "	sec, nsec, mono := runtimeNow()\n", "	\"math/bits\"\n"
	stepped := strings.Replace(string(text), now, now+"	sec += WallStep.Load()\n", 1)
	if stepped = strings.Replace(stepped, imports, imports+"	\"sync/atomic\"\n", 1); len(stepped) <= len(text) || strings.Count(string(text), now) != 1 {
		return "", errors.New("the time package of this Go is not the one that is known: look at Now in " + original)
	}
	stepped += "\n// WallStep is by how many seconds the wall clock is off.\nvar WallStep atomic.Int64\n"
	files := map[string]string{
		original: stepped,
		filepath.Join(root, "cmd", "sluice", "wallclock_of_tests.go"): strings.Replace(wallClockMain, "STEP", strconv.Itoa(int(WallStep/time.Second)), 1),
	}
	replace := map[string]string{}
	for name, content := range files {
		replace[name] = filepath.Join(dir, "overlay-"+filepath.Base(name))
		if err := os.WriteFile(replace[name], []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o644)
}
