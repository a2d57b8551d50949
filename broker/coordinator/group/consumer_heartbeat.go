package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/coordinator"
)

// rebalanceClock is what becomes of a member's rebalance timer.
type rebalanceClock int8

const (
	keepClock rebalanceClock = iota
	stopClock
	startClock
)

// heartbeatPlan is a decision on a heartbeat: what is to be stored, and what the member is told
// when it is. Nothing has changed yet.
type heartbeatPlan struct {
	entries  []consumerEntry
	member   *consumerMember
	assigned bool // whether the member is told its assignment
	bumped   bool // the group has a new epoch
	clock    rebalanceClock
	resolved bool // all regular expressions were looked at
	upgraded bool // the group was one of the classic protocol with members
}

func (m *machine) consumerHeartbeat(
	req ConsumerHeartbeat, now time.Time, out *coordinator.Actions, answer func(ConsumerHeartbeatResponse),
) {
	in := step{now, out}
	if req.Epoch < joinEpoch {
		m.consumerLeave(in, req, answer)
		return
	}
	if req.MemberID == "" {
		req.MemberID = m.newID()
	}
	plan, err := m.planHeartbeat(req, now)
	if err != nil {
		out.Reply(func() { answer(ConsumerHeartbeatResponse{Err: err}) })
		return
	}
	resp := ConsumerHeartbeatResponse{
		MemberID: plan.member.id, Epoch: plan.member.epoch, HeartbeatInterval: m.cfg.ConsumerHeartbeatInterval,
		Assigned: plan.assigned,
	}
	if plan.assigned {
		resp.Assignment = plan.member.assigned.set().topicPartitions()
	}
	if plan.upgraded {
		m.releaseWaiting(in, m.groups[req.Group])
	}
	m.storeConsumer(in, req.Group, plan.entries, func() { m.afterHeartbeat(now, req.Group, plan) }, func(err error) {
		if err != nil {
			resp = ConsumerHeartbeatResponse{Err: err}
		}
		answer(resp)
	})
}

// afterHeartbeat sets the timers once the plan is in the log.
func (m *machine) afterHeartbeat(now time.Time, group string, plan *heartbeatPlan) {
	g := m.groups[group]
	c := g.consumer
	c.seen = m.topics()
	if plan.resolved {
		c.regexSeen, c.regexAt = c.seen, now
	}
	if plan.bumped {
		m.metrics.rebalances.Inc()
		m.log.Info("consumer group has a new epoch", "group", group, "epoch", c.epoch, "members", len(c.members))
	}
	m.setConsumerSession(now, g, plan.member.id)
	if plan.upgraded {
		for id := range c.members {
			m.setConsumerSession(now, g, id)
		}
	}
	switch plan.clock {
	case startClock:
		m.setRebalanceTimeout(now, g, plan.member)
	case stopClock:
		m.timers.Stop(&c.clocksOf(plan.member.id).rebalance)
	}
}

// planHeartbeat decides on a heartbeat. It changes nothing.
func (m *machine) planHeartbeat(req ConsumerHeartbeat, now time.Time) (*heartbeatPlan, error) {
	if m.topics() == nil { // what it does not know it must not take away
		return nil, ErrUnavailable
	}
	c, before, err := m.consumerGroupFor(req)
	if err != nil {
		return nil, err
	}
	d, err := m.draftHeartbeat(c, req, now)
	if err != nil {
		return nil, err
	}
	d.plan.entries, d.plan.upgraded = before, len(c.members) > 0 && len(before) > 0
	if err := d.checkRegex(); err != nil {
		return nil, err
	}
	d.update()
	d.reconcile()
	return &d.plan, nil
}

func (m *machine) draftHeartbeat(c *consumerGroup, req ConsumerHeartbeat, now time.Time) (*heartbeatDraft, error) {
	owned := partitionSetOf(req.Owned)
	before, replaced, err := c.admit(req, owned)
	if err != nil {
		return nil, err
	}
	if replaced == "" && c.members[req.MemberID] == nil && len(c.members) >= m.cfg.ConsumerMembersMax {
		return nil, ErrGroupFull
	}
	return &heartbeatDraft{
		cfg: m.cfg, now: now, req: req, owned: owned, before: before,
		view: view{consumerGroup: c, image: m.topics(), changed: req.updated(before), removed: replaced},
	}, nil
}

