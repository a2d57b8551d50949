package replica

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-io/sluice/broker/cluster"
)

// Partitions finds the partitions of this node. The zero value is empty and
// ready. Looking up takes no lock; changes copy the index, so that adding many
// partitions is best done in one call.
type Partitions struct {
	mu    sync.Mutex // orders changes
	index atomic.Pointer[index]
}

// index is immutable.
type index struct {
	byName map[string]*topic
	byID   map[cluster.TopicID]*topic
}

// topic has the partitions by number; those that are not on this node are nil.
// It is immutable.
type topic struct {
	name       string
	id         cluster.TopicID
	partitions []*Partition
}

func (t *topic) get(partition int32) *Partition {
	if t == nil || partition < 0 || int(partition) >= len(t.partitions) {
		return nil
	}
	return t.partitions[partition]
}

func (ps *Partitions) load() index {
	if ix := ps.index.Load(); ix != nil {
		return *ix
	}
	return index{}
}

// Get returns a partition by its topic's name, nil if it is not here.
func (ps *Partitions) Get(name string, partition int32) *Partition {
	return ps.load().byName[name].get(partition)
}

// GetByID returns a partition by its topic's id, nil if it is not here.
func (ps *Partitions) GetByID(id cluster.TopicID, partition int32) *Partition {
	return ps.load().byID[id].get(partition)
}

// All returns all partitions, sorted by topic and number.
func (ps *Partitions) All() []*Partition {
	ix := ps.load()
	var all []*Partition
	for _, name := range slices.Sorted(maps.Keys(ix.byName)) {
		for _, p := range ix.byName[name].partitions {
			if p != nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// Add makes partitions findable. A topic takes the name from one of another id.
func (ps *Partitions) Add(add ...*Partition) {
	ps.change(func(ix *index) {
		grouped := map[cluster.TopicID][]*Partition{}
		for _, p := range add {
			grouped[p.opt.TopicID] = append(grouped[p.opt.TopicID], p)
		}
		for id, list := range grouped {
			t := ix.byID[id].with(list)
			ix.byID[id], ix.byName[t.name] = t, t
		}
	})
}

// Remove makes partitions no longer findable.
func (ps *Partitions) Remove(remove ...*Partition) {
	ps.change(func(ix *index) {
		for _, p := range remove {
			ix.remove(p)
		}
	})
}

func (ps *Partitions) change(fn func(*index)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	old := ps.load()
	next := &index{byName: maps.Clone(old.byName), byID: maps.Clone(old.byID)}
	if next.byName == nil {
		next.byName, next.byID = map[string]*topic{}, map[cluster.TopicID]*topic{}
	}
	fn(next)
	ps.index.Store(next)
}

// with returns t with further partitions, all of one topic.
func (t *topic) with(list []*Partition) *topic {
	next := &topic{name: list[0].opt.Topic, id: list[0].opt.TopicID}
	if t != nil {
		next.partitions = slices.Clone(t.partitions)
	}
	for _, p := range list {
		if need := int(p.opt.Partition) + 1 - len(next.partitions); need > 0 {
			next.partitions = append(next.partitions, make([]*Partition, need)...)
		}
		next.partitions[p.opt.Partition] = p
	}
	return next
}

func (ix *index) remove(p *Partition) {
	t := ix.byID[p.opt.TopicID]
	if t.get(p.opt.Partition) != p {
		return
	}
	next := &topic{name: t.name, id: t.id, partitions: slices.Clone(t.partitions)}
	next.partitions[p.opt.Partition] = nil
	empty := !slices.ContainsFunc(next.partitions, func(p *Partition) bool { return p != nil })
	named := ix.byName[t.name] == t
	switch {
	case empty && named:
		delete(ix.byName, t.name)
		delete(ix.byID, t.id)
	case empty:
		delete(ix.byID, t.id)
	default:
		ix.byID[t.id] = next
		if named {
			ix.byName[t.name] = next
		}
	}
}
