// Command demo runs the quick start: a generator that writes and rotates an nginx access log, `sluice run` on the pipeline
// beside this folder, a live line a second, and at the end an account that compares the stored files, read back, with the
// numbers of the generated lines.
//
//	demo [-sluice bin/sluice] [-pipeline examples/quickstart/pipeline.yaml] [-dir build/demo] [-duration 15s] [-rate 50000]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const (
	rotateEvery  = 3 * time.Second
	readyTimeout = 30 * time.Second
	// settleTimeout bounds the wait, after the last line is written, until it is stored.
	settleTimeout = 60 * time.Second
	// stopTimeout bounds the wait for sluice's own drain after SIGTERM.
	stopTimeout = 30 * time.Second
	lookEvery   = time.Second
	pollEvery   = 20 * time.Millisecond
)

type options struct {
	sluice, pipeline, dir string
	duration              time.Duration
	rate                  int
}

func main() {
	var o options
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the binary to run")
	flag.StringVar(&o.pipeline, "pipeline", "examples/quickstart/pipeline.yaml", "the pipeline to run; it must read DIR/access.log* and store in DIR/table")
	flag.StringVar(&o.dir, "dir", "build/demo", "a directory of the demo's own; it is emptied first")
	flag.DurationVar(&o.duration, "duration", 15*time.Second, "how long lines are written")
	flag.IntVar(&o.rate, "rate", 50_000, "lines per second")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, o options) error {
	if err := os.RemoveAll(o.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	service, err := startSluice(o)
	if err != nil {
		return err
	}
	defer service.kill()
	if err := service.waitReady(ctx); err != nil {
		return err
	}
	fmt.Printf("writing %d lines/s to %s for %s, renamed every %s (Ctrl-C ends it sooner)\n", o.rate, filepath.Join(o.dir, "access.log"), o.duration, rotateEvery)
	gen := newGenerator(filepath.Join(o.dir, "access.log"), o.rate, rotateEvery)
	last, err := watch(ctx, service, gen, o.duration)
	if err != nil {
		return err
	}
	if err := service.stop(); err != nil {
		return err
	}
	return account(o, gen, last)
}

// watch generates for the duration, or until ctx ends, prints the live line, and waits until everything is stored.
func watch(ctx context.Context, service *service, gen *generator, duration time.Duration) (snapshot, error) {
	genCtx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	generated := make(chan error, 1)
	go func() { generated <- gen.run(genCtx) }()
	last, err := scrape(service.url)
	if err != nil {
		return last, err
	}
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	for {
		select {
		case err := <-generated:
			if err != nil {
				return last, err
			}
			return settle(service, gen.next)
		case err := <-service.exited:
			return last, fmt.Errorf("sluice ended by itself: %w; its log is %s", err, service.logPath)
		case <-looks.C:
			now, err := scrape(service.url)
			if err != nil {
				return last, err
			}
			printStep(os.Stdout, last, now)
			last = now
		}
	}
}

// settle waits until the sink says that it has stored as many rows as lines were written. That is only when to look: what is
// stored is found by reading it back.
func settle(service *service, written int64) (snapshot, error) {
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(pollEvery) {
		s, err := scrape(service.url)
		if err != nil || s.rows >= float64(written) || time.Now().After(deadline) {
			return s, err
		}
	}
}

// A service is the running `sluice run`.
type service struct {
	cmd     *exec.Cmd
	url     string
	logPath string
	exited  chan error
}

func startSluice(o options) (*service, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	s := &service{url: "http://" + addr, logPath: filepath.Join(o.dir, "sluice.log"), exited: make(chan error, 1)}
	log, err := os.Create(s.logPath)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(o.sluice, "run", o.pipeline, "--data", filepath.Join(o.dir, "data"), "--metrics", addr)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// Ctrl-C is for the demo, which then stops sluice itself and accounts for what was written.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w; build it with `make build`", o.sluice, err)
	}
	go func() { s.exited <- s.cmd.Wait() }()
	return s, nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (s *service) waitReady(ctx context.Context) error {
	for deadline := time.Now().Add(readyTimeout); ; {
		if _, err := scrape(s.url); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("sluice is not ready after %s; its log is %s", readyTimeout, s.logPath)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.exited:
			out, _ := os.ReadFile(s.logPath)
			return fmt.Errorf("sluice did not start (%w):\n%s", err, out)
		case <-time.After(pollEvery):
		}
	}
}

// stop asks for a drain and waits for it.
func (s *service) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop sluice: %w", err)
	}
	select {
	case err := <-s.exited:
		s.exited <- err
		if err != nil {
			return fmt.Errorf("sluice ended with %w; its log is %s", err, s.logPath)
		}
		return nil
	case <-time.After(stopTimeout):
		return errors.New("sluice does not stop; its log is " + s.logPath)
	}
}

func (s *service) kill() { _ = s.cmd.Process.Kill() } // of a process that has ended it does nothing
