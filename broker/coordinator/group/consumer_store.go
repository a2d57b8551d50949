package group

import (
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
)

// fenceRetryInterval is after how long it is tried again to take a member out, when that could not
// be stored.
const fenceRetryInterval = 500 * time.Millisecond

// consumerWrite is a write of a group that is in the log and not yet committed, with what waits for
// it.
type consumerWrite struct {
	waiting []func(error)
}

// classicEntry ends the record of a group that was one of the classic protocol.
type classicEntry struct{ group string }

func (e classicEntry) groupID() string            { return e.group }
func (e classicEntry) gone() bool                 { return true }
func (e classicEntry) record() coordinator.Record { return groupTombstone(e.group) }
func (e classicEntry) apply(*consumerGroup)       {}

// topics is what topics there are now; of no cluster, none.
func (m *machine) topics() *cluster.Image {
	if m.image == nil {
		return nil
	}
	return m.image()
}

// storeConsumer writes entries of one group in one batch. They are applied as soon as they are in
// the log, since the next decision has to build on them; then appended is called. answer comes when
// they, and everything before them, are committed: nobody is told what could still be lost.
//
// There may be one such write for a group in each pass of the shard: a second one would not see the
// first.
func (m *machine) storeConsumer(in step, group string, entries []consumerEntry, appended func(), answer func(error)) {
	if len(entries) == 0 {
		appended()
		m.whenStored(in, m.groups[group], answer)
		return
	}
	var w coordinator.Write
	for _, e := range entries {
		w.Records = append(w.Records, e.record())
	}
	pending := &consumerWrite{waiting: []func(error){answer}}
	var c *consumerGroup
	w.Appended = func() {
		for _, e := range entries {
			m.applyConsumer(e)
		}
		if g := m.groups[group]; g != nil && g.consumer != nil {
			c = g.consumer
			c.lastWrite = pending
			appended()
		}
	}
	w.Done = func(err error, _ time.Time, out *coordinator.Actions) {
		if c != nil && c.lastWrite == pending {
			c.lastWrite = nil
		}
		err = refusal(err)
		for _, f := range pending.waiting {
			out.Reply(func() { f(err) })
		}
	}
	in.out.Write(w)
}

// whenStored calls f when everything that is known of a group is committed.
func (m *machine) whenStored(in step, g *group, f func(error)) {
	if g == nil || g.consumer == nil || g.consumer.lastWrite == nil {
		in.out.Reply(func() { f(nil) })
		return
	}
	w := g.consumer.lastWrite
	w.waiting = append(w.waiting, f)
}

// applyConsumer applies one entry, which is in the log.
func (m *machine) applyConsumer(e consumerEntry) {
	g := m.groups[e.groupID()]
	if _, classic := e.(classicEntry); classic {
		return
	}
	if g == nil || g.consumer == nil {
		if e.gone() {
			return
		}
		g = m.ensureGroup(e.groupID(), time.Time{})
		m.becomeConsumer(g)
	}
	if _, isGroup := e.(epochEntry); isGroup && e.gone() {
		m.endConsumer(g)
		return
	}
	e.apply(g.consumer)
	if member, ok := e.(memberEntry); ok && e.gone() {
		m.stopClocks(g.consumer, member.name)
	}
}

// becomeConsumer makes a group one of the consumer protocol. Its offsets stay.
func (m *machine) becomeConsumer(g *group) {
	m.forgetClassic(g)
	g.consumer = newConsumerGroup()
}

// endConsumer makes a group one that has offsets at most.
func (m *machine) endConsumer(g *group) {
	for id := range g.consumer.clocks {
		m.stopClocks(g.consumer, id)
	}
	g.consumer = nil
}

// forgetClassic takes everything off a group that is of the classic protocol.
func (m *machine) forgetClassic(g *group) {
	m.timers.Stop(&g.joinTimer)
	m.timers.Stop(&g.syncTimer)
	for id := range g.pendingJoin {
		m.forgetPending(g, id)
	}
	for _, mem := range g.members {
		m.timers.Stop(&mem.session)
	}
	fresh := newGroup(g.id, g.since)
	fresh.offsets = g.offsets
	if g.state == dead {
		fresh.state = dead
	}
	*g = *fresh
}

func (m *machine) stopClocks(c *consumerGroup, id string) {
	if clocks := c.clocks[id]; clocks != nil {
		m.timers.Stop(&clocks.session)
		m.timers.Stop(&clocks.rebalance)
		m.timers.Stop(&clocks.join)
		m.timers.Stop(&clocks.sync)
		delete(c.clocks, id)
	}
}

func (c *consumerGroup) clocksOf(id string) *memberClocks {
	clocks := c.clocks[id]
	if clocks == nil {
		clocks = new(memberClocks)
		c.clocks[id] = clocks
	}
	return clocks
}

// setConsumerSession begins a member's session anew.
func (m *machine) setConsumerSession(now time.Time, g *group, id string) {
	timeout := m.cfg.ConsumerSessionTimeout
	if mem := g.consumer.members[id]; mem != nil && mem.classic != nil {
		timeout = mem.classic.sessionTimeout
	}
	m.setTimer(&g.consumer.clocksOf(id).session, now.Add(timeout), func(in step) {
		m.fence(in, g, id, "its session timed out")
	})
}

// setRebalanceTimeout gives a member its time to give up partitions.
func (m *machine) setRebalanceTimeout(now time.Time, g *group, mem *consumerMember) {
	id, epoch := mem.id, mem.epoch
	m.setTimer(&g.consumer.clocksOf(id).rebalance, now.Add(max(mem.rebalanceTimeout, 0)), func(in step) {
		if g.consumer == nil {
			return
		}
		if now := g.consumer.members[id]; now != nil && now.epoch == epoch && now.state == revoking {
			m.fence(in, g, id, "it did not give up its partitions in time")
		}
	})
}

// fence takes a member out because of the time.
func (m *machine) fence(in step, g *group, id, reason string) {
	c := g.consumer
	if g.state == dead || c == nil || c.members[id] == nil || m.groups[g.id] != g {
		return
	}
	m.log.Info("member of a consumer group failed", "group", g.id, "member", id, "reason", reason)
	m.removeFromConsumer(in, g, []string{id}, func(error) {})
	// As long as that is not in the log, the timer is what is left of it.
	m.setTimer(&c.clocksOf(id).session, in.now.Add(fenceRetryInterval), func(in step) { m.fence(in, g, id, reason) })
}
