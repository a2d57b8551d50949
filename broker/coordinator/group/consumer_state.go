package group

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
)

// What a consumer's heartbeat says in place of a member epoch, and what is stored of a static
// member that is away.
const (
	joinEpoch        = 0
	leaveEpoch       = -1
	leaveStaticEpoch = -2
)

// memberState is how far a member is with its assignment. The values are those on disk.
type memberState int8

const (
	// settled: the member has what its target says, as of its epoch.
	settled memberState = iota
	// revoking: the member has been told to give partitions up and has not yet said that it did.
	revoking
	// awaiting: the member has all of its target but what others have not yet given up.
	awaiting
)

// partitionSet is a set of partitions: sorted and without doubles in each topic. Immutable.
type partitionSet map[cluster.TopicID][]int32

// heldPartitions are partitions that a member has, each with the member epoch in which it was
// given. Immutable.
type heldPartitions map[cluster.TopicID]map[int32]int32

// topicPartition names a partition.
type topicPartition struct {
	topic     cluster.TopicID
	partition int32
}

// consumerMember is a member of a consumer group: what it has said of itself, and what it has. It
// is immutable: every change makes another one.
type consumerMember struct {
	id, instanceID, rackID, clientID, clientHost string

	topics           []string // sorted
	regex            string   // empty: none
	rebalanceTimeout time.Duration
	assignor         string // that it would like; empty: any

	// classic is what a member has said that uses the classic protocol; nil for the others.
	classic *classicSide

	// known: its own record was seen, not only one of its assignment, as compaction may leave it.
	known bool

	epoch, previousEpoch int32
	state                memberState
	assigned, revoking   heldPartitions
}

// classicSide is what a member of the classic protocol says when it joins. Immutable.
type classicSide struct {
	sessionTimeout time.Duration
	protocols      []Protocol
}

func (c *classicSide) equal(other *classicSide) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.sessionTimeout == other.sessionTimeout && slices.EqualFunc(c.protocols, other.protocols, Protocol.equal)
}

// resolvedRegex is what a regular expression matched. Immutable.
type resolvedRegex struct {
	topics    []string // sorted
	version   int64    // of the cluster's metadata; Kafka's, 0 in our own records
	timestamp int64    // ms
}

// consumerGroup is a group of the consumer protocol. Everything up to the maps that are marked
// volatile is in the log, and changes only by applying an entry of it.
type consumerGroup struct {
	epoch int32
	hash  int64 // of the topics that are subscribed to

	targetEpoch     int32
	targetTimestamp int64 // ms; 0: not known
	target          map[string]partitionSet

	members map[string]*consumerMember
	regexes map[string]*resolvedRegex
	// partitionMetadata says that a record of an older Kafka is in the log, which is to go.
	partitionMetadata bool

	// Follows from the members.
	instances map[string]string         // member ids of static members, by instance id
	owners    map[topicPartition]string // member ids, of everything assigned or being revoked

	// Volatile.
	clocks    map[string]*memberClocks
	seen      *cluster.Image // in which the hash was last looked at
	regexSeen *cluster.Image // in which the regular expressions were last resolved
	regexAt   time.Time      // when that was
	lastWrite *consumerWrite // the last one, if it is not yet committed
}

// memberClocks are the timers of a member.
type memberClocks struct {
	session, rebalance coordinator.Timer
	// join and sync are those of a member of the classic protocol: when it was asked
	// to rejoin, and when it has rejoined.
	join, sync coordinator.Timer
}

// emptyEpoch is a new group's, as in Kafka: its first member makes it 2.
const emptyEpoch = 1

func newConsumerGroup() *consumerGroup {
	return &consumerGroup{
		epoch:     emptyEpoch,
		target:    make(map[string]partitionSet),
		members:   make(map[string]*consumerMember),
		regexes:   make(map[string]*resolvedRegex),
		instances: make(map[string]string),
		owners:    make(map[topicPartition]string),
		clocks:    make(map[string]*memberClocks),
	}
}

// newConsumerMember is a member that has said and been given nothing yet.
func newConsumerMember(id string) *consumerMember {
	return &consumerMember{id: id, previousEpoch: leaveEpoch, rebalanceTimeout: -1}
}

// state returns Kafka's name of the group's state.
func (c *consumerGroup) state() string {
	switch {
	case len(c.members) == 0:
		return "Empty"
	case c.epoch > c.targetEpoch:
		return "Assigning"
	}
	for _, mem := range c.members {
		if !mem.reconciledTo(c.targetEpoch) {
			return "Reconciling"
		}
	}
	return "Stable"
}

func (mem *consumerMember) reconciledTo(targetEpoch int32) bool {
	return mem.state == settled && mem.epoch == targetEpoch
}

// memberIDs returns the members sorted, so that what is decided is the same in every run.
func (c *consumerGroup) memberIDs() []string { return slices.Sorted(maps.Keys(c.members)) }

// regexUsers is how many members subscribe by a regular expression.
func (c *consumerGroup) regexUsers(regex string) (n int) {
	for _, mem := range c.members {
		if mem.regex == regex {
			n++
		}
	}
	return n
}