// consumerGroupFor finds the group of a heartbeat. A join makes it, also out of a group of the
// classic protocol, whose end, and what is taken over of it, is in the entries (KIP-848, "Group Migration").
func (m *machine) consumerGroupFor(req ConsumerHeartbeat) (c *consumerGroup, before []consumerEntry, err error) {
	g := m.groups[req.Group]
	switch {
	case g != nil && g.state == dead:
		return nil, nil, ErrUnavailable
	case g != nil && g.consumer != nil:
		return g.consumer, nil, nil
	case req.Epoch != joinEpoch:
		return nil, nil, ErrGroupNotFound
	case g != nil && g.state != empty:
		return m.upgraded(g)
	case g != nil && g.persisted:
		before = []consumerEntry{classicEntry{g.id}}
	}
	return newConsumerGroup(), before, nil
}

// admit finds the member that a heartbeat is from, or makes it. A static member that comes back
// under another id takes the place of the one that it was, whose id is returned.
func (c *consumerGroup) admit(req ConsumerHeartbeat, owned partitionSet) (mem *consumerMember, replaced string, err error) {
	if req.InstanceID != nil {
		return c.admitStatic(req, owned)
	}
	mem = c.members[req.MemberID]
	switch {
	case mem != nil:
		return mem, "", mem.checkEpoch(req.Epoch, owned)
	case req.Epoch != joinEpoch:
		return nil, "", ErrUnknownMember
	}
	return newConsumerMember(req.MemberID), "", nil
}

func (c *consumerGroup) admitStatic(req ConsumerHeartbeat, owned partitionSet) (mem *consumerMember, replaced string, err error) {
	holder := c.members[c.instances[*req.InstanceID]]
	switch {
	case holder == nil && req.Epoch != joinEpoch:
		return nil, "", ErrUnknownMember
	case holder == nil:
		return c.member(req.MemberID), "", nil
	case holder.id == req.MemberID && holder.epoch != leaveStaticEpoch:
		return holder, "", holder.checkEpoch(req.Epoch, owned)
	case req.Epoch != joinEpoch && holder.id != req.MemberID:
		return nil, "", ErrFencedInstance
	case req.Epoch != joinEpoch:
		return nil, "", fmt.Errorf("%w: it has left, and is to join again", ErrFencedMemberEpoch)
	case holder.epoch != leaveStaticEpoch && holder.classic == nil: // which does not leave when it stops
		return nil, "", fmt.Errorf("%w: instance %s is member %s", ErrUnreleasedInstance, *req.InstanceID, holder.id)
	}
	return holder.renamed(req.MemberID), holder.id, nil
}

// heartbeatDraft makes a plan: step by step, on a view of the group that has what was decided so
// far.
type heartbeatDraft struct {
	view
	cfg    Config
	now    time.Time
	req    ConsumerHeartbeat
	owned  partitionSet
	before *consumerMember
	plan   heartbeatPlan

	newEpoch       int32 // of the group; as before if nothing has changed
	newTargetEpoch int32
	memberTarget   partitionSet
}

func (d *heartbeatDraft) add(e consumerEntry) { d.plan.entries = append(d.plan.entries, e) }

// checkRegex refuses a pattern that nobody in the group has yet and that is none.
func (d *heartbeatDraft) checkRegex() error {
	pattern := d.changed.regex
	if pattern == "" || d.regexes[pattern] != nil {
		return nil
	}
	_, err := compileRegex(pattern)
	return err
}

// update stores what the member says of itself, and gives the group a new epoch, and a new target,
// if that or what topics there are has changed.
func (d *heartbeatDraft) update() {
	group, id := d.req.Group, d.changed.id
	known := d.members[id] != nil && d.members[id].known
	if d.removed != "" {
		d.replace()
	} else if !known || !d.changed.sameMetadata(d.before) {
		d.add(memberEntry{entryOf[consumerMember]{group, id, d.changed}})
	}
	bump := d.updateRegexes() || !known && d.removed == "" || !d.changed.sameSubscription(d.before)
	d.updateEpoch(bump)
	d.updateTarget()
}

// replace stores a static member under its new id, with everything that the old one had.
func (d *heartbeatDraft) replace() {
	group, id := d.req.Group, d.changed.id
	for _, e := range memberGone(group, d.removed) {
		d.add(e)
	}
	target := d.targetOf(d.changed)
	if target == nil {
		target = partitionSet{}
	}
	d.add(memberEntry{entryOf[consumerMember]{group, id, d.changed}})
	d.add(targetEntry{entryOf[partitionSet]{group, id, &target}})
	d.add(currentEntry{entryOf[consumerMember]{group, id, d.changed}})
}

