package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/clickhouse"
)

func newTable(c *common) *cobra.Command {
	cmd := &cobra.Command{Use: "table", Short: "Propose and check the ClickHouse tables of pipelines"}
	cmd.AddCommand(newTableCreate(c))
	return cmd
}

// inspectTimeout bounds what is asked of one destination.
const inspectTimeout = 15 * time.Second

func newTableCreate(c *common) *cobra.Command {
	var pipeline, sink string
	var proposal clickhouse.Proposal
	var apply, check bool
	cmd := &cobra.Command{
		Use: "create FILE...", Short: "Write the CREATE TABLE for a sink, make the table, or check the one that is there", Args: minArgs(1, "a pipeline file"),
		Long: "Prints the CREATE TABLE that fits the pipeline: its columns by what is known of their fields, those by which the sink knows its rows, codecs, an index for\n" +
			"reading back, a TTL and a dedup window. Read it before you use it: a pipeline does not say everything of its fields. --apply makes the table; --check\n" +
			"compares the table that is there with the pipeline and says which guarantee it gives.",
		RunE: func(cmd *cobra.Command, files []string) error {
			_, pipes, err := c.begin(files)
			if err != nil {
				return err
			}
			choice, err := pickSink(pipes, pipeline, sink, isClickHouse)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), inspectTimeout)
			defer cancel()
			if check {
				return inspectSink(ctx, cmd.OutOrStdout(), choice.spec)
			}
			statement, err := clickhouse.Propose(choice.spec, proposal)
			if err != nil {
				return errUsage{err}
			}
			fmt.Fprintln(cmd.OutOrStdout(), statement+";")
			if !apply {
				return nil
			}
			return clickhouse.Create(ctx, choice.spec.ClickHouse, statement)
		},
	}
	f := cmd.Flags()
	f.StringVar(&pipeline, "pipeline", "", "the pipeline, where the files hold several")
	f.StringVar(&sink, "sink", "", "the sink, where the pipeline has several")
	f.IntVar(&proposal.TTLDays, "ttl-days", 90, "delete rows so many days after their time; 0 is never")
	f.BoolVar(&proposal.Replicated, "replicated", false, "a ReplicatedMergeTree, for servers with the macros shard and replica")
	f.BoolVar(&apply, "apply", false, "make the table too")
	f.BoolVar(&check, "check", false, "check the table that is there instead")
	cmd.MarkFlagsMutuallyExclusive("apply", "check")
	return cmd
}

// inspectSink prints what a destination gives, and why.
func inspectSink(ctx context.Context, w io.Writer, spec *pipelines.SinkSpec) error {
	if spec.ClickHouse == nil {
		return inspectOther(ctx, w, spec)
	}
	r, err := clickhouse.Inspect(ctx, spec, sinks.RepeatWindow(sinks.Config{}))
	if err != nil {
		return fmt.Errorf("%s: sink %s: %w", spec.Pos, spec.Group(), err)
	}
	fmt.Fprintf(w, "%s: sink %s: table %s at %s, engine %s\n  %s\n", spec.Pos, spec.Group(), r.Table, r.Server, r.Engine, r.Guarantee)
	for _, finding := range r.Findings {
		fmt.Fprintf(w, "  %s\n", finding)
	}
	for _, column := range r.Unfilled {
		fmt.Fprintf(w, "  column %s is not filled by the pipeline and gets its default\n", column)
	}
	return nil
}
