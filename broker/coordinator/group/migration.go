package group

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
)

// Groups whose members change their protocol one by one (KIP-848, "Group
// Migration"). The first member of the consumer protocol makes a group of the
// classic one its own; the members that were there, and others that come, go on
// with the classic requests, which are answered out of the state of the consumer
// group: see mixed.go. When the last member of the consumer protocol goes, the
// group is one of the classic protocol again.

// upgraded is a group of the classic protocol as one of the consumer protocol,
// with the records that make it so: every member has what its leader gave it, and
// that is the target. Nothing has changed yet.
func (m *machine) upgraded(g *group) (c *consumerGroup, entries []consumerEntry, err error) {
	refuse := func(why string) (*consumerGroup, []consumerEntry, error) {
		return nil, nil, fmt.Errorf("%w: group %s has members of the classic protocol and is not taken over: %s", ErrGroupNotFound, g.id, why)
	}
	switch {
	case !m.cfg.ConsumerMigration.up():
		return refuse("group.consumer.migration.policy does not allow it")
	case g.protocolType != consumerProtocol:
		return refuse("they are no consumers")
	case len(g.members) > m.cfg.ConsumerMembersMax:
		return refuse("there are more than group.consumer.max.size")
	}
	c = newConsumerGroup()
	c.epoch, c.targetEpoch = g.generation, g.generation
	for _, mem := range g.members {
		next, err := m.modernMember(g, mem)
		if err != nil {
			return refuse(err.Error())
		}
		c.put(next)
		c.target[next.id] = next.assigned.set()
	}
	v := view{consumerGroup: c, image: m.topics()}
	c.hash = v.topicsHash()
	if g.persisted {
		entries = append(entries, classicEntry{g.id})
	}
	return c, append(entries, c.beginning(g.id)...), nil
}

// beginning are the records of a group that begins with members.
func (c *consumerGroup) beginning(group string) (entries []consumerEntry) {
	ids := c.memberIDs()
	for _, id := range ids {
		entries = append(entries, memberEntry{entryOf[consumerMember]{group, id, c.members[id]}})
	}
	entries = append(entries, epochEntry{entryOf[epochValue]{group, "", &epochValue{c.epoch, c.hash}}})
	for _, id := range ids {
		set := c.target[id]
		entries = append(entries, targetEntry{entryOf[partitionSet]{group, id, &set}})
	}
	entries = append(entries, targetEpochEntry{entryOf[targetEpochValue]{group, "", &targetEpochValue{epoch: c.targetEpoch}}})
	for _, id := range ids {
		entries = append(entries, currentEntry{entryOf[consumerMember]{group, id, c.members[id]}})
	}
	return entries
}

// modernMember is a member of the classic protocol as one of a consumer group.
func (m *machine) modernMember(g *group, mem *member) (*consumerMember, error) {
	subscription, err := readSubscription(mem.protocols)
	if err != nil {
		return nil, err
	}
	assigned, err := m.readAssignment(mem.assignment, g.generation)
	if err != nil {
		return nil, err
	}
	next := newConsumerMember(mem.id)
	next.instanceID, next.clientID, next.clientHost = mem.instanceID, mem.clientID, mem.clientHost
	next.classic = &classicSide{mem.sessionTimeout, mem.protocols}
	next.rebalanceTimeout, next.known = mem.rebalanceTimeout, true
	next.subscribe(subscription)
	next.epoch, next.previousEpoch, next.assigned = g.generation, g.generation, assigned
	return next, nil
}

// readSubscription is what a member says with the protocol that it likes best.
func readSubscription(protocols []Protocol) (s kmsg.ConsumerMemberMetadata, err error) {
	if len(protocols) == 0 {
		return s, fmt.Errorf("%w: no protocol", ErrInconsistentProtocol)
	}
	if err := s.ReadFrom(protocols[0].Metadata); err != nil {
		return s, fmt.Errorf("%w: the subscription is malformed: %w", ErrInconsistentProtocol, err)
	}
	return s, nil
}

// readAssignment is what a leader gave to a member.
func (m *machine) readAssignment(b []byte, epoch int32) (held heldPartitions, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	var given kmsg.ConsumerMemberAssignment
	if err := given.ReadFrom(b); err != nil {
		return nil, fmt.Errorf("an assignment is malformed: %w", err)
	}
	if len(given.UserData) > 0 {
		return nil, errors.New("an assignor of their own, whose data would be lost, has assigned")
	}
	for _, t := range given.Topics {
		topic := m.topics().Topic(t.Topic)
		if topic == nil {
			continue
		}
		for _, p := range t.Partitions {
			held = held.with(topic.ID, p, epoch)
		}
	}
	return held, nil
}

// releaseWaiting sends everybody who waits for the next generation of a group back,
// since there will be none.
func (m *machine) releaseWaiting(in step, g *group) {
	m.log.Info("a group changes to the consumer protocol", "group", g.id, "members", len(g.members))
	for _, mem := range g.members {
		mem.answerJoin(in.out, g, joinRefused(mem.id, ErrRebalanceInProgress))
		mem.answerSync(in.out, SyncResponse{Err: ErrRebalanceInProgress})
	}
}

