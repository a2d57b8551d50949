package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/clickhouse"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/hdfs"
)

func newSink(c *common) *cobra.Command {
	var cfg sinks.Config
	var brokers, metrics string
	var profiled, watched bool
	memory := sizeValue(sinks.MemoryMaxDefault)
	cmd := &cobra.Command{
		Use: "sink FILE...", Short: "Store the records of topics in warehouses",
		Long: "Runs the sinks of the pipelines as members of their consumer groups, until SIGTERM; then it drains. Start more of them to\n" +
			"share the partitions. SIGHUP has it take the files again: sinks that changed drain and go on as they are now, without a record lost\n" +
			"or doubled. Files may be directories of *.yaml.",
		Args: minArgs(1, "a pipeline file"),
		RunE: func(cmd *cobra.Command, files []string) error {
			hup := catchHangups()
			defer hup.release()
			log, pipes, err := c.begin(files)
			if err != nil {
				return err
			}
			port, err := takeOperatorPort(metrics)
			if err != nil {
				return err
			}
			defer port.release()
			cfg.Brokers = splitAddrs(brokers)
			limitMemory(int64(memory))
			reg := newRegistry()
			if err := needSinks(pipes); err != nil {
				return err
			}
			all, err := newStoring(log, reg, storingConfig{
				worker: func(*pipelines.Pipeline) sinks.Config { return cfg },
				memory: func(workers int) int64 { return sinks.RecordMemory(int64(memory), workers) },
			}, pipes)
			if err != nil {
				return err
			}
			reload := func(pipes []*pipelines.Pipeline) error {
				if err := needSinks(pipes); err != nil {
					return err
				}
				return all.Reload(pipes)
			}
			pages := []page{{statusPath, all.statuses}}
			if profiled {
				pages = append(pages, profilePages...)
			}
			port.serve(cmd.Context(), log, reg, []probe{{"sinks", all.ready}}, pages...)
			go newReloader(log, reg, files, watched, reload).run(cmd.Context(), hup)
			return all.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&brokers, "brokers", defaultBrokers, "brokers of pipelines that name none, host:port, comma-separated")
	f.StringVar(&cfg.InstanceID, "instance-id", "", "static member of the group: keeps its partitions over a restart within the session timeout")
	f.DurationVar(&cfg.SessionTimeout, "session-timeout", 0, "how long the group waits for a silent worker; 0 means 15s")
	f.Var(&memory, "memory-max", "memory that the process may take; fetched records, of all sinks together, take a quarter of it")
	f.BoolVar(&watched, "watch-config", false, "take the pipeline files again when they change, not only on SIGHUP")
	f.BoolVar(&profiled, "profiling", false, "serve /debug/pprof on the address of --metrics too: where the worker's CPU and memory go")
	f.StringVar(&metrics, "metrics", "127.0.0.1:9603", "address of /metrics, /healthz, /readyz and /sinks; empty for none")
	return cmd
}

// workers are the sink workers of one process.
type workers []*sinks.Worker

func needSinks(pipes []*pipelines.Pipeline) error {
	if countSinks(pipes) == 0 {
		return errUsage{errors.New("no pipeline has a `sink:`, so there is nothing for a sink worker to do")}
	}
	return nil
}

func countSinks(pipes []*pipelines.Pipeline) (n int) {
	for _, p := range pipes {
		n += len(p.Sinks)
	}
	return n
}

func newWorker(log *slog.Logger, reg prometheus.Registerer, p *pipelines.Pipeline, spec *pipelines.SinkSpec, destination newDestination, cfg sinks.Config) (*sinks.Worker, error) {
	log = log.With("role", "sink", "pipeline", p.Name)
	if spec.Name != "" {
		log = log.With("sink", spec.Name)
	}
	sink, err := destination(log, spec)
	if err != nil {
		return nil, fmt.Errorf("%s: sink of pipeline %s: %w", spec.Pos, p.Name, err)
	}
	w, err := sinks.NewWorker(log, reg, p, spec, sink, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: sink of pipeline %s: %w", spec.Pos, p.Name, err)
	}
	return w, nil
}

// newDestination makes what a sink writes to.
type newDestination func(*slog.Logger, *pipelines.SinkSpec) (sinks.Sink, error)

func newSinkOf(log *slog.Logger, spec *pipelines.SinkSpec) (sinks.Sink, error) {
	if spec.ClickHouse != nil {
		return clickhouse.New(log, spec)
	}
	if spec.HDFS != nil {
		return hdfs.New(log, spec)
	}
	return directory.New(log, spec)
}

func (ws workers) probes() (out []probe) {
	for _, w := range ws {
		a := w.Account()
		name := "sink " + a.Pipeline
		if a.Sink != "" {
			name += "." + a.Sink
		}
		out = append(out, probe{name, w.Ready})
	}
	return out
}
