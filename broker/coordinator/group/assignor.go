package group

import (
	"cmp"
	"slices"

	"github.com/sluice-io/sluice/broker/cluster"
)

// Names of the server-side assignors (KIP-848).
const (
	uniformAssignor = "uniform"
	rangeAssignor   = "range"
)

// Assignors are the names of the server-side assignors there are, the default first.
func Assignors() []string { return []string{uniformAssignor, rangeAssignor} }

// assignors are the server-side assignors there are.
func assignors() map[string]func(*assignSpec) []partitionSet {
	return map[string]func(*assignSpec) []partitionSet{uniformAssignor: assignUniform, rangeAssignor: assignRange}
}

// assignSpec is what an assignor decides on. It answers with a set for each member, in order.
type assignSpec struct {
	members    []assignMember // by id
	partitions map[cluster.TopicID]int32
}

// assignMember is a member as an assignor sees it.
type assignMember struct {
	id, instanceID string
	topics         []cluster.TopicID // that it subscribes to and that exist; sorted
	target         partitionSet      // that it had before
}

// homogeneous says whether all members subscribe to the same topics.
func (s *assignSpec) homogeneous() bool {
	for i := range s.members {
		if !slices.Equal(s.members[i].topics, s.members[0].topics) {
			return false
		}
	}
	return true
}

// board is an assignment in the making: who has each partition, and how many each member has.
type board struct {
	*assignSpec
	topics      []cluster.TopicID         // all that are subscribed to; sorted
	subscribers map[cluster.TopicID][]int // members by index
	owner       map[cluster.TopicID][]int // member of each partition; -1: none
	load        []int
}

func newBoard(s *assignSpec) *board {
	b := &board{
		assignSpec: s, load: make([]int, len(s.members)),
		subscribers: make(map[cluster.TopicID][]int), owner: make(map[cluster.TopicID][]int),
	}
	for i, mem := range s.members {
		for _, topic := range mem.topics {
			b.subscribers[topic] = append(b.subscribers[topic], i)
		}
	}
	b.topics = sortedTopics(b.subscribers)
	for _, topic := range b.topics {
		b.owner[topic] = slices.Repeat([]int{-1}, int(s.partitions[topic]))
	}
	return b
}

// keep leaves the members what they had, of the topics that they still subscribe to.
func (b *board) keep() {
	for i, mem := range b.members {
		for _, topic := range mem.topics {
			for _, p := range mem.target[topic] {
				if owner := b.owner[topic]; int(p) < len(owner) && owner[p] < 0 {
					b.give(topic, int(p), i)
				}
			}
		}
	}
}

func (b *board) give(topic cluster.TopicID, partition, to int) {
	if from := b.owner[topic][partition]; from >= 0 {
		b.load[from]--
	}
	b.owner[topic][partition] = to
	if to >= 0 {
		b.load[to]++
	}
}

// sets is the assignment, for each member in order.
func (b *board) sets() []partitionSet {
	all := make([]partitionSet, len(b.members))
	for i := range all {
		all[i] = make(partitionSet)
	}
	for _, topic := range b.topics {
		for p, owner := range b.owner[topic] {
			if owner >= 0 {
				all[owner][topic] = append(all[owner][topic], int32(p))
			}
		}
	}
	return all
}

// assignUniform gives every member as many partitions as every other, over all topics, and moves as
// few as that takes. Where members subscribe to different topics the numbers are as equal as moving
// single partitions can make them.
func assignUniform(s *assignSpec) []partitionSet {
	if len(s.members) == 0 {
		return nil
	}
	b := newBoard(s)
	b.keep()
	if s.homogeneous() {
		b.takeOverQuota()
		b.dealOut()
	} else {
		b.placeFree()
		b.level()
	}
	return b.sets()
}