// subscribes says whether any member subscribes to a topic.
func (c *consumerGroup) subscribes(topic string) bool {
	for _, mem := range c.members {
		if _, found := slices.BinarySearch(mem.topics, topic); found {
			return true
		}
	}
	for _, r := range c.regexes {
		if _, found := slices.BinarySearch(r.topics, topic); found {
			return true
		}
	}
	return false
}

// member returns the member of an id, a new one if there is none.
func (c *consumerGroup) member(id string) *consumerMember {
	if mem := c.members[id]; mem != nil {
		return mem
	}
	return newConsumerMember(id)
}

// put replaces a member, or adds it.
func (c *consumerGroup) put(mem *consumerMember) {
	c.forget(mem.id)
	c.members[mem.id] = mem
	if mem.instanceID != "" {
		c.instances[mem.instanceID] = mem.id
	}
	for _, held := range []heldPartitions{mem.assigned, mem.revoking} {
		for tp := range held.all() {
			c.owners[tp] = mem.id
		}
	}
}

// forget takes a member out, if there is one.
func (c *consumerGroup) forget(id string) {
	mem := c.members[id]
	if mem == nil {
		return
	}
	delete(c.members, id)
	if c.instances[mem.instanceID] == id {
		delete(c.instances, mem.instanceID)
	}
	for _, held := range []heldPartitions{mem.assigned, mem.revoking} {
		for tp := range held.all() {
			// In a log of which compaction took a part, another may have got it already.
			if c.owners[tp] == id {
				delete(c.owners, tp)
			}
		}
	}
}

// all yields the partitions with the epochs in which they were given.
func (h heldPartitions) all() func(yield func(topicPartition, int32) bool) {
	return func(yield func(topicPartition, int32) bool) {
		for topic, partitions := range h {
			for p, epoch := range partitions {
				if !yield(topicPartition{topic, p}, epoch) {
					return
				}
			}
		}
	}
}

// held is everything that a member has: until it says that it has given something up, it has it.
func (mem *consumerMember) held() (all heldPartitions) {
	for _, h := range []heldPartitions{mem.assigned, mem.revoking} {
		for tp, epoch := range h.all() {
			all = all.with(tp.topic, tp.partition, epoch)
		}
	}
	return all
}

// with returns the partitions and one more. It may change h, which must not be shared yet.
func (h heldPartitions) with(topic cluster.TopicID, partition, epoch int32) heldPartitions {
	if h == nil {
		h = make(heldPartitions)
	}
	if h[topic] == nil {
		h[topic] = make(map[int32]int32)
	}
	h[topic][partition] = epoch
	return h
}

func (h heldPartitions) has(topic cluster.TopicID, partition int32) bool {
	_, held := h[topic][partition]
	return held
}

// set is the partitions without their epochs.
func (h heldPartitions) set() partitionSet {
	if len(h) == 0 {
		return nil
	}
	s := make(partitionSet, len(h))
	for topic, partitions := range h {
		s[topic] = slices.Sorted(maps.Keys(partitions))
	}
	return s
}

// same says whether both have the same partitions, whatever their epochs.
func (h heldPartitions) same(other heldPartitions) bool {
	return maps.EqualFunc(h, other, func(a, b map[int32]int32) bool {
		return maps.EqualFunc(a, b, func(_, _ int32) bool { return true })
	})
}

// equal says whether both have the same partitions from the same epochs.
func (h heldPartitions) equal(other heldPartitions) bool {
	return maps.EqualFunc(h, other, maps.Equal[map[int32]int32, map[int32]int32])
}

func (s partitionSet) equal(other partitionSet) bool {
	return maps.EqualFunc(s, other, slices.Equal[[]int32])
}

func (s partitionSet) has(topic cluster.TopicID, partition int32) bool {
	_, found := slices.BinarySearch(s[topic], partition)
	return found
}

// within says whether all partitions of s are held in h.
func (s partitionSet) within(h heldPartitions) bool {
	for topic, partitions := range s {
		for _, p := range partitions {
			if !h.has(topic, p) {
				return false
			}
		}
	}
	return true
}

// sortedTopics returns the ids of a map's topics in order.
func sortedTopics[V any](m map[cluster.TopicID]V) []cluster.TopicID {
	return slices.SortedFunc(maps.Keys(m), compareTopicIDs)
}

func compareTopicIDs(a, b cluster.TopicID) int { return slices.Compare(a[:], b[:]) }

// sameMetadata says whether two members say the same of themselves.
func (mem *consumerMember) sameMetadata(other *consumerMember) bool {
	return mem.instanceID == other.instanceID && mem.rackID == other.rackID &&
		mem.clientID == other.clientID && mem.clientHost == other.clientHost &&
		mem.rebalanceTimeout == other.rebalanceTimeout && mem.assignor == other.assignor &&
		mem.classic.equal(other.classic) && mem.sameSubscription(other)
}

func (mem *consumerMember) sameSubscription(other *consumerMember) bool {
	return mem.regex == other.regex && slices.Equal(mem.topics, other.topics)
}

// sameAssignment says whether two members are equally far.
func (mem *consumerMember) sameAssignment(other *consumerMember) bool {
	return mem.epoch == other.epoch && mem.previousEpoch == other.previousEpoch && mem.state == other.state &&
		mem.assigned.equal(other.assigned) && mem.revoking.equal(other.revoking)
}
