package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/broker"
)

// brokerStopTimeout bounds a broker's own drain.
const brokerStopTimeout = 20 * time.Second

func newBroker(c *common) *cobra.Command {
	var file, data, listen, metrics string
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
			reg := newRegistry()
			b, err := startBroker(cmd.Context(), log, reg, cfg)
			if err != nil {
				return err
			}
			defer stopBroker(log, b)
			if err := serveOperator(cmd.Context(), log, metrics, reg, []probe{{"broker", b.Ready}}); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "configuration file")
	f.StringVar(&data, "data", "", "directory of the log [log.dirs]")
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
	if data != "" {
		cfg.DataDir = data
	}
	if listen != "" {
		cfg.Listen = splitAddrs(listen)
	}
	return cfg, nil
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