// quotas is how many partitions each member gets if all subscribe to all: those who have more than
// the others keep the odd ones.
func (b *board) quotas() []int {
	total := 0
	for _, topic := range b.topics {
		total += len(b.owner[topic])
	}
	least, extra := total/len(b.members), total%len(b.members)
	order := make([]int, len(b.members))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(b.load[y], b.load[x]) })
	quotas := slices.Repeat([]int{least}, len(b.members))
	for _, i := range order[:extra] {
		quotas[i]++
	}
	return quotas
}

// takeOverQuota takes from each member what it has above its quota, the last partitions first.
func (b *board) takeOverQuota() {
	quotas := b.quotas()
	for _, topic := range slices.Backward(b.topics) {
		for p := len(b.owner[topic]) - 1; p >= 0; p-- {
			if owner := b.owner[topic][p]; owner >= 0 && b.load[owner] > quotas[owner] {
				b.give(topic, p, -1)
			}
		}
	}
}

// dealOut gives the free partitions in turn to the members below their quota, so that a topic's
// partitions are spread too.
func (b *board) dealOut() {
	quotas := b.quotas()
	next := 0
	for _, topic := range b.topics {
		for p, owner := range b.owner[topic] {
			if owner >= 0 {
				continue
			}
			for b.load[next] >= quotas[next] {
				next = (next + 1) % len(b.members)
			}
			b.give(topic, p, next)
			next = (next + 1) % len(b.members)
		}
	}
}

// placeFree gives each free partition to the subscriber that has least, beginning with the topics
// that leave least choice.
func (b *board) placeFree() {
	order := slices.Clone(b.topics)
	slices.SortStableFunc(order, func(x, y cluster.TopicID) int {
		return cmp.Compare(len(b.subscribers[x]), len(b.subscribers[y]))
	})
	for _, topic := range order {
		for p, owner := range b.owner[topic] {
			if owner < 0 {
				b.give(topic, p, b.lightest(topic))
			}
		}
	}
}

func (b *board) lightest(topic cluster.TopicID) int {
	return slices.MinFunc(b.subscribers[topic], func(x, y int) int { return cmp.Compare(b.load[x], b.load[y]) })
}

// level moves partitions from members that have at least two more than another subscriber of their
// topic, until there are none. It ends: every move makes the sum of the squares smaller.
func (b *board) level() {
	for moved := true; moved; {
		moved = false
		for _, topic := range b.topics {
			for p := len(b.owner[topic]) - 1; p >= 0; p-- {
				from, to := b.owner[topic][p], b.lightest(topic)
				if b.load[from] >= b.load[to]+2 {
					b.give(topic, p, to)
					moved = true
				}
			}
		}
	}
}

// assignRange gives each member a run of neighbouring partitions of each of its topics, the first
// members one more where they do not divide evenly. Topics of as many partitions and the same
// subscribers are so divided in the same way. Static members come first, by instance id.
func assignRange(s *assignSpec) []partitionSet {
	order := make([]int, len(s.members))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return compareForRange(&s.members[x], &s.members[y]) })
	b := newBoard(s)
	place := make([]int, len(s.members)) // of a member, in order
	for at, i := range order {
		place[i] = at
	}
	for _, topic := range b.topics {
		who := slices.Clone(b.subscribers[topic])
		slices.SortFunc(who, func(x, y int) int { return cmp.Compare(place[x], place[y]) })
		b.giveRanges(topic, who)
	}
	return b.sets()
}

func compareForRange(a, b *assignMember) int {
	switch {
	case a.instanceID != "" && b.instanceID != "":
		return cmp.Compare(a.instanceID, b.instanceID)
	case a.instanceID != "":
		return -1
	case b.instanceID != "":
		return 1
	}
	return cmp.Compare(a.id, b.id)
}

func (b *board) giveRanges(topic cluster.TopicID, who []int) {
	total := len(b.owner[topic])
	least, extra := total/len(who), total%len(who)
	p := 0
	for at, i := range who {
		n := least
		if at < extra {
			n++
		}
		for range n {
			b.give(topic, p, i)
			p++
		}
	}
}
