package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ClusterStatus is what an operator looks at first.
type ClusterStatus struct {
	ClusterID  string         `json:"cluster_id"`
	Controller int32          `json:"controller"` // -1: none
	Brokers    []BrokerStatus `json:"brokers"`
	Topics     int            `json:"topics"`
	Partitions int            `json:"partitions"`
	// Troubles are the partitions that are not as they should be, by topic and number.
	Troubles []Trouble `json:"troubles"`
	// Moves are the reassignments under way.
	Moves []Move `json:"moves"`
}

// BrokerStatus is a live broker, or one that is gone and has replicas.
type BrokerStatus struct {
	ID       int32  `json:"id"`
	Addr     string `json:"addr,omitempty"` // empty: it is gone
	Rack     string `json:"rack,omitempty"`
	Live     bool   `json:"live"`
	Cordoned bool   `json:"cordoned,omitempty"` // gets no new replicas
	Leaders  int    `json:"leaders"`
	Replicas int    `json:"replicas"`
	InSync   int    `json:"in_sync"`
}

// Kinds of trouble, the worst first.
const (
	TroubleOffline         = "offline"          // no leader: nothing can be written or read
	TroubleUnderMinISR     = "under min ISR"    // acks=all is refused
	TroubleUnderReplicated = "under-replicated" // replicas are out of sync or gone
)

// Trouble is a partition that is not as it should be.
type Trouble struct {
	Kind      string  `json:"kind"`
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Leader    int32   `json:"leader"`
	Replicas  []int32 `json:"replicas"`
	ISR       []int32 `json:"isr"`
}

// Move is a partition that is being given other replicas.
type Move struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Replicas  []int32 `json:"replicas"`
	Adding    []int32 `json:"adding"`
	Removing  []int32 `json:"removing"`
}

// cordonedConfig is the broker's setting that keeps new replicas away from it (KIP-1066).
const cordonedConfig = "cordoned.log.dirs"

// Cluster returns the state of the cluster.
func Cluster(ctx context.Context, client *kgo.Client) (*ClusterStatus, error) {
	meta, err := metadata(ctx, client)
	if err != nil {
		return nil, err
	}
	status := &ClusterStatus{Controller: meta.ControllerID, Topics: len(meta.Topics), Troubles: []Trouble{}, Moves: []Move{}}
	if meta.ClusterID != nil {
		status.ClusterID = *meta.ClusterID
	}
	least, err := leastInSync(ctx, client, meta)
	if err != nil {
		return nil, err
	}
	status.Brokers = brokersOf(meta)
	for _, t := range meta.Topics {
		for _, p := range t.Partitions {
			status.Partitions++
			if kind := troubleOf(p, least[*t.Topic]); kind != "" {
				status.Troubles = append(status.Troubles, Trouble{kind, *t.Topic, p.Partition, p.Leader, p.Replicas, p.ISR})
			}
		}
	}
	if status.Moves, err = Moves(ctx, client); err != nil {
		return nil, err
	}
	for i := range status.Brokers {
		if b := &status.Brokers[i]; b.Live {
			b.Cordoned = isCordoned(ctx, client, b.ID)
		}
	}
	return status, nil
}

func metadata(ctx context.Context, client *kgo.Client) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = nil // all
	meta, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("ask for the cluster's metadata: %w", err)
	}
	slices.SortFunc(meta.Topics, func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(*a.Topic, *b.Topic) })
	for _, t := range meta.Topics {
		slices.SortFunc(t.Partitions, func(a, b kmsg.MetadataResponseTopicPartition) int { return int(a.Partition) - int(b.Partition) })
	}
	return meta, nil
}

