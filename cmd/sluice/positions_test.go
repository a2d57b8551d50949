package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// command runs the binary and returns what it printed.
func (a *liveAgent) command(args ...string) (string, error) {
	cmd := exec.CommandContext(a.t.Context(), testenv.Sluice(a.t), args...)
	cmd.Dir = a.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// The commands move the cursor of the journal: list, reset while the agent is stopped, and refuse what cannot be.
func TestPositionsOfTheJournal(t *testing.T) {
	collect, write := spokenTexts(t)
	h := newHost(t, collect)
	h.broker.up()
	h.agent.up()
	for i := range 10 {
		if err := write("entry", i); err != nil {
			t.Fatal(err)
		}
	}
	h.settled(10)
	state := filepath.Join(h.dir, "state")
	command := func(want string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), testenv.Sluice(t), append([]string{"agent", "positions"}, args...)...).CombinedOutput()
		if !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	command("stop", "reset", "--cursor", "--to", "start", "--state", state)
	h.agent.now.Stop()
	command("s=1;i=9", "list", "--state", state)
	command("give either", "reset", "--cursor", "--vanished", "--to", "start", "--state", state)
	command("1 positions changed", "reset", "--cursor", "--to", "start", "--pipeline", "host", "--state", state)
	h.agent.up()
	h.settled(20)
}

// A shipper's positions are taken over by the commands, then an agent runs: it is explained while it does, its positions cannot be changed,
// and only what the other had not read is in the topic.
func TestPositionsOfAnotherShipper(t *testing.T) {
	a := newLiveAgent(t)
	a.broker.up()
	a.configure(toTopic("taken"))
	a.write(0, 50)
	log := filepath.Join(a.dir, "app.log")
	done := int64(len("line 000000\n") * 40)
	positions := writeFile(t, "positions.yaml", fmt.Sprintf("positions:\n  %s: \"%d\"\n  /nowhere/else.log: \"7\"\n", log, done))
	if err := os.MkdirAll(a.state(), 0o700); err != nil {
		t.Fatal(err)
	}
	imported := func(want string) {
		t.Helper()
		out, err := a.command("agent", "positions", "import", positions, "--from", "promtail", "--pipelines", a.file, "--state", a.state())
		if !strings.Contains(out, want) {
			t.Errorf("import: %v\n%s", err, out)
		}
	}
	imported(fmt.Sprintf("pipeline p goes on at %d", done))
	imported("`sluice agent positions reset` it first")
	a.start()
	if got := readTopics(t, a.addr, 10, "taken"); len(got) != 10 || got[0] < "line 000040" {
		t.Errorf("%q", got)
	}
	waitUntil(t, "explain says that all is delivered", func() bool {
		out, err := a.command("explain", "file", log, "--state", a.state())
		return err == nil && strings.Contains(out, "pipeline p: takes it") && strings.Contains(out, "all of it is delivered")
	})
	if out, err := a.command("agent", "positions", "list", "--state", a.state()); err != nil || !strings.Contains(out, log) {
		t.Errorf("list: %v\n%s", err, out)
	}
	if out, err := a.command("agent", "positions", "reset", log, "--to", "start", "--state", a.state()); err == nil || !strings.Contains(out, "while the agent is stopped") {
		t.Errorf("reset beside a running agent: %v\n%s", err, out)
	}
}
