package cluster

import (
	"fmt"
	"slices"
)

// PlanDrain returns the reassignments after which a broker has no replica: each
// of its replicas goes to the broker that has the fewest then, on a rack that
// the partition is not on yet if there is one, and in the same place of the
// order of preference. What is under way to the broker goes elsewhere too.
//
// An image without the cluster's brokerConfigs, such as one that was made of
// what a client sees, has no cordoned brokers. The error is
// [ErrInvalidReplicationFactor] if too few brokers would be left.
func PlanDrain(im *Image, id int32) ([]Reassignment, error) {
	d := newDrain(im, id)
	var out []Reassignment
	for _, t := range im.Topics() {
		for i, p := range t.Partitions {
			target := p.target()
			at := slices.Index(target, id)
			if at < 0 {
				continue
			}
			to, ok := d.choose(target, id)
			if !ok {
				return nil, fmt.Errorf("%w: %s-%d has %d replicas, and without broker %d there are %d brokers for them; add a broker, or give the topic fewer replicas first",
					ErrInvalidReplicationFactor, t.Name, i, len(target), id, len(d.holds))
			}
			moved := slices.Clone(target)
			moved[at] = to
			out = append(out, Reassignment{TopicPartition{t.Name, int32(i)}, moved})
		}
	}
	return out, nil
}

// drain knows how many replicas the brokers that stay will have.
type drain struct {
	holds map[int32]int
	rack  map[int32]string
}

func newDrain(im *Image, id int32) drain {
	d := drain{holds: map[int32]int{}, rack: map[int32]string{}}
	for _, b := range im.Brokers {
		d.rack[b.ID] = b.Rack
		if b.ID != id && !b.ShuttingDown && !im.Cordoned(b.ID) {
			d.holds[b.ID] = 0
		}
	}
	for _, t := range im.Topics() {
		for _, p := range t.Partitions {
			for _, holder := range p.target() {
				if _, stays := d.holds[holder]; stays {
					d.holds[holder]++
				}
			}
		}
	}
	return d
}

// choose returns who is to take a replica from a broker, and counts it.
func (d drain) choose(replicas []int32, from int32) (to int32, ok bool) {
	racks := map[string]bool{}
	for _, id := range without(replicas, from) {
		racks[d.rack[id]] = true
	}
	to = NoLeader
	better := func(id int32) bool {
		switch taken, best := racks[d.rack[id]], racks[d.rack[to]]; {
		case to == NoLeader:
			return true
		case taken != best:
			return best
		case d.holds[id] != d.holds[to]:
			return d.holds[id] < d.holds[to]
		}
		return id < to
	}
	for id := range d.holds {
		if !slices.Contains(replicas, id) && better(id) {
			to = id
		}
	}
	if to == NoLeader {
		return to, false
	}
	d.holds[to]++
	return to, true
}
