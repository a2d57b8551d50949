package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-io/sluice/internal/admin"
)

// resetFlags are the ways to say where a group shall stand; one of them is given.
type resetFlags struct {
	earliest, latest bool
	offset, shift    int64
	ago              time.Duration
	at               string
	topics           []string
	dryRun           bool
}

// resetAims are the names of the flags of which one has to be given.
var resetAims = []string{"to-earliest", "to-latest", "to-offset", "shift-by", "by-duration", "to-time"}

func newGroupsReset(t *target) *cobra.Command {
	f := &resetFlags{}
	cmd := &cobra.Command{
		Use: "reset GROUP", Short: "Move a group that has no members to another position", Args: oneArg("the name of a group"),
		Long: "Commits another position for all partitions that the group has committed, or for those of --topic. The group must have no members.\n" +
			"A position outside the log becomes the nearest inside. --dry-run only says what would be committed.\n\n" +
			"A sink that finds itself before rows it has stored reads back what is there and stores only what is absent.",
		RunE: func(cmd *cobra.Command, names []string) error {
			to, err := f.position(cmd, time.Now())
			if err != nil {
				return errUsage{err}
			}
			scopes, err := f.scopes()
			if err != nil {
				return errUsage{err}
			}
			client, err := t.connect(cmd)
			if err != nil {
				return err
			}
			defer client.Close()
			moves, err := admin.PlanReset(cmd.Context(), client, names[0], to, scopes)
			if err != nil {
				return err
			}
			if !f.dryRun {
				if err := admin.CommitMoves(cmd.Context(), client, names[0], moves); err != nil {
					return err
				}
			}
			return printMoves(t, cmd.OutOrStdout(), resetResult{names[0], f.dryRun, moves})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.earliest, "to-earliest", false, "to the first record that is in the log")
	flags.BoolVar(&f.latest, "to-latest", false, "to the end: what is there now is passed over")
	flags.Int64Var(&f.offset, "to-offset", 0, "to this offset")
	flags.Int64Var(&f.shift, "shift-by", 0, "so many offsets ahead, or back if negative")
	flags.DurationVar(&f.ago, "by-duration", 0, "to the first record that is not older, such as 90m")
	flags.StringVar(&f.at, "to-time", "", "to the first record at or after this time (RFC 3339, such as 2026-11-30T10:00:00Z)")
	flags.StringArrayVar(&f.topics, "topic", nil, "only this topic, or TOPIC:0,1 for some of its partitions; may be repeated")
	flags.BoolVar(&f.dryRun, "dry-run", false, "commit nothing")
	cmd.MarkFlagsMutuallyExclusive(resetAims...)
	return cmd
}

func (f *resetFlags) position(cmd *cobra.Command, now time.Time) (to admin.Position, err error) {
	given := cmd.Flags().Changed
	switch {
	case f.earliest:
		to.Where = admin.ToEarliest
	case f.latest:
		to.Where = admin.ToLatest
	case given("to-offset"):
		to.Where, to.Offset = admin.ToOffset, f.offset
	case given("shift-by"):
		to.Where, to.Offset = admin.ShiftBy, f.shift
	case given("by-duration"):
		to.Where, to.Time = admin.ToTime, now.Add(-f.ago)
	case given("to-time"):
		to.Where = admin.ToTime
		if to.Time, err = time.Parse(time.RFC3339, f.at); err != nil {
			return to, fmt.Errorf("--to-time %q: write it as 2026-11-30T10:00:00Z", f.at)
		}
	default:
		return to, fmt.Errorf("say where to: one of --%s", strings.Join(resetAims, ", --"))
	}
	if to.Offset < 0 && to.Where == admin.ToOffset || f.ago < 0 {
		return to, errors.New("a position cannot be negative; --shift-by goes back")
	}
	return to, nil
}

func (f *resetFlags) scopes() (out []admin.Scope, err error) {
	for _, text := range f.topics {
		topic, list, some := strings.Cut(text, ":")
		s := admin.Scope{Topic: topic}
		for number := range strings.SplitSeq(list, ",") {
			if !some {
				break
			}
			p, err := strconv.ParseInt(number, 10, 32)
			if err != nil || p < 0 {
				return nil, fmt.Errorf("--topic %q: write TOPIC or TOPIC:0,1", text)
			}
			s.Partitions = append(s.Partitions, int32(p))
		}
		if topic == "" {
			return nil, fmt.Errorf("--topic %q names no topic", text)
		}
		out = append(out, s)
	}
	return out, nil
}

// resetResult is what --json prints.
type resetResult struct {
	Group  string             `json:"group"`
	DryRun bool               `json:"dry_run"`
	Moves  []admin.OffsetMove `json:"moves"`
}

func printMoves(t *target, w io.Writer, r resetResult) error {
	err := t.print(w, r, "GROUP\tTOPIC\tPARTITION\tFROM\tTO\tSTART\tEND\tNOTE", func(w io.Writer) {
		for _, m := range r.Moves {
			from := "never"
			if m.From >= 0 {
				from = fmt.Sprint(m.From)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%s\n", r.Group, m.Topic, m.Partition, from, m.To, m.Start, m.End, dash(moveNote(m)))
		}
	})
	if err == nil && r.DryRun && !t.json {
		_, err = fmt.Fprintln(w, "nothing is committed: --dry-run")
	}
	return err
}

func moveNote(m admin.OffsetMove) string {
	var notes []string
	if m.Bounded {
		notes = append(notes, "nearest in the log")
	}
	if m.Claim != nil {
		notes = append(notes, "claim "+m.Claim.String())
		if m.To > m.Claim.Lo {
			notes = append(notes, fmt.Sprintf("%d to %d may not be stored", m.Claim.Lo, min(m.To-1, m.Claim.Hi)))
		}
	}
	return strings.Join(notes, "; ")
}

func newGroupsSkip(t *target) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "skip GROUP TOPIC:PARTITION", Short: "Make a group pass over the record at which it stands", Args: minArgs(2, "the group or TOPIC:PARTITION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, number, _ := strings.Cut(args[1], ":")
			partition, err := strconv.ParseInt(number, 10, 32)
			if err != nil || topic == "" || partition < 0 || len(args) > 2 {
				return errUsage{fmt.Errorf("%q: write GROUP TOPIC:PARTITION, such as access access:3", strings.Join(args, " "))}
			}
			client, err := t.connect(cmd)
			if err != nil {
				return err
			}
			defer client.Close()
			move, record, err := admin.PlanSkip(cmd.Context(), client, args[0], topic, int32(partition))
			if err != nil {
				return err
			}
			if !dryRun {
				if err := admin.CommitMoves(cmd.Context(), client, args[0], []admin.OffsetMove{move}); err != nil {
					return err
				}
			}
			if t.json {
				return t.print(cmd.OutOrStdout(), skipResult{resetResult{args[0], dryRun, []admin.OffsetMove{move}}, record}, "", nil)
			}
			printSkipped(cmd.OutOrStdout(), record)
			return printMoves(t, cmd.OutOrStdout(), resetResult{args[0], dryRun, []admin.OffsetMove{move}})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the record, and commit nothing")
	return cmd
}

type skipResult struct {
	resetResult
	Record admin.SkippedRecord `json:"record"`
}

func printSkipped(w io.Writer, r admin.SkippedRecord) {
	fmt.Fprintf(w, "offset %d, written %s\n", r.Offset, r.Time.Format(time.RFC3339Nano))
	form := "%q\n" // as text a value could hold a terminal's control characters
	if r.Base64 {
		form = "%s (base64)\n"
	}
	for _, h := range r.Headers {
		fmt.Fprintf(w, "header "+form, h)
	}
	if r.Key != "" {
		fmt.Fprintf(w, "key "+form, r.Key)
	}
	fmt.Fprintf(w, "value "+form+"\n", r.Value)
}

// oneArg is minArgs(1) and no more.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := minArgs(1, what)(cmd, args); err != nil {
			return err
		}
		return noArgs(cmd, args[1:])
	}
}
