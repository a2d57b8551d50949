package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// sinkChoice is one sink of one pipeline file, as a command names it.
type sinkChoice struct {
	pipe *pipelines.Pipeline
	spec *pipelines.SinkSpec
}

// pickSink finds the sink that --pipeline and --sink name; where there is only one, nothing need be named.
func pickSink(pipes []*pipelines.Pipeline, pipeline, sink string, fits func(*pipelines.SinkSpec) bool) (c sinkChoice, err error) {
	var found []sinkChoice
	var names []string
	for _, p := range pipes {
		for _, s := range p.Sinks {
			if (pipeline == "" || p.Name == pipeline) && (sink == "" || s.Name == sink) && fits(s) {
				found = append(found, sinkChoice{p, s})
				names = append(names, s.Group())
			}
		}
	}
	switch len(found) {
	case 0:
		return c, errUsage{fmt.Errorf("no such sink in the pipeline files: check --pipeline and --sink")}
	case 1:
		return found[0], nil
	}
	return c, errUsage{fmt.Errorf("which sink? %s: say so by --pipeline and --sink", strings.Join(names, ", "))}
}

func anySink(*pipelines.SinkSpec) bool { return true }

func isClickHouse(s *pipelines.SinkSpec) bool { return s.ClickHouse != nil }

// worker makes a worker of the sink for what is done once and by hand.
func (c sinkChoice) worker(log *slog.Logger, brokers string) (*sinks.Worker, error) {
	sink, err := newSinkOf(log, c.spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.spec.Pos, err)
	}
	return sinks.NewWorker(log, nil, c.pipe, c.spec, sink, sinks.Config{Brokers: splitAddrs(brokers), ClientID: "sluice"})
}

// inspectOther asks a destination that is no table.
func inspectOther(ctx context.Context, w io.Writer, spec *pipelines.SinkSpec) error {
	sink, err := newSinkOf(slog.New(slog.DiscardHandler), spec)
	if err != nil {
		return fmt.Errorf("%s: %w", spec.Pos, err)
	}
	defer sink.Close()
	d, err := sink.Check(ctx)
	if err != nil {
		return fmt.Errorf("%s: sink %s: %w", spec.Pos, spec.Group(), err)
	}
	fmt.Fprintf(w, "%s: sink %s: %s\n  %s\n", spec.Pos, spec.Group(), d.Server, d.Guarantee)
	return nil
}
