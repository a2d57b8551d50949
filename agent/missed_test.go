package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// A file whose descriptor was given up before all of it was read, and that has another name when its turn comes, has not changed when the next
// scan finds it: it is read all the same.
func TestMovedWhileItWaitsForADescriptor(t *testing.T) {
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "a.log"), filepath.Join(dir, "a.log.1")
	if err := os.WriteFile(path, []byte("line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	file, err := tail.Open(path, &tail.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &source{file: file, path: path, track: &track{}}
	r := &files{
		runner:  &runner{log: slog.New(slog.DiscardHandler), cfg: Config{Now: time.Now, OpenFilesMax: 1}},
		sources: map[tail.ID]*source{file.Seen().ID: s}, byPath: map[string]*source{},
	}
	if err := file.Park(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if r.unpark(s) || !r.scanWanted {
		t.Errorf("opened, or no scan is wanted (%v)", r.scanWanted)
	}
	info, err := tail.Stat(moved)
	if err != nil {
		t.Fatal(err)
	}
	r.found(tail.Found{Path: moved, Info: info}, time.Now(), false)
	if !s.queued || s.path != moved {
		t.Errorf("queued %v as %s", s.queued, s.path)
	}
}
