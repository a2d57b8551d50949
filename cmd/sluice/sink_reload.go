package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// errSinksStopping says that the files are not taken any more.
var errSinksStopping = errors.New("the sinks are stopping")

// storing are the sinks of a process, which a reload changes: those that stay as they are go on, the others drain and are started anew. What a drained worker has
// claimed and not written is written by the next under the same identity. Its methods are safe for concurrent use.
type storing struct {
	log *slog.Logger
	reg *prometheus.Registry
	cfg storingConfig

	reloading sync.Mutex // held by Reload and at the end of run, before mu

	mu      sync.Mutex // guards what follows
	now     map[string]*storer
	ended   map[string]sinks.Account // of those that are gone, by group
	ctx     context.Context          // of the workers; nil before run
	failed  chan error
	running sync.WaitGroup
}

// storingConfig says how sinks are made and run. Its zero value is good for workers without a setting.
type storingConfig struct {
	// worker is asked for each pipeline.
	worker func(*pipelines.Pipeline) sinks.Config
	// memory is what each of so many workers may take for records; nil leaves it to worker.
	memory func(workers int) int64
	// destination makes what is written to; nil: newSinkOf.
	destination newDestination
	// once says that the workers end by themselves, and with the last of them run.
	once bool
}

// storer is one sink at work.
type storer struct {
	pipe    *pipelines.Pipeline
	spec    *pipelines.SinkSpec
	worker  *sinks.Worker
	metrics *prometheus.Registry // of the worker alone, so that they go with it
	stop    context.CancelFunc   // nil until it is started
	done    chan struct{}
}

func newStoring(log *slog.Logger, reg *prometheus.Registry, cfg storingConfig, pipes []*pipelines.Pipeline) (*storing, error) {
	if cfg.worker == nil {
		cfg.worker = func(*pipelines.Pipeline) sinks.Config { return sinks.Config{} }
	}
	if cfg.destination == nil {
		cfg.destination = newSinkOf
	}
	s := &storing{log: log, reg: reg, cfg: cfg, now: map[string]*storer{}, ended: map[string]sinks.Account{}, failed: make(chan error, 1)}
	return s, s.Reload(pipes)
}

// sinkChange is what a reload does.
type sinkChange struct {
	stay  map[string]*storer // those that are as they were, by group
	fresh map[string]*storer // those that begin, by group
}

// Reload takes other pipelines. An error leaves everything as it was.
func (s *storing) Reload(pipes []*pipelines.Pipeline) error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if s.stopping() {
		return errSinksStopping
	}
	c, err := s.plan(pipes)
	if err != nil {
		return err
	}
	s.apply(c)
	return nil
}

func (s *storing) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx != nil && s.ctx.Err() != nil
}

// plan works out what is to be done and makes the workers that begin, which touch nothing before they run.
func (s *storing) plan(pipes []*pipelines.Pipeline) (*sinkChange, error) {
	c := &sinkChange{map[string]*storer{}, map[string]*storer{}}
	count := countSinks(pipes)
	for _, p := range pipes {
		for _, spec := range p.Sinks {
			group := spec.Group()
			if old := s.at(group); old != nil && p.SameStoring(spec, old.pipe, old.spec) {
				c.stay[group] = old
				continue
			}
			made, err := s.make(p, spec, count)
			if err != nil {
				return nil, err
			}
			c.fresh[group] = made
		}
	}
	return c, nil
}

func (s *storing) at(group string) *storer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now[group]
}

func (s *storing) make(p *pipelines.Pipeline, spec *pipelines.SinkSpec, count int) (*storer, error) {
	cfg := s.cfg.worker(p)
	if s.cfg.memory != nil {
		cfg.MemoryBytesMax = s.cfg.memory(count)
	}
	metrics := prometheus.NewRegistry()
	w, err := newWorker(s.log, metrics, p, spec, s.cfg.destination, cfg)
	if err != nil {
		return nil, err
	}
	return &storer{pipe: p, spec: spec, worker: w, metrics: metrics, done: make(chan struct{})}, nil
}

// apply drains the workers that are not wanted any more or have another in their place, all at once, and then starts those.
func (s *storing) apply(c *sinkChange) {
	leaving := s.take(c)
	for group, old := range leaving {
		if old.stop != nil {
			<-old.done
		}
		s.reg.Unregister(old.metrics)
		s.bury(group, old)
	}
	if s.cfg.memory != nil {
		for _, w := range c.stay {
			w.worker.SetRecordMemory(s.cfg.memory(len(c.stay) + len(c.fresh)))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for group, made := range c.fresh {
		s.reg.MustRegister(made.metrics)
		s.now[group] = made
		s.start(made)
	}
}

// take tells the workers to drain that go, and takes them out.
func (s *storing) take(c *sinkChange) map[string]*storer {
	s.mu.Lock()
	defer s.mu.Unlock()
	leaving := map[string]*storer{}
	for group, old := range s.now {
		if c.stay[group] != nil {
			continue
		}
		if old.stop != nil {
			old.stop()
		}
		what := "the sink is taken out: it stores what it has in hand and leaves its group"
		if c.fresh[group] != nil {
			what = "the sink has changed: it stores what it has in hand, and goes on as it is now"
		}
		s.log.Info(what, "role", "sink", "group", group)
		leaving[group] = old
		delete(s.now, group)
	}
	return leaving
}

// bury keeps the account of a worker that has ended.
func (s *storing) bury(group string, old *storer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	account := old.worker.Account()
	account.Add(s.ended[group])
	s.ended[group] = account
}

// start has a worker run, once run was called. It needs mu.
func (s *storing) start(w *storer) {
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	all := s.ctx
	ctx, stop := context.WithCancel(all)
	w.stop = stop
	s.running.Go(func() {
		defer close(w.done)
		defer stop()
		err := w.worker.Run(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil && all.Err() == nil: // it was told to leave: the others have no part in that
			s.log.Error("a sink that a reload took out or changed did not end well; what it left open is found and closed by the next worker of its group",
				"role", "sink", "group", w.spec.Group(), "error", err)
		default:
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
	case <-s.allDone():
	}
	stop()
	s.reloading.Lock() // no worker is begun any more
	defer s.reloading.Unlock()
	s.running.Wait()
	if err == nil {
		select {
		case err = <-s.failed:
		default:
		}
	}
	return err
}

// allDone is closed when the last worker has ended; nil where they do not end by themselves.
func (s *storing) allDone() <-chan struct{} {
	if !s.cfg.once {
		return nil
	}
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	return done
}

// workers are those of now, by the names of their groups.
func (s *storing) workers() (ws workers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, group := range slices.Sorted(maps.Keys(s.now)) {
		ws = append(ws, s.now[group].worker)
	}
	return ws
}

// accounts are of all sinks since the start, by the names of their groups, also of those that are gone.
func (s *storing) accounts() (out []sinks.Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.ended)
	for group, w := range s.now {
		account := w.worker.Account()
		account.Add(all[group])
		all[group] = account
	}
	for _, group := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[group])
	}
	return out
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
