package cluster

import (
	"errors"
	"fmt"
)

// Errors of the [Controller]; they are wrapped with what they are about.
var (
	ErrTopicExists              = errors.New("topic already exists")
	ErrUnknownTopic             = errors.New("unknown topic")
	ErrInvalidPartitions        = errors.New("invalid number of partitions")
	ErrInvalidReplicationFactor = errors.New("invalid replication factor")
	ErrInvalidAssignment        = errors.New("invalid replica assignment")
	ErrInvalidRequest           = errors.New("invalid request")
	ErrNotController            = errors.New("not the controller")
	ErrUnknownPartition         = errors.New("unknown partition")
	// ErrFencedLeaderEpoch says that who asks does not lead, or no longer does.
	ErrFencedLeaderEpoch = errors.New("leader epoch is not the current one")
	// ErrInvalidUpdateVersion says that a partition has changed since.
	ErrInvalidUpdateVersion = errors.New("partition epoch is not the current one")
	// ErrIneligibleReplica says that a broker may not be in sync.
	ErrIneligibleReplica = errors.New("replica may not be in sync")
	// ErrStaleBrokerEpoch says that who asks is not registered, or in another epoch.
	ErrStaleBrokerEpoch            = errors.New("broker epoch is not the current one")
	ErrElectionNotNeeded           = errors.New("election is not needed")
	ErrPreferredLeaderNotAvailable = errors.New("preferred leader is not available")
	ErrEligibleLeadersNotAvailable = errors.New("no replica could lead")
	ErrNoReassignment              = errors.New("no reassignment is under way")
	// ErrNoReplicaInSync says that a change would leave a partition without a leader.
	ErrNoReplicaInSync = errors.New("no replica is in sync")
)

func unknownPartition(tp TopicPartition) error {
	return fmt.Errorf("%w: %q, partition %d", ErrUnknownPartition, tp.Topic, tp.Partition)
}

// InvalidTopicError refuses a topic's name.
type InvalidTopicError struct {
	Name   string
	Reason string
}

func (e *InvalidTopicError) Error() string {
	return fmt.Sprintf("invalid topic name %q: %s", e.Name, e.Reason)
}

// InvalidConfigError refuses a setting.
type InvalidConfigError struct {
	Name   string
	Value  string
	Reason string
}

func (e *InvalidConfigError) Error() string {
	return fmt.Sprintf("invalid value %q for configuration %s: %s", e.Value, e.Name, e.Reason)
}
