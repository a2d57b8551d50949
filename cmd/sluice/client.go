package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
)

// defaultBrokers is where a broker listens unless told otherwise.
const defaultBrokers = "127.0.0.1:9092"

// A target is the cluster that an administration command talks to, and how it prints.
type target struct {
	brokers string
	json    bool
}

func (t *target) flags(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&t.brokers, "brokers", defaultBrokers, "brokers to ask, host:port, comma-separated")
	cmd.PersistentFlags().BoolVar(&t.json, "json", false, "print JSON instead of a table")
}

// connect opens a client that gives up on what a person waits for.
func (t *target) connect(cmd *cobra.Command, opts ...kgo.Opt) (*kgo.Client, error) {
	seeds := splitAddrs(t.brokers)
	if len(seeds) == 0 {
		return nil, errUsage{errors.New("--brokers is empty: give host:port")}
	}
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(seeds...), kgo.ClientID("sluice"))...)
	if err != nil {
		return nil, err
	}
	if err := client.Ping(cmd.Context()); err != nil {
		client.Close()
		return nil, fmt.Errorf("no broker answers at %s: %w; is it running, and is --brokers right?", t.brokers, err)
	}
	return client, nil
}

// withClient is a command's RunE with a client that is open for its time.
func (t *target) withClient(run func(*cobra.Command, *kgo.Client, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		client, err := t.connect(cmd)
		if err != nil {
			return err
		}
		defer client.Close()
		return run(cmd, client, args)
	}
}

// print writes v as JSON, or as the table that rows write.
func (t *target) print(w io.Writer, v any, header string, rows func(io.Writer)) error {
	if t.json {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, header)
	rows(tw)
	return tw.Flush()
}
