package group

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
)

// regexRefreshMin is how long a group's regular expressions are not matched again, however often
// topics come and go (Kafka's figure).
const regexRefreshMin = 10 * time.Second

// view is a group as it will be when the decision that is being made is stored.
type view struct {
	*consumerGroup
	image    *cluster.Image
	changed  *consumerMember           // replaces the member of its id, or is added; nil: none
	removed  string                    // id of a member that goes; empty: none
	resolved map[string]*resolvedRegex // replace the group's
}

// each calls f for every member, in order of their ids.
func (v *view) each(f func(*consumerMember)) {
	added := v.changed
	for _, id := range v.memberIDs() {
		switch {
		case id == v.removed:
			continue
		case added != nil && added.id == id:
			f(added)
			added = nil
			continue
		case added != nil && added.id < id:
			f(added)
			added = nil
		}
		f(v.members[id])
	}
	if added != nil {
		f(added)
	}
}

func (v *view) regex(pattern string) *resolvedRegex {
	if r := v.resolved[pattern]; r != nil {
		return r
	}
	return v.regexes[pattern]
}

// topicsOf lists the topics that a member subscribes to and that exist, in order of their names.
func (v *view) topicsOf(mem *consumerMember) []*cluster.Topic {
	names := mem.topics
	if r := v.regex(mem.regex); mem.regex != "" && r != nil {
		names = slices.Concat(names, r.topics)
		slices.Sort(names)
		names = slices.Compact(names)
	}
	var all []*cluster.Topic
	for _, name := range names {
		if t := v.image.Topic(name); t != nil {
			all = append(all, t)
		}
	}
	return all
}

// subscribed says whether a topic exists and a member subscribes to it.
func (v *view) subscribed(mem *consumerMember, id cluster.TopicID) bool {
	t := v.image.TopicByID(id)
	if t == nil {
		return false
	}
	if _, found := slices.BinarySearch(mem.topics, t.Name); found {
		return true
	}
	r := v.regex(mem.regex)
	if mem.regex == "" || r == nil {
		return false
	}
	_, found := slices.BinarySearch(r.topics, t.Name)
	return found
}

// topicsHash tells apart what the group's target is made for: the topics that are subscribed to and
// exist, and how many partitions they have. 0 stands for none. Its value means something to this
// broker only: after a change of broker software there is one more epoch, no more.
func (v *view) topicsHash() int64 {
	topics := make(map[string]*cluster.Topic)
	v.each(func(mem *consumerMember) {
		for _, t := range v.topicsOf(mem) {
			topics[t.Name] = t
		}
	})
	if len(topics) == 0 {
		return 0
	}
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t := topics[name]
		b := binary.AppendUvarint(nil, uint64(len(name)))
		b = append(append(b, name...), t.ID[:]...)
		_, _ = h.Write(binary.BigEndian.AppendUint32(b, uint32(len(t.Partitions)))) // never fails
	}
	return int64(h.Sum64())
}

// resolve matches the regular expressions that need it against the topics there are: one that is
// new at once, all of them when topics have changed since the last time and that is a while ago. It
// returns those whose result is another than before, and whether all were looked at. That a heartbeat
// costs no look at every member matters: there are many of both.
func (v *view) resolve(now time.Time) (entries map[string]*resolvedRegex, all bool) {
	all = v.regexSeen != v.image && !now.Before(v.regexAt.Add(regexRefreshMin))
	entries = make(map[string]*resolvedRegex)
	look := func(pattern string) {
		topics := matching(v.image, pattern)
		if known := v.regexes[pattern]; known == nil || !slices.Equal(known.topics, topics) {
			entries[pattern] = &resolvedRegex{topics: topics, timestamp: now.UnixMilli()}
		}
	}
	isNew := v.changed.regex != "" && v.regexes[v.changed.regex] == nil
	if isNew {
		look(v.changed.regex)
	}
	if all {
		for pattern := range v.regexes {
			look(pattern)
		}
	}
	return entries, all
}

// matching lists the topics whose whole names a pattern matches.
func matching(image *cluster.Image, pattern string) (names []string) {
	re, err := compileRegex(pattern)
	if err != nil {
		return nil // of a log that another software wrote: it matches nothing
	}
	for _, t := range image.Topics() {
		if re.MatchString(t.Name) {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}

// preferredAssignor is the one that most members would like; the first of the configuration if none
// says anything.
func (v *view) preferredAssignor(cfg Config) string {
	votes := make(map[string]int)
	v.each(func(mem *consumerMember) {
		if mem.assignor != "" && slices.Contains(cfg.ConsumerAssignors, mem.assignor) {
			votes[mem.assignor]++
		}
	})
	best := cfg.ConsumerAssignors[0]
	for _, name := range cfg.ConsumerAssignors {
		if votes[name] > votes[best] {
			best = name
		}
	}
	return best
}

// newTarget lets the assignor decide, and returns the sets of all members by id.
func (v *view) newTarget(cfg Config) map[string]partitionSet {
	spec := &assignSpec{partitions: make(map[cluster.TopicID]int32)}
	v.each(func(mem *consumerMember) {
		am := assignMember{id: mem.id, instanceID: mem.instanceID, target: v.targetOf(mem)}
		for _, t := range v.topicsOf(mem) {
			am.topics = append(am.topics, t.ID)
			spec.partitions[t.ID] = int32(len(t.Partitions))
		}
		slices.SortFunc(am.topics, compareTopicIDs)
		spec.members = append(spec.members, am)
	})
	sets := assignors()[v.preferredAssignor(cfg)](spec)
	target := make(map[string]partitionSet, len(sets))
	for i, s := range sets {
		target[spec.members[i].id] = s
	}
	return target
}

// targetOf is the present target of a member: that of the one whose place it takes, if it does.
func (v *view) targetOf(mem *consumerMember) partitionSet {
	if v.removed != "" && v.changed == mem {
		return v.target[v.removed]
	}
	return v.target[mem.id]
}
