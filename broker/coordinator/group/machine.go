package group

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
	"github.com/sluice-io/sluice/internal/record"
)

// newMemberJoinTimeout is how long a new member's join may wait before the member is dropped: it
// has no id yet with which it could keep a session (group.new.member.join.timeout.ms).
const newMemberJoinTimeout = 5 * time.Minute

// machine holds every group of one partition. It is a coordinator.Machine: not safe for concurrent
// use, no I/O, no clock.
type machine struct {
	log     *slog.Logger
	cfg     Config
	metrics *metrics
	newID   func() string         // makes the random part of member ids
	image   func() *cluster.Image // what topics there are; nil: no cluster

	groups map[string]*group
	timers coordinator.Timers
	sweep  coordinator.Timer // looks for expired offsets
}

// step is the input common to every decision: the time, and where to put what is to be done.
type step struct {
	now time.Time
	out *coordinator.Actions
}

func newMachine(log *slog.Logger, cfg Config, metrics *metrics, newID func() string, image func() *cluster.Image) *machine {
	return &machine{log: log, cfg: cfg, metrics: metrics, newID: newID, image: image, groups: make(map[string]*group)}
}

// Replay implements coordinator.Machine.
func (m *machine) Replay(r *record.Record) error {
	entry, err := decode(r.Key, r.Value)
	if err != nil {
		return err
	}
	switch e := entry.(type) {
	case offsetEntry:
		m.replayOffset(e)
	case groupEntry:
		m.replayGroup(e)
	case consumerEntry:
		m.replayConsumer(e)
	default:
		m.log.Debug("skipped a record of another protocol", "offset", r.Offset)
	}
	return nil
}

func (m *machine) replayOffset(e offsetEntry) {
	switch g := m.groups[e.group]; {
	case e.value != nil:
		m.ensureGroup(e.group, time.UnixMilli(e.value.commitMillis)).offsets.set(e.topic, e.partition, e.value)
	case g != nil:
		g.offsets.set(e.topic, e.partition, nil)
	}
}

func (m *machine) replayGroup(e groupEntry) {
	if e.value == nil {
		m.replayGroupGone(e.group)
		return
	}
	g := groupFromValue(e.group, e.value)
	if old := m.groups[e.group]; old != nil {
		g.offsets = old.offsets
	}
	m.groups[e.group] = g
}

// replayGroupGone takes the classic protocol off a group: it is gone, unless it has offsets, which
// are taken away before the group is, or was made one of the consumer protocol.
func (m *machine) replayGroupGone(id string) {
	g := m.groups[id]
	switch {
	case g == nil || g.consumer != nil:
	case len(g.offsets) == 0:
		delete(m.groups, id)
	default:
		m.forgetClassic(g)
	}
}

// replayConsumer applies a record of the consumer protocol. What there was of a group under the
// other one has ended.
func (m *machine) replayConsumer(e consumerEntry) {
	if g := m.groups[e.groupID()]; g != nil && g.consumer == nil && !e.gone() {
		for _, mem := range g.members {
			m.timers.Stop(&mem.session)
		}
		g.state = empty
	}
	m.applyConsumer(e)
	if g := m.groups[e.groupID()]; g != nil && g.consumer == nil && !g.persisted && len(g.offsets) == 0 {
		delete(m.groups, e.groupID())
	}
}

// Loaded implements coordinator.Machine: every member's session begins anew.
func (m *machine) Loaded(now time.Time, out *coordinator.Actions) {
	in := step{now, out}
	for _, id := range m.groupIDs() {
		g := m.groups[id]
		if g.consumer != nil {
			m.consumerLoaded(now, g)
		}
		for _, mem := range g.members {
			m.keepSession(in, g, mem)
		}
		if len(g.members) > m.cfg.MembersMax {
			m.prepareRebalance(in, g, "loaded group has more members than are allowed")
		}
	}
	m.armSweep(now)
}

// Expire implements coordinator.Machine. It fires one timer: what follows from it has to be in the
// log before the next one decides.
func (m *machine) Expire(now time.Time, out *coordinator.Actions) { m.timers.ExpireNext(now, out) }

// Deadline implements coordinator.Machine.
func (m *machine) Deadline() time.Time { return m.timers.Deadline() }

// Unload implements coordinator.Machine.
func (m *machine) Unload(err error, out *coordinator.Actions) {
	for _, g := range m.groups {
		for _, mem := range g.members {
			mem.answerJoin(out, g, joinRefused(mem.id, refusal(err)))
			mem.answerSync(out, SyncResponse{Err: refusal(err)})
		}
		g.state = dead
	}
}

// groupIDs returns the names of all groups, sorted, so that what is decided for many of them is
// always decided in the same order.
func (m *machine) groupIDs() []string { return slices.Sorted(maps.Keys(m.groups)) }

// ensureGroup returns the group, an empty one without a protocol if there was none.
func (m *machine) ensureGroup(id string, now time.Time) *group {
	g := m.groups[id]
	if g == nil {
		g = newGroup(id, now)
		m.groups[id] = g
	}
	return g
}

// dropIfBlank forgets a group that says nothing: no record of it is in the log, nobody is or is
// about to be in it, no offset is kept.
func (m *machine) dropIfBlank(g *group) {
	if g.state == empty && !g.persisted && g.consumer == nil && len(g.pendingJoin) == 0 && len(g.offsets) == 0 && m.groups[g.id] == g {
		m.remove(g)
	}
}

func (m *machine) remove(g *group) {
	m.timers.Stop(&g.joinTimer)
	m.timers.Stop(&g.syncTimer)
	for _, t := range g.pendingJoin {
		m.timers.Stop(t)
	}
	if g.consumer != nil {
		m.endConsumer(g)
	}
	g.state = dead
	delete(m.groups, g.id)
}

// setTimer makes f run at a time, with a step of its own.
func (m *machine) setTimer(t *coordinator.Timer, at time.Time, f func(in step)) {
	m.timers.Set(t, at, func(now time.Time, out *coordinator.Actions) { f(step{now, out}) })
}
