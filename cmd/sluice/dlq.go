package main

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/sinks"
)

func newDLQ(c *common) *cobra.Command {
	t := &target{}
	cmd := &cobra.Command{
		Use: "dlq", Short: "List and show dead letters, and store them again",
		Long: "A record that cannot be stored lies in the dead-letter topic with its bytes, its headers, the reason and its origin. A letter is written at\n" +
			"least once; its key names the origin, by which these commands count.",
	}
	t.flags(cmd)
	cmd.AddCommand(newDLQList(t), newDLQShow(t), newDLQReplay(c, t))
	return cmd
}

// letterFilter says which letters are meant.
type letterFilter struct {
	key, reason, stage string
	since              time.Duration
}

func (f *letterFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.key, "key", "", "only the letter of this key, as show prints it")
	cmd.Flags().StringVar(&f.reason, "reason", "", "only letters whose reason contains this")
	cmd.Flags().StringVar(&f.stage, "stage", "", "only letters of this stage, such as columns")
	cmd.Flags().DurationVar(&f.since, "since", 0, "only letters written within this time, such as 2h; 0 is all")
}

func (f *letterFilter) match(l *sinks.Letter) bool {
	return (f.key == "" || l.Key == f.key) && strings.Contains(l.Reason, f.reason) && (f.stage == "" || l.Stage == f.stage) &&
		(f.since == 0 || time.Since(l.At) <= f.since)
}

// letterGroup is a row of dlq list: what letters have in common.
type letterGroup struct {
	Topic   string    `json:"topic"` // of the records
	Stage   string    `json:"stage"`
	Kind    string    `json:"kind"`
	Records int       `json:"records"` // distinct origins
	Letters int       `json:"letters"` // with repeats
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Reason  string    `json:"last_reason"`

	keys map[uint64]bool
}

func newDLQList(t *target) *cobra.Command {
	f := &letterFilter{}
	cmd := &cobra.Command{
		Use: "list TOPIC", Short: "How many records lie in a dead-letter topic, by origin, stage and kind", Args: oneArg("the dead-letter topic"),
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, args []string) error {
			groups := map[string]*letterGroup{}
			seed := maphash.MakeSeed()
			err := sinks.ReadLetters(cmd.Context(), client, args[0], func(l sinks.Letter) error {
				if f.match(&l) {
					group(groups, &l).add(&l, maphash.String(seed, l.Key))
				}
				return nil
			})
			if err != nil {
				return err
			}
			rows := slices.SortedFunc(maps.Values(groups), func(a, b *letterGroup) int { return -cmp.Compare(a.Records, b.Records) })
			return t.print(cmd.OutOrStdout(), rows, "TOPIC\tSTAGE\tKIND\tRECORDS\tLETTERS\tFIRST\tLAST\tLAST REASON", func(w io.Writer) {
				for _, g := range rows {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%q\n", dash(g.Topic), g.Stage, dash(g.Kind), g.Records, g.Letters, g.First.UTC().Format(time.RFC3339),
						g.Last.UTC().Format(time.RFC3339), g.Reason)
				}
			})
		}),
	}
	f.flags(cmd)
	return cmd
}

func group(groups map[string]*letterGroup, l *sinks.Letter) *letterGroup {
	id := l.Topic + "\x00" + l.Stage + "\x00" + l.Kind
	g := groups[id]
	if g == nil {
		g = &letterGroup{Topic: l.Topic, Stage: l.Stage, Kind: l.Kind, First: l.At, keys: map[uint64]bool{}}
		groups[id] = g
	}
	return g
}

func (g *letterGroup) add(l *sinks.Letter, key uint64) {
	g.Letters++
	g.keys[key] = true
	g.Records = len(g.keys)
	if l.At.Before(g.First) {
		g.First = l.At
	}
	if !l.At.Before(g.Last) {
		g.Last, g.Reason = l.At, l.Reason
	}
}

// letterShown is a letter as dlq show prints it.
type letterShown struct {
	Key       string    `json:"key"`
	Written   time.Time `json:"written"`
	Stage     string    `json:"stage"`
	Kind      string    `json:"kind,omitempty"`
	Reason    string    `json:"reason"`
	Path      string    `json:"path,omitempty"`
	Topic     string    `json:"topic,omitempty"`
	Partition *int32    `json:"partition,omitempty"`
	Offset    *int64    `json:"offset,omitempty"`
	Time      time.Time `json:"timestamp,omitzero"`
	RecordKey string    `json:"record_key,omitempty"`
	Headers   []string  `json:"headers,omitempty"`
	Value     string    `json:"value"`
	Base64    bool      `json:"base64,omitempty"` // of the value, which is no text
}

