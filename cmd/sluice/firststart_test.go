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

// Positions are taken over before the agent's first start: the command makes the state directory. A path may be relative, as on any command line.
func TestImportBeforeTheFirstStart(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "a.log")
	if err := os.WriteFile(log, []byte("read by the other\nnew\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, "p.yaml", fmt.Sprintf("pipeline: p\ncollect:\n  file: {include: [%q]}\ntopic: {name: lines}\n", dir+"/*.log"))
	positions := writeFile(t, "positions.yaml", fmt.Sprintf("positions:\n  %s: \"18\"\n", log))
	command := func(want string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), testenv.Sluice(t), append(append([]string{"agent", "positions"}, args...), "--state", filepath.Join(dir, "state"))...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	command("goes on at 18", "import", positions, "--from", "promtail", "--pipelines", file)
	command("1 positions changed", "reset", "a.log", "--to", "start")
}

// A journal that no batch fits in would never send a line.
func TestJournalThatIsTooSmall(t *testing.T) {
	file := writeFile(t, "p.yaml", "pipeline: p\ncollect:\n  file: {include: [/x/*.log]}\ntopic: {name: lines}\n")
	mustSay(t, failing(t, exitUsage, "agent", file, "--journal-bytes-max", "5"), "--journal-bytes-max 5: want at least 1MiB")
}
