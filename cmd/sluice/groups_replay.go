package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/sinks"
	"github.com/sluice-io/sluice/sinks/clickhouse"
)

// replayFlags say what is stored again, and where.
type replayFlags struct {
	pipeline, sink     string
	fromTime, toTime   string
	fromOffset, toOff  int64
	partitions         []int32
	table              string
	create, dryRun     bool
	fromGiven, toGiven bool
}

func newGroupsReplay(c *common, t *target) *cobra.Command {
	f := &replayFlags{}
	cmd := &cobra.Command{
		Use: "replay FILE...", Short: "Store a range of a sink's topic again, into its table or another", Args: minArgs(1, "a pipeline file"),
		Long: "Stores the records of a range once more, without touching the group. Each batch is read back first and only what is absent is stored, so a replay into the\n" +
			"same table changes nothing where nothing is missing, and may be repeated. What the group has not passed yet is left to its workers.\n\n" +
			"--table stores into another table of the same database instead; --create makes it first, like the sink's own.",
		RunE: func(cmd *cobra.Command, files []string) error {
			f.fromGiven, f.toGiven = cmd.Flags().Changed("from-offset"), cmd.Flags().Changed("to-offset")
			log, pipes, err := c.begin(files)
			if err != nil {
				return err
			}
			choice, err := pickSink(pipes, f.pipeline, f.sink, anySink)
			if err != nil {
				return err
			}
			if err := f.redirect(cmd.Context(), choice); err != nil {
				return err
			}
			w, err := choice.worker(log, t.brokers)
			if err != nil {
				return err
			}
			result, err := w.Replay(cmd.Context(), sinks.ReplayConfig{Elsewhere: f.table != "", DryRun: f.dryRun}, func(r *sinks.Replay) error {
				from, to, err := f.bounds(cmd.Context(), r)
				if err != nil {
					return err
				}
				return r.Range(cmd.Context(), from, to)
			})
			return errors.Join(err, printReplayed(t, cmd.OutOrStdout(), result, f.dryRun))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.pipeline, "pipeline", "", "the pipeline, where the files hold several")
	flags.StringVar(&f.sink, "sink", "", "the sink, where the pipeline has several")
	flags.StringVar(&f.fromTime, "from-time", "", "from the first record at or after this time (RFC 3339)")
	flags.StringVar(&f.toTime, "to-time", "", "up to the first record at or after this time, which is left out")
	flags.Int64Var(&f.fromOffset, "from-offset", 0, "from this offset")
	flags.Int64Var(&f.toOff, "to-offset", 0, "up to this offset, which is left out")
	flags.Int32SliceVar(&f.partitions, "partitions", nil, "only these partitions; left out: all")
	flags.StringVar(&f.table, "table", "", "store into this table of the sink's database instead")
	flags.BoolVar(&f.create, "create", false, "make the table of --table like the sink's own, unless it is there")
	flags.BoolVar(&f.dryRun, "dry-run", false, "read back and encode, and store nothing")
	cmd.MarkFlagsMutuallyExclusive("from-time", "from-offset")
	cmd.MarkFlagsMutuallyExclusive("to-time", "to-offset")
	return cmd
}

// redirect has the sink write to another table.
func (f *replayFlags) redirect(ctx context.Context, choice sinkChoice) error {
	spec := choice.spec.ClickHouse
	switch {
	case f.table == "" && f.create:
		return errUsage{errors.New("--create makes the table of --table, which is missing")}
	case f.table == "":
		return nil
	case spec == nil:
		return errUsage{errors.New("--table is for sinks that store into ClickHouse")}
	}
	if f.create && !f.dryRun {
		if err := clickhouse.CreateLike(ctx, spec, f.table); err != nil {
			return err
		}
	}
	spec.Table = f.table
	return nil
}

// bounds are the first offset of each partition that is meant, and the one after its last.
func (f *replayFlags) bounds(ctx context.Context, r *sinks.Replay) (from, to map[int32]int64, err error) {
	if from, err = f.edge(ctx, r, f.fromTime, f.fromGiven, f.fromOffset); err != nil {
		return nil, nil, err
	}
	if to, err = f.edge(ctx, r, f.toTime, f.toGiven, f.toOff); err != nil {
		return nil, nil, err
	}
	all, err := r.Partitions(ctx)
	if err != nil {
		return nil, nil, err
	}
	wanted := f.partitions
	if len(wanted) == 0 {
		wanted = all
	}
	first := map[int32]int64{}
	for _, p := range wanted {
		if p < 0 || int(p) >= len(all) {
			return nil, nil, errUsage{fmt.Errorf("--partitions: the topic has %d partitions, and none with the number %d", len(all), p)}
		}
		first[p] = from[p]
	}
	return first, to, nil
}

// edge is an end of the range in each partition; nil where none is given.
func (f *replayFlags) edge(ctx context.Context, r *sinks.Replay, at string, given bool, offset int64) (map[int32]int64, error) {
	if at != "" {
		when, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return nil, errUsage{fmt.Errorf("%q is no time: write it as 2026-11-30T10:00:00Z", at)}
		}
		return r.OffsetsAt(ctx, when)
	}
	if !given {
		return nil, nil
	}
	all, err := r.Partitions(ctx)
	out := map[int32]int64{}
	for _, p := range all {
		out[p] = offset
	}
	return out, err
}
