package broker

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/coordinator/group"
)

// Config has the settings of a node. The names in brackets are Kafka's
// properties, as they are written in a configuration file; the zero value of
// each field selects the default that is named. Durations and numbers below
// zero mean "none" or "no limit" where that is said.
type Config struct {
	// NodeID is this broker's number in the cluster [node.id]: 1.
	NodeID int32
	// Listen are the addresses to listen on, host:port or NAME://host:port
	// [listeners]: 127.0.0.1:9092. Port 0 takes a free one. A name is PLAINTEXT,
	// which is meant where there is none, or one of ListenerProtocols.
	Listen []string
	// Advertise are the addresses that clients are told, host:port or
	// NAME://host:port, each for those that come through the listener of its
	// name [advertised.listeners]: of a listener that is not here its own, and
	// this machine's name where that listens on all addresses.
	Advertise []string
	// ListenerProtocols give each name of a listener its protocol, NAME:PROTOCOL
	// [listener.security.protocol.map]: PLAINTEXT:PLAINTEXT. There is no other
	// protocol than PLAINTEXT.
	ListenerProtocols []string
	// Rack tells followers and consumers where this broker stands [broker.rack]: none.
	Rack string
	// DataDir holds everything that the broker stores [log.dirs, the first]: "data".
	DataDir string
	// MoreDataDirs hold logs too [log.dirs, the others]: none. A new partition
	// goes to the directory that has the fewest.
	MoreDataDirs []string

	// ZooKeeperConnect are the servers that the cluster agrees in, host:port
	// between commas, with a path after the last [zookeeper.connect]: none, the
	// broker is alone.
	ZooKeeperConnect string
	// ZooKeeperSessionTimeout is how long the broker may be silent before it is
	// taken for gone [zookeeper.session.timeout.ms]: 18 s.
	ZooKeeperSessionTimeout time.Duration
	// ZooKeeperConnectTimeout is how long a start waits for ZooKeeper
	// [zookeeper.connection.timeout.ms]: 18 s.
	ZooKeeperConnectTimeout time.Duration
	// ZooKeeperAuth is USER:PASSWORD for its digest authentication [zookeeper.auth, which Kafka lacks]: none.
	ZooKeeperAuth string
	// ZooKeeperACL lets only those who show ZooKeeperAuth change what the broker makes [zookeeper.set.acl].
	ZooKeeperACL bool
	// ReplacedDisk says that the data directory is a new one in place of one that
	// is lost, which is refused otherwise. What the broker had comes back from the others.
	ReplacedDisk bool
	// ImportState moves the state of a broker that was alone from its data
	// directory into ZooKeeper, which is refused otherwise.
	ImportState bool
	// InterBrokerListener is the listener that brokers reach each other by
	// [inter.broker.listener.name]: the first of Listen.
	InterBrokerListener string

	// ReplicaFetchers is how many connections copy from each other broker [num.replica.fetchers]: 1.
	ReplicaFetchers int
	// ReplicaLagMax is how long a replica may not have caught up before it is
	// out of sync [replica.lag.time.max.ms]: 30 s.
	ReplicaLagMax time.Duration
	// ReplicaFetchPartitionBytesMax and ReplicaFetchBytesMax bound what one request of a
	// replica gets, of a partition and in all [replica.fetch.max.bytes,
	// replica.fetch.response.max.bytes]: 1 MiB and 10 MiB.
	ReplicaFetchPartitionBytesMax, ReplicaFetchBytesMax int
	// ReplicaFetchBytesMin is what it waits for, for ReplicaFetchWaitMax
	// [replica.fetch.min.bytes, replica.fetch.wait.max.ms]: 1 byte and 500 ms.
	ReplicaFetchBytesMin int
	ReplicaFetchWaitMax  time.Duration
	// ReplicaFetchBackoff is how long a partition that could not be fetched is
	// left alone [replica.fetch.backoff.ms]: 1 s.
	ReplicaFetchBackoff time.Duration
	// ReplicaSocketTimeout is how long an answer is waited for [replica.socket.timeout.ms]: 30 s.
	ReplicaSocketTimeout time.Duration
	// RackAwareReads sends consumers to a replica in their rack [replica.selector.class].
	RackAwareReads bool

	// NoControlledShutdown stops without having leaderships moved first [the
	// contrary of controlled.shutdown.enable].
	NoControlledShutdown bool
	// ControlledShutdownRetries and ControlledShutdownBackoff say how often that is tried again,
	// and after how long [controlled.shutdown.max.retries, controlled.shutdown.retry.backoff.ms]: 3 times,
	// below zero never, and 5 s.
	ControlledShutdownRetries int
	ControlledShutdownBackoff time.Duration
	// NoLeaderRebalance leaves leaderships where they are [the contrary of auto.leader.rebalance.enable].
	NoLeaderRebalance bool
	// LeaderImbalanceCheck is how often a controller looks where they should be
	// [leader.imbalance.check.interval.seconds]: 300 s.
	LeaderImbalanceCheck time.Duration
	// LeaderImbalancePercent is how much of what a broker should lead may be led by others
	// [leader.imbalance.per.broker.percentage]: 10 per cent; below zero nothing.
	LeaderImbalancePercent int

	// NumPartitions and DefaultReplicationFactor are for topics made without
	// saying [num.partitions, default.replication.factor]: 1 and 1.
	NumPartitions            int32
	DefaultReplicationFactor int16
	// NoAutoCreateTopics refuses to make topics that a client asks for, which
	// is done otherwise [the contrary of auto.create.topics.enable].
	NoAutoCreateTopics bool
	// NoDeleteTopics refuses to delete topics [the contrary of delete.topic.enable].
	NoDeleteTopics bool
	// NoGroupFsync acknowledges records of a partition that has one replica
	// when they are in the page cache, not on disk: killing the process still
	// loses nothing, losing power does [the contrary of log.group.fsync.enable, which Kafka lacks].
	NoGroupFsync bool

	// StrayRetention is how long a directory is kept that was set aside because the
	// cluster has no such partition here [log.stray.retention.hours, which Kafka lacks]:
	// 7 days; below zero for ever.
	StrayRetention time.Duration

	// OffsetsPartitions and OffsetsReplicationFactor are those of
	// __consumer_offsets when it is made [offsets.topic.num.partitions,
	// offsets.topic.replication.factor]: 50 and 3, and never more replicas than brokers.
	OffsetsPartitions        int32
	OffsetsReplicationFactor int16
	// OffsetsRetention is how long offsets of an empty group stay [offsets.retention.minutes]: 7 days.
	OffsetsRetention time.Duration
	// OffsetsRetentionCheck is how often they are looked for [offsets.retention.check.interval.ms]: 10 minutes.
	OffsetsRetentionCheck time.Duration
	// OffsetMetadataBytesMax bounds a commit's metadata [offset.metadata.max.bytes]: 4,096.
	OffsetMetadataBytesMax int
	// GroupInitialRebalanceDelay is how long the first rebalance of an empty
	// group waits for more members [group.initial.rebalance.delay.ms]: 3 s; below zero none.
	GroupInitialRebalanceDelay time.Duration
	// GroupSessionTimeoutMin and GroupSessionTimeoutMax bound what members ask
	// for [group.min.session.timeout.ms, group.max.session.timeout.ms]: 6 s and 30 minutes.
	GroupSessionTimeoutMin, GroupSessionTimeoutMax time.Duration
	// GroupMembersMax bounds the members of a group [group.max.size]: none.
	GroupMembersMax int

	// ConsumerGroupSessionTimeout is how long a member of the consumer protocol may be silent
	// [group.consumer.session.timeout.ms]: 45 s.
	ConsumerGroupSessionTimeout time.Duration
	// ConsumerGroupHeartbeatInterval is how often it is told to send a heartbeat
	// [group.consumer.heartbeat.interval.ms]: 5 s.
	ConsumerGroupHeartbeatInterval time.Duration
	// ConsumerGroupMembersMax bounds the members of such a group [group.consumer.max.size]: none.
	ConsumerGroupMembersMax int
	// ConsumerGroupAssignors are the assignors that such members may ask for, the first of which is
	// for those who do not [group.consumer.assignors]: uniform and range. There are no others.
	ConsumerGroupAssignors []string
	// ConsumerGroupMigration says which groups with members may change their protocol: bidirectional,
	// upgrade, downgrade or disabled [group.consumer.migration.policy]: bidirectional.
	ConsumerGroupMigration string
	// ConsumerGroupAssignmentInterval is how long an assignment of such a group stays at least
	// [group.consumer.assignment.interval.ms]: 1 s; below zero none.
	ConsumerGroupAssignmentInterval time.Duration

	// RequestBytesMax bounds one request [socket.request.max.bytes]: 100 MiB.
	RequestBytesMax int
	// SendBufferBytes is a connection's buffer for answers in the kernel
	// [socket.send.buffer.bytes]: 100 KiB; -1 leaves it to the kernel.
	SendBufferBytes int
	// ConnectionsMax and ConnectionsPerIPMax bound the open connections
	// [max.connections, max.connections.per.ip]: 10,000 and none.
	ConnectionsMax, ConnectionsPerIPMax int
	// InFlightMax bounds the unanswered requests of a connection
	// [connection.max.in.flight.requests, which Kafka lacks]: 64.
	InFlightMax int
	// RequestMemoryBytesMax bounds the memory of all requests [queued.max.request.bytes]: 256 MiB.
	RequestMemoryBytesMax int64
	// ConnectionIdleMax closes a connection without requests [connections.max.idle.ms]: 10 minutes.
	ConnectionIdleMax time.Duration
	// FetchBytesMax bounds the records of one Fetch response [fetch.max.bytes]: 55 MiB.
	FetchBytesMax int

	// RetentionCheck is how often old segments are looked for [log.retention.check.interval.ms]: 5 minutes.
	RetentionCheck time.Duration
	// CheckpointInterval is how often the recovery points, and the start of
	// each log, are stored [log.flush.offset.checkpoint.interval.ms]: 1 minute.
	CheckpointInterval time.Duration
	// HighWatermarkCheckpoint is how often high watermarks are stored
	// [replica.high.watermark.checkpoint.interval.ms]: 5 s.
	HighWatermarkCheckpoint time.Duration
	// ProducerExpiry is how long an idle producer is remembered [producer.id.expiration.ms]: 24 hours.
	ProducerExpiry time.Duration
	// ProducerExpiryCheck is how often idle ones are looked for [producer.id.expiration.check.interval.ms]: 10 minutes.
	ProducerExpiryCheck time.Duration
	// RecoveryThreads is how many logs are opened at a time
	// [num.recovery.threads.per.data.dir]: 16, since it waits for the disk.
	RecoveryThreads int
	// FlushThreads is how many logs are synced at a time
	// [log.flush.threads, which Kafka lacks]: 4.
	FlushThreads int
	// CleanerThreads is how many logs are compacted at a time [log.cleaner.threads]: 1.
	CleanerThreads int
	// CleanerBackoff is how long a thread that finds nothing to compact waits
	// before it looks again [log.cleaner.backoff.ms]: 15 s.
	CleanerBackoff time.Duration
	// CleanerDedupeBytes bounds the memory of the maps of keys of all threads
	// [log.cleaner.dedupe.buffer.size]: 128 MiB. It is taken as needed.
	CleanerDedupeBytes int64
	// CleanerBytesPerSecond bounds what all threads read and write together
	// [log.cleaner.io.max.bytes.per.second]: no limit.
	CleanerBytesPerSecond float64
	// OpenFilesMax bounds the files of segments that are kept open
	// [log.open.files.max, which Kafka lacks]: 4,096. The files of the segments
	// that are written to, and of those being read, come on top.
	OpenFilesMax int

	// HoldFor names, by topic, the groups that retention waits for: what any of
	// them has not committed stays, however old or large the log, and all of it
	// while a group has committed nothing or the offsets are still being loaded.
	// It is for a broker that is embedded beside the consumers of those groups;
	// SetHoldFor changes it.
	HoldFor map[string][]string

	// TopicDefaults are the broker's properties that give topic settings their
	// defaults, such as log.retention.hours, under their names.
	TopicDefaults map[string]string

	// FS is the file system of the logs; nil is the operating system's.
	FS commitlog.FS
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	// set names the properties that a configuration file gives, flags those of
	// the command line.
	set, flags map[string]bool
}

