//go:build unix

package stream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pipeRetryAfter is the pause before a pipe that cannot be had is tried again.
	pipeRetryAfter = time.Second
	// pipeLookEvery is how often it is looked whether another pipe has the name.
	pipeLookEvery = time.Second
	pipeMode      = 0o620 // the owner's, and the group may write
)

// PipeConfig configures a Pipe.
type PipeConfig struct {
	Path string
	// Create makes the pipe where there is nothing.
	Create bool
	// Once reads what is there and ends.
	Once  bool
	Lines Lines
}

// Pipe reads a named pipe. It holds the pipe open for writing too, so that writers come and go without ending it.
type Pipe struct {
	log     *slog.Logger
	cfg     PipeConfig
	waiting Waiting
}

// NewPipe makes a feed of a named pipe.
func NewPipe(log *slog.Logger, cfg PipeConfig) *Pipe {
	p := &Pipe{log: log.With("pipe", cfg.Path), cfg: cfg}
	p.waiting.Begin(errors.New("the named pipe is not open yet"))
	return p
}

// Stats implements Feed.
func (p *Pipe) Stats() Stats { return Stats{Waiting: p.waiting.Get()} }

// Run implements Feed.
func (p *Pipe) Run(ctx context.Context, to Taker) {
	for ctx.Err() == nil {
		err := p.follow(ctx, to)
		if errors.Is(err, ErrOver) || p.cfg.Once && err == nil {
			return
		}
		p.waiting.Set(p.log, "read the named pipe", err)
		if err != nil {
			Pause(ctx, pipeRetryAfter)
		}
	}
}

// follow reads the pipe that has the name now. It returns nil when another has it.
func (p *Pipe) follow(ctx context.Context, to Taker) error {
	file, err := p.open()
	if err != nil {
		return err
	}
	defer file.Close()
	p.waiting.Set(p.log, "read the named pipe", nil)
	// Of a pipe that lost its name what is there is still read.
	named, unnamed := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { p.watch(named, file, unnamed) })
	defer watch.Wait()
	defer unnamed()
	if p.cfg.Once {
		unnamed()
	}
	return p.read(ctx, named, file, to)
}

func (p *Pipe) read(ctx, named context.Context, file *os.File, to Taker) error {
	r, err := newPolled(named, file)
	if err != nil {
		return err
	}
	defer r.Close()
	r.hurry(ctx)
	return p.cfg.Lines.Copy(r, to)
}

// watch calls unnamed when the file no longer has the name.
func (p *Pipe) watch(ctx context.Context, file *os.File, unnamed func()) {
	have, err := file.Stat()
	if err != nil {
		return
	}
	for ctx.Err() == nil {
		Pause(ctx, pipeLookEvery)
		now, err := os.Stat(p.cfg.Path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(have, now) {
			unnamed()
		}
	}
}

func (p *Pipe) open() (*os.File, error) {
	info, err := os.Stat(p.cfg.Path)
	if errors.Is(err, fs.ErrNotExist) && p.cfg.Create {
		if err := unix.Mkfifo(p.cfg.Path, pipeMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make named pipe %s: %w", p.cfg.Path, err)
		}
		info, err = os.Stat(p.cfg.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("open named pipe: %w", err)
	}
	if info.Mode()&fs.ModeNamedPipe == 0 {
		return nil, fmt.Errorf("%s is not a named pipe", p.cfg.Path)
	}
	// For writing too: then the last writer that goes does not end it, and opening it waits for none.
	file, err := os.OpenFile(p.cfg.Path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open named pipe: %w", err)
	}
	return file, nil
}

// StdinConfig configures a Stdin.
type StdinConfig struct {
	// File is what is read; nil means the process's standard input.
	File  *os.File
	Lines Lines
}

// Stdin reads standard input to its end.
type Stdin struct {
	log *slog.Logger
	cfg StdinConfig
}

// NewStdin makes a feed of standard input.
func NewStdin(log *slog.Logger, cfg StdinConfig) *Stdin {
	if cfg.File == nil {
		cfg.File = os.Stdin
	}
	return &Stdin{log: log, cfg: cfg}
}

// Stats implements Feed.
func (s *Stdin) Stats() Stats { return Stats{} }

// Run implements Feed.
func (s *Stdin) Run(ctx context.Context, to Taker) {
	r, err := newPolled(ctx, s.cfg.File)
	if err == nil {
		r.hurry(ctx)
		err = s.cfg.Lines.Copy(r, to)
		_ = r.Close() // it holds nothing
	}
	switch {
	case err != nil && !errors.Is(err, ErrOver):
		s.log.Error("standard input cannot be read any more", "error", err)
	case err == nil && ctx.Err() == nil:
		s.log.Info("standard input has ended")
	}
}
