//go:build unix

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// restartMin is the pause before the first restart of a command; it doubles up to ExecConfig.RestartMax.
	restartMin = time.Second
	// steadyAfter is how long a command must have run for the pauses to begin anew.
	steadyAfter = time.Minute
	// KillAfter is how long a command that is told to end has before it is killed.
	KillAfter = 5 * time.Second
	// restAfter is how long what a command printed is waited for once it has ended: its children may hold the pipes.
	restAfter = time.Second
)

// Program is a command as it is started: without a shell, in a process group of its own, with nothing on standard input.
type Program struct {
	Command     []string
	Directory   string
	Environment []string // NAME=VALUE, on top of this process's
}

// Running is a program that was started.
type Running struct {
	Stdout, Stderr *os.File // to be read, by one goroutine each
	cmd            *exec.Cmd
	ended          chan struct{}
}

// Start starts the program.
func (p *Program) Start() (*Running, error) {
	cmd := exec.Command(p.Command[0], p.Command[1:]...)
	cmd.Dir = p.Directory
	cmd.Env = append(os.Environ(), p.Environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r := &Running{cmd: cmd, ended: make(chan struct{})}
	stdout, stderr, err := r.pipes()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err = errors.Join(cmd.Start(), stdout.Close(), stderr.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", p.Command[0], err), r.Stdout.Close(), r.Stderr.Close())
	}
	go r.wait()
	return r, nil
}

// pipes makes the pipes and returns the program's ends.
func (r *Running) pipes() (stdout, stderr *os.File, err error) {
	if r.Stdout, stdout, err = os.Pipe(); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	if r.Stderr, stderr, err = os.Pipe(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make a pipe: %w", err), r.Stdout.Close(), stdout.Close())
	}
	return stdout, stderr, nil
}

func (r *Running) wait() {
	waitExited(r.cmd)
	close(r.ended)
}

// Ended is closed when the program has ended; its children may not have.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Signal reaches the whole group. That nothing is left of it is no error.
func (r *Running) Signal(s syscall.Signal) { _ = syscall.Kill(-r.cmd.Process.Pid, s) }

// Stop tells the group to end, and kills it when the program does not within grace.
func (r *Running) Stop(grace time.Duration) {
	r.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-r.ended:
	case <-timer.C:
		r.Signal(syscall.SIGKILL)
		<-r.ended
	}
}

// Reap kills what is left of the group of a program that has ended, and returns its exit code, or signal:NAME. It is called once.
func (r *Running) Reap() string {
	r.Signal(syscall.SIGKILL) // before the wait, after which another group may have the number
	_ = r.cmd.Wait()          // the state tells more
	if status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return "signal:" + status.Signal().String()
	}
	return strconv.Itoa(r.cmd.ProcessState.ExitCode())
}

// Output is a pipe of a program. Once the program has ended it is read until all that hold its other end are gone, or for a while.
type Output struct {
	*os.File
	mu       sync.Mutex
	deadline time.Time // guarded by mu: for what comes after the program's end
	ended    bool      // guarded by mu
	left     int       // bytes that may still be read behind the deadline
}

const (
	// outputBytesMax bounds what is read of a pipe behind its deadline: no less than what a pipe holds.
	outputBytesMax = 1 << 20
	// outputWait is how long something is waited for there.
	outputWait = 20 * time.Millisecond
)

// SetReadDeadline implements Reader.
func (o *Output) SetReadDeadline(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended && (t.IsZero() || t.After(o.deadline)) {
		t = o.deadline
	}
	return o.File.SetReadDeadline(t)
}

// Finish says that the program has ended.
func (o *Output) Finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.deadline, o.left = true, time.Now().Add(restAfter), outputBytesMax
	_ = o.File.SetReadDeadline(o.deadline) // fails only when it is closed
}

