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

// arrived tells whether a reassignment has got what it moves to: all of that is in
// sync. One that was taken back moves to what was there before, whoever of it is in
// sync.
func (p Partition) arrived() bool {
	target := p.target()
	return p.Reassigning() && (len(difference(target, p.ISR)) == 0 || sameMembers(target, p.origin()))
}

// Leaving are the replicas that are to go now: their leader takes them out of those
// in sync, and lets none of them in. A leader does that and not the controller, which
// cannot know who of the others is still there, nor what they have synced; a leader
// that is about to be alone in sync syncs its log first.
func (p Partition) Leaving() []int32 {
	if !p.arrived() || !slices.Contains(p.target(), p.Leader) {
		return nil
	}
	return p.Removing
}

// toward begins to move a partition from what it had to other replicas. Those that
// an earlier move has brought in sync and this one does not want are both being
// added and being removed: nobody who is in sync goes but by its leader.
func (p Partition) toward(target []int32) Partition {
	origin := p.origin()
	unwanted := only(difference(p.Adding, target), func(id int32) bool { return slices.Contains(p.ISR, id) })
	p.Adding = orNil(slices.Concat(difference(target, origin), unwanted))
	p.Removing = orNil(slices.Concat(difference(origin, target), unwanted))
	p.Replicas = slices.Concat(target, p.Removing)
	return p
}

// StartReassignment begins to move a partition to other replicas (KIP-455). It
// may replace a reassignment that is under way. The new replicas are added
// first; when all of them are in sync, one of them leads and takes out the old ones,
// see [ContinueReassignment]. Errors are [ErrUnknownPartition] and
// [ErrInvalidAssignment].
func StartReassignment(im *Image, tp TopicPartition, target []int32) (*Image, error) {
	t, p, err := im.partition(tp)
	if err != nil {
		return nil, err
	}
	if err := checkTarget(im, tp.Partition, p.origin(), target); err != nil {
		return nil, err
	}
	return im.withPartition(t, tp.Partition, p.toward(target)), nil
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

// CancelReassignment takes a reassignment back: it is one to what was there before
// then, which ends at once unless a new replica is in sync. Errors are
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
	next := p.toward(p.origin())
	inSync := difference(p.ISR, next.Removing)
	if len(inSync) == 0 || p.Leader != NoLeader && !slices.Contains(inSync, p.Leader) && im.preferred(next, inSync) == NoLeader {
		return nil, fmt.Errorf("cancel the reassignment of %s-%d: %w: of the replicas %v, none that is in sync could lead",
			tp.Topic, tp.Partition, ErrNoReplicaInSync, p.origin())
	}
	return im.withPartition(t, tp.Partition, im.continued(next)), nil
}

// ContinueReassignment goes on with a partition's reassignment as far as that can
// be: once it has arrived, one of the replicas that stay becomes the leader, and
// when that one has taken out those that go, they are gone. It returns im if there
// is nothing to do yet.
func ContinueReassignment(im *Image, tp TopicPartition) *Image {
	t, p, err := im.partition(tp)
	if err != nil {
		return im
	}
	next := im.continued(p)
	if next.Equal(p) {
		return im
	}
	return im.withPartition(t, tp.Partition, next)
}

func (im *Image) continued(p Partition) Partition {
	if !p.arrived() {
		return p
	}
	target := p.target()
	if !slices.Contains(target, p.Leader) {
		leader := im.preferred(p, difference(p.ISR, p.Removing))
		if leader == NoLeader && p.Leader != NoLeader {
			return p
		}
		if leader != NoLeader {
			p = p.ledBy(leader)
		}
	}
	if len(difference(p.ISR, target)) == 0 {
		p.Replicas, p.Adding, p.Removing = target, nil, nil
	}
	return p
}

// repaired makes whole what was cut between the node of a topic, which is
// written first, and the states of its partitions, and what another program has
// written: nobody is in sync who has no replica.
func repaired(im *Image) *Image {
	return im.mapPartitions(func(_ *Topic, _ int32, p Partition) Partition {
		if len(difference(p.ISR, p.Replicas)) == 0 {
			return p
		}
		p.ISR = only(p.ISR, func(id int32) bool { return slices.Contains(p.Replicas, id) })
		if p.Leader != NoLeader && slices.Contains(p.Replicas, p.Leader) {
			return p
		}
		// None until one of the in-sync replicas is back, if none is there.
		return p.ledBy(im.preferred(p, p.ISR))
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
