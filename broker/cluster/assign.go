package cluster

import (
	"fmt"
	"slices"
	"strconv"
)

// CordonedConfig is the setting of a broker that keeps new replicas away from
// it (KIP-1066): "*" for all its directories, or nothing.
const CordonedConfig = "cordoned.log.dirs"

// Cordoned tells whether a broker is to get no new replicas.
func (im *Image) Cordoned(id int32) bool {
	return im.BrokerConfig(strconv.Itoa(int(id)))[CordonedConfig] == "*"
}

// assignReplicas spreads partitions from..to over the brokers that can take
// some: leaders go round the brokers from a place that depends on the topic's
// name, and followers start one further each time round, so that the followers
// of one leader are spread too. If all brokers have a rack, the replicas of a
// partition are on as many racks as there are, and leaders alternate between racks.
func assignReplicas(im *Image, topic string, from, to, factor int) ([][]int32, error) {
	brokers := assignable(im, factor)
	n := len(brokers)
	if factor > n {
		return nil, fmt.Errorf("%w: it is %d, larger than the number of available brokers, %d", ErrInvalidReplicationFactor, factor, n)
	}
	brokers, racks := byRack(brokers)
	start := 0
	for i := 0; i < len(topic); i++ {
		start = (start*31 + int(topic[i])) % n
	}
	out := make([][]int32, 0, to-from)
	for p := from; p < to; p++ {
		out = append(out, spread(brokers, racks, (start+p)%n, start+p/n, factor))
	}
	return out, nil
}

// assignable are the brokers for new replicas: those that are not cordoned and
// do not shut down. One that shuts down counts if there are too few.
func assignable(im *Image, factor int) []Broker {
	open := slices.DeleteFunc(slices.Clone(im.Brokers), func(b Broker) bool { return im.Cordoned(b.ID) })
	staying := slices.DeleteFunc(slices.Clone(open), func(b Broker) bool { return b.ShuttingDown })
	if len(staying) >= factor {
		return staying
	}
	return open
}

// byRack orders brokers so that neighbours are on different racks as far as
// that can be, and returns the number of racks; 0 if racks do not count, since
// not every broker has one.
func byRack(brokers []Broker) (ordered []Broker, racks int) {
	on := map[string][]Broker{}
	for _, b := range brokers {
		if b.Rack == "" {
			return brokers, 0
		}
		on[b.Rack] = append(on[b.Rack], b)
	}
	names := sortedKeys(on)
	for i := 0; len(ordered) < len(brokers); i++ {
		for _, rack := range names {
			if i < len(on[rack]) {
				ordered = append(ordered, on[rack][i])
			}
		}
	}
	return ordered, len(names)
}

// spread returns a partition's replicas: the broker at first, and then those
// that follow from a place that shift moves, on other racks while there are any.
func spread(brokers []Broker, racks, first, shift, factor int) []int32 {
	n := len(brokers)
	replicas := []int32{brokers[first].ID}
	used := []string{brokers[first].Rack}
	for step := 0; len(replicas) < factor; step++ {
		b := brokers[(first+1+(shift+step)%(n-1))%n]
		again := step >= n-1 // all racks have been seen once: any broker does
		if slices.Contains(replicas, b.ID) || !again && len(used) < racks && slices.Contains(used, b.Rack) {
			continue
		}
		replicas = append(replicas, b.ID)
		if !slices.Contains(used, b.Rack) {
			used = append(used, b.Rack)
		}
	}
	return replicas
}
