package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/broker"
)

// brokerStopTimeout bounds a broker's own drain.
const brokerStopTimeout = 20 * time.Second

func newBroker(c *common) *cobra.Command {
	var file, data, listen, metrics string
	var printConfig, replacedDisk, importState bool
	cmd := &cobra.Command{
		Use: "broker", Short: "Run a broker that speaks the Kafka protocol",
		Long: "Runs a broker, as a service, until SIGTERM; then it drains. The configuration file is YAML with Kafka's property names; flags\n" +
			"go before it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := c.logger()
			if err != nil {
				return err
			}
			cfg, err := brokerConfig(file, data, listen)
			if err != nil {
				return errUsage{err}
			}
			cfg.ReplacedDisk, cfg.ImportState = replacedDisk, importState
			if printConfig {
				return cfg.Print(cmd.OutOrStdout())
			}
			port, err := takeOperatorPort(metrics)
			if err != nil {
				return err
			}
			defer port.release()
			reg := newRegistry()
			b, err := broker.New(log.With("role", "broker"), reg, cfg)
			if err != nil {
				return err
			}
			port.serve(cmd.Context(), log, reg, []probe{{"broker", b.Ready}}) // a broker of a cluster may wait for the others
			return runBroker(cmd.Context(), log, b)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "configuration file")
	f.BoolVar(&importState, "import-state", false, "for one start: move the state of a broker that was alone into ZooKeeper, where there is no cluster yet")
	f.BoolVar(&replacedDisk, "replaced-disk", false, "for one start: a data directory of this broker is lost and was replaced by an empty one; copy its replicas from the other brokers")
	f.BoolVar(&printConfig, "print-config", false, "print the configuration as it would be in force, with the source of each value, and end")
	f.StringVar(&data, "data", "", "directories of the log [log.dirs], comma-separated")
	f.StringVar(&listen, "listen", "", "address to listen on [listeners], host:port, comma-separated")
	f.StringVar(&metrics, "metrics", "127.0.0.1:9601", "address of /metrics, /healthz and /readyz; empty for none")
	return cmd
}

func brokerConfig(file, data, listen string) (cfg broker.Config, err error) {
	if file != "" {
		if cfg, err = broker.LoadConfig(file); err != nil {
			return cfg, err
		}
	}
	for property, value := range map[string]string{"log.dirs": data, "listeners": strings.Join(splitAddrs(listen), ",")} {
		if value == "" {
			continue
		}
		if err := cfg.SetFlag(property, value); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// runBroker serves until ctx ends, or another process has the broker's place.
func runBroker(ctx context.Context, log *slog.Logger, b *broker.Broker) error {
	if err := b.Start(ctx); err != nil {
		return err
	}
	defer stopBroker(log, b)
	forgetStart(log)
	select {
	case <-ctx.Done():
		return nil
	case err := <-b.Displaced():
		return err
	}
}

// startBroker starts a broker that is ready to serve.
func startBroker(ctx context.Context, log *slog.Logger, reg prometheus.Registerer, cfg broker.Config) (*broker.Broker, error) {
	b, err := broker.New(log.With("role", "broker"), reg, cfg)
	if err != nil {
		return nil, err
	}
	if err := b.Start(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func stopBroker(log *slog.Logger, b *broker.Broker) {
	ctx, cancel := context.WithTimeout(context.Background(), brokerStopTimeout)
	defer cancel()
	if err := b.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
		log.Error("the broker did not stop cleanly", "error", err)
	}
}
