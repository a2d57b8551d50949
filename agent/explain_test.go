package agent

import (
	"compress/gzip"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// explained is what is said of a file by the running agent.
func (r *rig) explained(name string) string {
	r.t.Helper()
	e, err := AskExplain(r.t.Context(), r.state, r.path(name))
	if errors.Is(err, ErrNotRunning) {
		return "" // not yet
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if len(e.Inputs) != 1 {
		r.t.Fatalf("%+v", e)
	}
	in := e.Inputs[0]
	takes := "does not take: "
	if in.Takes {
		takes = "takes: "
	}
	return takes + in.Why + "; waits: " + strings.Join(in.Waits, "; ")
}

func (r *rig) says(name string, want ...string) {
	r.t.Helper()
	last := ""
	r.eventually(name+" is explained by "+strings.Join(want, ", "), func() bool {
		last = r.explained(name)
		for _, w := range want {
			if !strings.Contains(last, w) {
				return false
			}
		}
		return true
	})
}

// Whatever keeps a file from being read is told.
func TestExplainWhyNot(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/logs/*.log*\"], exclude: ['DIR/logs/x*'], ignore_older: 1h, symlinks: within_roots, rotate_grace: 1h}\ntopic: {name: lines}\n")
	for _, d := range []string{"logs", "outside"} {
		if err := os.Mkdir(r.path(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.write("outside/a", "secret\n")
	link(t, r.path("outside/a"), r.path("logs/out.log"))
	r.write("logs/old.log", "old\n")
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(r.path("logs/old.log"), long, long); err != nil {
		t.Fatal(err)
	}
	r.write("logs/x.log", "excluded\n")
	r.write("logs/new.log", "new\n")
	r.write("logs/gone.log", "gone\n")
	f, err := os.Create(r.path("logs/packed.log.gz"))
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	if _, err := z.Write([]byte("packed\n")); err != nil || z.Close() != nil || f.Close() != nil {
		t.Fatal(err)
	}
	r.start()
	r.wants("new", "gone")
	r.says("logs/out.log", "does not take: a symbolic link on the way to it leads out of the roots")
	r.says("logs/old.log", "takes: ", "it had not changed for 1h0m0s when it was first seen, so that only what is appended is sent (ignore_older)")
	r.says("logs/x.log", "does not take: it is excluded by ")
	r.says("logs/packed.log.gz", "takes: ", "it is compressed, so that it is read once", "waits: 1h0m0s without a change, after which a compressed file is whole")
	r.remove("logs/gone.log")
	r.says("logs/gone.log", "it is gone, and what it held is read through its open descriptor")
	r.settled()
	r.halt()
	r.start()
	r.says("logs/gone.log", "there is no such file; it is gone, and its position is kept until ")
	r.halt()
	r.change(func(s *State) { // the agent does not run
		for name, want := range map[string]string{
			"logs/out.log": "leads out of the roots", "logs/packed.log.gz": "it is compressed", "logs/old.log": "unless it has a position it is too old",
		} {
			e, err := s.Explain(r.path(name), r.pipes())
			if err != nil || !strings.Contains(e.Inputs[0].Why, want) {
				t.Errorf("%s: %+v, %v", name, e, err)
			}
		}
	})
}

// The waits that are the pipeline's: the brokers, the rate, memory.
func TestExplainWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/*.log\"], rate_limit: {lines: 10}}\ntopic: {name: lines}\n")
	r.write("a.log", strings.Repeat("line\n", 10_000))
	r.start()
	r.says("a.log", "the rate limit (collect.file.rate_limit)")
	r.halt()
	r = newRig(t, plainPipeline)
	r.cfg.InFlightBytesMax = 1
	r.store.hold()
	r.write("a.log", strings.Repeat("line\n", 1000))
	r.start()
	r.eventually("it is under way", func() bool { return r.store.heldLines() > 0 })
	r.write("a.log", strings.Repeat("line\n", 1000))
	r.says("a.log", "memory: what is on its way takes all that it may", "the brokers of topic lines, which have acknowledged nothing for ")
	r.store.letGo()
}

// A named pipe is explained too.
func TestExplainAPipe(t *testing.T) {
	t.Parallel()
	r := newRig(t, pipePipeline)
	r.start()
	r.opened("in.pipe").Close()
	r.says("in.pipe", "takes: it is the pipeline's named pipe (collect.pipe)")
}
