// Package group is Kafka's group coordinator: the classic group protocol (join, sync, heartbeat,
// leave, with static members of KIP-345) and the committed offsets of consumers.
//
// A Coordinator has one shard (package coordinator) for each partition of __consumer_offsets that
// this broker leads. A shard's state, the machine, decides without I/O or clock.
//
// # States of a group
//
//	        first member             all joined, or rebalance timeout
//	Empty ----------------> PreparingRebalance ----------------> CompletingRebalance
//	  ^  ^                    ^   |   ^                                |   |
//	  |  `--------------------+---'   `-- join, leave, member failed --'   | the leader's assignment
//	  |     nobody joined     |                                            v is committed
//	  |                       `------- join, leave, member failed ------ Stable
//	  `--> Dead: deleted, or all its offsets expired
//
// # On disk
//
// Keys and values of __consumer_offsets are Kafka's own, so that Kafka's tools read them
// (kafka-dump-log --offsets-decoder) and a Kafka log can be taken over:
//
//	key    int16 1 | group string | topic string | partition int32       an offset
//	value  int16 4 | offset int64 | leader epoch int32 | metadata compact string |
//	       commit time int64 ms | tag 0: topic id uuid                   (no value: the offset is gone)
//	key    int16 2 | group string                                        a group
//	value  int16 3 | protocol type string | generation int32 | protocol nullable string |
//	       leader nullable string | state time int64 ms | members array  (no value: the group is gone)
//
// An offset commit that asks for its own retention (OffsetCommit versions 2 to 4) is written as
// value version 1, which has an expiry time. Values of versions 0 to 4 are read. Keys of other
// versions, such as those of Kafka's new consumer protocol, are skipped.
//
// A group's record is written when a generation's assignment is given, when a static member is
// replaced and when the group becomes empty: so a coordinator that takes over finds the last stable
// generation, whose members go on with their heartbeats.
package group
