package producer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// TopicSpec is a topic as it should be when it is made.
type TopicSpec struct {
	Name       string
	Partitions int32             // 0: the broker's default
	Replicas   int16             // 0: the broker's default
	Config     map[string]string // topic settings by Kafka's names
}

// Topic is what a sender must know of a topic.
type Topic struct {
	Partitions int32
	// RecordBytesMax is the largest record the topic takes, with its key,
	// headers and about 100 bytes of framing; 0 when it is not known.
	RecordBytesMax int
}

// Prepare creates the topic if it is absent and returns its partitions. Call
// it before the first Send to the topic, and again when it fails.
func (k *Kafka) Prepare(ctx context.Context, spec TopicSpec) (Topic, error) {
	partitions, err := k.partitions(ctx, spec.Name)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return k.create(ctx, spec)
	}
	if err != nil {
		return Topic{}, fmt.Errorf("look up topic %s: %w", spec.Name, err)
	}
	return Topic{Partitions: partitions, RecordBytesMax: k.learnLimit(ctx, spec.Name)}, nil
}

// partitions asks for a topic, and lets the senders know what is told of it.
func (k *Kafka) partitions(ctx context.Context, topic string) (int32, error) {
	resp, err := metadataRequest([]string{topic}).RequestWith(ctx, k.client)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 {
		return 0, fmt.Errorf("asked for one topic, told of %d", len(resp.Topics))
	}
	k.post(func(now time.Time) { k.tookMetadata(resp, now) })
	return int32(len(resp.Topics[0].Partitions)), kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

func (k *Kafka) create(ctx context.Context, spec TopicSpec) (Topic, error) {
	config := make(map[string]*string, len(spec.Config))
	for _, name := range slices.Sorted(maps.Keys(spec.Config)) {
		config[name] = kadm.StringPtr(spec.Config[name])
	}
	partitions, replicas := spec.Partitions, spec.Replicas
	if partitions == 0 {
		partitions = -1
	}
	if replicas == 0 {
		replicas = -1
	}
	made, err := k.admin.CreateTopic(ctx, partitions, replicas, config, spec.Name)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return Topic{}, fmt.Errorf("create topic %s: made by another at the same time, looking again: %w", spec.Name, err)
	}
	if err != nil {
		return Topic{}, fmt.Errorf("create topic %s with %d partitions and %d replicas: %w", spec.Name, partitions, replicas, errors.Join(err, message(made.ErrMessage)))
	}
	k.log.Info("topic created", "topic", spec.Name, "partitions", made.NumPartitions, "replicas", made.ReplicationFactor)
	if made.NumPartitions <= 0 {
		return Topic{}, fmt.Errorf("create topic %s: partitions not told, looking again", spec.Name)
	}
	k.post(func(time.Time) { k.stale(spec.Name) })
	return Topic{Partitions: made.NumPartitions, RecordBytesMax: k.learnLimit(ctx, spec.Name)}, nil
}

func message(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// learnLimit asks for the topic's max.message.bytes: a batch over it would be
// refused as a whole, though each of its records is small enough.
func (k *Kafka) learnLimit(ctx context.Context, topic string) int {
	limit := int64(batchBytesMaxDefault)
	configs, err := k.admin.DescribeTopicConfigs(ctx, topic)
	if err == nil {
		if c, err := configs.On(topic, nil); err == nil && c.Err == nil {
			for _, kv := range c.Configs {
				if kv.Key != "max.message.bytes" || kv.Value == nil {
					continue
				}
				if v, err := strconv.ParseInt(*kv.Value, 10, 64); err == nil && v >= 512 {
					limit = v
				}
			}
		}
	}
	return int(min(limit, max(batchBytesMaxCeiling, int64(k.recordBytesMax))))
}
