package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// The agent's own log lies among the files that it follows: it is left alone, or each line would make another.
func TestOwnOutputIsNotShipped(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, "file: {include: ["+dir+"/*.log]}")
	h.broker.up()
	out, err := os.OpenFile(filepath.Join(dir, "sluice.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	file := writeFile(t, "p.yaml", "pipeline: own\ncollect:\n  file: {include: ["+dir+"/*.log]}\ntopic: {name: lines}\n")
	cmd := exec.CommandContext(t.Context(), testenv.Sluice(t), "agent", file, "--brokers", h.addr, "--metrics", "", "--state", filepath.Join(h.dir, "own"), "--log-level", "debug")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for i := range 20 {
		name := filepath.Join(dir, fmt.Sprintf("%d.log", i))
		if err := os.WriteFile(name, fmt.Appendf(nil, "line %d\n", i), 0o600); err != nil {
			t.Fatal(err)
		}
		h.settled(int64(i + 1))
	}
	for _, line := range h.lines() {
		if !strings.HasPrefix(line, "line ") {
			t.Errorf("a line of its own: %q", line)
		}
	}
	if info, err := out.Stat(); err != nil || info.Size() == 0 {
		t.Errorf("it has written nothing: %v", err)
	}
}
