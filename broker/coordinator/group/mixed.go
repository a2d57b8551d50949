package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Members of the classic protocol in a group of the consumer protocol. A join is
// what a heartbeat of a member of the consumer protocol is: it says what the member
// subscribes to and what it has, and brings it one step closer to its target. The
// member is told what it may have with its sync, and, with a heartbeat, to rejoin
// when there is another step to take. Nobody leads.

// mixes says whether members of the classic protocol are answered out of the
// state of a consumer group. g may be nil.
func (g *group) mixes(policy MigrationPolicy) bool {
	return g != nil && g.consumer != nil && g.state != dead && len(g.consumer.members) > 0 && policy != MigrateNever
}

func (m *machine) joinConsumer(in step, g *group, req JoinRequest, answer func(JoinResponse)) {
	refuse := func(err error) { in.out.Reply(func() { answer(joinRefused(req.MemberID, err)) }) }
	subscription, err := m.admitClassic(g.consumer, &req)
	if err != nil {
		refuse(err)
		return
	}
	if req.MemberID == "" {
		id := memberIDPrefix(req) + "-" + m.newID()
		if req.InstanceID == "" && req.RequireMemberID {
			in.out.Reply(func() { answer(joinRefused(id, ErrMemberIDRequired)) })
			return
		}
		req.MemberID = id
	}
	if holder := g.consumer.members[g.consumer.instances[req.InstanceID]]; req.InstanceID != "" && holder != nil && holder.classic == nil &&
		m.mayDowngrade(g.consumer, []string{holder.id}) {
		// Its member of the consumer protocol, the last one, is replaced: the group is a classic one before it joins.
		req.MemberID = ""
		m.downgrade(in, g, []string{holder.id}, func(in step, err error) {
			if err != nil {
				in.out.Reply(func() { answer(joinRefused("", err)) })
				return
			}
			m.join(req, in.now, in.out, answer)
		})
		return
	}
	plan, err := m.planJoin(g.consumer, req, subscription, in.now)
	if err != nil {
		refuse(err)
		return
	}
	resp := JoinResponse{
		Generation: plan.member.epoch, ProtocolType: consumerProtocol, Protocol: req.Protocols[0].Name, MemberID: plan.member.id,
	}
	m.storeConsumer(in, g.id, plan.entries, func() { m.afterJoin(in.now, g, plan, req.RebalanceTimeout) }, func(err error) {
		if err != nil {
			resp = joinRefused(req.MemberID, err)
		}
		answer(resp)
	})
}

// memberIDPrefix is what the id begins with that a member is given.
func memberIDPrefix(req JoinRequest) string {
	if req.InstanceID != "" {
		return req.InstanceID
	}
	return req.ClientID
}

// admitClassic checks a join, and reads its subscription.
func (m *machine) admitClassic(c *consumerGroup, req *JoinRequest) (s kmsg.ConsumerMemberMetadata, err error) {
	switch {
	case m.topics() == nil:
		return s, ErrUnavailable
	case req.SessionTimeout < m.cfg.SessionTimeoutMin || req.SessionTimeout > m.cfg.SessionTimeoutMax:
		return s, ErrInvalidSessionTimeout
	case c.members[req.MemberID] == nil && len(c.members) >= m.cfg.ConsumerMembersMax:
		return s, ErrGroupFull
	case !c.supports(req.ProtocolType, req.Protocols):
		return s, ErrInconsistentProtocol
	}
	return readSubscription(req.Protocols)
}

// supports says whether a member offers a protocol that all others of the classic protocol have.
func (c *consumerGroup) supports(protocolType string, protocols []Protocol) bool {
	return protocolType == consumerProtocol && slices.ContainsFunc(protocols, func(p Protocol) bool {
		for _, mem := range c.members {
			if mem.classic != nil && !slices.ContainsFunc(mem.classic.protocols, func(q Protocol) bool { return q.Name == p.Name }) {
				return false
			}
		}
		return true
	})
}

// planJoin decides on a join as on a heartbeat.
func (m *machine) planJoin(c *consumerGroup, req JoinRequest, s kmsg.ConsumerMemberMetadata, now time.Time) (*heartbeatPlan, error) {
	before, replaced, err := c.admitJoin(req)
	if err != nil {
		return nil, err
	}
	next := *before
	next.known, next.instanceID = true, req.InstanceID
	next.clientID, next.clientHost, next.rebalanceTimeout = req.ClientID, req.ClientHost, req.RebalanceTimeout
	next.assignor, next.regex = "", ""
	next.classic = &classicSide{req.SessionTimeout, cloneProtocols(req.Protocols)}
	next.subscribe(s)
	d := &heartbeatDraft{
		cfg: m.cfg, now: now, req: ConsumerHeartbeat{Group: req.Group, MemberID: req.MemberID}, before: before,
		owned: ownedOf(m.topics(), &s),
		view:  view{consumerGroup: c, image: m.topics(), changed: &next, removed: replaced},
	}
	d.update()
	d.reconcile()
	return &d.plan, nil
}

