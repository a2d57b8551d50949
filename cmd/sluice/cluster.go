package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/admin"
)

func newCluster() *cobra.Command {
	t := &target{}
	cmd := &cobra.Command{Use: "cluster", Short: "Show the state of a cluster, move replicas and leaders, take a broker out"}
	t.flags(cmd)
	cmd.AddCommand(newClusterStatus(t), newClusterElect(t), newClusterReassign(t), newClusterDecommission(t), newClusterRecommission(t))
	return cmd
}

func newClusterStatus(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Brokers, controller, partitions in trouble and moves under way", Args: noArgs,
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, _ []string) error {
			status, err := admin.Cluster(cmd.Context(), client)
			if err != nil {
				return err
			}
			err = t.print(cmd.OutOrStdout(), status, "BROKER\tADDRESS\tRACK\tSTATE\tLEADS\tREPLICAS\tIN SYNC", func(w io.Writer) { printBrokers(w, status) })
			if err != nil || t.json {
				return err
			}
			return printTroubles(cmd.OutOrStdout(), t, status)
		}),
	}
}

func printBrokers(w io.Writer, status *admin.ClusterStatus) {
	for _, b := range status.Brokers {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\t%d\n", b.ID, orDash(b.Addr), orDash(b.Rack), brokerState(status, b), b.Leaders, b.Replicas, b.InSync)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func brokerState(status *admin.ClusterStatus, b admin.BrokerStatus) string {
	words := []string{"live"}
	if !b.Live {
		words[0] = "gone"
	}
	if b.ID == status.Controller {
		words = append(words, "controller")
	}
	if b.Cordoned {
		words = append(words, "cordoned")
	}
	return strings.Join(words, ", ")
}

func printTroubles(w io.Writer, t *target, status *admin.ClusterStatus) error {
	counts := map[string]int{}
	for _, p := range status.Troubles {
		counts[p.Kind]++
	}
	fmt.Fprintf(w, "\ncluster %s: %d topics, %d partitions; %d offline, %d under min ISR, %d under-replicated, %d being moved\n", status.ClusterID,
		status.Topics, status.Partitions, counts[admin.TroubleOffline], counts[admin.TroubleUnderMinISR], counts[admin.TroubleUnderReplicated], len(status.Moves))
	if len(status.Troubles) > 0 {
		fmt.Fprintln(w)
		err := t.print(w, nil, "TOPIC\tPARTITION\tTROUBLE\tLEADER\tREPLICAS\tISR", func(w io.Writer) {
			for _, p := range status.Troubles {
				fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%v\t%v\n", p.Topic, p.Partition, p.Kind, p.Leader, p.Replicas, p.ISR)
			}
		})
		if err != nil {
			return err
		}
	}
	if len(status.Moves) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return t.print(w, nil, "TOPIC\tPARTITION\tREPLICAS\tADDING\tREMOVING", func(w io.Writer) {
		for _, m := range status.Moves {
			fmt.Fprintf(w, "%s\t%d\t%v\t%v\t%v\n", m.Topic, m.Partition, m.Replicas, m.Adding, m.Removing)
		}
	})
}

func newClusterElect(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "elect", Short: "Move leaderships back to the preferred replicas", Args: noArgs,
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, _ []string) error {
			moved, err := admin.ElectPreferred(cmd.Context(), client)
			if err == nil || moved > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "moved %d leaderships\n", moved)
			}
			return err
		}),
	}
}

func newClusterReassign(t *target) *cobra.Command {
	var replicas []int32
	var cancel bool
	cmd := &cobra.Command{
		Use: "reassign TOPIC:PARTITION...", Short: "Give partitions other replicas, while they serve, or take that back",
		Args: minArgs(1, "a partition, TOPIC:PARTITION,"),
		RunE: func(cmd *cobra.Command, names []string) error {
			if (len(replicas) > 0) == cancel {
				return errUsage{errors.New("give either --replicas, the first of them the preferred leader, or --cancel")}
			}
			var list []admin.Assignment
			for _, name := range names {
				topic, partition, err := parsePartition(name)
				if err != nil {
					return err
				}
				list = append(list, admin.Assignment{Topic: topic, Partition: partition, Replicas: replicas})
			}
			client, err := t.connect(cmd)
			if err != nil {
				return err
			}
			defer client.Close()
			if err := admin.Reassign(cmd.Context(), client, list); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "begun; `sluice cluster status` shows what is under way")
			return nil
		},
	}
	cmd.Flags().Int32SliceVar(&replicas, "replicas", nil, "numbers of the brokers, the preferred leader first")
	cmd.Flags().BoolVar(&cancel, "cancel", false, "take the move back")
	return cmd
}

func parsePartition(s string) (topic string, partition int32, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", 0, errUsage{fmt.Errorf("%q is not TOPIC:PARTITION", s)}
	}
	n, err := strconv.ParseInt(s[i+1:], 10, 32)
	if err != nil || n < 0 || i == 0 {
		return "", 0, errUsage{fmt.Errorf("%q is not TOPIC:PARTITION", s)}
	}
	return s[:i], int32(n), nil
}

func parseBroker(s string) (int32, error) {
	id, err := strconv.ParseInt(s, 10, 32)
	if err != nil || id < 0 {
		return 0, errUsage{fmt.Errorf("%q is not a broker's number", s)}
	}
	return int32(id), nil
}

func newClusterDecommission(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "decommission BROKER", Short: "Move everything off a broker, so that it can be stopped for good",
		Long: "Moves all replicas of a broker to the others, which serve meanwhile, and keeps new ones away from it. When it is done, stop the broker.\n" +
			"Stopped half way, the same command goes on with the rest; `sluice cluster recommission` gives the broker new replicas again.",
		Args: minArgs(1, "the number of the broker"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseBroker(args[0])
			if err != nil {
				return err
			}
			client, err := t.connect(cmd)
			if err != nil {
				return err
			}
			defer client.Close()
			err = admin.Decommission(cmd.Context(), client, id, func(left int) {
				if left > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "%d partitions to move\n", left)
				}
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "broker %d has no replicas any more: stop it\n", id)
			return nil
		},
	}
}

func newClusterRecommission(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "recommission BROKER", Short: "Let a broker get new replicas again", Args: minArgs(1, "the number of the broker"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseBroker(args[0])
			if err != nil {
				return err
			}
			client, err := t.connect(cmd)
			if err != nil {
				return err
			}
			defer client.Close()
			if err := admin.Cordon(cmd.Context(), client, id, false); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "broker %d gets new replicas again\n", id)
			return nil
		},
	}
}
