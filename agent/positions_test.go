package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

func (r *rig) stopped() *State {
	r.t.Helper()
	s, err := OpenState(r.t.Context(), slog.New(slog.DiscardHandler), r.state)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) change(f func(*State)) {
	r.t.Helper()
	s := r.stopped()
	f(s)
	if err := s.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// What is exported of one state directory is imported into another: nothing comes twice, and what is new comes.
func TestPositionsMoveToAnotherDirectory(t *testing.T) {
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\ntwo\n")
	r.write("b.log", "three\n")
	r.start()
	r.wants("one", "two", "three")
	r.settled()
	r.halt()
	var document bytes.Buffer
	r.change(func(s *State) {
		p, err := s.Positions()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(&document).Encode(p); err != nil {
			t.Fatal(err)
		}
	})
	r.rewrite("b.log", "four\nfive\n") // another content: its position fits no more
	r.write("a.log", "six\n")

	r.state = t.TempDir()
	r.change(func(s *State) {
		p, err := ReadPositions(&document)
		if err != nil {
			t.Fatal(err)
		}
		results, err := s.Import(r.pipes(), p.Exported())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range results {
			if want := strings.HasSuffix(x.Path, "b.log"); (x.Refused != "") != want {
				t.Errorf("%+v", x)
			}
		}
	})
	r.start()
	r.wants("one", "two", "three", "four", "five", "six")
}

func TestReset(t *testing.T) {
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\n")
	r.write("b.log", "two\n")
	r.start()
	r.wants("one", "two")
	r.settled()
	if _, err := OpenState(t.Context(), slog.New(slog.DiscardHandler), r.state); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("positions of a running agent are open to change: %v", err)
	}
	r.halt()
	r.write("b.log", "three\n")
	r.change(func(s *State) {
		for to, path := range map[ResetTo]string{ResetToStart: r.path("a.log"), ResetToEnd: r.path("b.log")} {
			if n, err := s.Reset("", []string{path}, to); n != 1 || err != nil {
				t.Errorf("%s: %d, %v", to, n, err)
			}
		}
		if n, err := s.Reset("", []string{r.path("c.log")}, ResetForget); n != 0 || err != nil {
			t.Errorf("of a file that is not known: %d, %v", n, err)
		}
	})
	r.write("b.log", "four\n")
	r.start()
	r.wants("one", "two", "one", "four")
}

// The position of a file expires only when the file is known to be gone.
func TestPositionsExpire(t *testing.T) {
	r := newRig(t, plainPipeline)
	r.yaml = strings.Replace(plainPipeline, "DIR/*.log*", "DIR/*/*.log", 1)
	for _, dir := range []string{"gone", "hidden", "there"} {
		if err := os.Mkdir(r.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		r.write(dir+"/a.log", dir+"\n")
	}
	r.start()
	r.wants("gone", "hidden", "there")
	r.settled()
	r.halt()
	hidden := r.path("hidden") // as a directory that cannot be entered now: the path leads through a file
	if err := os.Rename(hidden, hidden+".aside"); err != nil {
		t.Fatal(err)
	}
	r.write("hidden", "no directory")
	r.remove("gone/a.log")
	r.cfg.PositionsKeep = time.Nanosecond
	r.start()
	r.eventually("the position of the file that is gone expires", func() bool {
		return !slices.ContainsFunc(r.agent.Positions().Pipelines[0].Files, func(f FilePosition) bool { return strings.Contains(f.Path, "gone") })
	})
	r.halt()
	r.remove("hidden")
	if err := os.Rename(hidden+".aside", hidden); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.write("there/a.log", "more\n")
	r.wants("gone", "hidden", "there", "more") // hidden did not come again
	r.settled()
	r.halt()
	r.remove("there/a.log")
	r.change(func(s *State) {
		if n, err := s.ForgetVanished(); n != 1 || err != nil {
			t.Errorf("%d forgotten, %v", n, err)
		}
	})
}

func TestCertainlyGone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := tail.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := tail.ID{Dev: info.Dev + 1, Ino: info.Ino}
	for _, tc := range []struct {
		what string
		id   tail.ID
		do   func() error
		want bool
	}{
		{"it is there", info.ID, func() error { return nil }, false},
		{"it is removed", info.ID, func() error { return os.Remove(path) }, true},
		{"it was on a file system that is not there", elsewhere, func() error { return nil }, false},
		{"its directory is removed", info.ID, func() error { return os.Remove(filepath.Dir(path)) }, true},
		{"its directory was on a file system that is not there", elsewhere, func() error { return nil }, false},
	} {
		if err := tc.do(); err != nil {
			t.Fatal(err)
		}
		if got := certainlyGone(nil, path, tc.id); got != tc.want {
			t.Errorf("%s: %v", tc.what, got)
		}
	}
}