// Defaults of Config.
const (
	defaultListen                   = "127.0.0.1:9092"
	defaultDataDir                  = "data"
	defaultStrayRetention           = 7 * 24 * time.Hour
	defaultOffsetsPartitions        = 50
	defaultOffsetsReplicationFactor = 3
	defaultRebalanceDelay           = 3 * time.Second
	defaultRetentionCheck           = 5 * time.Minute
	defaultCheckpointInterval       = time.Minute
	defaultHighWatermarkCheckpoint  = 5 * time.Second
	defaultProducerExpiry           = 24 * time.Hour
	defaultProducerExpiryCheck      = 10 * time.Minute
	defaultFlushThreads             = 4
	defaultRecoveryThreads          = 16
	defaultCleanerThreads           = 1
	defaultCleanerBackoff           = 15 * time.Second
	defaultCleanerDedupeBytes       = 128 << 20
	defaultCleanerBytesPerSecond    = math.MaxFloat64
	defaultOpenFilesMax             = 4096
	defaultFetchBytesMax            = 55 << 20
	defaultConnectionsMax           = 10_000
	defaultRequestBytesMax          = 100 << 20
	defaultSendBufferBytes          = 100 << 10
	defaultRequestMemoryBytesMax    = 256 << 20
	defaultConnectionIdleMax        = 10 * time.Minute
	defaultInFlightMax              = 64
	defaultOffsetsRetention         = 7 * 24 * time.Hour
	defaultOffsetsRetentionCheck    = 10 * time.Minute
	defaultOffsetMetadataBytesMax   = 4096
	defaultSessionTimeoutMin        = 6 * time.Second
	defaultSessionTimeoutMax        = 30 * time.Minute
	defaultGroupMembersMax          = 1<<31 - 1

	defaultZooKeeperSessionTimeout  = 18 * time.Second
	defaultZooKeeperConnectTimeout  = 18 * time.Second
	defaultReplicaFetchers          = 1
	defaultReplicaLagMax            = 30 * time.Second
	defaultReplicaPartitionBytesMax = 1 << 20
	defaultReplicaFetchBytesMax     = 10 << 20
	defaultReplicaFetchBytesMin     = 1
	defaultReplicaFetchWaitMax      = 500 * time.Millisecond
	defaultReplicaFetchBackoff      = time.Second
	defaultReplicaSocketTimeout     = 30 * time.Second
	defaultShutdownRetries          = 3
	defaultShutdownBackoff          = 5 * time.Second
	defaultLeaderImbalanceCheck     = 300 * time.Second
	defaultLeaderImbalancePercent   = 10

	defaultConsumerSessionTimeout     = 45 * time.Second
	defaultConsumerHeartbeatInterval  = 5 * time.Second
	defaultConsumerAssignmentInterval = time.Second
	defaultConsumerMigration          = "bidirectional"

	embeddedOffsetsPartitions = 4
)

