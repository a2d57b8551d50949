package cluster

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
)

// topicNameBytesMax is Kafka's limit: a directory's name must hold the topic,
// a partition and a suffix.
const topicNameBytesMax = 249

const topicNameAllowed = "allowed are 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', but not '.' or '..'"

// CheckTopicName refuses what Kafka refuses, with an [*InvalidTopicError].
func CheckTopicName(name string) error {
	switch {
	case name == "":
		return &InvalidTopicError{name, "it is empty; " + topicNameAllowed}
	case name == "." || name == "..":
		return &InvalidTopicError{name, topicNameAllowed}
	case len(name) > topicNameBytesMax:
		return &InvalidTopicError{name, fmt.Sprintf("it has %d characters; %s", len(name), topicNameAllowed)}
	}
	for i := 0; i < len(name); i++ {
		if !topicNameByte(name[i]) {
			return &InvalidTopicError{name, fmt.Sprintf("%q is not allowed; %s", name[i], topicNameAllowed)}
		}
	}
	return nil
}

func topicNameByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}

// metricName is a topic's name in a metric's, where a dot turns into an
// underscore; ok is false if no other name could become the same.
func metricName(topic string) (name string, ok bool) {
	return strings.ReplaceAll(topic, ".", "_"), strings.ContainsAny(topic, "._")
}

// planTopic works out the topic that an accepted request makes.
func planTopic(im *Image, asked NewTopic, cfg ControllerConfig) (*Topic, error) {
	if err := checkNewName(im, asked.Name); err != nil {
		return nil, err
	}
	config, err := checkNewConfig(asked.Config)
	if err != nil {
		return nil, err
	}
	replicas, err := planReplicas(im, asked, cfg)
	if err != nil {
		return nil, err
	}
	t := &Topic{Name: asked.Name, ID: cfg.NewTopicID(), Config: config, Internal: IsInternal(asked.Name)}
	for _, r := range replicas {
		t.Partitions = append(t.Partitions, firstState(im, r))
	}
	return t, nil
}

func checkNewName(im *Image, name string) error {
	if err := CheckTopicName(name); err != nil {
		return err
	}
	if im.Topic(name) != nil {
		return fmt.Errorf("%w: %q", ErrTopicExists, name)
	}
	if t := im.colliding(name); t != nil {
		return &InvalidTopicError{name, fmt.Sprintf(
			"it collides with the existing topic %q: '.' and '_' become the same in metric names", t.Name)}
	}
	return nil
}

