package peer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-io/sluice/broker/cluster"
)

// partitionIndexMax bounds what is believed of a partition's number: the memory
// for a topic follows from it.
const partitionIndexMax = 1 << 20

// merge puts two lists of topics, sorted by name, into one.
func merge(a, b []cluster.TopicUpdate) []cluster.TopicUpdate {
	out := make([]cluster.TopicUpdate, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch order := strings.Compare(a[0].Name, b[0].Name); {
		case order < 0:
			out, a = append(out, a[0]), a[1:]
		case order > 0:
			out, b = append(out, b[0]), b[1:]
		default:
			out, a, b = append(out, joined(a[0], b[0])), a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// joined is one topic of which each list has some partitions.
func joined(a, b cluster.TopicUpdate) cluster.TopicUpdate {
	a.Partitions = append(a.Partitions, b.Partitions...)
	slices.SortFunc(a.Partitions, func(a, b cluster.PartitionUpdate) int { return int(a.Index) - int(b.Index) })
	return a
}

// checkTopics refuses what an update never has: it is applied without looking.
func checkTopics(topics []cluster.TopicUpdate) error {
	for i := range topics {
		if i > 0 && topics[i].Name <= topics[i-1].Name {
			return fmt.Errorf("%w: topics out of order", errBadUpdate)
		}
		last := int32(-1)
		for _, p := range topics[i].Partitions {
			if p.Index <= last || p.Index >= partitionIndexMax {
				return fmt.Errorf("%w: partition %d of topic %s after partition %d", errBadUpdate, p.Index, topics[i].Name, last)
			}
			last = p.Index
		}
	}
	return nil
}
