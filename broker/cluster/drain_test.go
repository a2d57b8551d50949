package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// After the plan for a broker it has nothing, all others have about as much as
// each other, and a partition is on as many racks as before.
func TestPlanDrain(t *testing.T) {
	for _, racks := range []int{1, 2, 3} {
		im := NewImage("c", nil)
		for id := range int32(6) {
			im.Brokers = append(im.Brokers, Broker{ID: id, Rack: fmt.Sprint("rack-", int(id)%racks)})
		}
		for i := range 20 {
			topic, err := planTopic(im, NewTopic{Name: fmt.Sprint("t", i), Partitions: 6, ReplicationFactor: 3}, ControllerConfig{}.withDefaults())
			if err != nil {
				t.Fatal(err)
			}
			im = im.With(topic)
		}
		plan, err := PlanDrain(im, 2)
		if err != nil {
			t.Fatal(err)
		}
		after := im
		for _, r := range plan {
			topic, p, _ := after.partition(r.TopicPartition)
			if at := slices.Index(p.Replicas, 2); at < 0 || len(difference(p.Replicas, r.Replicas)) != 1 || r.Replicas[at] == 2 {
				t.Errorf("from %v to %v", p.Replicas, r.Replicas)
			}
			if was, is := racksOf(im, p.Replicas), racksOf(im, r.Replicas); is < was {
				t.Errorf("%d racks: from %v on %d to %v on %d", racks, p.Replicas, was, r.Replicas, is)
			}
			p.Replicas = r.Replicas
			after = after.withPartition(topic, r.Partition, p)
		}
		holds := make([]int, 6)
		for _, topic := range after.Topics() {
			for _, p := range topic.Partitions {
				for i, id := range p.Replicas {
					holds[id]++
					if slices.Contains(p.Replicas[:i], id) {
						t.Errorf("%v has a broker twice", p.Replicas)
					}
				}
			}
		}
		if holds[2] != 0 {
			t.Errorf("%d replicas are left", holds[2])
		}
		if racks == 1 && slices.Max(holds)-slices.Min(slices.Delete(slices.Clone(holds), 2, 3)) > 1 {
			t.Errorf("replicas %v", holds)
		}
	}
}

func racksOf(im *Image, ids []int32) int {
	on := map[string]bool{}
	for _, id := range ids {
		b, _ := im.Broker(id)
		on[b.Rack] = true
	}
	return len(on)
}

func TestPlanDrainWithoutRoom(t *testing.T) {
	im := NewImage("c", []Broker{{ID: 1}, {ID: 2}, {ID: 3}})
	im = im.With(&Topic{Name: "t", ID: TopicID{1}, Partitions: []Partition{{Leader: 1, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}}}})
	if _, err := PlanDrain(im, 3); !errors.Is(err, ErrInvalidReplicationFactor) {
		t.Errorf("%v", err)
	}
	// A broker that is dead already is drained all the same, and one that is on its way out takes nothing.
	im = im.WithBrokers([]Broker{{ID: 1}, {ID: 2}, {ID: 4, ShuttingDown: true}, {ID: 5}}, -1, 0)
	plan, err := PlanDrain(im, 3)
	if err != nil || len(plan) != 1 || !slices.Equal(plan[0].Replicas, []int32{1, 2, 5}) {
		t.Errorf("%v, %v", plan, err)
	}
}
