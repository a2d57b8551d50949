package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/admin"
)

func newTopics() *cobra.Command {
	t := &target{}
	cmd := &cobra.Command{Use: "topics", Short: "List, describe, create and delete topics"}
	t.flags(cmd)
	cmd.AddCommand(newTopicsList(t), newTopicsDescribe(t), newTopicsCreate(t), newTopicsDelete(t))
	return cmd
}

func newTopicsList(t *target) *cobra.Command {
	var internal bool
	cmd := &cobra.Command{
		Use: "list", Short: "All topics with their sizes", Args: noArgs,
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, _ []string) error {
			topics, err := admin.Topics(cmd.Context(), client, internal)
			if err != nil {
				return err
			}
			return t.print(cmd.OutOrStdout(), topics, "TOPIC\tPARTITIONS\tREPLICAS\tOFFSETS HELD", func(w io.Writer) {
				for _, topic := range topics {
					fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", topic.Name, len(topic.Partitions), topic.Replicas(), topic.Records())
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&internal, "internal", false, "internal topics too")
	return cmd
}

func newTopicsDescribe(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "describe TOPIC...", Short: "Partitions, offsets and settings of topics", Args: minArgs(1, "the name of a topic"),
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, names []string) error {
			topics, err := admin.DescribeTopics(cmd.Context(), client, names...)
			if err != nil {
				return err
			}
			return t.print(cmd.OutOrStdout(), topics, "TOPIC\tPARTITION\tLEADER\tREPLICAS\tISR\tSTART\tEND", func(w io.Writer) {
				for _, topic := range topics {
					for _, p := range topic.Partitions {
						fmt.Fprintf(w, "%s\t%d\t%d\t%v\t%v\t%d\t%d\n", topic.Name, p.ID, p.Leader, p.Replicas, p.ISR, p.Start, p.End)
					}
				}
				fmt.Fprintln(w, "\nTOPIC\tID\tSETTINGS")
				for _, topic := range topics {
					fmt.Fprintf(w, "%s\t%s\t%s\n", topic.Name, topic.ID, strings.Join(admin.SortedConfig(topic.Config), " "))
				}
			})
		}),
	}
}

func newTopicsCreate(t *target) *cobra.Command {
	var partitions int32
	var replicas int16
	var config map[string]string
	cmd := &cobra.Command{
		Use: "create TOPIC", Short: "Create a topic", Args: minArgs(1, "the name of the topic"),
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, names []string) error {
			for _, name := range names {
				if err := admin.CreateTopic(cmd.Context(), client, name, partitions, replicas, config); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "created", name)
			}
			return nil
		}),
	}
	cmd.Flags().Int32Var(&partitions, "partitions", -1, "number of partitions; -1 takes the broker's default")
	cmd.Flags().Int16Var(&replicas, "replicas", -1, "replication factor; -1 takes the broker's default")
	cmd.Flags().StringToStringVar(&config, "config", nil, "topic settings by Kafka's names, such as retention.ms=86400000")
	return cmd
}

func newTopicsDelete(t *target) *cobra.Command {
	return &cobra.Command{
		Use: "delete TOPIC...", Short: "Delete topics and all that lies in them", Args: minArgs(1, "the name of a topic"),
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, names []string) error {
			if err := admin.DeleteTopics(cmd.Context(), client, names...); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "deleted", strings.Join(names, ", "))
			return nil
		}),
	}
}
