package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/pipelines"
)

func newValidate() *cobra.Command {
	return &cobra.Command{
		Use: "validate FILE...", Short: "Check pipeline files and run the tests written in them",
		Long: "Checks the files, or all *.yaml files of directories, and runs the tests written in them. Every error names file, line and column.",
		Args: minArgs(1, "a pipeline file"),
		RunE: func(cmd *cobra.Command, files []string) error {
			pipes, err := loadPipelines(files)
			if err != nil {
				return err
			}
			failed := 0
			for _, p := range pipes {
				results := pipelines.RunTests(p)
				for _, r := range results {
					if r.Err != nil {
						failed++
						fmt.Fprintln(cmd.OutOrStdout(), r.Err)
					}
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: pipeline %s is valid, %d tests\n", p.Pos.File, p.Name, len(results))
			}
			if failed > 0 {
				return errUsage{fmt.Errorf("%d tests failed", failed)}
			}
			return nil
		},
	}
}

// loadPipelines reads files or directories; what is wrong in them is the user's to mend.
func loadPipelines(files []string) ([]*pipelines.Pipeline, error) {
	pipes, err := pipelines.Load(files...)
	if err != nil {
		return nil, errUsage{err}
	}
	if len(pipes) == 0 {
		return nil, errUsage{errors.New("no pipeline found in the files that are named")}
	}
	return pipes, nil
}

// begin is what every command on pipelines begins with: its log, and the pipelines of the files.
func (c *common) begin(files []string) (*slog.Logger, []*pipelines.Pipeline, error) {
	log, err := c.logger()
	if err != nil {
		return nil, nil, err
	}
	pipes, err := loadPipelines(files)
	return log, pipes, err
}
