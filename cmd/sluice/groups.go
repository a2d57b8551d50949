package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/admin"
)

func newGroups(c *common) *cobra.Command {
	t := &target{}
	cmd := &cobra.Command{Use: "groups", Short: "List, describe, reset and delete consumer groups, skip a record, store a range again"}
	t.flags(cmd)
	cmd.AddCommand(newGroupsList(t), newGroupsDescribe(t), newGroupsReset(t), newGroupsSkip(t), newGroupsDelete(t), newGroupsReplay(c, t))
	return cmd
}

// groupRow is a group with how far it is behind.
type groupRow struct {
	admin.Group
	LagRecords     int64   `json:"lag_records"`
	LagSeconds     float64 `json:"lag_seconds"`
	NeverCommitted int     `json:"never_committed"` // partitions
	OpenClaims     int     `json:"open_claims"`
}

func newGroupsList(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "All consumer groups: state, protocol, members and lag", Args: noArgs,
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, _ []string) error {
			groups, err := admin.Groups(cmd.Context(), client)
			if err != nil {
				return err
			}
			lags, err := admin.LagOf(cmd.Context(), client, time.Now(), groups)
			if err != nil {
				return err
			}
			rows := groupRows(groups, lags)
			return t.print(cmd.OutOrStdout(), rows, "GROUP\tSTATE\tPROTOCOL\tMEMBERS\tLAG RECORDS\tLAG TIME\tNEVER COMMITTED\tOPEN CLAIMS", func(w io.Writer) {
				for _, g := range rows {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%d\t%d\n", g.Name, g.State, g.Protocol, len(g.Members), g.LagRecords,
						seconds(&g.LagSeconds), g.NeverCommitted, g.OpenClaims)
				}
			})
		}),
	}
}

func groupRows(groups []admin.Group, lags []admin.GroupLag) []groupRow {
	totals := map[string]admin.GroupTotal{}
	for _, total := range admin.Totals(lags) {
		totals[total.Group] = total
	}
	open := map[string]int{}
	for _, l := range lags {
		if l.Claim != nil {
			open[l.Group]++
		}
	}
	rows := []groupRow{}
	for _, g := range groups {
		total := totals[g.Name]
		rows = append(rows, groupRow{g, total.Records, total.Seconds, total.NeverCommitted, open[g.Name]})
	}
	return rows
}

// groupDetail is a group with its partitions.
type groupDetail struct {
	admin.Group
	Partitions []admin.GroupLag `json:"partitions"`
}

func newGroupsDescribe(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "describe GROUP...", Short: "Members, and per partition the commit, the lag and what a sink has claimed", Args: minArgs(1, "the name of a group"),
		Long: "Members, and for each partition the committed offset, the end, and the lag in records and as the age of the oldest uncommitted record.\n" +
			"A claim [LO,HI] is what a sink commits before it writes: these offsets are on their way, or were when the sink ended; the next\n" +
			"one finds out what of them is stored.",
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, names []string) error {
			groups, err := admin.Groups(cmd.Context(), client, names...)
			if err != nil {
				return err
			}
			lags, err := admin.LagOf(cmd.Context(), client, time.Now(), groups)
			if err != nil {
				return err
			}
			details := []groupDetail{}
			for _, g := range groups {
				d := groupDetail{Group: g, Partitions: []admin.GroupLag{}}
				for _, l := range lags {
					if l.Group == g.Name && l.Partition >= 0 {
						d.Partitions = append(d.Partitions, l)
					}
				}
				details = append(details, d)
			}
			return t.print(cmd.OutOrStdout(), details, "GROUP\tSTATE\tPROTOCOL\tASSIGNOR\tCOORDINATOR", func(w io.Writer) { printGroups(w, details) })
		}),
	}
}

func printGroups(w io.Writer, details []groupDetail) {
	for _, g := range details {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", g.Name, g.State, g.Protocol, dash(g.Assignor), g.Coordinator)
	}
	fmt.Fprintln(w, "\nGROUP\tMEMBER\tCLIENT\tHOST\tSTATIC\tASSIGNED")
	for _, g := range details {
		for _, m := range g.Members {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%v\n", g.Name, m.ID, m.ClientID, m.Host, dash(m.InstanceID), m.Assigned)
		}
	}
	fmt.Fprintln(w, "\nGROUP\tTOPIC\tPARTITION\tCOMMITTED\tEND\tLAG RECORDS\tLAG TIME\tCLAIM")
	for _, g := range details {
		for _, l := range g.Partitions {
			committed, records := "never", "-"
			if l.Records != nil {
				committed, records = fmt.Sprint(l.Committed), fmt.Sprint(*l.Records)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", g.Name, l.Topic, l.Partition, committed, l.End, records, seconds(l.Seconds), dash(l.Claim.String()))
		}
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newGroupsDelete(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "delete GROUP...", Short: "Delete groups with their commits; they must have no members", Args: minArgs(1, "the name of a group"),
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, names []string) error {
			for _, name := range names {
				if err := admin.DeleteGroup(cmd.Context(), client, name); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "deleted", name)
			}
			return nil
		}),
	}
}
