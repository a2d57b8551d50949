package group

import (
	"fmt"
	"strings"
	"time"
)

// rebalanceOrComplete begins a rebalance, or, if one is being prepared, ends its first phase when
// nobody is missing.
func (m *machine) rebalanceOrComplete(in step, g *group, reason string) {
	if g.canRebalance() {
		m.prepareRebalance(in, g, reason)
		return
	}
	if g.previous != empty { // an initial rebalance always waits for its delay
		m.completeJoinIfAllJoined(in, g)
	}
}

// prepareRebalance asks every member to rejoin. Those who wait for an assignment are told so at
// once, the others with their next heartbeat.
func (m *machine) prepareRebalance(in step, g *group, reason string) {
	if g.state == completingRebalance {
		for _, mem := range g.members {
			mem.assignment = nil
		}
		m.answerSyncs(in, g, ErrRebalanceInProgress)
	}
	clear(g.pendingSync)
	m.timers.Stop(&g.syncTimer)
	m.log.Info("group begins a rebalance", "group", g.id, "state", g.state.String(), "generation", g.generation,
		"members", len(g.members), "reason", reason)
	m.metrics.rebalances.Inc()
	initial := g.state == empty
	g.transition(preparingRebalance, in.now)
	switch {
	case initial:
		g.newMemberAdded = false
		delay := m.cfg.InitialRebalanceDelay
		m.waitForMore(in, g, delay, max(g.rebalanceTimeout()-delay, 0))
	case g.allJoined():
		m.completeJoinIfAllJoined(in, g)
	default:
		m.setTimer(&g.joinTimer, in.now.Add(g.rebalanceTimeout()), func(in step) { m.completeJoin(in, g) })
	}
}

// waitForMore holds the first rebalance of an empty group for a delay, and again as long as members
// keep coming and the rebalance timeout leaves time.
func (m *machine) waitForMore(in step, g *group, delay, remaining time.Duration) {
	m.setTimer(&g.joinTimer, in.now.Add(delay), func(in step) {
		if !g.newMemberAdded || remaining == 0 {
			m.completeJoin(in, g)
			return
		}
		g.newMemberAdded = false
		m.waitForMore(in, g, min(m.cfg.InitialRebalanceDelay, remaining), max(remaining-delay, 0))
	})
}

// completeJoinIfAllJoined ends the first phase of a rebalance when nobody is missing and
// the group is not held.
func (m *machine) completeJoinIfAllJoined(in step, g *group) {
	switch {
	case g.state != preparingRebalance || !g.allJoined():
	case len(g.members) > 0 && in.now.Before(g.heldTo):
		m.setTimer(&g.joinTimer, g.heldTo, func(in step) { m.holdEnds(in, g) })
	default:
		m.completeJoin(in, g)
	}
}

// holdEnds goes on with a rebalance that was held. A member may have been taken out
// and be missed again meanwhile.
func (m *machine) holdEnds(in step, g *group) {
	if g.allJoined() {
		m.completeJoin(in, g)
		return
	}
	m.setTimer(&g.joinTimer, in.now.Add(g.rebalanceTimeout()), func(in step) { m.completeJoin(in, g) })
}

// Pauses of a group whose assignments cannot be stored, as while too few replicas of
// the offsets topic are in sync: its members would join again at once, and again.
const (
	unstoredPauseMin = 100 * time.Millisecond
	unstoredPauseMax = 3 * time.Second
)

// hold keeps the next generation from beginning for a while, each time longer.
func (g *group) hold(now time.Time) {
	g.unstored = min(max(2*g.unstored, unstoredPauseMin), unstoredPauseMax)
	g.heldTo = now.Add(g.unstored)
}

// completeJoin begins the next generation with those who have joined. Static members keep their
// place until their session ends, also when they have not.
func (m *machine) completeJoin(in step, g *group) {
	m.timers.Stop(&g.joinTimer)
	m.dropNotJoined(g)
	if !g.electLeader() && len(g.members) > 0 {
		m.log.Warn("group cannot rebalance because nobody has joined", "group", g.id, "members", len(g.members))
		m.setTimer(&g.joinTimer, in.now.Add(g.rebalanceTimeout()), func(in step) { m.completeJoin(in, g) })
		return
	}
	g.nextGeneration(in.now)
	if g.state == empty {
		m.storeEmpty(in, g)
		return
	}
	m.log.Info("group has a new generation", "group", g.id, "generation", g.generation, "members", len(g.members),
		"protocol", g.protocol, "leader", g.leader)
	for _, mem := range g.members {
		mem.answerJoin(in.out, g, g.joinResponse(mem))
		m.keepSession(in, g, mem)
		mem.isNew = false
		g.pendingSync[mem.id] = struct{}{}
	}
	m.setTimer(&g.syncTimer, in.now.Add(g.rebalanceTimeout()), func(in step) { m.syncExpired(in, g) })
}

// dropNotJoined takes out the dynamic members that have not rejoined in time.
func (m *machine) dropNotJoined(g *group) {
	for _, mem := range append([]*member(nil), g.members...) {
		if mem.join == nil && mem.instanceID == "" {
			m.log.Info("member did not rejoin in time", "group", g.id, "member", mem.id)
			m.timers.Stop(&mem.session)
			g.remove(mem)
		}
	}
}

// storeEmpty writes that a group has become empty. If that fails, the last generation would come
// back after a failover, and time out.
func (m *machine) storeEmpty(in step, g *group) {
	m.log.Info("group is empty", "group", g.id, "generation", g.generation)
	m.writeGroup(in, g, nil, func(_ step, err error) {
		if err != nil {
			m.log.Warn("could not store that a group is empty", "group", g.id, "error", err)
		}
	})
}

// syncExpired takes out the members that joined and then never asked for their assignment.
func (m *machine) syncExpired(in step, g *group) {
	if len(g.pendingSync) == 0 || g.state != completingRebalance && g.state != stable {
		return
	}
	var gone []string
	for _, mem := range append([]*member(nil), g.members...) {
		if _, pending := g.pendingSync[mem.id]; pending {
			gone = append(gone, mem.id)
			m.timers.Stop(&mem.session)
			g.remove(mem)
		}
	}
	m.prepareRebalance(in, g, fmt.Sprintf("members did not ask for their assignment: %s", strings.Join(gone, ", ")))
}

// keepSession begins a member's session anew.
func (m *machine) keepSession(in step, g *group, mem *member) {
	m.setSession(in, g, mem, mem.sessionTimeout)
}

func (m *machine) setSession(in step, g *group, mem *member, timeout time.Duration) {
	m.setTimer(&mem.session, in.now.Add(timeout), func(in step) { m.sessionExpired(in, g, mem) })
}

// sessionExpired takes out a member that was silent for too long. One whose request waits here is
// not silent; its session begins anew when it is answered.
func (m *machine) sessionExpired(in step, g *group, mem *member) {
	if mem.satisfied() {
		return
	}
	m.log.Info("member failed: its session timed out", "group", g.id, "member", mem.id)
	mem.answerJoin(in.out, g, joinRefused("", ErrUnknownMember))
	mem.answerSync(in.out, SyncResponse{Err: ErrUnknownMember})
	g.remove(mem)
	m.afterRemoval(in, g, "member "+mem.id+" failed")
}

// afterRemoval does what follows when members have gone.
func (m *machine) afterRemoval(in step, g *group, reason string) {
	switch g.state {
	case stable, completingRebalance:
		m.prepareRebalance(in, g, reason)
	case preparingRebalance:
		m.completeJoinIfAllJoined(in, g)
	default:
	}
}