// removeFromConsumer takes members out of a consumer group. If only members of
// the classic protocol are left, the group is theirs.
func (m *machine) removeFromConsumer(in step, g *group, ids []string, answer func(error)) {
	if m.mayDowngrade(g.consumer, ids) {
		m.downgrade(in, g, ids, func(_ step, err error) { answer(err) })
		return
	}
	c := g.consumer
	m.storeConsumer(in, g.id, c.withoutMembers(g.id, m.topics(), ids...), func() {
		for _, id := range ids {
			if clocks := c.clocks[id]; clocks != nil {
				m.timers.Stop(&clocks.rebalance)
			}
		}
	}, answer)
}

// mayDowngrade says whether a group without some members is one of the classic protocol.
func (m *machine) mayDowngrade(c *consumerGroup, without []string) bool {
	left := 0
	for id, mem := range c.members {
		switch {
		case slices.Contains(without, id):
		case mem.classic == nil:
			return false
		default:
			left++
		}
	}
	return left > 0 && m.cfg.ConsumerMigration.down() && left <= m.cfg.MembersMax
}

// downgrade ends a consumer group and goes on with its members of the classic
// protocol but for some, who are asked to rejoin at once. done comes when that is stored.
func (m *machine) downgrade(in step, g *group, without []string, done func(in step, err error)) {
	c := g.consumer
	next := m.classicGroup(g.id, c, without, in.now)
	m.log.Info("a consumer group changes to the classic protocol", "group", g.id, "members", len(next.members))
	var w coordinator.Write
	for _, e := range c.allGone(g.id) {
		w.Records = append(w.Records, e.record())
	}
	w.Records = append(w.Records, encodeGroup(next, next.assignments()))
	w.Appended = func() {
		m.endConsumer(g)
		next.offsets, next.persisted = g.offsets, true
		*g = *next
	}
	w.Done = func(err error, now time.Time, out *coordinator.Actions) {
		in := step{now, out}
		if err == nil && g.consumer == nil && g.state == stable {
			for _, mem := range g.members {
				m.keepSession(in, g, mem)
			}
			m.prepareRebalance(in, g, "the last member of the consumer protocol has left")
		}
		done(in, refusal(err))
	}
	in.out.Write(w)
}

// allGone are the records that end a group with its members.
func (c *consumerGroup) allGone(group string) (entries []consumerEntry) {
	ids := c.memberIDs()
	for _, id := range ids {
		entries = append(entries, currentEntry{entryOf[consumerMember]{group: group, name: id}})
	}
	for _, id := range ids {
		entries = append(entries, targetEntry{entryOf[partitionSet]{group: group, name: id}})
	}
	entries = append(entries, targetEpochEntry{entryOf[targetEpochValue]{group: group}})
	for _, id := range ids {
		entries = append(entries, memberEntry{entryOf[consumerMember]{group: group, name: id}})
	}
	for _, pattern := range sortedKeys(c.regexes) {
		entries = append(entries, regexEntry{entryOf[resolvedRegex]{group: group, name: pattern}})
	}
	return append(entries, partitionMetadataEntry{entryOf[struct{}]{group: group}}, epochEntry{entryOf[epochValue]{group: group}})
}

// classicGroup is a stable generation of the members of the classic protocol: the
// group's epoch, in which each has its target.
func (m *machine) classicGroup(id string, c *consumerGroup, without []string, now time.Time) *group {
	g := newGroup(id, now)
	g.generation = c.epoch
	for _, memberID := range c.memberIDs() {
		mem := c.members[memberID]
		if mem.classic == nil || slices.Contains(without, memberID) {
			continue
		}
		g.add(&member{
			id: mem.id, instanceID: mem.instanceID, clientID: mem.clientID, clientHost: mem.clientHost,
			sessionTimeout: mem.classic.sessionTimeout, rebalanceTimeout: mem.rebalanceTimeout,
			protocols: mem.classic.protocols, assignment: m.encodeAssignment(c.target[memberID], mem.classic),
		}, consumerProtocol)
	}
	g.protocol = g.selectProtocol()
	g.subscribed = g.subscriptions()
	g.transition(stable, now)
	return g
}

// encodeAssignment is an assignment as a leader would give it, in the version of
// the member's subscription.
func (m *machine) encodeAssignment(set partitionSet, classic *classicSide) []byte {
	a := kmsg.NewConsumerMemberAssignment()
	if s, err := readSubscription(classic.protocols); err == nil {
		a.Version = s.Version
	}
	for _, id := range sortedTopics(set) {
		if t := m.topics().TopicByID(id); t != nil {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t.Name, Partitions: set[id]})
		}
	}
	return a.AppendTo(nil)
}

// ownedOf is what a member says in its subscription that it has.
func ownedOf(image *cluster.Image, s *kmsg.ConsumerMemberMetadata) partitionSet {
	owned := partitionSet{}
	for _, t := range s.OwnedPartitions {
		if topic := image.Topic(t.Topic); topic != nil {
			owned[topic.ID] = normal(append(append([]int32(nil), owned[topic.ID]...), t.Partitions...))
		}
	}
	return owned
}
