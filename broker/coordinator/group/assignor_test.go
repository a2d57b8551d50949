package group

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-io/sluice/broker/cluster"
)

func topicN(n int) cluster.TopicID { return cluster.TopicID{byte(n)} }

// assignCase is members, by what they subscribe to, and topics with their partitions.
func assignCase(partitions map[int]int32, subscriptions ...[]int) *assignSpec {
	s := &assignSpec{partitions: make(map[cluster.TopicID]int32)}
	for n, count := range partitions {
		s.partitions[topicN(n)] = count
	}
	for i, topics := range subscriptions {
		mem := assignMember{id: fmt.Sprintf("m%02d", i)}
		for _, n := range topics {
			mem.topics = append(mem.topics, topicN(n))
		}
		s.members = append(s.members, mem)
	}
	return s
}

// checkSets checks that every partition that somebody subscribes to has one owner, who does.
func checkSets(t *testing.T, s *assignSpec, sets []partitionSet) (loads []int) {
	t.Helper()
	owned := make(map[topicPartition]bool)
	wanted := 0
	seen := make(map[cluster.TopicID]bool)
	for i, set := range sets {
		load := 0
		for topic, partitions := range set {
			if !slices.Contains(s.members[i].topics, topic) {
				t.Errorf("member %d has a partition of topic %v, which it does not subscribe to", i, topic)
			}
			for _, p := range partitions {
				if owned[topicPartition{topic, p}] {
					t.Errorf("%v-%d has two owners", topic, p)
				}
				owned[topicPartition{topic, p}] = true
				load++
			}
			if !slices.IsSorted(partitions) {
				t.Errorf("%v is not sorted", partitions)
			}
		}
		loads = append(loads, load)
		for _, topic := range s.members[i].topics {
			if !seen[topic] {
				seen[topic] = true
				wanted += int(s.partitions[topic])
			}
		}
	}
	if len(owned) != wanted {
		t.Errorf("%d partitions have an owner, want %d", len(owned), wanted)
	}
	return loads
}

func TestRangeAssignor(t *testing.T) {
	s := assignCase(map[int]int32{1: 5, 2: 5, 3: 1}, []int{1, 2, 3}, []int{1, 2, 3}, []int{1})
	s.members[2].instanceID = "static" // comes first
	sets := assignRange(s)
	checkSets(t, s, sets)
	want := []partitionSet{
		{topicN(1): {2, 3}, topicN(2): {0, 1, 2}, topicN(3): {0}},
		{topicN(1): {4}, topicN(2): {3, 4}},
		{topicN(1): {0, 1}},
	}
	for i := range want {
		if !sets[i].equal(want[i]) {
			t.Errorf("member %d: %v, want %v", i, sets[i], want[i])
		}
	}
}

// Members that subscribe to the same differ by one partition at most, and a change moves no more
// partitions than it has to.
func TestUniformAssignorOfEqualMembers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		partitions := map[int]int32{1: 1 + rng.Int32N(12), 2: rng.Int32N(12), 3: rng.Int32N(40)}
		topics := []int{1, 2, 3}[:1+rng.IntN(3)]
		members := slices.Repeat([][]int{topics}, 1+rng.IntN(9))
		s := assignCase(partitions, members...)
		sets := assignUniform(s)
		wantEven(t, checkSets(t, s, sets))

		// One more member: what it gets is all that moves.
		more := assignCase(partitions, append(members, topics)...)
		for i := range sets {
			more.members[i].target = sets[i]
		}
		grown := assignUniform(more)
		loads := checkSets(t, more, grown)
		wantEven(t, loads)
		if moved := countMoved(sets, grown); moved != loads[len(loads)-1] {
			t.Errorf("%d partitions moved, want the %d of the new member", moved, loads[len(loads)-1])
		}
		// The first one goes: what it had is all that moves.
		if len(members) > 1 {
			less := assignCase(partitions, members[1:]...)
			for i := range less.members {
				less.members[i].target = sets[i+1]
			}
			shrunk := assignUniform(less)
			wantEven(t, checkSets(t, less, shrunk))
			if moved := countMoved(sets[1:], shrunk); moved != 0 {
				t.Errorf("%d partitions were taken from members that stay", moved)
			}
		}
		if again := assignUniform(withTarget(s, sets)); countMoved(sets, again) != 0 {
			t.Error("partitions moved though nothing has changed")
		}
	}
}

func withTarget(s *assignSpec, sets []partitionSet) *assignSpec {
	for i := range s.members {
		s.members[i].target = sets[i]
	}
	return s
}

func wantEven(t *testing.T, loads []int) {
	t.Helper()
	if slices.Max(loads)-slices.Min(loads) > 1 {
		t.Errorf("uneven: %v", loads)
	}
}

// countMoved is how many partitions members have lost.
func countMoved(before, after []partitionSet) (n int) {
	for i := range before {
		for topic, partitions := range before[i] {
			for _, p := range partitions {
				if !after[i].has(topic, p) {
					n++
				}
			}
		}
	}
	return n
}

// With different subscriptions no partition can be moved to make the numbers more equal.
func TestUniformAssignorOfDifferentMembers(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 300 {
		partitions := make(map[int]int32)
		for n := range 6 {
			partitions[n] = rng.Int32N(10)
		}
		var members [][]int
		for range 1 + rng.IntN(8) {
			var topics []int
			for n := range 6 {
				if rng.IntN(2) == 0 {
					topics = append(topics, n)
				}
			}
			members = append(members, topics)
		}
		s := assignCase(partitions, members...)
		sets := assignUniform(s)
		loads := checkSets(t, s, sets)
		for i, set := range sets {
			for topic := range set {
				for j := range sets {
					if slices.Contains(s.members[j].topics, topic) && loads[i] > loads[j]+1 {
						t.Fatalf("member %d with %d could give a partition of %v to member %d with %d", i, loads[i], topic, j, loads[j])
					}
				}
			}
		}
		if again := assignUniform(withTarget(s, sets)); countMoved(sets, again) != 0 {
			t.Error("partitions moved though nothing has changed")
		}
	}
}

// What a member had of topics that have fewer partitions now, or that others had too, is not kept.
func TestUniformAssignorDropsWhatIsNotThere(t *testing.T) {
	s := assignCase(map[int]int32{1: 2}, []int{1}, []int{1}, nil)
	for i := range s.members {
		s.members[i].target = partitionSet{topicN(1): {0, 1, 2, 3}, topicN(9): {0}}
	}
	checkSets(t, s, assignUniform(s))
	if got := assignUniform(&assignSpec{}); len(got) != 0 {
		t.Errorf("without members: %v", got)
	}
}

func BenchmarkUniformAssignor(b *testing.B) {
	for _, size := range []struct{ members, partitions int }{{10, 100}, {1000, 10_000}} {
		b.Run(fmt.Sprintf("members=%d/partitions=%d", size.members, size.partitions), func(b *testing.B) {
			s := assignCase(map[int]int32{1: int32(size.partitions)}, slices.Repeat([][]int{{1}}, size.members)...)
			withTarget(s, assignUniform(s))
			s.members[0].target = nil
			for b.Loop() {
				assignUniform(s)
			}
		})
	}
}
