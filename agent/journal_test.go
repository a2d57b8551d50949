package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/pipelines"
)

// killedFS is a journal's file system that stops at a call, as the process would if it were killed there: in the middle of a write, before
// or after it. What was done stays.
type killedFS struct {
	journal.OSFS
	mu    sync.Mutex
	calls int
	last  int // nothing works after this call
	part  int // of the write at the call, in percent
	gone  chan struct{}
	once  sync.Once
}

var errKilled = errors.New("killed")

// call says how much of what is asked for is done: all of it, a part, or nothing.
func (k *killedFS) call() (percent int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	switch {
	case k.calls < k.last:
		return 100
	case k.calls == k.last:
		k.once.Do(func() { close(k.gone) })
		return k.part
	}
	return 0
}

func (k *killedFS) Create(name string) (journal.File, error) {
	if k.call() == 0 {
		return nil, errKilled
	}
	f, err := k.OSFS.Create(name)
	return &killedFile{File: f, fs: k}, err
}

func (k *killedFS) Remove(name string) error {
	if k.call() == 0 {
		return errKilled
	}
	return k.OSFS.Remove(name)
}

func (k *killedFS) Reuse(name, as string) (journal.File, error) {
	if k.call() == 0 {
		return nil, errKilled
	}
	f, err := k.OSFS.Reuse(name, as)
	return &killedFile{File: f, fs: k}, err
}

type killedFile struct {
	journal.File
	fs *killedFS
}

func (f *killedFile) Write(p []byte) (int, error) {
	percent := f.fs.call()
	n, err := f.File.Write(p[:len(p)*percent/100])
	if percent < 100 || err != nil {
		return n, errKilled
	}
	return n, nil
}

// journalRun is an agent in this process that can be killed.
type journalRun struct {
	t     *testing.T
	addr  string
	topic string
	name  string // of the pipeline
	logs  string
	dir   string // that the agent looks into
	state string
	fs    journal.FS // nil: the system's
	sync  bool
}

func newJournalRun(t *testing.T, addr string) *journalRun {
	logs := t.TempDir()
	return &journalRun{t: t, addr: addr, topic: fmt.Sprintf("kill-%d", time.Now().UnixNano()), name: "kill", logs: logs, dir: logs, state: t.TempDir()}
}

func (r *journalRun) pipes(topic string) []*pipelines.Pipeline {
	r.t.Helper()
	pipes, err := pipelines.Parse("test.yaml", []byte(fmt.Sprintf(
		"pipeline: %s\ncollect:\n  file: {include: ['%s/app.log*'], headers: false}\ntopic: {name: %s, partitions: 2, key: '_raw', batch: {bytes: 4KiB}}\n", r.name, r.dir, topic)))
	if err != nil {
		r.t.Fatal(err)
	}
	return pipes
}

func (r *journalRun) start(fs journal.FS) (a *Agent, stop func(), err error) {
	r.t.Helper()
	a, err = New(slog.New(slog.NewTextHandler(io.Discard, nil)), nil, r.pipes(r.topic), Config{
		StateDir: r.state, Brokers: []string{r.addr}, CheckpointInterval: 20 * time.Millisecond, DrainTimeout: time.Millisecond,
		ScanInterval: 20 * time.Millisecond, RotateGrace: time.Second, JournalFS: fs, JournalSync: r.sync, AdoptState: true,
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	return a, func() { cancel(); <-done }, nil
}

func (r *journalRun) mustStart() (*Agent, func()) {
	r.t.Helper()
	a, stop, err := r.start(r.fs)
	if err != nil {
		r.t.Fatal(err)
	}
	return a, stop
}

// copyDir copies a state directory: what a kill leaves is what had been written by then.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		name := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), socketDirPrefix): // may be on its way out
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(name, 0o700)
		case !d.Type().IsRegular(): // the socket
			return nil
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) { // a checkpoint was moved to its place meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(name, data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (r *journalRun) write(from, to int) {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, "app.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %06d\n", i)
	}
	if _, err := f.WriteString(b.String()); err != nil {
		r.t.Fatal(err)
	}
}

// stored reads the topic.
func (r *journalRun) stored() (out []string) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.addr), kgo.ConsumeTopics(r.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), 3*patience)
	defer cancel()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, r.topic)
	if err != nil {
		r.t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			r.t.Fatalf("%d records cannot be read", left)
		}
		fetches.EachRecord(func(x *kgo.Record) {
			out = append(out, string(x.Value))
			left--
		})
	}
	return out
}

// waitDelivered waits until all that was written is acknowledged.
func waitDelivered(t *testing.T, a *Agent, lines int64) {
	t.Helper()
	deadline := time.NewTimer(3 * patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		acc := a.Accounts()[0]
		if acc.LagBytes == 0 && acc.InFlight.Lines == 0 && acc.FilesFollowed > 0 && acc.Read.Lines >= lines && a.Ready() == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("not delivered: %+v, %v", acc, a.Ready())
		case <-tick.C:
		}
	}
}

func (r *journalRun) check(lines int) {
	r.t.Helper()
	got := r.stored()
	slices.Sort(got)
	want := make([]string, lines)
	for i := range want {
		want[i] = fmt.Sprintf("line %06d", i)
	}
	if !slices.Equal(got, want) {
		times := map[string]int{}
		for _, v := range got {
			times[v]++
		}
		missing, doubled := 0, 0
		for _, v := range want {
			switch n := times[v]; {
			case n == 0:
				missing++
			case n > 1:
				doubled++
			}
		}
		r.t.Errorf("%d records for %d lines: %d missing, %d more than once", len(got), lines, missing, doubled)
	}
}

// The process is killed at each step of the journal, before, in and after each of its writes; then it is started again and must deliver
// every line once.
func TestKilledAtEveryStepOfTheJournal(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	eachBroker(t, func(t *testing.T, addr string, steps []int) {
		every := 1
		if len(steps) < 4 { // on Kafka some of them
			every = 5
		}
		for point := 1; killedAndBack(t, addr, point, []int{0, 50, 100}[rng.IntN(3)]); point += every {
		}
	})
}

// killedAndBack kills an agent at a step and starts it again. It returns false when the agent has fewer steps than that.
func killedAndBack(t *testing.T, addr string, point, part int) bool {
	t.Helper()
	r := newJournalRun(t, addr)
	r.write(0, 1500)
	if !r.runUntilKilled(&killedFS{last: point, part: part, gone: make(chan struct{})}) {
		return false
	}
	a, stop := r.mustStart()
	r.write(1500, 1600)
	waitDelivered(t, a, 100)
	stop()
	r.check(1600)
	if t.Failed() {
		t.Fatalf("killed at step %d, of which %d percent were done", point, part)
	}
	return true
}

// runUntilKilled runs an agent until its journal stops, and leaves the state directory as it was then. It returns false when the agent
// came to its end before.
func (r *journalRun) runUntilKilled(fs *killedFS) bool {
	r.t.Helper()
	return r.runUntilGone(fs, fs.gone)
}

func (r *journalRun) runUntilGone(fs journal.FS, gone <-chan struct{}) bool {
	r.t.Helper()
	_, stop, err := r.start(fs)
	if err != nil {
		if !errors.Is(err, errKilled) {
			r.t.Fatal(err)
		}
		return true
	}
	defer stop()
	wait := time.NewTimer(2 * time.Second)
	defer wait.Stop()
	select {
	case <-gone:
	case <-wait.C:
		return false
	}
	frozen := r.t.TempDir()
	copyDir(r.t, r.state, frozen)
	r.state = frozen
	return true
}
