package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Topic is a topic as a person wants to see it.
type Topic struct {
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Internal   bool              `json:"internal,omitempty"`
	Partitions []Partition       `json:"partitions"`
	Config     map[string]string `json:"config,omitempty"` // what differs from the defaults; only from DescribeTopics
}

// A Partition is one partition of a topic and how much lies in it.
type Partition struct {
	ID       int32   `json:"id"`
	Leader   int32   `json:"leader"`
	Replicas []int32 `json:"replicas"`
	ISR      []int32 `json:"isr"`
	Start    int64   `json:"start"`
	End      int64   `json:"end"`
}

// Records is the number of offsets the topic holds over all its partitions.
func (t Topic) Records() (n int64) {
	for _, p := range t.Partitions {
		n += p.End - p.Start
	}
	return n
}

// Replicas is the replication factor of the topic's first partition.
func (t Topic) Replicas() int {
	if len(t.Partitions) == 0 {
		return 0
	}
	return len(t.Partitions[0].Replicas)
}

// Topics returns the named topics by name; without names all, internal ones only if asked for.
func Topics(ctx context.Context, client *kgo.Client, internal bool, names ...string) ([]Topic, error) {
	admin := kadm.NewClient(client)
	details, err := admin.ListTopicsWithInternal(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	if len(names) == 0 && !internal {
		details.FilterInternal()
	}
	if len(details) == 0 {
		return []Topic{}, nil
	}
	starts, err := admin.ListStartOffsets(ctx, details.Names()...)
	if err != nil {
		return nil, fmt.Errorf("list start offsets: %w", err)
	}
	ends, err := admin.ListEndOffsets(ctx, details.Names()...)
	if err != nil {
		return nil, fmt.Errorf("list end offsets: %w", err)
	}
	out := []Topic{}
	for _, d := range details.Sorted() {
		if d.Err != nil {
			return nil, fmt.Errorf("topic %s: %w", d.Topic, d.Err)
		}
		t := Topic{Name: d.Topic, ID: d.ID.String(), Internal: d.IsInternal}
		for _, p := range d.Partitions.Sorted() {
			start, _ := starts.Lookup(d.Topic, p.Partition)
			end, _ := ends.Lookup(d.Topic, p.Partition)
			t.Partitions = append(t.Partitions, Partition{ID: p.Partition, Leader: p.Leader, Replicas: p.Replicas, ISR: p.ISR,
				Start: start.Offset, End: end.Offset})
		}
		out = append(out, t)
	}
	return out, nil
}

// DescribeTopics is Topics with the configuration that differs from the defaults.
func DescribeTopics(ctx context.Context, client *kgo.Client, names ...string) ([]Topic, error) {
	topics, err := Topics(ctx, client, true, names...)
	if err != nil {
		return nil, err
	}
	configs, err := kadm.NewClient(client).DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("describe topic configs: %w", err)
	}
	for i := range topics {
		c, err := configs.On(topics[i].Name, nil)
		if err != nil || c.Err != nil {
			continue
		}
		topics[i].Config = map[string]string{}
		for _, kv := range c.Configs {
			if kv.Source.String() == "DYNAMIC_TOPIC_CONFIG" {
				topics[i].Config[kv.Key] = kv.MaybeValue()
			}
		}
	}
	return topics, nil
}

// CreateTopic creates a topic; partitions and replicas of -1 take the broker's defaults.
func CreateTopic(ctx context.Context, client *kgo.Client, name string, partitions int32, replicas int16, config map[string]string) error {
	values := map[string]*string{}
	for k, v := range config {
		values[k] = &v
	}
	resp, err := kadm.NewClient(client).CreateTopic(ctx, partitions, replicas, values, name)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, withMessage(err, resp.ErrMessage))
	}
	return nil
}

// DeleteTopics deletes topics; each answers for itself and the first error is returned when all were asked for.
func DeleteTopics(ctx context.Context, client *kgo.Client, names ...string) error {
	resps, err := kadm.NewClient(client).DeleteTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	for _, r := range resps.Sorted() {
		if r.Err != nil {
			return fmt.Errorf("delete topic %s: %w", r.Topic, withMessage(r.Err, r.ErrMessage))
		}
	}
	return nil
}

// withMessage puts the broker's own words in the place of the protocol's description of the error's code.
func withMessage(err error, message string) error {
	var code *kerr.Error
	if message == "" || !errors.As(err, &code) {
		return err
	}
	return fmt.Errorf("%s: %s", code.Message, message)
}

// SortedConfig lists a configuration as key=value, by key.
func SortedConfig(config map[string]string) []string {
	out := make([]string, 0, len(config))
	for k, v := range config {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}
