package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestRunAgainAfterAKill: the group must not wait for the dead member, whose session lasts 15 s; and the log names no sink where there is no name.
func TestRunAgainAfterAKill(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("p.yaml", "pipeline: x\ncollect: {file: {include: [a.log]}}\nsink:\n  directory: {path: out, format: json}\n  batch: {age: 100ms}\n")
	write("a.log", strings.Repeat("a line\n", 100))
	sluice := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), testenv.Sluice(t), append([]string{"run", "p.yaml", "--metrics", ""}, args...)...)
		cmd.Dir = dir
		return cmd
	}
	first := sluice()
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for stored := []string(nil); len(stored) == 0; stored, _ = filepath.Glob(filepath.Join(dir, "out", "x-*")) {
		if time.Now().After(deadline) {
			t.Fatal("nothing stored in 30 s")
		}
		<-time.After(20 * time.Millisecond)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	again := sluice("--once")
	var out, log bytes.Buffer
	again.Stdout, again.Stderr = &out, &log
	began := time.Now()
	if err := again.Run(); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the second run took %s", took)
	}
	if text := log.String(); strings.Contains(text, `sink=""`) || strings.Contains(text, "offset=-1") {
		t.Errorf("%s", text)
	}
}
