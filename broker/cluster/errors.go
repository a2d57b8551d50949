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
)

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
