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

// A copy ends before what was read of its original. Another file of its size is none.
func TestShortCopyOrAFileOfItsSize(t *testing.T) {
	dir := t.TempDir()
	open := func(name, content string) (*tail.File, tail.Position) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := tail.Open(path, &tail.FileConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		end, err := tail.EndOf(file.Handle(), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		return file, end
	}
	_, read := open("app.log", "line 1\nline 2\n")
	for _, tc := range []struct {
		content string
		copied  bool
	}{{"line 1\n", true}, {"line 3\n", false}} {
		_, waited := open("app.log.1", "line 1\n")
		file, end := open("app.log.2", tc.content)
		o := &orphan{place: read, marks: []tail.Position{waited}}
		got, err := o.shortCopy(file, tail.Found{Path: "app.log.2", Info: file.Seen()})
		if err != nil || tc.copied && got != end || !tc.copied && got.Offset != 0 {
			t.Errorf("%q: %+v %v", tc.content, got, err)
		}
	}
}
