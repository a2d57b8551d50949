package group

import "time"

// Config sets the limits of the group coordinator. Names in brackets are Kafka's. The zero value of
// every field but InitialRebalanceDelay means Kafka's default.
type Config struct {
	// InitialRebalanceDelay is how long the first rebalance of an empty group waits for more
	// members [group.initial.rebalance.delay.ms, 3000]. Zero means no delay.
	InitialRebalanceDelay time.Duration
	// SessionTimeoutMin and SessionTimeoutMax bound what members may ask for
	// [group.min.session.timeout.ms 6000, group.max.session.timeout.ms 1800000].
	SessionTimeoutMin, SessionTimeoutMax time.Duration
	// MembersMax is the most members of a group [group.max.size, 2147483647].
	MembersMax int
	// OffsetMetadataBytesMax is the longest metadata of a commit [offset.metadata.max.bytes, 4096].
	OffsetMetadataBytesMax int
	// OffsetsRetention is how long offsets of a group without members are kept
	// [offsets.retention.minutes, 10080].
	OffsetsRetention time.Duration
	// RetentionCheckInterval is how often expired offsets are looked for
	// [offsets.retention.check.interval.ms, 600000].
	RetentionCheckInterval time.Duration
	// ConsumerSessionTimeout is how long a member of the consumer protocol may be silent
	// [group.consumer.session.timeout.ms, 45000].
	ConsumerSessionTimeout time.Duration
	// ConsumerHeartbeatInterval is how often such a member is told to send a heartbeat
	// [group.consumer.heartbeat.interval.ms, 5000].
	ConsumerHeartbeatInterval time.Duration
	// ConsumerMembersMax is the most members of a group of the consumer protocol
	// [group.consumer.max.size, 2147483647].
	ConsumerMembersMax int
	// ConsumerAssignors are the server-side assignors that members may ask for; the first is for
	// those who do not [group.consumer.assignors, uniform and range]. Others do not exist.
	ConsumerAssignors []string
	// ConsumerAssignmentInterval is how long a group's target assignment stays at least
	// [group.consumer.assignment.interval.ms, 1000]: many members that come together are so
	// assigned together. Below zero there is no such time. It is asked for at each heartbeat,
	// by several goroutines.
	ConsumerAssignmentInterval func() time.Duration
	// ConsumerMigration says which groups with members may change their protocol
	// [group.consumer.migration.policy, bidirectional].
	ConsumerMigration MigrationPolicy
	// LoadsMax is how many partitions are replayed at a time; 4 by default.
	LoadsMax int
}

// MigrationPolicy says which groups with members may change their protocol; one
// without members always can.
type MigrationPolicy int8

const (
	// MigrateBoth lets the first member of the consumer protocol change a group of
	// consumers, and the last one that leaves change it back.
	MigrateBoth MigrationPolicy = iota
	MigrateUp
	MigrateDown
	// MigrateNever also keeps members of the classic protocol out of groups of the other.
	MigrateNever
)

func (p MigrationPolicy) up() bool   { return p == MigrateBoth || p == MigrateUp }
func (p MigrationPolicy) down() bool { return p == MigrateBoth || p == MigrateDown }

func (c Config) withDefaults() Config {
	orElse(&c.SessionTimeoutMin, 6*time.Second)
	orElse(&c.SessionTimeoutMax, 30*time.Minute)
	orElse(&c.MembersMax, 1<<31-1)
	orElse(&c.OffsetMetadataBytesMax, 4096)
	orElse(&c.OffsetsRetention, 7*24*time.Hour)
	orElse(&c.RetentionCheckInterval, 10*time.Minute)
	orElse(&c.ConsumerSessionTimeout, 45*time.Second)
	orElse(&c.ConsumerHeartbeatInterval, 5*time.Second)
	orElse(&c.ConsumerMembersMax, 1<<31-1)
	if len(c.ConsumerAssignors) == 0 {
		c.ConsumerAssignors = Assignors()
	}
	if c.ConsumerAssignmentInterval == nil {
		c.ConsumerAssignmentInterval = func() time.Duration { return time.Second }
	}
	orElse(&c.LoadsMax, 4)
	return c
}

// orElse sets *v to its default where it is not positive.
func orElse[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