func TestExplain(t *testing.T) {
	r := newRig(t, strings.Replace(plainPipeline, "]}", "], exclude: ['DIR/x*']}", 1))
	r.write("a.log", "one\ntwo\nunfinished")
	r.write("x.log", "excluded\n")
	r.store.hold()
	left := filepath.Join(r.state, socketDirPrefix+"left") // by an agent that was killed
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.eventually("lines are on their way", func() bool { return r.store.heldLines() >= 2 })
	r.eventually("the agent answers", func() bool { _, err := AskExplain(t.Context(), r.state, r.path("a.log")); return err == nil })
	explain := func(name string) InputOfAFile {
		t.Helper()
		e, err := AskExplain(t.Context(), r.state, r.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if !e.Live || len(e.Inputs) != 1 {
			t.Fatalf("%+v", e)
		}
		return e.Inputs[0]
	}
	a := explain("a.log")
	if p := a.Position; !a.Takes || p == nil || p.Acknowledged != 0 || p.Read < 8 || p.Size != 18 || p.LagBytes != 18 || p.LagLines != 3 {
		t.Errorf("%+v %+v", a, a.Position)
	}
	wantText(t, strings.Join(a.Waits, "; "), "topic lines")
	for name, why := range map[string]string{
		"x.log": "excluded by " + r.path("x*"), "a.txt": "no include matches it; the nearest is " + r.path("*.log*"), "b.log": "there is no such file",
	} {
		wantText(t, explain(name).Why, why)
	}
	r.store.letGo()
	r.eventually("all is delivered", func() bool { return explain("a.log").Position.LagBytes == 0 })
	if a := explain("a.log"); len(a.Waits) != 0 {
		t.Errorf("it waits for %q", a.Waits)
	}
	r.settled()
	info, err := os.Stat(filepath.Join(r.state, socketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info.Mode(), err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("what a killed agent left of its socket stays")
	}
	r.halt()

	if _, err := AskExplain(t.Context(), r.state, "/a"); err != ErrNotRunning {
		t.Errorf("of an agent that has stopped: %v", err)
	}
	r.write("a.log", " and more\n")
	r.change(func(s *State) {
		e, err := s.Explain(r.path("a.log"), r.pipes())
		if err != nil {
			t.Fatal(err)
		}
		if in := e.Inputs[0]; e.Live || !in.Takes || in.Position == nil || in.Position.Acknowledged != 18 || in.Position.LagBytes != 10 || in.Position.LagLines != 1 {
			t.Errorf("%+v %+v", in, in.Position)
		}
	})
}

// A rotated file is explained by its descriptor's content, and one that cannot be read says so.
func TestExplainRotated(t *testing.T) {
	r := newRig(t, strings.Replace(plainPipeline, "*.log*", "a.log", 1))
	r.cfg.RotateGrace = time.Hour
	r.write("a.log", "one\n")
	r.start()
	r.wants("one")
	r.rename("a.log", "elsewhere")
	r.eventually("it is known to be renamed", func() bool {
		e, err := r.agent.Explain(r.path("elsewhere"))
		if err != nil {
			t.Fatal(err)
		}
		in := e.Inputs[0]
		return in.Takes && in.Position != nil && in.Position.Renamed && strings.Contains(fmt.Sprint(in.Waits), "of quiet")
	})
}

func wantText(t *testing.T, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("%q does not say %q", text, want)
	}
}

// The first format had no journal. It is read once and written as the present one.
func TestFirstFormatOfTheCheckpoint(t *testing.T) {
	r := newRig(t, plainPipeline)
	r.write("a.log", "one\ntwo\n")
	r.start()
	r.wants("one", "two")
	r.settled()
	r.halt()
	path := filepath.Join(r.state, checkpointName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := bytes.Cut(data, []byte("\n"))
	if bytes.Contains(body, []byte(`"journal"`)) {
		t.Fatalf("not of the first format: %s", body)
	}
	first := append(fmt.Appendf(nil, "%s 1 %08x\n", checkpointMagic, checksum(body)), body...)
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(r.state, journalsDir)); err != nil {
		t.Fatal(err)
	}
	r.write("a.log", "three\n")
	r.start()
	r.wants("one", "two", "three")
	r.settled()
	r.halt()
	if data, err = os.ReadFile(path); err != nil || !bytes.HasPrefix(data, fmt.Appendf(nil, "%s %d ", checkpointMagic, checkpointVersion)) {
		t.Errorf("it was not written anew: %.40q, %v", data, err)
	}
}
