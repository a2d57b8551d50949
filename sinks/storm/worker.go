package storm

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// The environment of a worker process, which is the test binary run again.
const (
	envPipeline = "SLUICE_TEST_PIPELINE"
	envBroker   = "SLUICE_TEST_BROKER"
	envInstance = "SLUICE_TEST_INSTANCE"
)

// SessionTimeout is that of worker processes, WriteDeadline what follows from it, and PastSession longer than the former.
const (
	SessionTimeout = 6 * time.Second
	WriteDeadline  = 4 * time.Second
	PastSession    = 7500 * time.Millisecond
)

// WorkerTest is the name of the test that calls RunWorker.
const WorkerTest = "TestWorkerProcess"

// RunWorker is the life of a worker process, in the test WorkerTest of the destination's package.
func RunWorker(t *testing.T, newSink func(*slog.Logger, *pipelines.SinkSpec) (sinks.Sink, error)) {
	file := os.Getenv(envPipeline)
	if file == "" {
		t.Skip("only run as a worker process by other tests")
	}
	pipes, err := pipelines.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	spec := pipes[0].Sinks[0]
	sink, err := newSink(log, spec)
	if err != nil {
		t.Fatal(err)
	}
	w, err := sinks.NewWorker(log, nil, pipes[0], spec, sink, sinks.Config{
		Brokers: strings.Split(os.Getenv(envBroker), ","), InstanceID: os.Getenv(envInstance), SessionTimeout: SessionTimeout, BackoffMax: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		t.Log(err)
	}
}

// WorkerCommand runs the test binary as a worker of a pipeline file; instance "" is a dynamic member.
func WorkerCommand(ctx context.Context, file, broker, instance string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+WorkerTest+"$")
	cmd.Env = append(os.Environ(), envPipeline+"="+file, envBroker+"="+broker, envInstance+"="+instance)
	return cmd
}

// Worker is a worker process, and its own way to the destination.
type Worker struct {
	Cmd      *exec.Cmd
	Instance string
	Proxy    *testenv.Proxy // nil where the destination has none
	log      string
}

// Start runs a worker with the limits and the mapping of now.
func (s *Storm) Start(instance string) *Worker {
	s.Helper()
	name := filepath.Join(s.Dir, fmt.Sprintf("%s-%d", instance, time.Now().UnixNano()))
	w := &Worker{Instance: instance, log: name + ".log"}
	text := fmt.Sprintf("pipeline: %s\ncollect: {file: {include: [/x]}}\nprocess: [{parse: json}]\nsink:\n%s  batch: {rows: %d, age: 50ms}\n  on_lost: continue\n",
		s.Topic, s.Place.Sink(s, w, s.mapping), s.rows)
	if err := os.WriteFile(name+".yaml", []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	out, err := os.Create(w.log)
	if err != nil {
		s.Fatal(err)
	}
	defer out.Close()
	w.Cmd = WorkerCommand(s.Context(), name+".yaml", s.Broker, instance)
	w.Cmd.Stdout, w.Cmd.Stderr = out, out
	if err := w.Cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Workers = append(s.Workers, w)
	return w
}

// Logged is how many lines of the worker's log hold a text.
func (s *Storm) Logged(w *Worker, text string) int {
	s.Helper()
	content, err := os.ReadFile(w.log)
	if err != nil {
		s.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(content) {
		if bytes.Contains(line, []byte(text)) {
			n++
		}
	}
	return n
}

// logShown is how much of a worker's log a failure shows.
const logShown = 6000

func (s *Storm) sayWorkers() {
	s.Helper()
	names, _ := filepath.Glob(filepath.Join(s.Dir, "*.log")) // the pattern is good
	begun := func(name string) string { return name[strings.LastIndexByte(name, '-'):] }
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(begun(a), begun(b)) })
	for _, name := range names[max(len(names)-4, 0):] {
		if text, err := os.ReadFile(name); err == nil {
			s.Logf("%s:\n%s", filepath.Base(name), text[max(len(text)-logShown, 0):])
		}
	}
}

// Signal sends a signal to a worker; one that ends it is waited for.
func (s *Storm) Signal(w *Worker, sig syscall.Signal) {
	s.Helper()
	if err := w.Cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
	if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
		return
	}
	_ = w.Cmd.Wait()
	for i := range s.Workers {
		if s.Workers[i] == w {
			s.Workers = append(s.Workers[:i], s.Workers[i+1:]...)
			return
		}
	}
}

// One is the worker of the round: the only one, with the static identity a.
func (s *Storm) One() *Worker {
	s.Helper()
	for len(s.Workers) > 1 {
		s.Signal(s.Workers[len(s.Workers)-1], syscall.SIGTERM)
	}
	if len(s.Workers) == 0 {
		return s.Start("a")
	}
	return s.Workers[0]
}

// StopAll ends all workers, so that the group is empty.
func (s *Storm) StopAll() {
	s.Helper()
	for len(s.Workers) > 0 {
		s.Signal(s.Workers[0], []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[s.Rng.IntN(2)])
	}
	s.Until("the group is empty", 40*time.Second, func() bool {
		groups, err := s.Admin.DescribeGroups(s.Context(), s.Topic)
		return err == nil && groups[s.Topic].Err == nil && len(groups[s.Topic].Members) == 0
	})
}
