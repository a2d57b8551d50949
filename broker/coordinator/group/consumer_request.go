package group

import (
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
)

// TopicPartitions are partitions of one topic.
type TopicPartitions struct {
	TopicID    cluster.TopicID
	Partitions []int32
}

// ConsumerHeartbeat is what a member of a consumer group (KIP-848) sends all the time: to join, to
// stay, to say what it has given up, to leave. What is nil has not changed since the last one.
type ConsumerHeartbeat struct {
	Group, MemberID string
	// Epoch is the member's, 0 to join, -1 to leave for good, -2 for a static member that comes
	// back.
	Epoch      int32
	InstanceID *string
	RackID     *string
	// RebalanceTimeout is how long the member may take to give partitions up; below zero: not said.
	RebalanceTimeout time.Duration
	Topics           []string // nil: not said
	Regex            *string  // a whole-name RE2 pattern; empty: none
	Assignor         *string
	Owned            []TopicPartitions // nil: not said
	ClientID         string
	ClientHost       string
	// MemberIDRequired: the member makes its own id (version 1 and later).
	MemberIDRequired bool
}

// ConsumerHeartbeatResponse answers a ConsumerHeartbeat.
type ConsumerHeartbeatResponse struct {
	Err               error
	MemberID          string
	Epoch             int32
	HeartbeatInterval time.Duration
	Assigned          bool              // whether Assignment is told
	Assignment        []TopicPartitions // what the member may have now
}

// ConsumerMemberDescription tells of one member of a consumer group.
type ConsumerMemberDescription struct {
	ID, InstanceID, RackID, ClientID, ClientHost string
	Epoch                                        int32
	// Classic says that the member uses the classic protocol.
	Classic bool
	Topics  []string
	Regex   string
	// Assignment is what the member has, with what it has not yet given up.
	Assignment, Target []TopicPartitions
}

// ConsumerDescription tells of one consumer group.
type ConsumerDescription struct {
	Group, State       string
	Epoch, TargetEpoch int32
	Assignor           string
	Members            []ConsumerMemberDescription
}

// SetImage says what topics there are now. Groups learn of it with their members' next heartbeats.
func (c *Coordinator) SetImage(image *cluster.Image) { c.image.Store(image) }

// ConsumerHeartbeat answers when what has changed is stored.
func (c *Coordinator) ConsumerHeartbeat(req ConsumerHeartbeat, answer func(ConsumerHeartbeatResponse)) {
	err := req.check(c.cfg)
	if err == nil {
		err = c.do(req.Group, func(m *machine, now time.Time, out *coordinator.Actions) {
			m.consumerHeartbeat(req, now, out, answer)
		})
	}
	if err != nil {
		answer(ConsumerHeartbeatResponse{Err: err})
	}
}

// DescribeConsumer tells of one consumer group, as it is stored: ErrGroupNotFound if there is none.
func (c *Coordinator) DescribeConsumer(group string, answer func(ConsumerDescription, error)) {
	err := c.do(group, func(m *machine, now time.Time, out *coordinator.Actions) {
		m.describeConsumer(group, step{now, out}, answer)
	})
	if err != nil {
		answer(ConsumerDescription{Group: group}, err)
	}
}

// DeleteOffsets removes committed offsets (KIP-496): ErrSubscribed for those of topics that members
// subscribe to. It answers when that is stored, with an error for all, or one (or nil) for each
// partition in the order of the request.
func (c *Coordinator) DeleteOffsets(group string, partitions []Partition, answer func([]error, error)) {
	err := c.do(group, func(m *machine, _ time.Time, out *coordinator.Actions) {
		m.deleteOffsets(group, partitions, out, answer)
	})
	if err != nil {
		answer(nil, err)
	}
}

// partitionSetOf is nil for what is not said.
func partitionSetOf(all []TopicPartitions) partitionSet {
	if all == nil {
		return nil
	}
	s := make(partitionSet, len(all))
	for _, tp := range all {
		s[tp.TopicID] = normal(append(append([]int32(nil), s[tp.TopicID]...), tp.Partitions...))
	}
	return s
}

// topicPartitions lists a set in the order of topic ids.
func (s partitionSet) topicPartitions() []TopicPartitions {
	all := make([]TopicPartitions, 0, len(s))
	for _, topic := range sortedTopics(s) {
		all = append(all, TopicPartitions{TopicID: topic, Partitions: s[topic]})
	}
	return all
}
