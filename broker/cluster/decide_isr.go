package cluster

import (
	"fmt"
	"slices"
)

// UnknownBrokerEpoch is the epoch of an in-sync replica whose broker epoch the
// leader does not know. It is not compared.
const UnknownBrokerEpoch int64 = -1

// AlterPartition is what a leader asks: other in-sync replicas (KIP-497).
type AlterPartition struct {
	TopicPartition
	TopicID TopicID
	// Leader is the broker that asks.
	Leader int32
	// LeaderEpoch and PartitionEpoch are those of the state that it goes out from.
	LeaderEpoch, PartitionEpoch int32
	// ISR are the replicas that shall be in sync, the leader included.
	ISR []InSyncReplica
}

// InSyncReplica is a replica that its leader found in sync.
type InSyncReplica struct {
	ID int32
	// Epoch is the broker epoch that it fetched with (KIP-903): a broker that was
	// reborn since is not let in.
	Epoch int64
}

// AlterPartitionResult is the answer: the partition as it is now, or why not.
type AlterPartitionResult struct {
	TopicPartition
	TopicID   TopicID
	Partition Partition
	Err       error
}

// AlterISR decides on a leader's request. One that is granted already changes
// nothing and is no error, whichever partition epoch it went out from: an answer
// may have been lost. Errors are [ErrUnknownTopic], [ErrUnknownPartition],
// [ErrFencedLeaderEpoch], [ErrInvalidUpdateVersion], [ErrIneligibleReplica],
// [ErrInvalidRequest], and [ErrNotController] if the leader knows more than im.
func AlterISR(im *Image, a AlterPartition) (*Image, error) {
	t, p, err := im.partition(a.TopicPartition)
	if err != nil {
		return nil, err
	}
	if t.ID != a.TopicID {
		return nil, fmt.Errorf("%w: %q has been deleted and made again", ErrUnknownTopic, a.Topic)
	}
	if err := a.admit(p); err != nil {
		return nil, fmt.Errorf("change the in-sync replicas of %s-%d: %w", a.Topic, a.Partition, err)
	}
	isr := make([]int32, len(a.ISR))
	for i, r := range a.ISR {
		isr[i] = r.ID
	}
	if sameMembers(isr, p.ISR) {
		return im, nil
	}
	if a.PartitionEpoch < p.PartitionEpoch {
		err = fmt.Errorf("%w: it is %d, not %d", ErrInvalidUpdateVersion, p.PartitionEpoch, a.PartitionEpoch)
	} else {
		err = a.eligible(im, p)
	}
	if err != nil {
		return nil, fmt.Errorf("change the in-sync replicas of %s-%d: %w", a.Topic, a.Partition, err)
	}
	p.ISR = isr
	return im.withPartition(t, a.Partition, p), nil
}

// admit checks who asks.
func (a AlterPartition) admit(p Partition) error {
	switch {
	case a.LeaderEpoch < p.LeaderEpoch:
		return fmt.Errorf("%w: it is %d, not %d", ErrFencedLeaderEpoch, p.LeaderEpoch, a.LeaderEpoch)
	case a.LeaderEpoch > p.LeaderEpoch || a.PartitionEpoch > p.PartitionEpoch:
		return fmt.Errorf("%w: a newer state is known to broker %d", ErrNotController, a.Leader)
	case a.Leader != p.Leader:
		return fmt.Errorf("%w: broker %d does not lead", ErrFencedLeaderEpoch, a.Leader)
	}
	return nil
}

// eligible checks who shall be in sync.
func (a AlterPartition) eligible(im *Image, p Partition) error {
	leads := false
	for i, r := range a.ISR {
		b, live := im.Broker(r.ID)
		switch {
		case slices.ContainsFunc(a.ISR[:i], func(other InSyncReplica) bool { return other.ID == r.ID }):
			return fmt.Errorf("%w: broker %d appears twice", ErrInvalidRequest, r.ID)
		case !slices.Contains(p.Replicas, r.ID):
			return fmt.Errorf("%w: broker %d has no replica", ErrInvalidRequest, r.ID)
		case r.ID == p.Leader:
			leads = true
			continue // whoever asks is there; a leader that shuts down may still give up followers
		case slices.Contains(p.ISR, r.ID) && live && (r.Epoch == UnknownBrokerEpoch || r.Epoch == b.Epoch):
			continue // it stays
		case !im.mayLead(p, r.ID):
			return fmt.Errorf("%w: broker %d is gone, shuts down or has a failed disk", ErrIneligibleReplica, r.ID)
		case r.Epoch != UnknownBrokerEpoch && r.Epoch != b.Epoch:
			return fmt.Errorf("%w: broker %d fetched in epoch %d, and is in epoch %d", ErrIneligibleReplica, r.ID, r.Epoch, b.Epoch)
		}
	}
	if !leads {
		return fmt.Errorf("%w: the leader, broker %d, is not in sync with itself", ErrInvalidRequest, p.Leader)
	}
	return nil
}

func sameMembers(a, b []int32) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
