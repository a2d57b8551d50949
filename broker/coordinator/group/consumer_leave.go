package group

import (
	"maps"

	"github.com/sluice-io/sluice/broker/cluster"
)

// consumerLeave takes a member out, or lets a static one go away for a while.
func (m *machine) consumerLeave(in step, req ConsumerHeartbeat, answer func(ConsumerHeartbeatResponse)) {
	g, mem, err := m.leavingMember(req)
	if err != nil {
		in.out.Reply(func() { answer(ConsumerHeartbeatResponse{Err: err}) })
		return
	}
	resp := ConsumerHeartbeatResponse{MemberID: mem.id, Epoch: req.Epoch}
	m.log.Info("member left a consumer group", "group", g.id, "member", mem.id, "epoch", req.Epoch)
	stored := func(err error) {
		if err != nil {
			resp = ConsumerHeartbeatResponse{Err: err}
		}
		answer(resp)
	}
	if req.Epoch != leaveStaticEpoch {
		m.removeFromConsumer(in, g, []string{mem.id}, stored)
		return
	}
	c := g.consumer
	m.storeConsumer(in, g.id, []consumerEntry{goneForAWhile(g.id, mem)}, func() {
		if clocks := c.clocks[mem.id]; clocks != nil {
			m.timers.Stop(&clocks.rebalance)
		}
	}, stored)
}

func (m *machine) leavingMember(req ConsumerHeartbeat) (*group, *consumerMember, error) {
	g := m.groups[req.Group]
	switch {
	case g == nil || g.consumer == nil:
		return nil, nil, ErrGroupNotFound
	case g.state == dead:
		return nil, nil, ErrUnavailable
	}
	id := req.MemberID
	if req.InstanceID != nil {
		holder, held := g.consumer.instances[*req.InstanceID]
		switch {
		case !held:
			return nil, nil, ErrUnknownMember
		case holder != id:
			return nil, nil, ErrFencedInstance
		}
	}
	mem := g.consumer.members[id]
	if mem == nil {
		return nil, nil, ErrUnknownMember
	}
	return g, mem, nil
}

// goneForAWhile keeps a static member's partitions for it until its session ends.
func goneForAWhile(group string, mem *consumerMember) consumerEntry {
	next := *mem
	next.epoch, next.assigned, next.revoking = leaveStaticEpoch, nil, nil
	for tp := range mem.assigned.all() { // who comes back begins with an epoch of its own
		next.assigned = next.assigned.with(tp.topic, tp.partition, joinEpoch)
	}
	return currentEntry{entryOf[consumerMember]{group, mem.id, &next}}
}

// withoutMembers are the records that end members, and the group's next epoch without them.
func (c *consumerGroup) withoutMembers(group string, image *cluster.Image, ids ...string) (entries []consumerEntry) {
	left := *c
	left.members = maps.Clone(c.members)
	for _, id := range ids {
		entries = append(entries, memberGone(group, id)...)
		delete(left.members, id)
	}
	for _, pattern := range sortedKeys(c.regexes) {
		if left.regexUsers(pattern) == 0 {
			entries = append(entries, regexEntry{entryOf[resolvedRegex]{group: group, name: pattern}})
		}
	}
	v := view{consumerGroup: &left, image: image}
	if c.partitionMetadata {
		entries = append(entries, partitionMetadataEntry{entryOf[struct{}]{group: group}})
	}
	entries = append(entries, epochEntry{entryOf[epochValue]{group, "", &epochValue{c.epoch + 1, v.topicsHash()}}})
	if len(left.members) == 0 { // there is nothing to assign, and the next one to join waits for nothing
		entries = append(entries, targetEpochEntry{entryOf[targetEpochValue]{group, "", &targetEpochValue{epoch: c.epoch + 1}}})
	}
	return entries
}

// groupGone are the records that end a group without members.
func (c *consumerGroup) groupGone(group string) (entries []consumerEntry) {
	for _, id := range sortedKeys(c.target) { // of a log that another software wrote
		entries = append(entries, targetEntry{entryOf[partitionSet]{group: group, name: id}})
	}
	entries = append(entries, targetEpochEntry{entryOf[targetEpochValue]{group: group}})
	for _, pattern := range sortedKeys(c.regexes) {
		entries = append(entries, regexEntry{entryOf[resolvedRegex]{group: group, name: pattern}})
	}
	return append(entries, partitionMetadataEntry{entryOf[struct{}]{group: group}}, epochEntry{entryOf[epochValue]{group: group}})
}
