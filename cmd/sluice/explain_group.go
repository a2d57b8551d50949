package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/internal/admin"
	"github.com/sluice-io/sluice/sinks"
)

// statusPath is where a process with sinks says what their partitions do.
const statusPath = "/sinks"

// statusTimeout bounds the question to one worker.
const statusTimeout = 3 * time.Second

// statuses answers with what the workers' partitions do.
func (ws workers) statuses(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	out := []sinks.Status{}
	for _, worker := range ws {
		st, err := worker.Status(ctx)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		out = append(out, st)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// askWorkers asks the workers at the addresses; what cannot be asked is said, not fatal.
func askWorkers(ctx context.Context, addrs []string) (out []sinks.Status, silent []string) {
	for _, addr := range addrs {
		got, err := askWorker(ctx, addr)
		if err != nil {
			silent = append(silent, fmt.Sprintf("%s: %v", addr, err))
			continue
		}
		out = append(out, got...)
	}
	return out, silent
}

func askWorker(ctx context.Context, addr string) (out []sinks.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, addr+statusPath, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

// partitionReason is what is known of one partition, from the group's commits and from the worker that has it.
type partitionReason struct {
	admin.GroupLag
	Worker *sinks.PartitionStatus `json:"worker,omitempty"`
	State  string                 `json:"worker_state"` // or what the group alone says: unassigned, claim left open, behind, up to date
	Why    string                 `json:"why,omitempty"`
	Mend   string                 `json:"mend,omitempty"`
}

// groupReasons is what explain group prints.
type groupReasons struct {
	Group      string            `json:"group"`
	State      string            `json:"state"`
	Members    int               `json:"members"`
	Waiting    []string          `json:"waiting"` // what keeps workers from being ready
	Silent     []string          `json:"silent"`  // workers that could not be asked
	Partitions []partitionReason `json:"partitions"`
}

func newExplainGroup() *cobra.Command {
	t := &target{}
	var addrs string
	cmd := &cobra.Command{
		Use: "group GROUP", Short: "Which partitions of a sink's group are stopped, paused or waiting, since when, why, and what to do", Args: oneArg("the name of a group"),
		Long: "Puts together what the brokers know of a group, its members, commits, claims and lag, and what the workers themselves say of their partitions.\n" +
			"--workers names their metrics addresses; without a worker that answers only the brokers' part is known.",
		RunE: func(cmd *cobra.Command, names []string) error {
			client, err := t.connect(cmd)
			if err != nil {
				return err
			}
			defer client.Close()
			statuses, silent := askWorkers(cmd.Context(), splitAddrs(addrs))
			reasons, err := explainGroup(cmd.Context(), client, names[0], statuses)
			if err != nil {
				return err
			}
			reasons.Silent = append(reasons.Silent, silent...)
			return printReasons(t, cmd.OutOrStdout(), reasons)
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&addrs, "workers", "127.0.0.1:9603", "metrics addresses of the workers, host:port, comma-separated; empty for none")
	return cmd
}

func explainGroup(ctx context.Context, client *kgo.Client, name string, statuses []sinks.Status) (groupReasons, error) {
	out := groupReasons{Group: name, Waiting: []string{}, Silent: []string{}, Partitions: []partitionReason{}}
	groups, err := admin.Groups(ctx, client, name)
	if err != nil {
		return out, err
	}
	if len(groups) == 0 {
		return out, fmt.Errorf("there is no group %s", name)
	}
	lags, err := admin.LagOf(ctx, client, time.Now(), groups)
	if err != nil {
		return out, err
	}
	out.State, out.Members = groups[0].State, len(groups[0].Members)
	of := map[int32]sinks.PartitionStatus{}
	for _, st := range statuses {
		if st.Group != name {
			continue
		}
		if st.Waiting != "" {
			out.Waiting = append(out.Waiting, st.Waiting)
		}
		for _, p := range st.Partitions {
			of[p.Partition] = p
		}
	}
	for _, lag := range lags {
		if lag.Partition < 0 {
			continue
		}
		r := partitionReason{GroupLag: lag}
		if st, ok := of[lag.Partition]; ok {
			r.Worker, r.State, r.Why, r.Mend = &st, string(st.State), st.Why, st.Mend
		} else {
			r.guess(out.Members)
		}
		out.Partitions = append(out.Partitions, r)
	}
	return out, nil
}

// guess says what the brokers alone know of a partition.
func (r *partitionReason) guess(members int) {
	behind := r.Records == nil || *r.Records > 0
	switch {
	case members == 0 && r.Claim != nil:
		r.State, r.Why, r.Mend = "claim left open", "a worker ended in the middle of a write", "start a worker: it finds out what is stored, and closes the claim"
	case members == 0 && behind:
		r.State, r.Why, r.Mend = "no worker", "the group has no members", "start `sluice sink` with the pipeline's file"
	case r.Member == "" && members > 0:
		r.State, r.Why = "unassigned", "the group rebalances, or its members read another topic"
	case r.Lost > 0:
		r.State, r.Why, r.Mend = "stopped", fmt.Sprintf("retention removed %d records before they were stored", r.Lost), "set on_lost: continue in the sink, or pass them by `sluice groups reset`"
	case behind:
		r.State, r.Why = "behind", "its worker was not asked: name its address by --workers"
	default:
		r.State = "up to date"
	}
}

func printReasons(t *target, w io.Writer, r groupReasons) error {
	if t.json {
		return t.print(w, r, "", nil)
	}
	fmt.Fprintf(w, "group %s is %s and has %d members\n", r.Group, r.State, r.Members)
	for _, text := range r.Waiting {
		fmt.Fprintf(w, "a worker waits: %s\n", strings.ReplaceAll(text, "\n", "\n  "))
	}
	for _, text := range r.Silent {
		fmt.Fprintf(w, "not asked: %s\n", text)
	}
	fmt.Fprintln(w)
	err := t.print(w, nil, "PARTITION\tSTATE\tSINCE\tCOMMITTED\tEND\tLAG TIME\tCLAIM\tATTEMPTS", func(w io.Writer) {
		for _, p := range r.Partitions {
			since, attempts := "-", "-"
			if p.Worker != nil {
				since, attempts = time.Since(p.Worker.Since).Round(time.Second).String(), fmt.Sprint(p.Worker.Attempts)
			}
			fmt.Fprintf(w, "%s:%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", p.Topic, p.Partition, p.State, since, p.Committed, p.End, seconds(p.Seconds), dash(p.Claim.String()), attempts)
		}
	})
	for _, p := range r.Partitions {
		if p.Why != "" {
			fmt.Fprintf(w, "\n%s:%d is %s: %s\n", p.Topic, p.Partition, p.State, p.Why)
		}
		if p.Mend != "" {
			fmt.Fprintf(w, "  what to do: %s\n", p.Mend)
		}
	}
	if len(r.Partitions) == 0 {
		return errors.Join(err, fmt.Errorf("group %s has no partitions: it never committed and has no members", r.Group))
	}
	return err
}
