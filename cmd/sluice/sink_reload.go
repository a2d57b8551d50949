package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// storing are the sinks of a process, which a reload changes: those that stay as they are go on, the others drain and are started anew. What a drained worker has
// claimed and not written is written by the next under the same identity. Its methods are safe for concurrent use.
type storing struct {
	log *slog.Logger
	reg *prometheus.Registry
	cfg func(sinksOfAll int) sinks.Config

	reloading sync.Mutex // held by Reload, before mu

	mu      sync.Mutex // guards what follows
	now     map[string]*storer
	ctx     context.Context // of the workers; nil before run
	failed  chan error
	running sync.WaitGroup
}

// storer is one sink at work.
type storer struct {
	pipe    *pipelines.Pipeline
	spec    *pipelines.SinkSpec
	cfg     sinks.Config
	worker  *sinks.Worker
	metrics *prometheus.Registry // of the worker alone, so that they go with it
	stop    context.CancelFunc
	done    chan struct{}
}

func newStoring(log *slog.Logger, reg *prometheus.Registry, cfg func(int) sinks.Config, pipes []*pipelines.Pipeline) (*storing, error) {
	s := &storing{log: log, reg: reg, cfg: cfg, now: map[string]*storer{}, failed: make(chan error, 1)}
	return s, s.Reload(pipes)
}

// Reload takes other pipelines. An error leaves everything as it was.
func (s *storing) Reload(pipes []*pipelines.Pipeline) error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	count := countSinks(pipes)
	if count == 0 {
		return errUsage{errors.New("no pipeline has a `sink:`, so there is nothing for a sink worker to do")}
	}
	cfg := s.cfg(count)
	wanted, fresh := map[string]bool{}, map[string]*storer{}
	for _, p := range pipes {
		for _, spec := range p.Sinks {
			wanted[spec.Group()] = true
			if old := s.at(spec.Group()); old != nil && old.cfg.MemoryBytesMax == cfg.MemoryBytesMax && p.SameStoring(spec, old.pipe, old.spec) {
				continue
			}
			made, err := s.make(p, spec, cfg)
			if err != nil {
				return err
			}
			fresh[spec.Group()] = made
		}
	}
	s.replace(wanted, fresh)
	return nil
}

func (s *storing) at(group string) *storer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now[group]
}

func (s *storing) make(p *pipelines.Pipeline, spec *pipelines.SinkSpec, cfg sinks.Config) (*storer, error) {
	metrics := prometheus.NewRegistry()
	w, err := newWorker(s.log, metrics, p, spec, cfg)
	if err != nil {
		return nil, err
	}
	return &storer{pipe: p, spec: spec, cfg: cfg, worker: w, metrics: metrics, done: make(chan struct{})}, nil
}

// replace drains the workers that are not wanted any more or have another in their place, all at once, and then starts those.
func (s *storing) replace(wanted map[string]bool, fresh map[string]*storer) {
	for _, old := range s.take(wanted, fresh) {
		if old.stop != nil {
			<-old.done
		}
		s.reg.Unregister(old.metrics)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for group, made := range fresh {
		s.reg.MustRegister(made.metrics)
		s.now[group] = made
		s.start(made)
	}
}

// take tells the workers to drain that go, and takes them out.
func (s *storing) take(wanted map[string]bool, fresh map[string]*storer) (leaving []*storer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for group, old := range s.now {
		if wanted[group] && fresh[group] == nil {
			continue
		}
		if old.stop != nil {
			old.stop()
		}
		leaving = append(leaving, old)
		delete(s.now, group)
	}
	return leaving
}

// start has a worker run, once run was called.
func (s *storing) start(w *storer) {
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	w.stop = stop
	s.running.Go(func() {
		defer close(w.done)
		defer stop()
		if err := w.worker.Run(ctx); err != nil {
			select {
			case s.failed <- err:
			default:
			}
		}
	})
}

// run has the workers run until ctx ends, and drains them; one that fails ends the others.
func (s *storing) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.mu.Lock()
	s.ctx = ctx
	for _, w := range s.now {
		s.start(w)
	}
	s.mu.Unlock()
	var err error
	select {
	case <-ctx.Done():
	case err = <-s.failed:
	}
	stop()
	s.reloading.Lock() // no worker is begun any more
	defer s.reloading.Unlock()
	s.running.Wait()
	return err
}

func (s *storing) workers() (ws workers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.now {
		ws = append(ws, w.worker)
	}
	return ws
}

// ready joins what keeps the workers from being ready.
func (s *storing) ready() error {
	var errs []error
	for _, p := range s.workers().probes() {
		if err := p.ready(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	return errors.Join(errs...)
}

func (s *storing) statuses(w http.ResponseWriter, r *http.Request) { s.workers().statuses(w, r) }