// admitJoin finds the member that joins, or makes it.
func (c *consumerGroup) admitJoin(req JoinRequest) (mem *consumerMember, replaced string, err error) {
	if req.InstanceID == "" {
		return c.member(req.MemberID), "", nil
	}
	holder := c.members[c.instances[req.InstanceID]]
	switch {
	case holder == nil || holder.id == req.MemberID:
		return c.member(req.MemberID), "", nil
	case c.members[req.MemberID] != nil:
		return nil, "", ErrFencedInstance
	}
	return holder.renamed(req.MemberID), holder.id, nil
}

// subscribe takes over what a member of the classic protocol subscribes to.
func (mem *consumerMember) subscribe(s kmsg.ConsumerMemberMetadata) {
	mem.topics = slices.Compact(slices.Sorted(slices.Values(s.Topics)))
	if s.Rack != nil {
		mem.rackID = *s.Rack
	}
}

// afterJoin gives the member its session, and the time to ask for its assignment.
func (m *machine) afterJoin(now time.Time, g *group, plan *heartbeatPlan, sync time.Duration) {
	m.afterHeartbeat(now, g.id, plan)
	id := plan.member.id
	clocks := g.consumer.clocksOf(id)
	m.timers.Stop(&clocks.join)
	m.setTimer(&clocks.sync, now.Add(max(sync, 0)), func(in step) { m.fence(in, g, id, "it did not ask for its assignment") })
}

// classicMember finds the member of the classic protocol that a request is from.
func (c *consumerGroup) classicMember(id, instance string) (*consumerMember, error) {
	if instance != "" {
		holder, held := c.instances[instance]
		switch {
		case !held:
			return nil, ErrUnknownMember
		case holder != id:
			return nil, ErrFencedInstance
		}
	}
	mem := c.members[id]
	if mem == nil || mem.classic == nil {
		return nil, ErrUnknownMember
	}
	return mem, nil
}

func (m *machine) syncConsumer(in step, g *group, req SyncRequest, answer func(SyncResponse)) {
	c := g.consumer
	mem, err := c.classicMember(req.MemberID, req.InstanceID)
	switch {
	case err != nil:
	case req.Generation != mem.epoch:
		err = ErrIllegalGeneration
	case differs(req.ProtocolType, consumerProtocol) || differs(req.Protocol, mem.classic.protocols[0].Name):
		err = ErrInconsistentProtocol
	}
	if err != nil {
		in.out.Reply(func() { answer(SyncResponse{Err: err}) })
		return
	}
	m.timers.Stop(&c.clocksOf(mem.id).sync)
	m.setConsumerSession(in.now, g, mem.id)
	resp := SyncResponse{
		ProtocolType: consumerProtocol, Protocol: mem.classic.protocols[0].Name,
		Assignment: m.encodeAssignment(mem.assigned.set(), mem.classic),
	}
	m.whenStored(in, g, func(err error) {
		if err != nil {
			resp = SyncResponse{Err: err}
		}
		answer(resp)
	})
}

// heartbeatConsumer keeps a member's session, and asks it to rejoin when it can come closer to its target.
func (m *machine) heartbeatConsumer(in step, g *group, req HeartbeatRequest) error {
	c := g.consumer
	mem, err := c.classicMember(req.MemberID, req.InstanceID)
	switch {
	case err != nil:
		return err
	case req.Generation != mem.epoch:
		return ErrIllegalGeneration
	}
	m.setConsumerSession(in.now, g, mem.id)
	if mem.epoch == c.targetEpoch && mem.state == settled || mem.state == awaiting && mem.epoch == c.targetEpoch && c.waits(mem) {
		return nil
	}
	clocks := c.clocksOf(mem.id)
	if !clocks.join.IsSet() {
		id := mem.id
		m.setTimer(&clocks.join, in.now.Add(max(mem.rebalanceTimeout, 0)), func(in step) { m.fence(in, g, id, "it did not rejoin in time") })
	}
	return ErrRebalanceInProgress
}

// waits says whether anything of a member's target is another's still.
func (c *consumerGroup) waits(mem *consumerMember) bool {
	for topic, partitions := range c.target[mem.id] {
		for _, p := range partitions {
			if owner := c.owners[topicPartition{topic, p}]; owner != "" && owner != mem.id {
				return true
			}
		}
	}
	return false
}

func (m *machine) leaveConsumer(in step, g *group, req LeaveRequest, answer func(LeaveResponse)) {
	resp := LeaveResponse{Members: make([]error, len(req.Members))}
	var ids []string
	for i, who := range req.Members {
		id := who.MemberID
		if id == "" && who.InstanceID != "" { // an administrator
			id = g.consumer.instances[who.InstanceID]
		}
		mem, err := g.consumer.classicMember(id, who.InstanceID)
		switch {
		case err != nil:
			resp.Members[i] = err
		case slices.Contains(ids, mem.id):
			resp.Members[i] = fmt.Errorf("%w: it is named twice", ErrUnknownMember)
		default:
			m.log.Info("member left", "group", g.id, "member", mem.id, "reason", who.Reason)
			ids = append(ids, mem.id)
		}
	}
	stored := func(err error) {
		if err != nil {
			resp = LeaveResponse{Err: err}
		}
		answer(resp)
	}
	if len(ids) == 0 {
		m.whenStored(in, g, stored)
		return
	}
	m.removeFromConsumer(in, g, ids, stored)
}
