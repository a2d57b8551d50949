package cluster

import (
	"maps"
	"slices"
)

// Update is what turns one image into another: it has the size of what changed,
// partition by partition. An Update is immutable.
type Update struct {
	ClusterID       string
	ControllerID    int32
	ControllerEpoch int32
	// Seq numbers the updates of a controller epoch, from 1 and with gaps: a
	// broker takes none that is not above all it took.
	Seq int64
	// Full says that everything is in it: what it does not have does not exist.
	Full bool
	// Brokers are all live brokers, sorted by ID.
	Brokers []Broker
	// BrokerConfigs are the settings made while running of all brokers that have
	// some, by number or AllBrokers. Nil means that none changed.
	BrokerConfigs map[string]map[string]string
	Topics        []TopicUpdate // sorted by name
	Deleted       []DeletedTopic
}

// TopicUpdate is what changed of a topic, or all of a new one. A topic of
// another ID than the one of its name takes its place.
type TopicUpdate struct {
	Name string
	ID   TopicID
	// Config has all the topic's own settings; nil means that none changed.
	Config     map[string]string
	Partitions []PartitionUpdate // sorted by Index
}

// PartitionUpdate is the new state of a partition.
type PartitionUpdate struct {
	Index int32
	Partition
}

// DeletedTopic names a topic that is no more.
type DeletedTopic struct {
	Name string
	ID   TopicID
}

// Diff returns what turns old into new: two images of one history, or any new
// one and nil, which gives a full update. It costs time in what differs.
func Diff(old, new *Image) *Update {
	u := &Update{
		ClusterID:       new.ClusterID,
		ControllerID:    new.ControllerID,
		ControllerEpoch: new.ControllerEpoch,
		Full:            old == nil,
		Brokers:         new.Brokers,
	}
	if old == nil || !sameConfigs(old.brokerConfigs, new.brokerConfigs) {
		u.BrokerConfigs = maps.Clone(new.brokerConfigs)
		if u.BrokerConfigs == nil {
			u.BrokerConfigs = map[string]map[string]string{}
		}
	}
	DiffTopics(old, new, func(was, is *Topic) {
		if was != nil && (is == nil || is.ID != was.ID) {
			u.Deleted = append(u.Deleted, DeletedTopic{was.Name, was.ID})
			was = nil
		}
		if is != nil {
			u.Topics = append(u.Topics, diffTopic(was, is))
		}
	})
	slices.SortFunc(u.Topics, func(a, b TopicUpdate) int { return compareNames(a.Name, b.Name) })
	slices.SortFunc(u.Deleted, func(a, b DeletedTopic) int { return compareNames(a.Name, b.Name) })
	return u
}

func diffTopic(was, is *Topic) TopicUpdate {
	u := TopicUpdate{Name: is.Name, ID: is.ID}
	if was == nil || !maps.Equal(was.Config, is.Config) {
		if u.Config = is.Config; u.Config == nil {
			u.Config = map[string]string{}
		}
	}
	for i := range is.Partitions {
		if was == nil || i >= len(was.Partitions) || !was.Partitions[i].Equal(is.Partitions[i]) {
			u.Partitions = append(u.Partitions, PartitionUpdate{int32(i), is.Partitions[i]})
		}
	}
	return u
}

func sameConfigs(a, b map[string]map[string]string) bool {
	return maps.EqualFunc(a, b, maps.Equal)
}

// Apply returns the image that the update makes of im, which may be nil for a
// full one. Topics that do not change are shared with im, so that comparing the
// two costs time in what changed.
//
// The state of a partition that is older than im's, by its partition epoch, is
// left out.
func (u *Update) Apply(im *Image) *Image {
	if im == nil {
		im = NewImage(u.ClusterID, nil)
	}
	out := im.WithBrokers(u.Brokers, u.ControllerID, u.ControllerEpoch)
	out.ClusterID = u.ClusterID
	if u.BrokerConfigs != nil && !sameConfigs(out.brokerConfigs, u.BrokerConfigs) {
		out.brokerConfigs = u.BrokerConfigs
	}
	for _, d := range u.Deleted {
		if t := out.Topic(d.Name); t != nil && t.ID == d.ID {
			out = out.Without(d.Name)
		}
	}
	if u.Full {
		out = out.withoutOthers(u.Topics)
	}
	for i := range u.Topics {
		old := out.Topic(u.Topics[i].Name)
		if t := u.Topics[i].apply(old); t != old {
			out = out.With(t)
		}
	}
	return out
}

// withoutOthers drops the topics that are not among some.
func (im *Image) withoutOthers(some []TopicUpdate) *Image {
	named := make(map[string]TopicID, len(some))
	for i := range some {
		named[some[i].Name] = some[i].ID
	}
	for _, t := range im.Topics() {
		if id, ok := named[t.Name]; !ok || id != t.ID {
			im = im.Without(t.Name)
		}
	}
	return im
}

// apply returns the changed topic; old, which may be nil, if nothing changes.
func (u *TopicUpdate) apply(old *Topic) *Topic {
	if old == nil || old.ID != u.ID {
		old = nil
	}
	t := &Topic{Name: u.Name, ID: u.ID, Internal: IsInternal(u.Name)}
	changed := old == nil
	if old != nil {
		t.Partitions, t.Config = old.Partitions, old.Config
	}
	if u.Config != nil && (old == nil || !maps.Equal(old.Config, u.Config)) {
		t.Config, changed = u.Config, true
	}
	cloned := false
	for _, p := range u.Partitions {
		have := int(p.Index) < len(t.Partitions)
		if have && (t.Partitions[p.Index].Equal(p.Partition) || p.PartitionEpoch < t.Partitions[p.Index].PartitionEpoch) {
			continue
		}
		if !cloned {
			t.Partitions, cloned, changed = clonePartitions(t.Partitions, u.Partitions), true, true
		}
		t.Partitions[p.Index] = p.Partition
	}
	if !changed {
		return old
	}
	return t
}

// clonePartitions returns a copy that has room for those of an update. A
// partition that is skipped on the way is one without a leader.
func clonePartitions(old []Partition, update []PartitionUpdate) []Partition {
	n := max(len(old), int(update[len(update)-1].Index)+1)
	out := make([]Partition, n)
	for i := copy(out, old); i < n; i++ {
		out[i].Leader = NoLeader
	}
	return out
}
