package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// The replicas of a partition are on as many racks as there are, and brokers of
// racks of one size lead and hold as much as each other.
func TestReplicasAreSpreadOverRacks(t *testing.T) {
	for racks := 2; racks <= 4; racks++ {
		for perRack := 1; perRack <= 3; perRack++ {
			im := NewImage("c", nil)
			for id := range racks * perRack {
				im.Brokers = append(im.Brokers, Broker{ID: int32(id), Rack: fmt.Sprint("rack-", id/perRack)})
			}
			for factor := 1; factor <= min(4, len(im.Brokers)); factor++ {
				checkSpread(t, im, racks, factor)
			}
		}
	}
}

func checkSpread(t *testing.T, im *Image, racks, factor int) {
	t.Helper()
	n := len(im.Brokers)
	partitions := n * max(n-1, 1) * 4
	replicas, err := assignReplicas(im, "some-topic", 0, partitions, factor)
	if err != nil {
		t.Fatal(err)
	}
	leads, holds := make([]int, n), make([]int, n)
	for _, r := range replicas {
		on := map[string]bool{}
		for i, id := range r {
			if slices.Contains(r[:i], id) {
				t.Fatalf("%v has a broker twice", r)
			}
			on[im.Brokers[id].Rack] = true
			holds[id]++
		}
		leads[r[0]]++
		if len(on) != min(factor, racks) {
			t.Fatalf("%d brokers on %d racks: %v is on %d racks", n, racks, r, len(on))
		}
	}
	if slices.Max(leads) != slices.Min(leads) {
		t.Errorf("%d brokers on %d racks: leaders %v", n, racks, leads)
	}
	if mean := partitions * factor / n; slices.Max(holds) > mean+mean/5 || slices.Min(holds) < mean-mean/5 {
		t.Errorf("%d brokers on %d racks, factor %d: replicas %v", n, racks, factor, holds)
	}
}

func TestRacksOfSomeBrokersDoNotCount(t *testing.T) {
	im := NewImage("c", []Broker{{ID: 1, Rack: "a"}, {ID: 2, Rack: "a"}, {ID: 3}})
	replicas, err := assignReplicas(im, "t", 0, 6, 2)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(replicas, func(r []int32) bool { return !slices.Contains(r, 3) }) {
		t.Errorf("%v", replicas)
	}
}

func TestBrokersThatAreToGoGetNothingNew(t *testing.T) {
	im := NewImage("c", []Broker{{ID: 1}, {ID: 2}, {ID: 3, ShuttingDown: true}, {ID: 4}})
	im = im.WithBrokerConfig("4", map[string]string{CordonedConfig: "*"})
	replicas, err := assignReplicas(im, "t", 0, 12, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		if slices.Contains(r, 3) || slices.Contains(r, 4) {
			t.Errorf("%v", r)
		}
	}
	// Rather one that shuts down than none; and never one that is cordoned.
	if replicas, err = assignReplicas(im, "t", 0, 12, 3); err != nil || slices.ContainsFunc(replicas, func(r []int32) bool { return slices.Contains(r, 4) }) {
		t.Errorf("%v, %v", replicas, err)
	}
	if _, err = assignReplicas(im, "t", 0, 12, 4); !errors.Is(err, ErrInvalidReplicationFactor) {
		t.Errorf("%v", err)
	}
}
