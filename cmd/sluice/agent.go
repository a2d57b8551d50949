package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/agent"
	"github.com/sluice-io/sluice/pipelines"
)

// journalBytesLow is the smallest journal that an agent can work with: a batch may be as large.
const journalBytesLow = 1 << 20

func newAgent(c *common) *cobra.Command {
	var cfg agent.Config
	var brokers, metrics string
	var watched bool
	memory, journal := sizeValue(agent.MemoryMaxDefault), sizeValue(1<<30)
	cmd := &cobra.Command{
		Use: "agent FILE...", Short: "Follow files and push their lines to a broker",
		Long: "Runs the collecting part of the pipelines, as a service, until SIGTERM; then it drains. SIGHUP has it take the files again: what\n" +
			"changed in them changes, without a line lost or doubled. Files may be directories of *.yaml.",
		Args: minArgs(1, "a pipeline file"),
		RunE: func(cmd *cobra.Command, files []string) error {
			if journal < journalBytesLow {
				return errUsage{fmt.Errorf("--journal-bytes-max %s: want at least 1MiB", &journal)}
			}
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
			cfg.Brokers, cfg.MemoryMax, cfg.JournalBytesMax = splitAddrs(brokers), int64(memory), int64(journal)
			limitMemory(int64(memory))
			go keepSmall(cmd.Context(), log)
			reg := newRegistry()
			a, err := newAgentRole(log, reg, pipes, cfg)
			if err != nil {
				return err
			}
			port.serve(cmd.Context(), log, reg, []probe{{"agent", a.Ready}})
			go newReloader(log, reg, files, watched, func(pipes []*pipelines.Pipeline) error { return a.Reload(collecting(pipes)) }).run(cmd.Context(), hup)
			log.Info("agent is started", "pipelines", len(collecting(pipes)), "state", cfg.StateDir)
			err = a.Run(cmd.Context())
			if err == nil {
				log.Info("agent is stopped; it goes on from where it is at the next start")
			}
			return err
		},
	}
	cmd.AddCommand(newPositions(c))
	f := cmd.Flags()
	f.StringVar(&cfg.StateDir, "state", defaultState, "directory of the agent's own state: positions in files, and batches on their way")
	f.BoolVar(&cfg.AdoptState, "adopt-state", false, "take over a state directory that looks like a copy of another agent's, when that one is gone for good")
	f.BoolVar(&cfg.JournalSync, "journal-sync", false, "make batches durable before they are sent: then a power cut doubles no line either")
	f.Var(&journal, "journal-bytes-max", "bytes that a pipeline's journal may take on disk; reading waits when it is full")
	f.DurationVar(&cfg.DrainTimeout, "drain-timeout", 10*time.Second, "how long a stop waits for acknowledgements; what is left is in the journal, and settled at the next start")
	f.DurationVar(&cfg.PositionsKeep, "positions-keep", 168*time.Hour, "how long the position of a file that is gone is kept")
	f.Var(&memory, "memory-max", "memory that the process may take; lines on their way, of all pipelines together, take a quarter of it")
	f.BoolVar(&watched, "watch-config", false, "take the pipeline files again when they change, not only on SIGHUP")
	f.StringVar(&brokers, "brokers", defaultBrokers, "brokers of pipelines that name none, host:port, comma-separated")
	f.StringVar(&metrics, "metrics", "127.0.0.1:9602", "address of /metrics, /healthz and /readyz; empty for none")
	return cmd
}

// newAgentRole makes the agent of those pipelines that collect; it fails when there are none.
func newAgentRole(log *slog.Logger, reg prometheus.Registerer, pipes []*pipelines.Pipeline, cfg agent.Config) (*agent.Agent, error) {
	collecting := collecting(pipes)
	if len(collecting) == 0 {
		return nil, errUsage{errors.New("no pipeline has a `collect:`, so there is nothing for an agent to do")}
	}
	return agent.New(log.With("role", "agent"), reg, collecting, cfg)
}

func collecting(pipes []*pipelines.Pipeline) (out []*pipelines.Pipeline) {
	for _, p := range pipes {
		if p.Collect != nil {
			out = append(out, p)
		}
	}
	return out
}
