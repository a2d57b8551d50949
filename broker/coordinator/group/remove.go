package group

import (
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// delete removes a group without members, and its offsets.
func (m *machine) delete(id string, out *coordinator.Actions, answer func(error)) {
	g := m.groups[id]
	var err error
	switch {
	case g == nil || g.state == dead:
		err = ErrGroupNotFound
	case g.occupied():
		err = ErrNonEmptyGroup
	}
	if err != nil {
		out.Reply(func() { answer(err) })
		return
	}
	m.log.Info("group is deleted", "group", id)
	all := g.offsets.places(func(string, int32, *slot) bool { return true })
	m.removeGroup(g, all, out, func(err error, out *coordinator.Actions) {
		out.Reply(func() { answer(refusal(err)) })
	})
}

// removeGroup takes a group and its last offsets away. Until that is committed the group is dead,
// so that nothing that is decided in the meantime can outlive it in the log.
func (m *machine) removeGroup(g *group, places []place, out *coordinator.Actions, done func(error, *coordinator.Actions)) {
	g.state = dead
	m.removeOffsets(g, places, g.tombstones(), out, func(err error, out *coordinator.Actions) {
		if err != nil {
			g.state = empty
		} else {
			m.remove(g)
		}
		done(err, out)
	})
}

// tombstones end the records of the group itself, which has no members.
func (g *group) tombstones() []coordinator.Record {
	if g.consumer == nil {
		return []coordinator.Record{groupTombstone(g.id)}
	}
	var all []coordinator.Record
	for _, e := range g.consumer.groupGone(g.id) {
		all = append(all, e.record())
	}
	return all
}

// removeOffsets writes tombstones for the places of a group, in batches one after the other, and
// last the given records. A refused batch ends it: what is left stays until it is tried again.
func (m *machine) removeOffsets(
	g *group, places []place, last []coordinator.Record, out *coordinator.Actions, done func(error, *coordinator.Actions),
) {
	chunk, rest := places, places[len(places):]
	if len(places) > tombstonesMax {
		chunk, rest = places[:tombstonesMax], places[tombstonesMax:]
	}
	w := coordinator.Write{
		Appended: func() {
			for _, p := range chunk {
				g.offsets.appended(p.topic, p.partition)
			}
		},
		Done: func(err error, _ time.Time, out *coordinator.Actions) {
			if err != nil {
				m.log.Warn("offsets were not removed", "group", g.id, "error", err)
				done(err, out)
				return
			}
			for _, p := range chunk {
				g.offsets.settled(p.topic, p.partition)
				g.offsets.set(p.topic, p.partition, nil)
			}
			// What was committed since is not what was to be removed.
			rest = slices.DeleteFunc(rest, func(p place) bool { return g.state != dead && !g.offsets.unchanged(p) })
			if len(rest) > 0 {
				m.removeOffsets(g, rest, last, out, done)
				return
			}
			done(nil, out)
		},
	}
	for _, p := range chunk {
		w.Records = append(w.Records, offsetTombstone(g.id, p.topic, p.partition))
	}
	if len(rest) == 0 {
		w.Records = append(w.Records, last...)
	}
	out.Write(w)
}

// topicsDeleted removes the offsets of topics that are no more.
func (m *machine) topicsDeleted(topics []string, out *coordinator.Actions) {
	for _, id := range m.groupIDs() {
		g := m.groups[id]
		places := g.offsets.places(func(topic string, _ int32, _ *slot) bool { return slices.Contains(topics, topic) })
		if len(places) > 0 {
			m.removeOffsets(g, places, nil, out, func(error, *coordinator.Actions) { m.dropIfBlank(g) })
		}
	}
}

// armSweep sets the next look for expired offsets.
func (m *machine) armSweep(now time.Time) {
	m.setTimer(&m.sweep, now.Add(m.cfg.RetentionCheckInterval), func(in step) {
		for _, id := range m.groupIDs() {
			m.expireOffsets(in, m.groups[id])
		}
		m.armSweep(in.now)
	})
}

// expireOffsets removes a group's offsets that are past their retention, and the group itself if it
// is empty and nothing is left.
func (m *machine) expireOffsets(in step, g *group) {
	if g.state == dead {
		return
	}
	kept := 0
	expired := g.offsets.places(func(topic string, _ int32, s *slot) bool {
		out := m.expired(g, topic, s, in.now)
		if !out {
			kept++
		}
		return out
	})
	m.metrics.expired.Add(float64(len(expired)))
	switch {
	case kept == 0 && !g.occupied() && len(g.pendingJoin) == 0 && (len(expired) > 0 || g.persisted || g.consumer != nil):
		m.removeGroup(g, expired, in.out, func(error, *coordinator.Actions) {})
	case len(expired) > 0:
		m.removeOffsets(g, expired, nil, in.out, func(error, *coordinator.Actions) {})
	default:
		m.dropIfBlank(g)
	}
}

// expired says whether an offset is past its retention (KIP-211). That of a group's member counts
// from when the group became empty; that of a consumer without a group, and of a topic that a
// stable group of consumers no longer subscribes to, from its commit, and so that of a topic to
// which no member of the consumer protocol subscribes. All others stay.
func (m *machine) expired(g *group, topic string, s *slot, now time.Time) bool {
	if s.value == nil || s.pending > 0 {
		return false
	}
	from := time.UnixMilli(s.value.commitMillis)
	_, subscribed := g.subscribed[topic]
	switch {
	case g.consumer != nil:
		if g.consumer.subscribes(topic) {
			return false
		}
	case g.protocolType == "":
	case g.state == empty:
		if !g.since.IsZero() {
			from = g.since
		}
	case g.state == stable && g.subscribed != nil && !subscribed:
	default:
		return false
	}
	if s.value.expireMillis >= 0 {
		return now.UnixMilli() >= s.value.expireMillis
	}
	return now.Sub(from) >= m.cfg.OffsetsRetention
}