// EmbeddedConfig is the configuration of the broker inside `sluice run`: it
// listens on listen, or if that is empty on a free loopback port, needs few
// files, and lets a group's first member start at once.
func EmbeddedConfig(dataDir, listen string) Config {
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	return Config{
		Listen:                     []string{listen},
		DataDir:                    dataDir,
		OffsetsPartitions:          embeddedOffsetsPartitions,
		GroupInitialRebalanceDelay: -1,
	}
}

func (c Config) withDefaults() Config {
	or(&c.NodeID, 1)
	if len(c.Listen) == 0 {
		c.Listen = []string{defaultListen}
	}
	or(&c.DataDir, defaultDataDir)
	c.DataDir = filepath.Clean(c.DataDir)
	c.MoreDataDirs = slices.Clone(c.MoreDataDirs)
	for i, dir := range c.MoreDataDirs {
		c.MoreDataDirs[i] = filepath.Clean(dir)
	}
	or(&c.ZooKeeperSessionTimeout, defaultZooKeeperSessionTimeout)
	or(&c.ZooKeeperConnectTimeout, defaultZooKeeperConnectTimeout)
	or(&c.ReplicaFetchers, defaultReplicaFetchers)
	or(&c.ReplicaLagMax, defaultReplicaLagMax)
	or(&c.ReplicaFetchPartitionBytesMax, defaultReplicaPartitionBytesMax)
	or(&c.ReplicaFetchBytesMax, defaultReplicaFetchBytesMax)
	or(&c.ReplicaFetchBytesMin, defaultReplicaFetchBytesMin)
	or(&c.ReplicaFetchWaitMax, defaultReplicaFetchWaitMax)
	or(&c.ReplicaFetchBackoff, defaultReplicaFetchBackoff)
	or(&c.ReplicaSocketTimeout, defaultReplicaSocketTimeout)
	or(&c.ControlledShutdownRetries, defaultShutdownRetries)
	or(&c.ControlledShutdownBackoff, defaultShutdownBackoff)
	or(&c.LeaderImbalanceCheck, defaultLeaderImbalanceCheck)
	or(&c.LeaderImbalancePercent, defaultLeaderImbalancePercent)
	or(&c.NumPartitions, 1)
	or(&c.DefaultReplicationFactor, 1)
	or(&c.StrayRetention, defaultStrayRetention)
	or(&c.OffsetsPartitions, defaultOffsetsPartitions)
	or(&c.OffsetsReplicationFactor, defaultOffsetsReplicationFactor)
	or(&c.OffsetsRetention, defaultOffsetsRetention)
	or(&c.OffsetsRetentionCheck, defaultOffsetsRetentionCheck)
	or(&c.OffsetMetadataBytesMax, defaultOffsetMetadataBytesMax)
	or(&c.GroupInitialRebalanceDelay, defaultRebalanceDelay)
	or(&c.GroupSessionTimeoutMin, defaultSessionTimeoutMin)
	or(&c.GroupSessionTimeoutMax, defaultSessionTimeoutMax)
	or(&c.GroupMembersMax, defaultGroupMembersMax)
	or(&c.ConsumerGroupSessionTimeout, defaultConsumerSessionTimeout)
	or(&c.ConsumerGroupHeartbeatInterval, defaultConsumerHeartbeatInterval)
	or(&c.ConsumerGroupMembersMax, defaultGroupMembersMax)
	or(&c.ConsumerGroupAssignmentInterval, defaultConsumerAssignmentInterval)
	or(&c.ConsumerGroupMigration, defaultConsumerMigration)
	if len(c.ConsumerGroupAssignors) == 0 {
		c.ConsumerGroupAssignors = group.Assignors()
	}
	or(&c.RequestBytesMax, defaultRequestBytesMax)
	or(&c.SendBufferBytes, defaultSendBufferBytes)
	or(&c.ConnectionsMax, defaultConnectionsMax)
	or(&c.InFlightMax, defaultInFlightMax)
	or(&c.RequestMemoryBytesMax, defaultRequestMemoryBytesMax)
	or(&c.ConnectionIdleMax, defaultConnectionIdleMax)
	or(&c.FetchBytesMax, defaultFetchBytesMax)
	or(&c.RetentionCheck, defaultRetentionCheck)
	or(&c.CheckpointInterval, defaultCheckpointInterval)
	or(&c.HighWatermarkCheckpoint, defaultHighWatermarkCheckpoint)
	or(&c.ProducerExpiry, defaultProducerExpiry)
	or(&c.ProducerExpiryCheck, defaultProducerExpiryCheck)
	or(&c.RecoveryThreads, defaultRecoveryThreads)
	or(&c.FlushThreads, defaultFlushThreads)
	or(&c.CleanerThreads, defaultCleanerThreads)
	or(&c.CleanerBackoff, defaultCleanerBackoff)
	or(&c.CleanerDedupeBytes, defaultCleanerDedupeBytes)
	or(&c.CleanerBytesPerSecond, defaultCleanerBytesPerSecond)
	or(&c.OpenFilesMax, defaultOpenFilesMax)
	c.TopicDefaults = maps.Clone(c.TopicDefaults)
	if c.FS == nil {
		c.FS = commitlog.OSFS{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// dataDirs are all data directories.
func (c *Config) dataDirs() []string { return append([]string{c.DataDir}, c.MoreDataDirs...) }

// or sets what is zero to a default.
func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}
