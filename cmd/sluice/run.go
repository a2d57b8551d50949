package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-io/sluice/agent"
	"github.com/sluice-io/sluice/broker"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

type runOptions struct {
	data, listen, metrics string
	// retentionCheck is how often the embedded broker looks for old segments; 0 is
	// its default, which no flag changes.
	retentionCheck time.Duration
	once           bool

	files   []string // that the pipelines are of
	watched bool
	hup     hangups
}

func newRun(c *common) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use: "run FILE...", Short: "Run every role of the pipelines in one process, with an embedded broker",
		Long: "Runs agent, broker and sinks of the pipelines in one process, until SIGTERM; then it drains. The broker serves the pipelines that\n" +
			"name none of their own. SIGHUP has it take the files again: what changed in them changes, without a line lost or doubled. With --once it\n" +
			"stores what is there now, prints the account and ends. Files may be directories of *.yaml.",
		Args: minArgs(1, "a pipeline file"),
		RunE: func(cmd *cobra.Command, files []string) error {
			if !o.once {
				o.hup = catchHangups()
				defer o.hup.release()
			}
			o.files = files
			log, pipes, err := c.begin(files)
			if err != nil {
				return err
			}
			return runPipelines(cmd.Context(), log, pipes, o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "sluice-data", "directory of the embedded broker's log and of the agent's state")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "address of the embedded broker; port 0 takes a free one")
	f.StringVar(&o.metrics, "metrics", "127.0.0.1:9600", "address of /metrics, /healthz and /readyz; empty for none")
	f.BoolVar(&o.watched, "watch-config", false, "take the pipeline files again when they change, not only on SIGHUP")
	f.BoolVar(&o.once, "once", false, "store what is there now, print the account and end")
	return cmd
}

// runPipelines starts broker, sinks and agent in this order and stops them in the other: lines that are read are still acknowledged, and
// writes in hand are finished. What is acknowledged and not yet stored then lies in the broker's log, for the next start.
func runPipelines(ctx context.Context, log *slog.Logger, pipes []*pipelines.Pipeline, o runOptions, out io.Writer) error {
	port, err := takeOperatorPort(o.metrics)
	if err != nil {
		return err
	}
	defer port.release()
	reg := newRegistry()
	r := &runner{groups: sinkGroups(pipes)}
	var probes []probe
	var brokers []string
	if slices.ContainsFunc(pipes, func(p *pipelines.Pipeline) bool { return p.Brokers == nil }) {
		if r.broker, err = startEmbedded(ctx, log, reg, r.groups, o); err != nil {
			return err
		}
		defer stopBroker(log, r.broker)
		brokers = []string{r.broker.Addr()}
		probes = append(probes, probe{"broker", r.broker.Ready})
	}
	collected := make(chan struct{})
	worker := func(p *pipelines.Pipeline) sinks.Config {
		cfg := sinks.Config{Brokers: brokers, Once: o.once, ProducerDone: collected}
		if p.Brokers == nil {
			cfg.InstanceID = instanceID(o.data)
		}
		return cfg
	}
	if r.sinks, err = newStoring(log, reg, storingConfig{worker: worker, once: o.once}, pipes); err != nil {
		return err
	}
	if len(collecting(pipes)) > 0 {
		if r.agent, err = newAgentRole(log, reg, pipes, agent.Config{StateDir: filepath.Join(o.data, "agent"), Brokers: brokers, Once: o.once,
			AdoptState: true /* a copy of the directory has the broker's log beside it */}); err != nil {
			return err
		}
		probes = append(probes, probe{"agent", r.agent.Ready})
	}
	port.serve(ctx, log, reg, append(probes, probe{"sinks", r.sinks.ready}), page{statusPath, r.sinks.statuses})
	if !o.once {
		go newReloader(log, reg, o.files, o.watched, r.reload).run(ctx, o.hup)
	}
	err = r.run(ctx, collected)
	printAccounts(out, r.agent, r.sinks.accounts())
	if err == nil && o.once {
		return onceComplete(ctx, r.agent)
	}
	return err
}