func newDLQShow(t *target) *cobra.Command {
	f := &letterFilter{}
	var limit int
	cmd := &cobra.Command{
		Use: "show TOPIC", Short: "Dead letters with bytes, headers, reason and origin", Args: oneArg("the dead-letter topic"),
		RunE: t.withClient(func(cmd *cobra.Command, client *kgo.Client, args []string) error {
			shown := []letterShown{}
			seen := map[string]bool{}
			err := sinks.ReadLetters(cmd.Context(), client, args[0], func(l sinks.Letter) error {
				if !f.match(&l) || seen[l.Key] {
					return nil
				}
				if seen[l.Key] = true; len(shown) == limit {
					return errEnough
				}
				shown = append(shown, showLetter(&l))
				return nil
			})
			if err != nil && !errors.Is(err, errEnough) {
				return err
			}
			if t.json {
				return t.print(cmd.OutOrStdout(), shown, "", nil)
			}
			for _, l := range shown {
				printLetter(cmd.OutOrStdout(), l)
			}
			return nil
		}),
	}
	f.flags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 10, "at most so many")
	return cmd
}

// errEnough ends the reading of letters.
var errEnough = errors.New("enough letters")

func showLetter(l *sinks.Letter) letterShown {
	s := letterShown{Key: l.Key, Written: l.At.UTC(), Stage: l.Stage, Kind: l.Kind, Reason: l.Reason, Path: l.Path, Topic: l.Topic}
	if l.Record == nil {
		return s
	}
	r := l.Record
	s.Partition, s.Offset, s.Time, s.RecordKey, s.Value = &r.Partition, &r.Offset, r.Timestamp.UTC(), string(r.Key), string(r.Value)
	for _, h := range r.Headers {
		s.Headers = append(s.Headers, h.Key+"="+string(h.Value))
	}
	if s.Base64 = !utf8.Valid(r.Value); s.Base64 {
		s.Value = base64.StdEncoding.EncodeToString(r.Value)
	}
	return s
}

func printLetter(w io.Writer, l letterShown) {
	fmt.Fprintf(w, "key %q\nwritten %s\nstage %s, kind %s\nreason %q\n", l.Key, l.Written.Format(time.RFC3339Nano), l.Stage, dash(l.Kind), l.Reason)
	if l.Path != "" {
		fmt.Fprintf(w, "file %q\n", l.Path)
	}
	if l.Offset != nil {
		fmt.Fprintf(w, "origin %s:%d offset %d, written %s\n", l.Topic, *l.Partition, *l.Offset, l.Time.Format(time.RFC3339Nano))
	}
	for _, h := range l.Headers {
		fmt.Fprintf(w, "header %q\n", h)
	}
	form := "value %q\n\n"
	if l.Base64 {
		form = "value %s (base64)\n\n"
	}
	fmt.Fprintf(w, form, l.Value)
}

func newDLQReplay(c *common, t *target) *cobra.Command {
	f := &letterFilter{}
	var pipeline, sink string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "replay FILE...", Short: "Store the dead letters of a sink again, under the offsets that they had", Args: minArgs(1, "a pipeline file"),
		Long: "Reads the dead-letter topic of the pipeline and stores its records again, by the mapping and the table of now. Each keeps its original _offset, and what\n" +
			"the table already has is left alone, so a replay may be repeated. Records that the group has not passed yet are left to its workers; those that still\n" +
			"do not fit stay where they are. Letters of agents name no offset and are passed over. While one replay runs, start no other for the same sink.",
		RunE: func(cmd *cobra.Command, files []string) error {
			log, pipes, err := c.begin(files)
			if err != nil {
				return err
			}
			choice, err := pickSink(pipes, pipeline, sink, anySink)
			if err != nil {
				return err
			}
			w, err := choice.worker(log, t.brokers)
			if err != nil {
				return err
			}
			result, err := w.Replay(cmd.Context(), sinks.ReplayConfig{DryRun: dryRun}, func(r *sinks.Replay) error { return r.Letters(cmd.Context(), f.match) })
			return errors.Join(err, printReplayed(t, cmd.OutOrStdout(), result, dryRun))
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&pipeline, "pipeline", "", "the pipeline, where the files hold several")
	cmd.Flags().StringVar(&sink, "sink", "", "the sink, where the pipeline has several")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "read back and encode, and store nothing")
	return cmd
}

func printReplayed(t *target, w io.Writer, r sinks.Replayed, dryRun bool) error {
	err := t.print(w, r, "RECORDS\tSTORED\tFOUND STORED\tLEFT TO WORKERS\tDROPPED\tREJECTED", func(w io.Writer) {
		rejected := int64(0)
		for _, n := range r.Rejected {
			rejected += n
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\n", r.Records, r.Stored, r.Found, r.InHand, r.Dropped, rejected)
	})
	if err == nil && r.Example != "" && !t.json {
		_, err = fmt.Fprintf(w, "rejected, the first: %q\n", r.Example)
	}
	if err == nil && dryRun && !t.json {
		_, err = fmt.Fprintln(w, "nothing is stored: --dry-run")
	}
	return err
}
