package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/agent"
	"github.com/sluice-io/sluice/internal/convert"
)

func newPositions(c *common) *cobra.Command {
	state := defaultState
	cmd := &cobra.Command{Use: "positions", Short: "List, export, import and reset the positions in files and journals"}
	cmd.PersistentFlags().StringVar(&state, "state", defaultState, "state directory of the agent")
	cmd.AddCommand(newPositionsList(&state), newPositionsExport(&state), newPositionsImport(c, &state), newPositionsReset(c, &state))
	return cmd
}

// positions are those of the agent, whether it runs or not.
func positions(cmd *cobra.Command, state string) (*agent.Positions, error) {
	p, err := agent.Ask(cmd.Context(), state)
	if !errors.Is(err, agent.ErrNotRunning) {
		return p, err
	}
	s, err := agent.OpenState(cmd.Context(), slog.New(slog.DiscardHandler), state)
	if err != nil {
		return nil, err
	}
	p, err = s.Positions()
	return p, errors.Join(err, s.Close())
}

func newPositionsList(state *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "All positions, of an agent that runs or of one that does not", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := positions(cmd, *state)
			if err != nil {
				return err
			}
			if asJSON {
				return writePositions(cmd.OutOrStdout(), p)
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(tw, "PIPELINE\tPATH\tDEVICE\tINODE\tPOSITION\tSIZE\tBEHIND\tSEEN")
			for _, of := range p.Pipelines {
				for _, f := range of.Files {
					size, behind := "gone", "-"
					if f.Size >= 0 {
						size, behind = fmt.Sprint(f.Size), fmt.Sprint(max(f.Size-f.Offset, 0))
					}
					fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", of.Pipeline, f.Path, f.Dev, f.Ino, f.Offset, size, behind,
						time.Unix(f.Seen, 0).UTC().Format(time.RFC3339))
				}
			}
			return errors.Join(tw.Flush(), listOthers(cmd.OutOrStdout(), p))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// listOthers prints the inputs that are not files: where they go on, and what of them waits in the journal.
func listOthers(w io.Writer, p *agent.Positions) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	head := false
	for _, of := range p.Pipelines {
		if of.Input == "" {
			continue
		}
		if !head {
			head = true
			fmt.Fprintln(tw, "\nPIPELINE\tINPUT\tCURSOR\tUNDELIVERED LINES\tJOURNAL BYTES")
		}
		cursor, lines, bytes := "-", "-", "-"
		if of.Cursor != nil {
			first, open, held := strings.Cut(of.Cursor.Cursor, "\n")
			if cursor = first; held {
				cursor = fmt.Sprintf("%s (%d records open)", first, 1+strings.Count(open, "\n"))
			}
		}
		if of.Journal != nil {
			lines, bytes = fmt.Sprint(of.Journal.UnsettledLines), fmt.Sprint(of.Journal.Bytes)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", of.Pipeline, of.Input, cursor, lines, bytes)
	}
	return tw.Flush()
}

func writePositions(w io.Writer, p *agent.Positions) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(p)
}

func newPositionsExport(state *string) *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "Write all positions as JSON, for import", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := positions(cmd, *state)
			if err != nil {
				return err
			}
			return writePositions(cmd.OutOrStdout(), p)
		},
	}
}

func newPositionsImport(c *common, state *string) *cobra.Command {
	var from, files string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Take over exported positions, or those of Promtail, Filebeat or Fluent Bit",
		Long: "Takes positions into the state directory of an agent that does not run. A position is taken where its path leads to the file that it was of,\n" +
			"by inode and size, and for exported ones by content; else it is refused, with the reason. With --from promtail FILE is its positions.yaml,\n" +
			"with --from filebeat its data directory, with --from fluent-bit the database of its tail input.",
		Args: exactArgs(1, "a file of positions"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if files == "" {
				return errUsage{errors.New("--pipelines is missing: the pipeline files say which pipeline takes which file")}
			}
			pipes, err := loadPipelines(splitAddrs(files))
			if err != nil {
				return err
			}
			list, notes, err := readForeign(cmd, from, args[0])
			if err != nil {
				return err
			}
			if err := os.MkdirAll(*state, 0o700); err != nil { // before the first start of the agent
				return fmt.Errorf("make the state directory (--state): %w", err)
			}
			s, err := openStopped(cmd, c, *state)
			if err != nil {
				return err
			}
			results, err := s.Import(pipes, list)
			if err := errors.Join(err, s.Close()); err != nil {
				return err
			}
			return printImport(cmd, asJSON, results, notes)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "sluice", "whose positions: sluice (exported), promtail, filebeat or fluent-bit")
	f.StringVar(&files, "pipelines", "", "pipeline files or directories, comma-separated")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// readForeign reads positions, and what stands beside them that is none.
func readForeign(cmd *cobra.Command, from, path string) (out []agent.Imported, notes []string, err error) {
	var p *convert.Positions
	switch from {
	case "sluice":
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, fmt.Errorf("read positions: %w", err)
		}
		defer f.Close() // only read from
		all, err := agent.ReadPositions(f)
		if err != nil {
			return nil, nil, err
		}
		return all.Exported(), nil, nil
	case "promtail":
		p, err = convert.PromtailPositions(path)
	case "filebeat":
		p, err = convert.FilebeatRegistry(path)
	case "fluent-bit":
		p, err = convert.FluentBitDB(cmd.Context(), path)
	default:
		return nil, nil, errUsage{fmt.Errorf("--from %q: use sluice, promtail, filebeat or fluent-bit", from)}
	}
	if err != nil {
		return nil, nil, err
	}
	for _, x := range p.Files {
		out = append(out, agent.Imported{Path: x.Path, Dev: x.Dev, Ino: x.Ino, Offset: x.Offset})
	}
	return out, p.Notes, nil
}

