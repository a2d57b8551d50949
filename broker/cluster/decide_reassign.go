package cluster

import (
	"fmt"
	"slices"
)

// Reassigning tells whether the replicas of a partition are being moved.
func (p Partition) Reassigning() bool { return len(p.Adding) > 0 || len(p.Removing) > 0 }

// origin are the replicas that a reassignment began with.
func (p Partition) origin() []int32 { return difference(p.Replicas, p.Adding) }

// target are the replicas that a reassignment ends with.
func (p Partition) target() []int32 { return difference(p.Replicas, p.Removing) }

// StartReassignment begins to move a partition to other replicas (KIP-455). It
// may replace a reassignment that is under way. The new replicas are added
// first; the old ones go when all of the new are in sync, see
// [ContinueReassignment]. Errors are [ErrUnknownPartition],
// [ErrInvalidAssignment] and [ErrNoReplicaInSync].
func StartReassignment(im *Image, tp TopicPartition, target []int32) (*Image, error) {
	t, p, err := im.partition(tp)
	if err != nil {
		return nil, err
	}
	origin := p.origin()
	if err := checkTarget(im, tp.Partition, origin, target); err != nil {
		return nil, err
	}
	next := p
	next.Adding = orNil(difference(target, origin))
	next.Removing = orNil(difference(origin, target))
	next.Replicas = slices.Concat(target, next.Removing)
	if next, err = im.held(next); err != nil {
		return nil, fmt.Errorf("reassign %s-%d: %w", tp.Topic, tp.Partition, err)
	}
	return im.withPartition(t, tp.Partition, next), nil
}

// CheckReassignment says whether a partition's replicas may become others.
// Errors are [ErrInvalidAssignment] and [ErrInvalidReplicationFactor].
func CheckReassignment(im *Image, partition int32, was Partition, replicas []int32, mayChangeFactor bool) error {
	if err := checkTarget(im, partition, was.origin(), replicas); err != nil {
		return err
	}
	if have := len(was.origin()); len(replicas) != have && !mayChangeFactor {
		return fmt.Errorf("%w: it would change from %d to %d", ErrInvalidReplicationFactor, have, len(replicas))
	}
	return nil
}

// checkTarget allows a replica on a broker that is away only where it is already.
func checkTarget(im *Image, partition int32, origin, target []int32) error {
	if len(target) == 0 {
		return fmt.Errorf("%w: partition %d has no replica", ErrInvalidAssignment, partition)
	}
	for i, id := range target {
		_, live := im.Broker(id)
		switch {
		case id < 0:
			return fmt.Errorf("%w: partition %d is assigned to broker %d, which is no number of a broker", ErrInvalidAssignment, partition, id)
		case slices.Contains(target[:i], id):
			return fmt.Errorf("%w: partition %d is assigned to broker %d twice", ErrInvalidAssignment, partition, id)
		case !live && !slices.Contains(origin, id):
			return fmt.Errorf("%w: partition %d is assigned to broker %d, which is not in the cluster", ErrInvalidAssignment, partition, id)
		}
	}
	return nil
}

// CancelReassignment takes a reassignment back. Errors are
// [ErrUnknownPartition], [ErrNoReassignment] and, if none of the replicas that
// were there before could go on leading, [ErrNoReplicaInSync].
func CancelReassignment(im *Image, tp TopicPartition) (*Image, error) {
	t, p, err := im.partition(tp)
	if err != nil {
		return nil, err
	}
	if !p.Reassigning() {
		return nil, fmt.Errorf("cancel the reassignment of %s-%d: %w", tp.Topic, tp.Partition, ErrNoReassignment)
	}
	next := p
	next.Replicas, next.Adding, next.Removing = p.origin(), nil, nil
	if next, err = im.held(next); err != nil {
		return nil, fmt.Errorf("cancel the reassignment of %s-%d: %w", tp.Topic, tp.Partition, err)
	}
	return im.withPartition(t, tp.Partition, next), nil
}

// ContinueReassignment ends a partition's reassignment if all replicas that it
// shall have are in sync and one of them can lead. It returns im if there is
// nothing to do yet.
func ContinueReassignment(im *Image, tp TopicPartition) *Image {
	t, p, err := im.partition(tp)
	if err != nil || !p.Reassigning() {
		return im
	}
	target := p.target()
	if len(difference(target, p.ISR)) > 0 {
		return im
	}
	next := p
	next.Replicas, next.Adding, next.Removing = target, nil, nil
	if next, err = im.held(next); err != nil {
		return im
	}
	return im.withPartition(t, tp.Partition, next)
}

// held makes a partition that has other replicas be led by one of them. It
// refuses to leave a partition without one that could be led before.
func (im *Image) held(p Partition) (Partition, error) {
	p.ISR = only(p.ISR, func(id int32) bool { return slices.Contains(p.Replicas, id) })
	if p.Leader != NoLeader && slices.Contains(p.Replicas, p.Leader) {
		return p, nil
	}
	leader := im.preferred(p, p.ISR)
	if leader == NoLeader && (p.Leader != NoLeader || len(p.ISR) == 0) {
		return p, fmt.Errorf("%w: of the replicas %v, none that is in sync could lead", ErrNoReplicaInSync, p.Replicas)
	}
	if leader == p.Leader {
		return p, nil // there is none, as before
	}
	return p.ledBy(leader), nil
}

// repaired makes whole what was cut between the node of a topic, which is
// written first, and the states of its partitions: nobody is in sync who has
// no replica.
func repaired(im *Image) *Image {
	return im.mapPartitions(func(_ *Topic, _ int32, p Partition) Partition {
		if len(difference(p.ISR, p.Replicas)) == 0 {
			return p
		}
		next, err := im.held(p)
		if err != nil {
			next.Leader = NoLeader // until one of the in-sync replicas is back
			next.LeaderEpoch++
		}
		return next
	})
}

func orNil(ids []int32) []int32 {
	if len(ids) == 0 {
		return nil
	}
	return ids
}

// Ongoing is a reassignment that is under way.
type Ongoing struct {
	TopicPartition
	Replicas, Adding, Removing []int32
}

// Reassignments returns those under way, sorted. It costs time in the number of partitions.
func Reassignments(im *Image) []Ongoing {
	var out []Ongoing
	for _, t := range im.Topics() {
		for i, p := range t.Partitions {
			if p.Reassigning() {
				out = append(out, Ongoing{TopicPartition{t.Name, int32(i)}, p.Replicas, p.Adding, p.Removing})
			}
		}
	}
	return out
}