// memberGone are the records that end a member.
func memberGone(group, id string) []consumerEntry {
	return []consumerEntry{
		currentEntry{entryOf[consumerMember]{group: group, name: id}},
		targetEntry{entryOf[partitionSet]{group: group, name: id}},
		memberEntry{entryOf[consumerMember]{group: group, name: id}},
	}
}

// updateRegexes stores what the regular expressions match now, and says whether that is new.
func (d *heartbeatDraft) updateRegexes() (changed bool) {
	group := d.req.Group
	d.resolved, d.plan.resolved = d.resolve(d.now)
	if old := d.before.regex; old != "" && old != d.changed.regex && d.regexUsers(old) <= 1 && d.regexes[old] != nil {
		d.add(regexEntry{entryOf[resolvedRegex]{group: group, name: old}})
		delete(d.resolved, old)
		changed = true
	}
	for _, pattern := range sortedKeys(d.resolved) {
		d.add(regexEntry{entryOf[resolvedRegex]{group, pattern, d.resolved[pattern]}})
		changed = true
	}
	return changed
}

// updateEpoch gives the group its next epoch if it needs one: because of what was changed, or
// because of the topics that there are, which are looked at when the cluster has changed.
func (d *heartbeatDraft) updateEpoch(bump bool) {
	d.newEpoch = d.epoch
	if !bump && d.seen == d.image {
		return
	}
	hash := d.topicsHash()
	if !bump && hash == d.hash {
		return
	}
	d.newEpoch++
	d.plan.bumped = true
	if d.partitionMetadata {
		d.add(partitionMetadataEntry{entryOf[struct{}]{group: d.req.Group}})
	}
	d.add(epochEntry{entryOf[epochValue]{d.req.Group, "", &epochValue{d.newEpoch, hash}}})
}

// updateTarget makes a target for the group's epoch, if there is none and the present one has stood
// for long enough.
func (d *heartbeatDraft) updateTarget() {
	d.newTargetEpoch, d.memberTarget = d.targetEpoch, d.targetOf(d.changed)
	if d.newEpoch <= d.targetEpoch || !d.mayAssign() {
		return
	}
	group := d.req.Group
	target := d.newTarget(d.cfg)
	for _, id := range sortedKeys(target) {
		set := target[id]
		old, had := d.target[id]
		if id == d.changed.id && d.removed != "" {
			old, had = d.memberTarget, true
		}
		if !had || !old.equal(set) {
			d.add(targetEntry{entryOf[partitionSet]{group, id, &set}})
		}
	}
	d.add(targetEpochEntry{entryOf[targetEpochValue]{group, "", &targetEpochValue{d.newEpoch, d.now.UnixMilli()}}})
	d.newTargetEpoch, d.memberTarget = d.newEpoch, target[d.changed.id]
}

// mayAssign says whether the interval between two targets is over. A clock that has gone back does
// not hold a group up.
func (d *heartbeatDraft) mayAssign() bool {
	last := time.UnixMilli(d.targetTimestamp)
	return d.targetTimestamp == 0 || d.now.Before(last) || !d.now.Before(last.Add(max(d.cfg.ConsumerAssignmentInterval(), 0)))
}

// reconcile brings the member closer to its target.
func (d *heartbeatDraft) reconcile() {
	r := reconciliation{
		member: d.changed, targetEpoch: d.newTargetEpoch, target: d.memberTarget,
		owned: d.owned, ownedKnown: d.owned != nil,
		subscriptionChanged: !d.changed.sameSubscription(d.before),
		subscribed:          func(topic cluster.TopicID) bool { return d.subscribed(d.changed, topic) },
		free: func(tp topicPartition) bool {
			owner := d.owners[tp]
			return owner == "" || owner == d.changed.id || owner == d.removed
		},
	}
	next := r.next()
	if !next.sameAssignment(d.changed) {
		d.add(currentEntry{entryOf[consumerMember]{d.req.Group, next.id, next}})
		d.plan.clock = stopClock
		if next.state == revoking && next.classic == nil {
			d.plan.clock = startClock
		}
	}
	d.plan.member = next
	d.plan.assigned = d.req.full() || !next.assigned.same(d.before.assigned)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
