package group

import (
	"bytes"
	"errors"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

func (m *machine) sync(req SyncRequest, now time.Time, out *coordinator.Actions, answer func(SyncResponse)) {
	in := step{now, out}
	if g := m.groups[req.Group]; g.mixes(m.cfg.ConsumerMigration) {
		m.syncConsumer(in, g, req, answer)
		return
	}
	g, err := m.checkSync(req)
	if err != nil {
		out.Reply(func() { answer(SyncResponse{Err: err}) })
		return
	}
	mem := g.byID[req.MemberID]
	delete(g.pendingSync, mem.id)
	if g.state == stable {
		resp := g.syncResponse(mem)
		out.Reply(func() { answer(resp) })
		return
	}
	mem.answerSync(out, SyncResponse{Err: ErrRebalanceInProgress}) // of a connection that was given up
	mem.sync = answer
	if g.leader == mem.id {
		m.storeAssignment(in, g, req.Assignments)
	}
}

func (m *machine) checkSync(req SyncRequest) (*group, error) {
	g := m.groups[req.Group]
	switch {
	case g == nil || g.state == empty:
		return nil, ErrUnknownMember
	case g.state == dead:
		return nil, ErrUnavailable
	}
	if err := g.check(req.MemberID, req.InstanceID); err != nil {
		return nil, err
	}
	switch {
	case req.Generation != g.generation:
		return nil, ErrIllegalGeneration
	case differs(req.ProtocolType, g.protocolType) || differs(req.Protocol, g.protocol):
		return nil, ErrInconsistentProtocol
	case g.state == preparingRebalance:
		return nil, ErrRebalanceInProgress
	}
	return g, nil
}

// differs says whether a request names something else than the group has; it need not name
// anything.
func differs(asked, has string) bool { return asked != "" && has != "" && asked != has }

func (g *group) syncResponse(mem *member) SyncResponse {
	return SyncResponse{ProtocolType: g.protocolType, Protocol: g.protocol, Assignment: mem.assignment}
}

// storeAssignment writes the leader's assignment; when that is committed the group is stable and
// everybody gets theirs.
func (m *machine) storeAssignment(in step, g *group, given []Assignment) {
	assignment := make(map[string][]byte, len(given))
	for _, a := range given {
		assignment[a.MemberID] = bytes.Clone(a.Data)
	}
	generation := g.generation
	m.writeGroup(in, g, assignment, func(in step, err error) {
		if g.state != completingRebalance || g.generation != generation {
			return // another rebalance has begun in the meantime
		}
		if err != nil {
			for _, mem := range g.members {
				mem.assignment = nil
			}
			m.answerSyncs(in, g, err)
			g.hold(in.now)
			m.prepareRebalance(in, g, "the assignment could not be stored")
			return
		}
		g.unstored = 0
		for _, mem := range g.members {
			mem.assignment = assignment[mem.id]
		}
		m.answerSyncs(in, g, nil)
		g.transition(stable, in.now)
	})
}

// answerSyncs answers every sync that waits, with an error or the member's assignment.
func (m *machine) answerSyncs(in step, g *group, err error) {
	for _, mem := range g.members {
		resp := SyncResponse{Err: err}
		if err == nil {
			resp = g.syncResponse(mem)
		}
		if mem.answerSync(in.out, resp) {
			m.keepSession(in, g, mem)
		}
	}
}

// writeGroup writes the group with the given assignments, and calls done when the record is
// committed, or with what a client may be told when it is not.
func (m *machine) writeGroup(in step, g *group, assignment map[string][]byte, done func(in step, err error)) {
	in.out.Write(coordinator.Write{
		Records: []coordinator.Record{encodeGroup(g, assignment)},
		Done: func(err error, now time.Time, out *coordinator.Actions) {
			if err == nil {
				g.persisted = true
			}
			done(step{now, out}, refusal(err))
		},
	})
}

// assignments returns what every member has.
func (g *group) assignments() map[string][]byte {
	all := make(map[string][]byte, len(g.members))
	for _, mem := range g.members {
		all[mem.id] = mem.assignment
	}
	return all
}

// refusal is what a client may be told of a write that failed.
func refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotCoordinator):
		return ErrNotCoordinator
	case errors.Is(err, ErrTooLarge):
		return ErrTooLarge
	default:
		return ErrUnavailable
	}
}
