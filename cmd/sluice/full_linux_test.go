package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// fullDiskBytes is room for a few seconds of lines on their way, and far less than the journal may take.
const fullDiskBytes = 3 << 20

// The journal fills its disk: the agent goes on by itself, also over a kill, and each line arrives once.
func TestJournalFillsItsDisk(t *testing.T) {
	const files, lines = 3, 60_000
	if !testenv.CanMount() {
		t.Skip("no disk of its own can be mounted")
	}
	state := t.TempDir()
	testenv.SmallDisk(t, state, fullDiskBytes)
	dir := t.TempDir()
	h := newHost(t, fmt.Sprintf("file: {include: [%q]}", dir+"/*.log"), "--state", state, "--journal-bytes-max", "64MiB", "--drain-timeout", "1s")
	for f := range files {
		var text strings.Builder
		for i := range lines {
			n := f*lines + i
			fmt.Fprintf(&text, "%d %016x%016x\n", n, uint64(n)*0x9e3779b97f4a7c15, uint64(n)*0xbf58476d1ce4e5b9) // hard to compress
		}
		writeTo(t, filepath.Join(dir, fmt.Sprintf("%d.log", f)), text.String())
	}
	h.broker.up()
	ballast := filepath.Join(state, "ballast") // of somebody else
	writeTo(t, ballast, strings.Repeat("x", fullDiskBytes-fullDiskBytes/4))
	h.agent.up()
	waitUntil(t, "the disk is full", func() bool { return strings.Contains(h.agent.now.Output(), "no space left on device") })
	h.agent.now.Kill()
	h.agent.up()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	h.settled(files * lines)
	h.agent.now.Stop()
	h.mustHoldOnce(files*lines, func(line string) (int, error) {
		head, _, _ := strings.Cut(line, " ")
		return strconv.Atoi(head)
	})
}

func writeTo(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
