package group

import (
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

func (m *machine) heartbeat(req HeartbeatRequest, now time.Time, out *coordinator.Actions) error {
	g := m.groups[req.Group]
	if g == nil {
		return ErrUnknownMember
	}
	if g.state == dead {
		return ErrUnavailable
	}
	if g.mixes(m.cfg.ConsumerMigration) {
		return m.heartbeatConsumer(step{now, out}, g, req)
	}
	if err := g.check(req.MemberID, req.InstanceID); err != nil {
		return err
	}
	if req.Generation != g.generation {
		return ErrIllegalGeneration
	}
	m.keepSession(step{now, out}, g, g.byID[req.MemberID])
	if g.state == preparingRebalance {
		return ErrRebalanceInProgress
	}
	return nil
}

func (m *machine) leave(req LeaveRequest, now time.Time, out *coordinator.Actions, answer func(LeaveResponse)) {
	in := step{now, out}
	g := m.groups[req.Group]
	if g == nil || g.state == dead {
		err := ErrUnknownMember
		if g != nil {
			err = ErrUnavailable
		}
		out.Reply(func() { answer(LeaveResponse{Err: err}) })
		return
	}
	if g.mixes(m.cfg.ConsumerMigration) {
		m.leaveConsumer(in, g, req, answer)
		return
	}
	resp := LeaveResponse{Members: make([]error, len(req.Members))}
	left := false
	for i, who := range req.Members {
		resp.Members[i] = m.leaveOne(in, g, who)
		left = left || resp.Members[i] == nil
	}
	if left {
		m.afterLeave(in, g)
	}
	out.Committed(func(err error) {
		if err != nil {
			resp = LeaveResponse{Err: refusal(err)}
		}
		answer(resp)
	})
}

// leaveOne takes one member out. An administrator names a static member by its instance id alone.
func (m *machine) leaveOne(in step, g *group, who LeavingMember) error {
	if g.pendingJoin[who.MemberID] != nil {
		m.forgetPending(g, who.MemberID)
		return nil
	}
	if who.MemberID == "" {
		holder := g.instances[who.InstanceID]
		if holder == nil || who.InstanceID == "" {
			return ErrUnknownMember
		}
		who.MemberID = holder.id
	}
	if err := g.check(who.MemberID, who.InstanceID); err != nil {
		return err
	}
	mem := g.byID[who.MemberID]
	m.log.Info("member left", "group", g.id, "member", mem.id, "reason", who.Reason)
	m.timers.Stop(&mem.session)
	mem.answerJoin(in.out, g, joinRefused("", ErrUnknownMember))
	mem.answerSync(in.out, SyncResponse{Err: ErrUnknownMember})
	g.remove(mem)
	return nil
}

func (m *machine) afterLeave(in step, g *group) {
	switch g.state {
	case stable, completingRebalance:
		m.prepareRebalance(in, g, "members left")
	case preparingRebalance:
		m.rebalanceOrComplete(in, g, "members left")
	default:
		m.dropIfBlank(g)
	}
}
