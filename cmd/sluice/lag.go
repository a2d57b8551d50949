package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/admin"
)

func newLag() *cobra.Command {
	t := &target{}
	var byPartition bool
	cmd := &cobra.Command{
		Use:   "lag [GROUP...]",
		Short: "How far consumer groups are behind, in records and in time",
		Long: "For each group (all, if none is named): the records between its committed offsets and the ends of the partitions, and the\n" +
			"age of the oldest of them. A partition that a group never committed counts as such, not as a number.",
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, groups []string) error {
			lags, err := admin.Lag(cmd.Context(), client, time.Now(), groups...)
			if err != nil {
				return err
			}
			if byPartition || t.json {
				return printPartitionLags(t, cmd.OutOrStdout(), lags)
			}
			return t.print(cmd.OutOrStdout(), lags, "GROUP\tSTATE\tLAG RECORDS\tLAG TIME\tNEVER COMMITTED", func(w io.Writer) {
				for _, g := range admin.Totals(lags) {
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\n", g.Group, g.State, g.Records, seconds(&g.Seconds), g.NeverCommitted)
				}
			})
		}),
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&byPartition, "partitions", false, "a line for each partition")
	return cmd
}

func printPartitionLags(t *target, w io.Writer, lags []admin.GroupLag) error {
	return t.print(w, lags, "GROUP\tTOPIC\tPARTITION\tCOMMITTED\tEND\tLAG RECORDS\tLAG TIME\tMEMBER", func(w io.Writer) {
		for _, l := range lags {
			if l.Partition < 0 {
				fmt.Fprintf(w, "%s\t(none, the group is %s)\n", l.Group, l.State)
				continue
			}
			committed, records := "never", "-"
			if l.Records != nil {
				committed, records = fmt.Sprint(l.Committed), fmt.Sprint(*l.Records)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", l.Group, l.Topic, l.Partition, committed, l.End, records, seconds(l.Seconds), l.Member)
		}
	})
}

// seconds prints a time lag; what is not known is a dash.
func seconds(s *float64) string {
	if s == nil {
		return "-"
	}
	return time.Duration(*s * float64(time.Second)).Round(time.Millisecond).String()
}
