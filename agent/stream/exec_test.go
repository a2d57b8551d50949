//go:build unix

package stream

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// held takes lines once its gate is open.
type held struct {
	gate  <-chan struct{}
	mu    sync.Mutex
	lines int
	last  string
}

func (h *held) Take(o *Offer) error {
	<-h.gate
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines += len(o.Chunk.Lines)
	if n := len(o.Chunk.Lines); n > 0 {
		h.last = string(o.Chunk.Value(&o.Chunk.Lines[n-1]))
	}
	return nil
}

func (h *held) Drop(string, int64, int64) {}

// What a command printed is taken though the reader was held until long after its end, and a child that keeps the pipe open does not keep
// the reader.
func TestOutputOutlivesTheCommand(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), restAfter+200*time.Millisecond)
	defer cancel()
	h := &held{gate: late.Done()}
	x := NewExec(slog.New(slog.DiscardHandler), ExecConfig{
		Program: Program{Command: []string{"sh", "-c", "seq 1 9000; sleep 1000 & exit 7"}}, Once: true,
		Stdout: Lines{Origin: &Origin{Name: "stdout"}, PartialAfter: time.Second},
	})
	x.Run(t.Context(), h)
	if h.lines != 9000 || h.last != "9000" {
		t.Errorf("%d lines, the last %q", h.lines, h.last)
	}
	if s := x.Stats(); s.Starts != 1 || s.Exits["7"] != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestCommandThatIgnoresItsEnd(t *testing.T) {
	p := Program{Command: []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"}}
	run, err := p.Start()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := io.ReadFull(run.Stdout, buf[:len("ready\n")]); err != nil {
		t.Fatal(n, err)
	}
	run.Stop(50 * time.Millisecond)
	if status := run.Reap(); status != "signal:killed" {
		t.Errorf("it ended by %s", status)
	}
	run.Stdout.Close()
	run.Stderr.Close()
}

// Without terminator, in pieces, and quiet in between: each time limit has its own meaning.
func TestLinesThatWait(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	gate := make(chan struct{})
	close(gate)
	h := &held{gate: gate}
	l := Lines{Origin: &Origin{}, PartialAfter: time.Millisecond}
	done := make(chan error, 1)
	go func() { done <- l.Copy(deadliner{r}, h) }()
	for _, text := range []string{"a\nb", "c\n", "d"} {
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if err := <-done; err != nil || h.lines != 3 || h.last != "d" {
		t.Errorf("%d lines, the last %q, %v", h.lines, h.last, err)
	}
	if s := tail.NewStream(tail.NewLines(0, tail.UTF8)); s.Partial() || s.Open() {
		t.Error("something is held of nothing")
	}
}

// deadliner never is late.
type deadliner struct{ io.Reader }

func (deadliner) SetReadDeadline(time.Time) error { return nil }