// brokersOf counts what each broker has, those that are gone among them.
func brokersOf(meta *kmsg.MetadataResponse) []BrokerStatus {
	byID := map[int32]*BrokerStatus{}
	at := func(id int32) *BrokerStatus {
		if byID[id] == nil {
			byID[id] = &BrokerStatus{ID: id}
		}
		return byID[id]
	}
	for _, b := range meta.Brokers {
		s := at(b.NodeID)
		s.Live, s.Addr = true, fmt.Sprintf("%s:%d", b.Host, b.Port)
		if b.Rack != nil {
			s.Rack = *b.Rack
		}
	}
	for _, t := range meta.Topics {
		for _, p := range t.Partitions {
			if p.Leader >= 0 {
				at(p.Leader).Leaders++
			}
			for _, id := range p.Replicas {
				at(id).Replicas++
			}
			for _, id := range p.ISR {
				at(id).InSync++
			}
		}
	}
	var out []BrokerStatus
	for _, b := range byID {
		out = append(out, *b)
	}
	slices.SortFunc(out, func(a, b BrokerStatus) int { return int(a.ID) - int(b.ID) })
	return out
}

func troubleOf(p kmsg.MetadataResponseTopicPartition, minISR int) string {
	switch {
	case p.Leader < 0:
		return TroubleOffline
	case len(p.ISR) < min(minISR, len(p.Replicas)):
		return TroubleUnderMinISR
	case len(p.ISR) < len(p.Replicas):
		return TroubleUnderReplicated
	}
	return ""
}

// leastInSync is min.insync.replicas by topic.
func leastInSync(ctx context.Context, client *kgo.Client, meta *kmsg.MetadataResponse) (map[string]int, error) {
	out := map[string]int{}
	var names []string
	for _, t := range meta.Topics {
		names = append(names, *t.Topic)
	}
	if len(names) == 0 {
		return out, nil
	}
	configs, err := kadm.NewClient(client).DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("ask for min.insync.replicas: %w", err)
	}
	for _, c := range configs {
		for _, kv := range c.Configs {
			if kv.Key == "min.insync.replicas" {
				out[c.Name], _ = strconv.Atoi(kv.MaybeValue()) // the broker has checked it
			}
		}
	}
	return out, nil
}

func isCordoned(ctx context.Context, client *kgo.Client, id int32) bool {
	configs, err := kadm.NewClient(client).DescribeBrokerConfigs(ctx, id)
	if err != nil || len(configs) != 1 {
		return false // it is only shown
	}
	for _, kv := range configs[0].Configs {
		if kv.Key == cordonedConfig {
			return kv.MaybeValue() == "*"
		}
	}
	return false
}

// movesTimeoutMillis is what the controller may take to list the moves.
const movesTimeoutMillis = 10_000

// Moves are the reassignments under way, by topic and partition.
func Moves(ctx context.Context, client *kgo.Client) ([]Move, error) {
	req := kmsg.NewPtrListPartitionReassignmentsRequest()
	req.TimeoutMillis = movesTimeoutMillis
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("list reassignments: %w", err)
	}
	out := []Move{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			out = append(out, Move{t.Topic, p.Partition, p.Replicas, p.AddingReplicas, p.RemovingReplicas})
		}
	}
	slices.SortFunc(out, func(a, b Move) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), int(a.Partition)-int(b.Partition))
	})
	return out, nil
}

// ElectPreferred moves leaderships back to the preferred replicas, and returns
// how many moved.
func ElectPreferred(ctx context.Context, client *kgo.Client) (moved int, err error) {
	results, err := kadm.NewClient(client).ElectLeaders(ctx, kadm.ElectPreferredReplica, nil)
	if err != nil {
		return 0, fmt.Errorf("elect preferred leaders: %w", err)
	}
	var failed []string
	for topic, partitions := range results {
		for p, r := range partitions {
			switch {
			case r.Err == nil:
				moved++
			case r.Err != kerr.ElectionNotNeeded:
				failed = append(failed, fmt.Sprintf("%s-%d: %v", topic, p, r.Err))
			}
		}
	}
	if len(failed) > 0 {
		slices.Sort(failed)
		return moved, fmt.Errorf("%d partitions stay where they are: %s", len(failed), strings.Join(failed, "; "))
	}
	return moved, nil
}