// Read implements Reader. Behind the deadline it takes what is there: the reader may have been held for long.
func (o *Output) Read(p []byte) (int, error) {
	n, err := o.File.Read(p)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended || time.Now().Before(o.deadline) {
		return 0, err
	}
	if o.left <= 0 {
		return 0, io.EOF
	}
	if err := o.File.SetReadDeadline(time.Now().Add(outputWait)); err != nil {
		return 0, err
	}
	n, err = o.File.Read(p[:min(len(p), o.left)])
	o.left -= n
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

// ExecConfig configures an Exec.
type ExecConfig struct {
	Program Program
	// Interval is the time between two starts; 0: the program runs on and is started again when it ends.
	Interval time.Duration
	// Timeout is when a run is ended, with Interval; 0: never.
	Timeout time.Duration
	// RestartMax bounds the pause before a restart, without Interval; 0 means 1 min.
	RestartMax time.Duration
	// Once runs the program once.
	Once bool
	// Stdout is how its lines are read, Stderr those of standard error; nil means that they are logged, or dropped.
	Stdout  Lines
	Stderr  *Lines
	LogFunc func(line string) // takes standard error without Stderr; nil means that it is dropped
}

// Exec reads what a command prints.
type Exec struct {
	log     *slog.Logger
	cfg     ExecConfig
	waiting Waiting

	mu    sync.Mutex
	stats Stats // guarded by mu
}

// NewExec makes a feed of a command.
func NewExec(log *slog.Logger, cfg ExecConfig) *Exec {
	if cfg.RestartMax == 0 {
		cfg.RestartMax = time.Minute
	}
	return &Exec{log: log.With("command", cfg.Program.Command[0]), cfg: cfg, stats: Stats{Exits: map[string]int64{}}}
}

// Stats implements Feed.
func (x *Exec) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.stats
	s.Exits = maps.Clone(s.Exits)
	s.Waiting = x.waiting.Get()
	return s
}

// Run implements Feed.
func (x *Exec) Run(ctx context.Context, to Taker) {
	wait := restartMin
	for ctx.Err() == nil {
		begun := time.Now()
		status, err := x.once(ctx, to)
		if errors.Is(err, ErrOver) || x.cfg.Once || ctx.Err() != nil {
			return
		}
		x.waiting.Set(x.log, "start the command", err)
		if x.cfg.Interval > 0 {
			Pause(ctx, max(x.cfg.Interval-time.Since(begun), 0))
			continue
		}
		if time.Since(begun) >= steadyAfter {
			wait = restartMin
		}
		if err == nil {
			x.log.Warn("the command has ended; it is started again", "status", status, "in", wait)
		}
		Pause(ctx, wait)
		wait = min(wait*2, x.cfg.RestartMax)
	}
}

// once runs the command to its end. The error says that it could not be started, or that nothing is taken any more.
func (x *Exec) once(ctx context.Context, to Taker) (status string, err error) {
	run, err := x.cfg.Program.Start()
	if err != nil {
		return "", err
	}
	x.waiting.Set(x.log, "start the command", nil)
	x.count(func(s *Stats) { s.Starts++ })
	outputs := [2]*Output{{File: run.Stdout}, {File: run.Stderr}}
	errs := [2]error{}
	var reading sync.WaitGroup
	reading.Go(func() { errs[0] = x.cfg.Stdout.Copy(outputs[0], to) })
	reading.Go(func() { errs[1] = x.readStderr(outputs[1], to) })
	x.watch(ctx, run)
	for _, o := range outputs {
		o.Finish()
	}
	reading.Wait()
	status = run.Reap()
	x.count(func(s *Stats) { s.Exits[status]++ })
	return status, errors.Join(over(errs[0]), over(errs[1]), run.Stdout.Close(), run.Stderr.Close())
}

// over keeps an ErrOver alone: a pipe that ends strangely ends.
func over(err error) error {
	if errors.Is(err, ErrOver) {
		return err
	}
	return nil
}

func (x *Exec) count(change func(*Stats)) {
	x.mu.Lock()
	change(&x.stats)
	x.mu.Unlock()
}

// watch waits for the end of a run, and sees to it when its time is over.
func (x *Exec) watch(ctx context.Context, run *Running) {
	var late <-chan time.Time
	if x.cfg.Timeout > 0 {
		timer := time.NewTimer(x.cfg.Timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-run.Ended():
		return
	case <-ctx.Done():
	case <-late:
		x.log.Warn("the command takes too long and is ended", "timeout", x.cfg.Timeout)
	}
	run.Stop(KillAfter)
}

func (x *Exec) readStderr(o *Output, to Taker) error {
	if x.cfg.Stderr != nil {
		return x.cfg.Stderr.Copy(o, to)
	}
	lines := Lines{LineBytesMax: logLineBytesMax, PartialAfter: restAfter}
	return lines.Copy(o, Each(func(line string) {
		if x.cfg.LogFunc != nil {
			x.cfg.LogFunc(line)
		}
	}))
}

// logLineBytesMax cuts lines of standard error that are logged.
const logLineBytesMax = 4 << 10

// Each is a taker of lines one by one.
type Each func(line string)

// Take implements Taker.
func (l Each) Take(o *Offer) error {
	for i := range o.Chunk.Lines {
		l(string(o.Chunk.Value(&o.Chunk.Lines[i])))
	}
	return nil
}

// Drop implements Taker.
func (l Each) Drop(string, int64, int64) {}
