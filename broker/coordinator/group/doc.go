// Package group is Kafka's group coordinator: the classic group protocol (join, sync, heartbeat,
// leave, with static members of KIP-345), the consumer group protocol with assignment by the broker
// (KIP-848), and the committed offsets of consumers.
//
// A Coordinator has one shard (package coordinator) for each partition of __consumer_offsets that
// this broker leads. A shard's state, the machine, decides without I/O or clock.
//
// # States of a group of the classic protocol
//
//	        first member             all joined, or rebalance timeout
//	Empty ----------------> PreparingRebalance ----------------> CompletingRebalance
//	  ^  ^                    ^   |   ^                                |   |
//	  |  `--------------------+---'   `-- join, leave, member failed --'   | the leader's assignment
//	  |     nobody joined     |                                            v is committed
//	  |                       `------- join, leave, member failed ------ Stable
//	  `--> Dead: deleted, or all its offsets expired
//
// # Groups of the consumer protocol
//
// A group has an epoch, which rises with every change of its members, of what they subscribe to and
// of those topics; a target assignment, which is made for an epoch; and members, each of which is
// led from the epoch that it is in to the target's, in its own time and by its own heartbeats:
//
//	          target has nothing that it is to give up, or it says that it has given it up
//	         ,-----------------------------------------------------------------------.
//	settled -+                                                                       +-> target's epoch: it gets
//	         `-> told what to give up (stays in its epoch) -------> given up --------'   what nobody else has
//
//	Empty: no member. Assigning: no target for the epoch yet. Reconciling: a member is behind the
//	target, or waits for what another has. Stable: every member has what the target says.
//
// Invariants: a partition is held (given, or not yet given up) by one member at most; no member's
// epoch is above the target's, nor that above the group's; a member is given nothing in the heartbeat
// in which it is told to give something up.
//
// A decision makes entries, which are the records to be written, and changes nothing. They are
// applied when the batch is in the log, by the code that replays it, so the next decision builds on
// them; the answer waits until the high watermark has passed everything that it depends on.
// ListGroups alone may show a state a moment before that.
//
// A group with members changes its protocol as Config.ConsumerMigration allows (migration.go). Members
// of the classic protocol in a group of the consumer protocol are answered out of its state
// (mixed.go): a join is a heartbeat that says everything, a sync tells what the member may have, a
// heartbeat asks it to rejoin when there is a step to take. One without members changes with whoever comes.
//
// One thing is less than in Kafka: the hash of the subscribed topics leaves the replicas' racks out,
// which no assignor looks at.
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
//	key    int16 3 | group string                                        a group of the consumer protocol
//	key    int16 5 | group string | member string                        what a member says of itself
//	key    int16 6 | group string                                        the target's epoch
//	key    int16 7 | group string | member string                        a member's target
//	key    int16 8 | group string | member string                        what a member has
//	key    int16 16 | group string | regular expression string           the topics that it matched
//
// Values of the consumer protocol are of version 0 in Kafka's flexible form; testdata has one of
// each as Kafka encodes it. Key 4, of older versions of Kafka, is replaced by the hash in key 3: it
// is read, and removed.
//
// An offset commit that asks for its own retention (OffsetCommit versions 2 to 4) is written as
// value version 1, which has an expiry time. Values of versions 0 to 4 are read. Keys of other
// versions, such as those of share groups, are skipped.
//
// The record of a group of the classic protocol is written when a generation's assignment is given, when a static member is
// replaced and when the group becomes empty: so a coordinator that takes over finds the last stable
// generation, whose members go on with their heartbeats.
package group