// onceComplete says why a `--once` did not do what was asked, though nothing failed.
func onceComplete(ctx context.Context, a *agent.Agent) error {
	if ctx.Err() != nil {
		return errors.New("interrupted before everything was stored; run the same command again to go on")
	}
	if a == nil {
		return nil
	}
	for _, acc := range a.Accounts() {
		if acc.Input == "file" && acc.FilesFollowed == 0 {
			return fmt.Errorf("pipeline %s: no file that can be read matches collect.file.include", acc.Pipeline)
		}
	}
	return nil
}

// instanceID makes the sinks on the embedded broker static members of their groups: after a kill the next start has its partitions back at once, where
// a dynamic member would wait until the group gives up on the dead one. It is that of the data directory, which one process has at a time.
func instanceID(data string) string {
	if path, err := filepath.Abs(data); err == nil {
		data = path
	}
	h := fnv.New64a()
	h.Write([]byte(data))
	return fmt.Sprintf("sluice-run-%016x", h.Sum64())
}

// runner holds the roles of a process.
type runner struct {
	broker *broker.Broker // nil: every pipeline names its own
	agent  *agent.Agent   // nil: no pipeline collects
	sinks  *storing
	groups map[string][]string // that retention waits for; of reload alone, once it is called
}

// run runs the agent, if there is one, and the sinks, which outlive it.
func (r *runner) run(ctx context.Context, collected chan struct{}) error {
	g, ctx := errgroup.WithContext(ctx)
	sinksCtx, stopSinks := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSinks()
	g.Go(func() error {
		defer func() { context.AfterFunc(ctx, stopSinks) }() // registered when the agent has ended: at once if it ended by ctx
		defer close(collected)
		if r.agent == nil {
			return nil
		}
		return r.agent.Run(ctx)
	})
	g.Go(func() error { return r.sinks.run(sinksCtx) })
	return g.Wait()
}

func startEmbedded(ctx context.Context, log *slog.Logger, reg prometheus.Registerer, groups map[string][]string, o runOptions) (*broker.Broker, error) {
	cfg := broker.EmbeddedConfig(filepath.Join(o.data, "broker"), o.listen)
	cfg.HoldFor = groups
	cfg.RetentionCheck = o.retentionCheck
	return startBroker(ctx, log, reg, cfg)
}

// sinkGroups are the consumer groups of the pipelines' sinks on the embedded broker, by topic: retention waits for them.
func sinkGroups(pipes []*pipelines.Pipeline) map[string][]string {
	groups := map[string][]string{}
	for _, p := range pipes {
		if p.Brokers != nil {
			continue
		}
		for _, s := range p.Sinks {
			groups[p.Topic.Name] = append(groups[p.Topic.Name], s.Group())
		}
	}
	return groups
}

// printAccounts says where every line is, by the roles' own counters; whether lines were lost or doubled is for an independent
// count to say, not for these.
func printAccounts(w io.Writer, a *agent.Agent, stored []sinks.Account) {
	if a != nil {
		for _, acc := range a.Accounts() {
			fmt.Fprintf(w, "%s: read %d lines (%d bytes), acknowledged %d, in flight %d%s\n", acc.Pipeline, acc.Read.Lines, acc.Read.Bytes,
				acc.Acked.Lines, acc.InFlight.Lines, byReason("dropped", acc.Dropped, func(c agent.Count) int64 { return c.Lines }))
		}
	}
	for _, acc := range stored {
		name := acc.Pipeline
		if acc.Sink != "" {
			name += "." + acc.Sink
		}
		fmt.Fprintf(w, "%s: consumed %d records, stored %d, found stored %d%s%s\n", name, acc.Consumed, acc.Stored, acc.Found,
			byReason("dropped", acc.Dropped, count), byReason("dead letters", acc.DeadLettered, count))
	}
	fmt.Fprintln(w, "lost, duplicated: not checked (the destination was not read back)")
}

func count(n int64) int64 { return n }

// byReason lists what is not zero, as ", WHAT 3 (REASON), ...".
func byReason[V any](what string, counts map[string]V, n func(V) int64) (out string) {
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		if v := n(counts[reason]); v != 0 {
			out += fmt.Sprintf(", %s %d (%s)", what, v, reason)
		}
	}
	return out
}
