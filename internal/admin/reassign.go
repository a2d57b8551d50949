package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// movesAtOnce is how many partitions a decommission moves at a time: enough to
	// keep the disks busy, few enough to be stopped half way.
	movesAtOnce = 20
	// moveCheck is how often it looks how far they are.
	moveCheck = 500 * time.Millisecond
)

// Assignment is where a partition's replicas shall be.
type Assignment struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Replicas  []int32 `json:"replicas"` // nil takes a move back
}

// Reassign begins moves, or takes them back. It does not wait for them.
func Reassign(ctx context.Context, client *kgo.Client, list []Assignment) error {
	req := kadm.AlterPartitionAssignmentsReq{}
	for _, a := range list {
		if a.Replicas == nil {
			req.CancelAssign(a.Topic, a.Partition)
			continue
		}
		req.Assign(a.Topic, a.Partition, a.Replicas)
	}
	resp, err := kadm.NewClient(client).AlterPartitionAssignments(ctx, req)
	if err != nil {
		return fmt.Errorf("reassign partitions: %w", err)
	}
	var failed []error
	for _, r := range resp.Sorted() {
		if r.Err != nil {
			failed = append(failed, fmt.Errorf("%s-%d: %w: %s", r.Topic, r.Partition, r.Err, r.ErrMessage))
		}
	}
	return errors.Join(failed...)
}

// Cordon keeps new replicas away from a broker, or no more.
func Cordon(ctx context.Context, client *kgo.Client, broker int32, on bool) error {
	change := kadm.AlterConfig{Op: kadm.DeleteConfig, Name: cordonedConfig}
	if on {
		change.Op, change.Value = kadm.SetConfig, kadm.StringPtr("*")
	}
	return alterBrokers(ctx, client, []int32{broker}, change)
}

func alterBrokers(ctx context.Context, client *kgo.Client, ids []int32, changes ...kadm.AlterConfig) error {
	resp, err := kadm.NewClient(client).AlterBrokerConfigs(ctx, changes, ids...)
	if err != nil {
		return fmt.Errorf("set %s of brokers %v: %w", changes[0].Name, ids, err)
	}
	for _, r := range resp {
		if r.Err != nil {
			return fmt.Errorf("set %s of broker %s: %w: %s", changes[0].Name, r.Name, r.Err, r.ErrMessage)
		}
	}
	return nil
}

// Decommission moves all replicas of a broker to others, so that it can be
// stopped for good. progress is told what is left. When ctx ends, what is under
// way goes on, and the same call later goes on with the rest.
func Decommission(ctx context.Context, client *kgo.Client, broker int32, progress func(left int)) error {
	meta, err := metadata(ctx, client)
	if err != nil {
		return err
	}
	status := brokersOf(meta)
	if !slices.ContainsFunc(status, func(b BrokerStatus) bool { return b.ID == broker }) {
		return fmt.Errorf("there is no broker %d: it neither runs nor has replicas", broker)
	}
	if live := slices.ContainsFunc(meta.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == broker }); live {
		if err := Cordon(ctx, client, broker, true); err != nil {
			return err
		}
	}
	plan, err := evacuate(meta, broker)
	if err != nil {
		return err
	}
	for left := len(plan); left > 0; left = len(plan) {
		progress(left)
		n := min(movesAtOnce, left)
		if err := Reassign(ctx, client, plan[:n]); err != nil {
			return err
		}
		if err := awaitMoves(ctx, client, plan[:n]); err != nil {
			return err
		}
		plan = plan[n:]
	}
	progress(0)
	return nil
}

// awaitMoves waits until none of these partitions is being moved.
func awaitMoves(ctx context.Context, client *kgo.Client, list []Assignment) error {
	for {
		moves, err := Moves(ctx, client)
		if err != nil {
			return err
		}
		busy := slices.ContainsFunc(moves, func(m Move) bool {
			return slices.ContainsFunc(list, func(a Assignment) bool { return a.Topic == m.Topic && a.Partition == m.Partition })
		})
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the moves, which go on: %w", ctx.Err())
		case <-time.After(moveCheck):
		}
	}
}

// evacuate plans where a broker's replicas go: to the live broker with the
// fewest replicas that has none of the partition yet, in a rack that has none if
// there is one.
func evacuate(meta *kmsg.MetadataResponse, leaving int32) ([]Assignment, error) {
	loads, racks := map[int32]int{}, map[int32]string{}
	for _, b := range meta.Brokers {
		if b.NodeID != leaving {
			loads[b.NodeID] = 0
		}
		if b.Rack != nil {
			racks[b.NodeID] = *b.Rack
		}
	}
	eachPartition(meta, func(_ string, p kmsg.MetadataResponseTopicPartition) {
		for _, id := range p.Replicas {
			if _, live := loads[id]; live {
				loads[id]++
			}
		}
	})
	var plan []Assignment
	var stuck []string
	eachPartition(meta, func(topic string, p kmsg.MetadataResponseTopicPartition) {
		at := slices.Index(p.Replicas, leaving)
		if at < 0 {
			return
		}
		to, ok := substitute(p.Replicas, leaving, loads, racks)
		if !ok {
			stuck = append(stuck, fmt.Sprintf("%s-%d", topic, p.Partition))
			return
		}
		loads[to]++
		replicas := slices.Clone(p.Replicas)
		replicas[at] = to
		plan = append(plan, Assignment{topic, p.Partition, replicas})
	})
	if len(stuck) > 0 {
		return nil, fmt.Errorf("%d partitions have a replica on every broker, so that there is none to take over from broker %d: %s; add a broker first, or give them fewer replicas",
			len(stuck), leaving, strings.Join(stuck[:min(len(stuck), 5)], ", "))
	}
	return plan, nil
}

func eachPartition(meta *kmsg.MetadataResponse, fn func(topic string, p kmsg.MetadataResponseTopicPartition)) {
	for _, t := range meta.Topics {
		for _, p := range t.Partitions {
			fn(*t.Topic, p)
		}
	}
}

// substitute chooses the broker that takes over from the one that leaves.
func substitute(replicas []int32, leaving int32, loads map[int32]int, racks map[int32]string) (best int32, ok bool) {
	used := map[string]bool{}
	for _, id := range replicas {
		if id != leaving {
			used[racks[id]] = true
		}
	}
	better := func(id, than int32) bool {
		if a, b := used[racks[id]], used[racks[than]]; a != b {
			return !a
		}
		if loads[id] != loads[than] {
			return loads[id] < loads[than]
		}
		return id < than
	}
	for id := range loads {
		if !slices.Contains(replicas, id) && (!ok || better(id, best)) {
			best, ok = id, true
		}
	}
	return best, ok
}
