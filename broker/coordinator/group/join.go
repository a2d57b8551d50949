package group

import (
	"bytes"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// joinRefused is the answer to a join that fails.
func joinRefused(memberID string, err error) JoinResponse {
	return JoinResponse{Err: err, Generation: -1, MemberID: memberID}
}

func (m *machine) join(req JoinRequest, now time.Time, out *coordinator.Actions, answer func(JoinResponse)) {
	in := step{now, out}
	if g := m.groups[req.Group]; g.mixes(m.cfg.ConsumerMigration) {
		m.joinConsumer(in, g, req, answer)
		return
	}
	g, err := m.admit(in, &req)
	if err != nil {
		out.Reply(func() { answer(joinRefused(req.MemberID, err)) })
		return
	}
	if req.MemberID == "" {
		m.joinNew(in, g, req, answer)
	} else {
		m.joinKnown(in, g, req, answer)
	}
}

// admit finds the group of a join, and checks what does not depend on who joins. Only a member
// without an id can make a group: one with an id of a group that is gone has to begin anew.
func (m *machine) admit(in step, req *JoinRequest) (*group, error) {
	if req.SessionTimeout < m.cfg.SessionTimeoutMin || req.SessionTimeout > m.cfg.SessionTimeoutMax {
		return nil, ErrInvalidSessionTimeout
	}
	g := m.groups[req.Group]
	if g == nil {
		if req.MemberID != "" {
			return nil, ErrUnknownMember
		}
		g = newGroup(req.Group, in.now)
	}
	if g.state == dead {
		return nil, ErrUnavailable
	}
	if !m.hasRoom(g, req.MemberID) {
		m.expel(g, req.MemberID)
		req.MemberID = ""
		return nil, ErrGroupFull
	}
	if !g.supports(req.ProtocolType, req.Protocols) {
		return nil, ErrInconsistentProtocol
	}
	if g.consumer != nil {
		if err := m.becomeClassic(in, g, req); err != nil {
			return nil, err
		}
	}
	m.groups[g.id] = g // not before it is sure that somebody joins
	return g, nil
}

// hasRoom says whether the group takes the member. While it prepares a rebalance the joins that
// wait count, not the members: so a group that is over its size loses those who come last.
func (m *machine) hasRoom(g *group, memberID string) bool {
	mem := g.byID[memberID]
	switch g.state {
	case preparingRebalance:
		return mem != nil && mem.join != nil || g.awaiting < m.cfg.MembersMax
	case completingRebalance, stable:
		return mem != nil || len(g.members) < m.cfg.MembersMax
	default:
		return true
	}
}

// expel takes out a member for which there is no room.
func (m *machine) expel(g *group, memberID string) {
	if mem := g.byID[memberID]; mem != nil {
		m.timers.Stop(&mem.session)
		g.remove(mem)
	}
	m.forgetPending(g, memberID)
}

// forgetPending takes back an id that was given out and has not come back.
func (m *machine) forgetPending(g *group, memberID string) {
	if t := g.pendingJoin[memberID]; t != nil {
		m.timers.Stop(t)
		delete(g.pendingJoin, memberID)
	}
}

// joinNew takes in a member that has no id yet.
func (m *machine) joinNew(in step, g *group, req JoinRequest, answer func(JoinResponse)) {
	if req.InstanceID != "" {
		id := req.InstanceID + "-" + m.newID()
		if old := g.instances[req.InstanceID]; old != nil {
			m.replaceStatic(in, g, old, id, req, answer)
			return
		}
		m.addMember(in, g, id, req, answer)
		return
	}
	id := req.ClientID + "-" + m.newID()
	if !req.RequireMemberID {
		m.addMember(in, g, id, req, answer)
		return
	}
	m.addPending(in, g, id, req.SessionTimeout)
	in.out.Reply(func() { answer(joinRefused(id, ErrMemberIDRequired)) })
}

// addPending expects a member to come back with the id that it is given, for a session timeout.
func (m *machine) addPending(in step, g *group, id string, session time.Duration) {
	t := new(coordinator.Timer)
	g.pendingJoin[id] = t
	m.setTimer(t, in.now.Add(session), func(in step) {
		m.log.Info("a member did not come back with the id it was given", "group", g.id, "member", id)
		delete(g.pendingJoin, id)
		m.completeJoinIfAllJoined(in, g)
		m.dropIfBlank(g)
	})
}

// joinKnown lets a member rejoin, or come with the id that it was given.
func (m *machine) joinKnown(in step, g *group, req JoinRequest, answer func(JoinResponse)) {
	if t := g.pendingJoin[req.MemberID]; t != nil && req.InstanceID == "" {
		m.timers.Stop(t)
		m.addMember(in, g, req.MemberID, req, answer)
		return
	}
	if err := g.check(req.MemberID, req.InstanceID); err != nil {
		in.out.Reply(func() { answer(joinRefused(req.MemberID, err)) })
		return
	}
	mem := g.byID[req.MemberID]
	if m.rejoinChanges(g, mem, req) {
		g.update(mem, cloneProtocols(req.Protocols), req.RebalanceTimeout, req.SessionTimeout)
		g.awaitJoin(mem, answer, in.out)
		m.rebalanceOrComplete(in, g, "member "+mem.id+" rejoins: "+req.Reason)
		return
	}
	// It did not get the answer to its last join, or has nothing new to say: it gets the present
	// generation.
	resp := g.joinResponse(mem)
	in.out.Reply(func() { answer(resp) })
}

// rejoinChanges says whether a rejoin needs a rebalance. In a stable group the leader may ask for
// one just so: the topics may have changed.
func (m *machine) rejoinChanges(g *group, mem *member, req JoinRequest) bool {
	return g.state == preparingRebalance ||
		g.state == stable && g.leader == mem.id ||
		!mem.matches(req.Protocols)
}

// addMember takes in a new member and begins, or goes on with, the rebalance that this needs.
func (m *machine) addMember(in step, g *group, id string, req JoinRequest, answer func(JoinResponse)) {
	mem := &member{
		id: id, instanceID: req.InstanceID, clientID: req.ClientID, clientHost: req.ClientHost,
		sessionTimeout: req.SessionTimeout, rebalanceTimeout: req.RebalanceTimeout,
		protocols: cloneProtocols(req.Protocols), isNew: true,
	}
	if g.state == preparingRebalance && g.previous == empty {
		g.newMemberAdded = true
	}
	g.add(mem, req.ProtocolType)
	g.awaitJoin(mem, answer, in.out)
	m.setSession(in, g, mem, newMemberJoinTimeout)
	m.rebalanceOrComplete(in, g, "new member "+id+": "+req.Reason)
}

func cloneProtocols(all []Protocol) []Protocol {
	clones := make([]Protocol, len(all))
	for i, p := range all {
		clones[i] = Protocol{Name: p.Name, Metadata: bytes.Clone(p.Metadata)}
	}
	return clones
}

// joinResponse is what a member is told of the present generation.
func (g *group) joinResponse(mem *member) JoinResponse {
	resp := JoinResponse{
		Generation: g.generation, ProtocolType: g.protocolType, Protocol: g.protocol,
		Leader: g.leader, MemberID: mem.id,
	}
	if g.leader == mem.id {
		resp.Members = g.joinMembers()
	}
	return resp
}

// replaceStatic lets a restarted static member take its old place, without a rebalance if the group
// is stable and would choose the same protocol again.
func (m *machine) replaceStatic(in step, g *group, mem *member, id string, req JoinRequest, answer func(JoinResponse)) {
	m.log.Info("a static member came back", "group", g.id, "instance", req.InstanceID, "old", mem.id, "new", id)
	before := *mem
	leader := g.leader
	g.replaceStatic(mem, id, in.out)
	m.keepSession(in, g, mem)
	g.update(mem, cloneProtocols(req.Protocols), req.RebalanceTimeout, req.SessionTimeout)
	g.awaitJoin(mem, answer, in.out)
	switch {
	case g.state == completingRebalance:
		// The leader may have been told the old id already: its assignment would miss this member.
		m.prepareRebalance(in, g, "static member "+id+" replaced "+before.id)
	case g.state == stable && g.selectProtocol() == g.protocol:
		m.storeReplacement(in, g, mem, before, leader, req.CanSkipAssignment)
	default:
		m.rebalanceOrComplete(in, g, "static member "+id+" came with other protocols: "+req.Reason)
	}
}

// storeReplacement writes the group with a static member's new id, and answers its join when that
// is stored. If it cannot be, the member is who it was.
func (m *machine) storeReplacement(in step, g *group, mem *member, before member, leader string, canSkip bool) {
	id := mem.id
	m.writeGroup(in, g, g.assignments(), func(in step, err error) {
		if err != nil {
			m.log.Warn("a static member's new id was not stored", "group", g.id, "instance", mem.instanceID, "error", err)
			mem.answerJoin(in.out, g, joinRefused("", err))
			if g.byID[id] == mem {
				g.update(mem, before.protocols, before.rebalanceTimeout, before.sessionTimeout)
				g.rename(mem, before.id)
				m.keepSession(in, g, mem)
			}
			return
		}
		if mem.id != id || g.state != stable {
			return // a rebalance has begun in the meantime, and answers the join
		}
		resp := g.joinResponse(mem)
		resp.SkipAssignment = canSkip && g.leader == id
		if !canSkip {
			// A client that does not know of skipping would assign anew if it were told that it
			// leads.
			resp.Leader, resp.Members = leader, nil
		}
		mem.answerJoin(in.out, g, resp)
	})
}
