package cluster

import "slices"

// The files decide*.go have what a controller decides, as functions from one
// image to the next: no I/O, no clock, no goroutine, so that a simulation can
// drive them. The rules that all of them keep:
//
//   - the in-sync replicas hold the leader, if there is one;
//   - only a member of the in-sync replicas becomes leader, unless the election
//     is an unclean one;
//   - another leader, none included, has a leader epoch of its own, and an epoch
//     never falls;
//   - each decision raises the partition epoch of what it changes by one, as the
//     version of the state's node will be, and so is to be stored ([StateOps])
//     before the next one is taken.

// Never as the unclean of a decision allows no unclean election.
func Never(string) bool { return false }

// StateOps returns what stores the step from old to new: topics that are made,
// partitions that are added, assignments and states that changed. Each state is
// set over the version it was decided on. It costs time in what differs.
// Topics that are gone are not in it; see [Controller.DeleteTopics].
func StateOps(old, new *Image, controllerEpoch int32) []Op {
	var ops []Op
	DiffTopics(old, new, func(was, is *Topic) {
		switch {
		case is == nil:
		case was == nil || was.ID != is.ID:
			ops = append(ops, createTopicOps(is, controllerEpoch)...)
		default:
			ops = append(ops, changeTopicOps(was, is, controllerEpoch)...)
		}
	})
	return ops
}

// changeTopicOps has the topic's node first: a controller that comes later
// completes the states of partitions that it names.
func changeTopicOps(was, is *Topic, controllerEpoch int32) []Op {
	var ops []Op
	assigned := len(was.Partitions) != len(is.Partitions)
	for i := range is.Partitions {
		if i >= len(was.Partitions) {
			ops = append(ops, createPartitionOps(is, int32(i), controllerEpoch)...)
			continue
		}
		a, b := was.Partitions[i], is.Partitions[i]
		if !sameAssignment(a, b) {
			assigned = true
		}
		if a.PartitionEpoch != b.PartitionEpoch {
			ops = append(ops, Set(statePath(is.Name, int32(i)), stateNode(b, controllerEpoch), a.PartitionEpoch))
		}
	}
	if assigned {
		ops = append([]Op{Set(topicPath(is.Name), topicNode(is), AnyVersion)}, ops...)
	}
	return ops
}

func sameAssignment(a, b Partition) bool {
	return slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.Adding, b.Adding) && slices.Equal(a.Removing, b.Removing)
}

// stepped returns the next state of a partition as it is stored: its partition
// epoch is one higher if anything differs that the store keeps.
func stepped(was, is Partition) Partition {
	is.PartitionEpoch = was.PartitionEpoch
	stored := is
	stored.Offline = was.Offline
	if !stored.Equal(was) {
		is.PartitionEpoch++
	}
	return is
}

// mapPartitions returns an image in which every partition is what fn makes of it.
func (im *Image) mapPartitions(fn func(t *Topic, i int32, p Partition) Partition) *Image {
	out := im
	for _, t := range im.Topics() {
		var next *Topic
		for i := range t.Partitions {
			p := stepped(t.Partitions[i], fn(t, int32(i), t.Partitions[i]))
			if p.Equal(t.Partitions[i]) {
				continue
			}
			if next == nil {
				next = t.cloned()
			}
			next.Partitions[i] = p
		}
		if next != nil {
			out = out.With(next)
		}
	}
	return out
}

// withPartition returns an image with another state of one partition.
func (im *Image) withPartition(t *Topic, i int32, p Partition) *Image {
	next := t.cloned()
	next.Partitions[i] = stepped(t.Partitions[i], p)
	return im.With(next)
}

func (t *Topic) cloned() *Topic {
	next := *t
	next.Partitions = slices.Clone(t.Partitions)
	return &next
}

// partition finds a partition that a decision is asked for.
func (im *Image) partition(tp TopicPartition) (*Topic, Partition, error) {
	t := im.Topic(tp.Topic)
	if t == nil || tp.Partition < 0 || int(tp.Partition) >= len(t.Partitions) {
		return nil, Partition{}, unknownPartition(tp)
	}
	return t, t.Partitions[tp.Partition], nil
}

// mayLead tells whether a broker can be given the leadership of a partition
// that it has a replica of.
func (im *Image) mayLead(p Partition, id int32) bool {
	b, live := im.Broker(id)
	return live && !b.ShuttingDown && !slices.Contains(p.Offline, id)
}

// preferred returns the first replica, in order of preference, that is among
// some and can lead; NoLeader if none.
func (im *Image) preferred(p Partition, among []int32) int32 {
	for _, id := range p.Replicas {
		if slices.Contains(among, id) && im.mayLead(p, id) {
			return id
		}
	}
	return NoLeader
}

// uncleanLeader returns who is to lead where nobody that can is in sync: the
// most preferred replica, of those that did not come back with less than they
// had if there are any.
func (im *Image) uncleanLeader(p Partition) int32 {
	whole := only(p.Replicas, func(id int32) bool {
		b, _ := im.Broker(id)
		return !b.Replaced && !b.Lost
	})
	if leader := im.preferred(p, whole); leader != NoLeader {
		return leader
	}
	return im.preferred(p, p.Replicas)
}

// ledBy gives a partition another leader, or none, in an epoch of its own.
func (p Partition) ledBy(leader int32) Partition {
	p.Leader = leader
	p.LeaderEpoch++
	return p
}

// only returns the members of ids that pass, in a new slice; never nil.
func only(ids []int32, pass func(int32) bool) []int32 {
	out := make([]int32, 0, len(ids))
	for _, id := range ids {
		if pass(id) {
			out = append(out, id)
		}
	}
	return out
}

func without(ids []int32, id int32) []int32 {
	return only(ids, func(other int32) bool { return other != id })
}

func difference(a, b []int32) []int32 {
	return only(a, func(id int32) bool { return !slices.Contains(b, id) })
}
