package agent

import (
	"os"
	"testing"
	"time"
)

func TestIgnoreOlder(t *testing.T) {
	t.Parallel()
	r := newRig(t, linesPipeline("ignore_older: 1h"))
	r.write("old.log", "old\n")
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(r.path("old.log"), long, long); err != nil {
		t.Fatal(err)
	}
	r.write("new.log", "new\n")
	r.start()
	r.wants("new")
	r.eventually("the old one holds no descriptor", func() bool { a := r.account(); return a.FilesFollowed == 2 && a.FilesOpen == 1 })
	r.write("old.log", "what comes later\n")
	r.wants("new", "what comes later")
}

func TestSymlinksOutOfTheRoots(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string][]string{
		"follow":       {"plain", "inside", "secret"},
		"within_roots": {"plain", "inside"},
		"none":         {"plain"},
	} {
		r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/logs/*.log\"], symlinks: "+setting+"}\ntopic: {name: lines}\n")
		for _, d := range []string{"logs/kept", "outside"} {
			if err := os.MkdirAll(r.path(d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		r.write("logs/plain.log", "plain\n")
		r.write("logs/kept/a", "inside\n")
		r.write("outside/b", "secret\n")
		link(t, r.path("logs/kept/a"), r.path("logs/a.log"))
		link(t, r.path("outside/b"), r.path("logs/b.log"))
		r.start()
		r.wants(want...)
		r.steady("nothing else comes", 150*time.Millisecond, func() bool { return r.store.count() == len(want) })
		r.halt()
	}
}

func TestRootsAreWherePatternsBegin(t *testing.T) {
	for pattern, want := range map[string]string{
		"/var/log/*.log": "/var/log", "/var/log/a.log": "/var/log", "/srv/**/x": "/srv", "/srv/a{b,c}/*": "/srv", "/*": "/",
	} {
		if got := fixedDir(pattern); got != want {
			t.Errorf("%s begins with %s, want %s", pattern, got, want)
		}
	}
}
