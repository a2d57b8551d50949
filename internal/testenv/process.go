package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const (
	readyTimeout   = 60 * time.Second // a JVM on a busy machine takes up to 20 s
	readyPoll      = 20 * time.Millisecond
	readyTry       = 2 * time.Second
	stopTimeout    = 20 * time.Second
	logPrintedMax  = 16 << 10 // bytes of a failed test's process shown
	outputFileMode = 0o644
)

// Command says how to start a Process.
type Command struct {
	Name string   // in messages and of the log file
	Path string   // the program
	Args []string // without the program
	Env  []string // KEY=VALUE, added to the test's own environment
	Dir  string   // working directory; empty: a temporary one
	// Ready is asked again and again until it returns nil; it should demand a
	// real answer of the server. nil: ready as soon as started.
	Ready        func(ctx context.Context) error
	ReadyTimeout time.Duration // zero: 60 s

	dirRemoved string // removed once the test binary is gone; empty: none
}

// Process is a started program. Its methods may be called from any goroutine.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed once the program has ended and err is set
	err  error
	leash
}

// Start starts a program and waits until it is ready. It is stopped when t
// ends; if t failed, the end of its output is printed.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	notShort(t)
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	p, err := launch(t.Context(), c, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("%s (pid %d) printed:\n%s", p.name, p.PID(), p.tail())
		}
	})
	return p
}

// launch starts c with its output in logDir and waits until it is ready.
func launch(ctx context.Context, c Command, logDir string) (*Process, error) {
	p, err := spawn(c, logDir)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	if err := p.awaitReady(ctx, c); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start %s: %w; it printed:\n%s", c.Name, err, p.tail())
	}
	return p, nil
}

// spawn starts the program in a process group of its own, away from the
// terminal's signals, with no descriptor but the standard three (os/exec closes
// the rest) and on a leash that ends it with this process.
func spawn(c Command, logDir string) (*Process, error) {
	log := filepath.Join(logDir, c.Name+".log")
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, outputFileMode)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{name: c.Name, log: log, cmd: cmd, done: make(chan struct{})}
	if err := p.leash.tie(cmd.Process.Pid, c.dirRemoved); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		p.leash.release()
		close(p.done)
	}()
	return p, nil
}

func (p *Process) awaitReady(ctx context.Context, c Command) error {
	if c.Ready == nil {
		return nil
	}
	limit := c.ReadyTimeout
	if limit == 0 {
		limit = readyTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := try(ctx, c.Ready)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return fmt.Errorf("ended before it was ready: %w", p.exit())
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w (last: %w)", ctx.Err(), err)
		}
	}
}

func try(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTry)
	defer cancel()
	return ready(ctx)
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err waits for the end and returns nil for exit status 0, else why it ended.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// exit is Err for a process that should not have ended.
func (p *Process) exit() error {
	if err := p.Err(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// Output returns what the process has printed so far on both its streams.
func (p *Process) Output() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Signal sends a signal to the process alone.
func (p *Process) Signal(sig os.Signal) error {
	return p.cmd.Process.Signal(sig)
}

// Stop asks the process to end by SIGTERM, kills it after 20 s, and returns
// like Err. On an ended process it does nothing but that.
func (p *Process) Stop() error {
	_ = p.Signal(syscall.SIGTERM) // fails only if it has ended
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		p.Kill()
	}
	return p.Err()
}

// Kill ends the process and its children by SIGKILL and waits for the end.
func (p *Process) Kill() {
	select {
	case <-p.done: // its group's ID may be another's by now
		return
	default:
	}
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.done
}

func (p *Process) tail() string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > logPrintedMax {
		if _, err := f.Seek(-logPrintedMax, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// leash ends a process group when this process dies, in whatever way: a shell
// waits on a pipe whose other end only this process holds. (The kernel's
// parent-death signal would follow the life of a thread, and is Linux's own.)
type leash struct {
	pipe  *os.File
	shell *exec.Cmd
}

const leashScript = `
read -r released || kill -s KILL -- "-$1"
if [ -n "$2" ]; then rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }; fi`

func (l *leash) tie(group int, dirRemoved string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	l.shell = exec.Command("/bin/sh", "-c", leashScript, "leash", strconv.Itoa(group), dirRemoved)
	l.shell.Stdin = r
	l.shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := l.shell.Start(); err != nil {
		w.Close()
		return fmt.Errorf("tie process group %d: %w", group, err)
	}
	l.pipe = w
	return nil
}

// release lets go without a kill: the process has ended and its ID is free.
func (l *leash) release() {
	_, _ = l.pipe.WriteString("released\n")
	l.pipe.Close()
	_ = l.shell.Wait()
}

// again is a process that can be started again, in its own directory.
type again struct {
	*Process
	Dir     string // configuration and data
	command Command
}

func (a *again) start(t testing.TB) {
	t.Helper()
	p, err := launch(t.Context(), a.command, a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	a.Process = p
	printOnFailure(t, p)
}

// Restart starts a process that was stopped or killed again, on the same ports and data.
func (a *again) Restart(t testing.TB) {
	t.Helper()
	<-a.Done()
	a.start(t)
}