func checkNewConfig(asked map[string]*string) (map[string]string, error) {
	config := make(map[string]string, len(asked))
	for _, name := range sortedKeys(asked) {
		value := asked[name]
		if value == nil {
			return nil, &InvalidConfigError{name, "null", "a value is needed"}
		}
		if err := CheckTopicConfig(name, *value); err != nil {
			return nil, err
		}
		config[name] = *value
	}
	return config, checkTogether(config)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func planReplicas(im *Image, asked NewTopic, cfg ControllerConfig) ([][]int32, error) {
	if len(asked.Assignment) > 0 {
		return manualReplicas(im, asked)
	}
	partitions, factor := asked.Partitions, asked.ReplicationFactor
	if partitions == -1 {
		partitions = cfg.DefaultPartitions
	}
	if factor == -1 {
		factor = cfg.DefaultReplicationFactor
	}
	if err := checkPartitionCount(partitions, cfg); err != nil {
		return nil, err
	}
	if factor <= 0 {
		return nil, fmt.Errorf("%w: it is %d; it must be at least 1, or -1 for the broker's default", ErrInvalidReplicationFactor, factor)
	}
	return assignReplicas(im, asked.Name, 0, int(partitions), int(factor))
}

func checkPartitionCount(n int32, cfg ControllerConfig) error {
	if n <= 0 {
		return fmt.Errorf("%w: it is %d; it must be at least 1, or -1 for the broker's default", ErrInvalidPartitions, n)
	}
	if n > cfg.PartitionsPerTopicMax {
		return fmt.Errorf("%w: it is %d; a topic may have at most %d", ErrInvalidPartitions, n, cfg.PartitionsPerTopicMax)
	}
	return nil
}

func manualReplicas(im *Image, asked NewTopic) ([][]int32, error) {
	if asked.Partitions != -1 || asked.ReplicationFactor != -1 {
		return nil, fmt.Errorf("%w: with a manual assignment, partitions and replication factor must be -1", ErrInvalidRequest)
	}
	out := make([][]int32, len(asked.Assignment))
	for p := range out {
		replicas, ok := asked.Assignment[int32(p)]
		if !ok {
			return nil, fmt.Errorf("%w: partitions must be numbered from 0 without a gap, but %d is missing", ErrInvalidAssignment, p)
		}
		if err := checkReplicas(im, int32(p), replicas, len(asked.Assignment[0])); err != nil {
			return nil, err
		}
		out[p] = slices.Clone(replicas)
	}
	return out, nil
}

func checkReplicas(im *Image, partition int32, replicas []int32, factor int) error {
	if len(replicas) == 0 {
		return fmt.Errorf("%w: partition %d has no replica", ErrInvalidAssignment, partition)
	}
	if len(replicas) != factor {
		return fmt.Errorf("%w: partition %d has %d replicas and others have %d", ErrInvalidAssignment, partition, len(replicas), factor)
	}
	for i, id := range replicas {
		if _, ok := im.Broker(id); !ok {
			return fmt.Errorf("%w: partition %d is assigned to broker %d, which is not in the cluster", ErrInvalidAssignment, partition, id)
		}
		if slices.Contains(replicas[:i], id) {
			return fmt.Errorf("%w: partition %d is assigned to broker %d twice", ErrInvalidAssignment, partition, id)
		}
	}
	return nil
}

// firstState elects the first live replica as leader of a new partition; all
// live replicas are in sync, since there is nothing to have. If none is live,
// all of them are, and the first to come leads.
func firstState(im *Image, replicas []int32) Partition {
	p := Partition{Leader: NoLeader, Replicas: replicas}
	p.ISR = only(replicas, func(id int32) bool { return im.mayLead(p, id) })
	if len(p.ISR) == 0 {
		p.ISR = slices.Clone(replicas)
		return p
	}
	p.Leader = p.ISR[0]
	return p
}

func planPartitions(im *Image, asked NewPartitions, cfg ControllerConfig) (*Topic, error) {
	t := im.Topic(asked.Topic)
	if t == nil {
		return nil, fmt.Errorf("%w: %q", ErrUnknownTopic, asked.Topic)
	}
	have := len(t.Partitions)
	if int(asked.Total) <= have {
		return nil, fmt.Errorf("%w: topic %q has %d partitions already, which cannot become %d: partitions can only be added",
			ErrInvalidPartitions, t.Name, have, asked.Total)
	}
	if err := checkPartitionCount(asked.Total, cfg); err != nil {
		return nil, err
	}
	replicas, err := addedReplicas(im, t, asked)
	if err != nil {
		return nil, err
	}
	grown := *t
	grown.Partitions = slices.Clone(t.Partitions)
	for _, r := range replicas {
		grown.Partitions = append(grown.Partitions, firstState(im, r))
	}
	return &grown, nil
}

func addedReplicas(im *Image, t *Topic, asked NewPartitions) ([][]int32, error) {
	have, factor := len(t.Partitions), len(t.Partitions[0].target())
	added := int(asked.Total) - have
	if asked.Assignment == nil {
		return assignReplicas(im, t.Name, have, int(asked.Total), factor)
	}
	if len(asked.Assignment) != added {
		return nil, fmt.Errorf("%w: %d partitions are to be added to topic %q but %d are assigned",
			ErrInvalidAssignment, added, t.Name, len(asked.Assignment))
	}
	for i, replicas := range asked.Assignment {
		if err := checkReplicas(im, int32(have+i), replicas, factor); err != nil {
			return nil, err
		}
	}
	return asked.Assignment, nil
}

// createTopicOps writes a topic. The topic's own node is first: it is what makes
// the rest of a creation that was cut short be completed.
func createTopicOps(t *Topic, controllerEpoch int32) []Op {
	ops := []Op{
		Create(topicPath(t.Name), topicNode(t)),
		Create(topicConfigPath(t.Name), configNode(t.Config)),
		Create(partitionsPath(t.Name), nil),
	}
	for p := range t.Partitions {
		ops = append(ops, createPartitionOps(t, int32(p), controllerEpoch)...)
	}
	return ops
}

func createPartitionOps(t *Topic, p int32, controllerEpoch int32) []Op {
	return []Op{
		Create(partitionPath(t.Name, p), nil),
		Create(statePath(t.Name, p), stateNode(t.Partitions[p], controllerEpoch)),
	}
}

// randomTopicID avoids the ids that Kafka reserves and, as Kafka does, those
// that would be written with a leading dash, which tools take for an option.
func randomTopicID() TopicID {
	for {
		var id TopicID
		_, _ = rand.Read(id[:]) // never fails
		id[6] = id[6]&0x0f | 0x40
		id[8] = id[8]&0x3f | 0x80
		if !strings.HasPrefix(FormatTopicID(id), "-") {
			return id
		}
	}
}