func printImport(cmd *cobra.Command, asJSON bool, results []agent.ImportResult, notes []string) error {
	if asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(results)
	}
	w, taken := cmd.OutOrStdout(), 0
	for _, r := range results {
		switch {
		case r.Cursor != "" && r.Refused == "":
			taken++
			fmt.Fprintf(w, "%s: pipeline %s goes on behind %q\n", r.Input, r.Pipeline, r.Cursor)
		case r.Cursor != "":
			fmt.Fprintf(w, "%s: refused for pipeline %s: %s\n", r.Input, r.Pipeline, r.Refused)
		case r.Refused == "":
			taken++
			fmt.Fprintf(w, "%s: pipeline %s goes on at %d\n", r.Path, r.Pipeline, r.Offset)
		case r.Pipeline == "":
			fmt.Fprintf(w, "%s: refused: %s\n", r.Path, r.Refused)
		default:
			fmt.Fprintf(w, "%s: refused for pipeline %s: %s\n", r.Path, r.Pipeline, r.Refused)
		}
	}
	for _, note := range notes {
		fmt.Fprintln(w, note)
	}
	fmt.Fprintf(w, "%d positions taken, %d refused; files of these pipelines without a position are read from their beginning\n", taken, len(results)-taken)
	return nil
}

// openStopped takes the state directory of an agent that does not run; of one that does it says what to do.
func openStopped(cmd *cobra.Command, c *common, state string) (*agent.State, error) {
	log, err := c.logger()
	if err != nil {
		return nil, err
	}
	s, err := agent.OpenState(cmd.Context(), log, state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w; positions are changed while the agent is stopped, and it goes on from them when it is started", err)
	}
	return s, nil
}

func newPositionsReset(c *common, state *string) *cobra.Command {
	var pipeline, to string
	var vanished, cursor bool
	cmd := &cobra.Command{
		Use: "reset [PATH...]", Short: "Read files again from their beginning, pass over what is in them, or forget them",
		Long: "Changes the positions of files by their paths, as `list` shows them, while the agent is stopped. What is in its journal is sent all the same.\n" +
			"With --vanished it forgets all files that are gone, of an agent that runs too. With --cursor it is the place in the journal of systemd\n" +
			"that changes; --to forget then goes by the pipeline's start_at.",
		RunE: func(cmd *cobra.Command, paths []string) error {
			if howMany(vanished, cursor, len(paths) > 0) != 1 {
				return errUsage{errors.New("give either paths, --vanished or --cursor")}
			}
			if vanished {
				return forgetVanished(cmd, c, *state)
			}
			if to == "" {
				return errUsage{errors.New("--to is missing: start, end or forget")}
			}
			s, err := openStopped(cmd, c, *state)
			if err != nil {
				return err
			}
			var n int
			if cursor {
				n, err = s.ResetCursor(pipeline, agent.ResetTo(to))
			} else {
				n, err = s.Reset(pipeline, absolute(paths), agent.ResetTo(to))
			}
			if err := errors.Join(err, s.Close()); err != nil {
				return err
			}
			switch {
			case n == 0 && cursor:
				return errors.New("no pipeline has a cursor; `sluice agent positions list` shows all")
			case n == 0:
				return errors.New("there is no position under these paths; `sluice agent positions list` shows all")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d positions changed\n", n)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&pipeline, "pipeline", "", "only positions of this pipeline")
	f.StringVar(&to, "to", "", "start, end or forget")
	f.BoolVar(&cursor, "cursor", false, "change the cursor of inputs that have one, journald, instead of files")
	f.BoolVar(&vanished, "vanished", false, "forget the positions of all files that are gone")
	return cmd
}

// absolute makes paths what the agent knows them by; one that cannot be made so stays.
func absolute(paths []string) []string {
	out := slices.Clone(paths)
	for i, p := range paths {
		if abs, err := filepath.Abs(p); err == nil {
			out[i] = abs
		}
	}
	return out
}

// howMany are true.
func howMany(all ...bool) (n int) {
	for _, x := range all {
		if x {
			n++
		}
	}
	return n
}

func forgetVanished(cmd *cobra.Command, c *common, state string) error {
	n, err := agent.AskForgetVanished(cmd.Context(), state)
	if errors.Is(err, agent.ErrNotRunning) {
		var s *agent.State
		if s, err = openStopped(cmd, c, state); err != nil {
			return err
		}
		n, err = s.ForgetVanished()
		err = errors.Join(err, s.Close())
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%d positions forgotten\n", n)
	return nil
}
