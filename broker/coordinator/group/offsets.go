package group

import (
	"cmp"
	"slices"
	"time"
	"unicode/utf16"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// tombstonesMax is how many offsets are removed with one batch.
const tombstonesMax = 1000

// offsets are a group's offsets, by topic and partition.
type offsets map[string]map[int32]*slot

// slot is one partition's offset: what is committed, and whether more is on its way.
type slot struct {
	value   *offsetValue // what the high watermark has passed; nil: nothing
	pending int          // writes that are in the log and not yet committed
}

// place names a slot, and tells what was in it when it was looked at.
type place struct {
	topic     string
	partition int32
	value     *offsetValue
}

func (o offsets) get(topic string, partition int32) *offsetValue {
	if s := o[topic][partition]; s != nil {
		return s.value
	}
	return nil
}

// slot returns the slot, made if there is none.
func (o offsets) slot(topic string, partition int32) *slot {
	partitions := o[topic]
	if partitions == nil {
		partitions = make(map[int32]*slot)
		o[topic] = partitions
	}
	s := partitions[partition]
	if s == nil {
		s = new(slot)
		partitions[partition] = s
	}
	return s
}

// set stores an offset, or with nil removes it.
func (o offsets) set(topic string, partition int32, v *offsetValue) {
	s := o.slot(topic, partition)
	s.value = v
	if v != nil || s.pending > 0 {
		return
	}
	delete(o[topic], partition)
	if len(o[topic]) == 0 {
		delete(o, topic)
	}
}

// appended and settled count a write that is on its way.
func (o offsets) appended(topic string, partition int32) { o.slot(topic, partition).pending++ }

func (o offsets) settled(topic string, partition int32) {
	if s := o.slot(topic, partition); s.pending > 0 {
		s.pending--
	}
}

// places lists the slots that keep returns true for, in order of topic and partition.
func (o offsets) places(keep func(topic string, partition int32, s *slot) bool) (all []place) {
	for topic, partitions := range o {
		for partition, s := range partitions {
			if keep(topic, partition, s) {
				all = append(all, place{topic, partition, s.value})
			}
		}
	}
	slices.SortFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
	return all
}

// unchanged says whether the slot still is as it was when the place was taken, with nothing on its
// way.
func (o offsets) unchanged(p place) bool {
	s := o[p.topic][p.partition]
	return s != nil && s.value == p.value && s.pending == 0
}

// hasValue keeps the slots with a committed offset.
func hasValue(_ string, _ int32, s *slot) bool { return s.value != nil }

func (m *machine) commit(req CommitRequest, now time.Time, out *coordinator.Actions, answer func(CommitResponse)) {
	g, err := m.checkCommit(req, now)
	if err == nil && g.consumer != nil {
		err = g.consumer.checkCommit(req)
	}
	if err != nil {
		out.Reply(func() { answer(CommitResponse{Err: err}) })
		return
	}
	if mem := g.byID[req.MemberID]; mem != nil { // a commit is as good as a heartbeat
		m.keepSession(step{now, out}, g, mem)
	}
	resp := CommitResponse{Commits: make([]error, len(req.Commits))}
	w := m.commitWrite(g, req, now, &resp)
	if len(w.Records) == 0 {
		m.dropIfBlank(g)
		out.Reply(func() { answer(resp) })
		return
	}
	done := w.Done
	w.Done = func(err error, now time.Time, out *coordinator.Actions) {
		if err != nil {
			resp = CommitResponse{Err: refusal(err)}
		}
		done(err, now, out)
		out.Reply(func() { answer(resp) })
	}
	out.Write(w)
}

// checkCommit says whether the commit is allowed. An unknown group is made for a consumer that does
// not use groups.
func (m *machine) checkCommit(req CommitRequest, now time.Time) (*group, error) {
	g := m.groups[req.Group]
	if g == nil {
		if req.Generation >= 0 {
			return nil, ErrGroupNotFound
		}
		return m.ensureGroup(req.Group, now), nil
	}
	switch {
	case g.state == dead:
		return nil, ErrUnavailable
	case g.consumer != nil, req.Generation < 0 && g.state == empty:
		return g, nil
	case req.Generation < 0 && req.MemberID == "" && req.InstanceID == "":
		return nil, ErrUnknownMember // a stranger, while the group has members
	}
	if err := g.check(req.MemberID, req.InstanceID); err != nil {
		return nil, err
	}
	switch {
	case req.Generation != g.generation:
		return nil, ErrIllegalGeneration
	case g.state == completingRebalance:
		// The member knows the new generation but has not yet got its assignment.
		return nil, ErrRebalanceInProgress
	}
	return g, nil
}

// commitWrite makes the write of a commit: one record for each offset that is in order; resp gets
// the errors of the others.
func (m *machine) commitWrite(g *group, req CommitRequest, now time.Time, resp *CommitResponse) coordinator.Write {
	var w coordinator.Write
	var stored []Commit
	values := make([]*offsetValue, 0, len(req.Commits))
	for i, c := range req.Commits {
		if longerThan(c.Metadata, m.cfg.OffsetMetadataBytesMax) {
			resp.Commits[i] = ErrMetadataTooLarge
			continue
		}
		v := newOffsetValue(c, req.Retention, now)
		stored, values = append(stored, c), append(values, v)
		w.Records = append(w.Records, encodeOffset(g.id, c.Topic, c.Partition, v))
	}
	w.Appended = func() {
		for _, c := range stored {
			g.offsets.appended(c.Topic, c.Partition)
		}
	}
	w.Done = func(err error, _ time.Time, _ *coordinator.Actions) {
		if err != nil {
			m.dropIfBlank(g)
			return
		}
		m.metrics.commits.Add(float64(len(stored)))
		for i, c := range stored {
			g.offsets.settled(c.Topic, c.Partition)
			g.offsets.set(c.Topic, c.Partition, values[i])
		}
	}
	return w
}

func newOffsetValue(c Commit, retention time.Duration, now time.Time) *offsetValue {
	v := &offsetValue{
		offset: c.Offset, leaderEpoch: c.LeaderEpoch, metadata: c.Metadata,
		commitMillis: now.UnixMilli(), expireMillis: -1, topicID: c.TopicID,
	}
	if retention > 0 {
		v.expireMillis = now.Add(retention).UnixMilli()
	}
	return v
}

// longerThan counts as Kafka does: in UTF-16 units.
func longerThan(s string, most int) bool {
	return len(s) > most && len(utf16.Encode([]rune(s))) > most
}

func (m *machine) fetch(req FetchRequest) ([]Offset, error) {
	var held offsets
	if g := m.groups[req.Group]; g != nil {
		held = g.offsets
		if g.consumer != nil {
			if err := g.consumer.checkFetch(req); err != nil {
				return nil, err
			}
		}
	}
	if req.All {
		return allOffsets(held), nil
	}
	found := make([]Offset, len(req.Partitions))
	for i, p := range req.Partitions {
		v := held.get(p.Topic, p.Partition)
		if v == nil || otherTopic(v.topicID, p.TopicID) {
			found[i] = Offset{Topic: p.Topic, Partition: p.Partition, Offset: -1, LeaderEpoch: -1}
			continue
		}
		found[i] = v.offsetOf(p.Topic, p.Partition)
	}
	return found, nil
}

// otherTopic says whether two topic ids are known and different: the offset is of a topic that was
// deleted and made again under its name.
func otherTopic(a, b [16]byte) bool {
	return a != b && a != [16]byte{} && b != [16]byte{}
}

func allOffsets(held offsets) []Offset {
	places := held.places(hasValue)
	all := make([]Offset, len(places))
	for i, p := range places {
		all[i] = held.get(p.topic, p.partition).offsetOf(p.topic, p.partition)
	}
	return all
}

func (v *offsetValue) offsetOf(topic string, partition int32) Offset {
	return Offset{
		Topic: topic, TopicID: v.topicID, Partition: partition, Offset: v.offset, LeaderEpoch: v.leaderEpoch,
		Metadata: v.metadata, CommitTime: time.UnixMilli(v.commitMillis),
	}
}
