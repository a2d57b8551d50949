package group

import (
	"maps"

	"github.com/sluice-io/sluice/broker/cluster"
)

// reconciliation is what is needed to bring one member closer to its target.
type reconciliation struct {
	member      *consumerMember
	targetEpoch int32
	target      partitionSet
	// owned is what the member says that it has; it only says so when ownedKnown.
	owned      partitionSet
	ownedKnown bool
	// subscriptionChanged: what the member no longer subscribes to is to go at once, before there
	// is a target that says so.
	subscriptionChanged bool
	subscribed          func(cluster.TopicID) bool
	free                func(topicPartition) bool // nobody else has it
}

// next returns the member one step further, or the same one where there is nothing to do (KIP-848,
// "Member Epoch & Reconciliation").
//
//   - A member gives up first: as long as it has partitions that are not in its target, it stays in
//     its epoch and gets nothing new.
//   - It then enters the target's epoch and gets what nobody else has. What others still have it
//     gets with a later heartbeat.
func (r *reconciliation) next() *consumerMember {
	switch mem := r.member; mem.state {
	case revoking:
		if r.owns(mem.revoking) {
			return r.afterSubscription()
		}
		// After a change of subscription the target may not yet be further than the member.
		return r.towards(min(mem.epoch+1, r.targetEpoch))
	case awaiting:
		return r.towards(mem.epoch)
	default:
		if mem.epoch != r.targetEpoch {
			return r.towards(mem.epoch)
		}
		return r.afterSubscription()
	}
}

// owns says whether the member still has any of the partitions; if it does not say, it does.
func (r *reconciliation) owns(held heldPartitions) bool {
	if !r.ownedKnown {
		return true
	}
	for tp := range held.all() {
		if r.owned.has(tp.topic, tp.partition) {
			return true
		}
	}
	return false
}

// afterSubscription takes away the topics that the member has ceased to subscribe to.
func (r *reconciliation) afterSubscription() *consumerMember {
	if !r.subscriptionChanged {
		return r.member
	}
	var keep heldPartitions
	revoke := copyHeld(r.member.revoking)
	dropped := false
	for tp, epoch := range r.member.assigned.all() {
		if r.subscribed(tp.topic) {
			keep = keep.with(tp.topic, tp.partition, epoch)
		} else {
			revoke, dropped = revoke.with(tp.topic, tp.partition, epoch), true
		}
	}
	if !dropped {
		return r.member
	}
	next := *r.member
	next.assigned = keep
	if r.owns(revoke) {
		next.state, next.revoking = revoking, revoke
	}
	return &next
}

func copyHeld(h heldPartitions) (c heldPartitions) {
	for tp, epoch := range h.all() {
		c = c.with(tp.topic, tp.partition, epoch)
	}
	return c
}

// towards moves the member, which is in the given epoch, to its target.
func (r *reconciliation) towards(epoch int32) *consumerMember {
	keep, revoke := r.split()
	next := *r.member
	if len(revoke) > 0 && r.owns(revoke) {
		next.setEpoch(epoch)
		next.state, next.assigned, next.revoking = revoking, keep, revoke
		return &next
	}
	next.setEpoch(r.targetEpoch)
	next.state, next.revoking = settled, nil
	next.assigned = keep
	if r.give(&next) {
		next.state = awaiting
	}
	return &next
}

// split divides what the member has into what it keeps and what it is to give up.
func (r *reconciliation) split() (keep, revoke heldPartitions) {
	for tp, epoch := range r.member.assigned.all() {
		if r.subscribed(tp.topic) && r.target.has(tp.topic, tp.partition) {
			keep = keep.with(tp.topic, tp.partition, epoch)
		} else {
			revoke = revoke.with(tp.topic, tp.partition, epoch)
		}
	}
	return keep, revoke
}

// give adds to what next keeps what is free of its target, and says whether not all is.
func (r *reconciliation) give(next *consumerMember) (missing bool) {
	for topic, partitions := range r.target {
		if !r.subscribed(topic) {
			continue
		}
		for _, p := range partitions {
			switch {
			case next.assigned.has(topic, p):
			case r.free(topicPartition{topic, p}):
				next.assigned = next.assigned.with(topic, p, r.targetEpoch)
			default:
				missing = true
			}
		}
	}
	return missing
}

func (mem *consumerMember) setEpoch(epoch int32) {
	mem.previousEpoch, mem.epoch = mem.epoch, epoch
}

// lastEpochOf is the epoch in which the member was given a partition that it has, or is giving up.
func (mem *consumerMember) lastEpochOf(topic cluster.TopicID, partition int32) (epoch int32, held bool) {
	if epoch, held = mem.assigned[topic][partition]; held {
		return epoch, true
	}
	epoch, held = mem.revoking[topic][partition]
	return epoch, held
}

// assignmentOf is what a member of another name takes over.
func (mem *consumerMember) renamed(id string) *consumerMember {
	next := *mem
	next.id, next.epoch, next.previousEpoch = id, joinEpoch, joinEpoch
	next.assigned, next.revoking = maps.Clone(mem.assigned), maps.Clone(mem.revoking)
	return &next
}
