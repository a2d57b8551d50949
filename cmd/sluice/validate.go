package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/pipelines"
)

func newValidate() *cobra.Command {
	var online bool
	cmd := &cobra.Command{
		Use: "validate FILE...", Short: "Check pipeline files and run the tests written in them",
		Long: "Checks the files, or all *.yaml files of directories, and runs the tests written in them. Every error names file, line and column.\n\n" +
			"--online asks the destinations too, and says which guarantee each gives, and why.",
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
			if online {
				return inspectAll(cmd.Context(), cmd.OutOrStdout(), pipes)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&online, "online", false, "ask the destinations which guarantee they give")
	return cmd
}

// inspectAll asks the destinations of all sinks.
func inspectAll(ctx context.Context, w io.Writer, pipes []*pipelines.Pipeline) error {
	var errs []error
	for _, p := range pipes {
		for _, spec := range p.Sinks {
			ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
			errs = append(errs, inspectSink(ctx, w, spec))
			cancel()
		}
	}
	return errors.Join(errs...)
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
