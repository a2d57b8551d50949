package main

import "github.com/spf13/cobra"

func newExplain() *cobra.Command {
	cmd := &cobra.Command{Use: "explain", Short: "Say why something does not move, and what to do about it"}
	cmd.AddCommand(newExplainFile(), newExplainGroup())
	return cmd
}
