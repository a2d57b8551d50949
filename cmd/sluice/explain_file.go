package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/agent"
	"github.com/sluice-io/sluice/pipelines"
)

// defaultState is where an agent keeps its state unless told otherwise.
const defaultState = "sluice-agent"

func newExplainFile() *cobra.Command {
	var state, files string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "file PATH", Short: "Which input takes a file, how far it is, and what it waits for",
		Long: "Asks the agent that runs on the state directory. When none does, it says what the checkpoint and the journal know, and with --pipelines\n" +
			"which input would take the file.",
		Args: exactArgs(1, "the path of a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := agent.AskExplain(cmd.Context(), state, args[0])
			if errors.Is(err, agent.ErrNotRunning) {
				e, err = explainStopped(cmd, state, args[0], files)
			}
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(e)
			}
			printExplanation(cmd.OutOrStdout(), e)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&state, "state", defaultState, "state directory of the agent")
	f.StringVar(&files, "pipelines", "", "pipeline files or directories, comma-separated, for an agent that does not run")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func explainStopped(cmd *cobra.Command, state, path, files string) (*agent.Explanation, error) {
	var pipes []*pipelines.Pipeline
	if files != "" {
		var err error
		if pipes, err = loadPipelines(splitAddrs(files)); err != nil {
			return nil, err
		}
	}
	s, err := agent.OpenState(cmd.Context(), slog.New(slog.DiscardHandler), state)
	if err != nil {
		return nil, err
	}
	e, err := s.Explain(path, pipes)
	return e, errors.Join(err, s.Close())
}

func printExplanation(w io.Writer, e *agent.Explanation) {
	fmt.Fprintln(w, e.Path)
	switch {
	case !e.Exists:
		fmt.Fprintf(w, "  %s\n", e.Absent)
	case e.Target != "":
		fmt.Fprintf(w, "  leads to %s\n", e.Target)
	}
	if e.File != nil {
		fmt.Fprintf(w, "  device %d, inode %d, %d bytes, last written %s\n", e.File.Dev, e.File.Ino, e.File.Size, e.File.Modified.Format(time.RFC3339))
	}
	if !e.Live {
		fmt.Fprintln(w, "  no agent runs on the state directory: what follows is what its checkpoint and journal know")
	}
	if len(e.Inputs) == 0 {
		fmt.Fprintln(w, "  no file input knows of it")
	}
	for i := range e.Inputs {
		printInput(w, &e.Inputs[i], e.Live)
	}
}

func printInput(w io.Writer, in *agent.InputOfAFile, live bool) {
	verdict := "does not take it"
	switch {
	case in.Takes && live:
		verdict = "takes it"
	case in.Takes:
		verdict = "would take it"
	}
	fmt.Fprintf(w, "pipeline %s: %s: %s\n", in.Pipeline, verdict, in.Why)
	if p := in.Position; p != nil {
		fmt.Fprintf(w, "  first found as %s, identity %s, rewritten %d times, last seen %s\n", p.Path, p.Identity, p.Generation, p.Seen.Format(time.RFC3339))
		fmt.Fprintf(w, "  acknowledged to %d, read to %d, size %s\n", p.Acknowledged, p.Read, size(p.Size))
		fmt.Fprintf(w, "  behind by %d bytes, %s\n", p.LagBytes, lagLines(p))
	}
	for _, what := range in.Waits {
		fmt.Fprintf(w, "  waits for: %s\n", what)
	}
	if in.Position != nil && len(in.Waits) == 0 {
		fmt.Fprintln(w, "  waits for nothing: all of it is delivered")
	}
	if in.Error != "" {
		fmt.Fprintf(w, "  last error: %s\n", in.Error)
	}
}

func size(n int64) string {
	if n < 0 {
		return "unknown (the file is gone)"
	}
	return fmt.Sprint(n)
}

func lagLines(p *agent.PositionOfAFile) string {
	switch {
	case p.LagLines < 0:
		return "how many lines is not known"
	case p.Estimated:
		return fmt.Sprintf("about %d lines", p.LagLines)
	}
	return fmt.Sprintf("%d lines", p.LagLines)
}
