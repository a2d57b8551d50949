package group

import (
	"fmt"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// checkCommit says whether a commit is allowed in a group of the consumer protocol. A commit with
// an older epoch of the member's is taken as long as all of its partitions were the member's then
// already, and still are: nobody else can have committed anything since.
func (c *consumerGroup) checkCommit(req CommitRequest) error {
	if req.Generation < 0 && len(c.members) == 0 {
		return nil
	}
	mem := c.members[req.MemberID]
	switch {
	case mem == nil:
		return ErrUnknownMember
	case mem.classic != nil && req.Generation != mem.epoch:
		return ErrIllegalGeneration
	case mem.classic != nil:
		return nil
	case !req.ByEpoch:
		return ErrUnsupportedVersion
	case req.Generation == mem.epoch:
		return nil
	case req.Generation > mem.epoch:
		return fmt.Errorf("%w: %d is newer than the known %d", ErrStaleMemberEpoch, req.Generation, mem.epoch)
	}
	for _, commit := range req.Commits {
		since, held := mem.lastEpochOf(commit.TopicID, commit.Partition)
		if !held || req.Generation < since {
			return fmt.Errorf("%w: %d; partition %s-%d is not the member's since then", ErrStaleMemberEpoch, req.Generation, commit.Topic, commit.Partition)
		}
	}
	return nil
}

// checkFetch says whether a member may ask for offsets: not before it knows of its present epoch,
// since the partitions that it asks for may be another's. Who is no member may always ask.
func (c *consumerGroup) checkFetch(req FetchRequest) error {
	if req.MemberID == "" && req.MemberEpoch < 0 {
		return nil
	}
	mem := c.members[req.MemberID]
	switch {
	case mem == nil:
		return ErrUnknownMember
	case req.MemberEpoch != mem.epoch:
		return fmt.Errorf("%w: %d; it is %d", ErrStaleMemberEpoch, req.MemberEpoch, mem.epoch)
	}
	return nil
}

// consumerLoaded begins the sessions of a group's members anew, after a replay.
func (m *machine) consumerLoaded(now time.Time, g *group) {
	c := g.consumer
	for _, id := range c.memberIDs() {
		mem := c.members[id]
		if !mem.known { // what compaction has left of one that is gone
			c.forget(id)
			delete(c.target, id)
			continue
		}
		m.setConsumerSession(now, g, id)
		if mem.state == revoking && mem.epoch >= joinEpoch && mem.classic == nil {
			m.setRebalanceTimeout(now, g, mem)
		}
	}
}

// becomeClassic lets a member of the classic protocol into a group of the consumer protocol that
// has no members any more: the group changes its protocol. With members it does not.
func (m *machine) becomeClassic(in step, g *group, req *JoinRequest) error {
	switch {
	case len(g.consumer.members) > 0: // and the policy does not let them mix
		return fmt.Errorf("%w: group %s has members of the consumer protocol; it can change to the classic one when they have left",
			ErrInconsistentProtocol, g.id)
	case req.MemberID != "":
		return ErrUnknownMember
	}
	m.log.Info("a consumer group changes to the classic protocol", "group", g.id)
	in.out.Write(coordinator.Write{Records: g.tombstones(), Done: func(err error, _ time.Time, _ *coordinator.Actions) {
		if err != nil { // the classic group's own record will say the same
			m.log.Warn("the end of a consumer group was not stored", "group", g.id, "error", err)
		}
	}})
	m.endConsumer(g)
	g.since = in.now
	return nil
}

// describeConsumer tells of a group when what there is to tell is stored.
func (m *machine) describeConsumer(id string, in step, answer func(ConsumerDescription, error)) {
	g := m.groups[id]
	if g == nil || g.state == dead || g.consumer == nil {
		in.out.Reply(func() { answer(ConsumerDescription{Group: id}, ErrGroupNotFound) })
		return
	}
	c := g.consumer
	v := view{consumerGroup: c, image: m.topics()}
	d := ConsumerDescription{
		Group: id, State: c.state(), Epoch: c.epoch, TargetEpoch: c.targetEpoch, Assignor: v.preferredAssignor(m.cfg),
	}
	for _, memberID := range c.memberIDs() {
		mem := c.members[memberID]
		d.Members = append(d.Members, ConsumerMemberDescription{
			ID: mem.id, InstanceID: mem.instanceID, RackID: mem.rackID, ClientID: mem.clientID, ClientHost: mem.clientHost,
			Epoch: mem.epoch, Classic: mem.classic != nil, Topics: mem.topics, Regex: mem.regex,
			Assignment: mem.held().set().topicPartitions(), Target: c.target[memberID].topicPartitions(),
		})
	}
	m.whenStored(in, g, func(err error) {
		if err != nil {
			d = ConsumerDescription{Group: id}
		}
		answer(d, err)
	})
}

// deleteOffsets removes committed offsets that no member needs.
func (m *machine) deleteOffsets(id string, partitions []Partition, out *coordinator.Actions, answer func([]error, error)) {
	g := m.groups[id]
	var err error
	switch {
	case g == nil || g.state == dead:
		err = ErrGroupNotFound
	case g.consumer == nil && g.state != empty && g.protocolType != consumerProtocol:
		err = ErrNonEmptyGroup
	}
	if err != nil {
		out.Reply(func() { answer(nil, err) })
		return
	}
	errs := make([]error, len(partitions))
	wanted := make(map[string]map[int32]bool)
	for i, p := range partitions {
		if g.needs(p.Topic) {
			errs[i] = ErrSubscribed
			continue
		}
		if wanted[p.Topic] == nil {
			wanted[p.Topic] = make(map[int32]bool)
		}
		wanted[p.Topic][p.Partition] = true
	}
	places := g.offsets.places(func(topic string, partition int32, _ *slot) bool { return wanted[topic][partition] })
	if len(places) == 0 {
		out.Reply(func() { answer(errs, nil) })
		return
	}
	m.removeOffsets(g, places, nil, out, func(err error, out *coordinator.Actions) {
		m.dropIfBlank(g)
		out.Reply(func() { answer(errs, refusal(err)) })
	})
}

// needs says whether members subscribe to a topic. Of members whose subscriptions cannot be read it
// is taken that they do.
func (g *group) needs(topic string) bool {
	switch {
	case g.consumer != nil:
		return g.consumer.subscribes(topic)
	case g.state == empty:
		return false
	case g.subscribed == nil:
		return true
	}
	_, found := g.subscribed[topic]
	return found
}
