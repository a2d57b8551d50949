package peer

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

// take has a receiver take requests as they come off the wire, and returns the
// last answer.
func take(t testing.TB, r *Receiver, requests ...kmsg.Request) kmsg.Response {
	t.Helper()
	var answer kmsg.Response
	for _, req := range requests {
		again := kmsg.RequestForKey(req.Key())
		again.SetVersion(req.GetVersion())
		if err := again.ReadFrom(req.AppendTo(nil)); err != nil {
			t.Fatal(err)
		}
		switch req := again.(type) {
		case *kmsg.StopReplicaRequest:
			answer = r.StopReplica(req)
		case *kmsg.UpdateMetadataRequest:
			answer = r.UpdateMetadata(req)
		case *kmsg.LeaderAndISRRequest:
			answer = r.LeaderAndISR(req)
		}
	}
	return answer
}

func receiver() (*Receiver, *cluster.Metadata) {
	meta := cluster.NewMetadata()
	return NewReceiver(meta, func() int64 { return 7 }, func(topic string, p int32) bool { return topic == "bad" && p == 1 }), meta
}

func partition(index, leader int32, replicas ...int32) cluster.PartitionUpdate {
	return cluster.PartitionUpdate{Index: index, Partition: cluster.Partition{
		Leader: leader, LeaderEpoch: 3, PartitionEpoch: 5, Replicas: replicas, ISR: replicas[:1],
	}}
}

func fullUpdate() *cluster.Update {
	moving := partition(1, 1, 1, 2, 3)
	moving.Adding, moving.Removing, moving.Offline = []int32{3}, []int32{2}, []int32{2}
	elsewhere := partition(2, 2, 2, 3)
	elsewhere.Adding, elsewhere.Offline = []int32{3}, []int32{3}
	return &cluster.Update{
		ClusterID: "c", ControllerID: 2, ControllerEpoch: 4, Seq: 1, Full: true,
		Brokers: []cluster.Broker{
			{ID: 1, Host: "one", Port: 1, Epoch: 7, Rack: "r", Endpoints: []cluster.Endpoint{{Listener: "A", Host: "one", Port: 1}, {Listener: "B", Host: "uno", Port: 2}}},
			{ID: 2, Host: "two", Port: 3, Epoch: 9, ShuttingDown: true, Endpoints: []cluster.Endpoint{{Listener: "A", Host: "two", Port: 3}}},
		},
		BrokerConfigs: map[string]map[string]string{"": {"a": "b"}, "1": {"c": ""}},
		Topics: []cluster.TopicUpdate{
			{Name: "bad", ID: cluster.TopicID{1}, Config: map[string]string{}, Partitions: []cluster.PartitionUpdate{partition(0, 2, 2), moving, elsewhere}},
			{Name: "here", ID: cluster.TopicID{2}, Config: map[string]string{"retention.ms": "1"}, Partitions: []cluster.PartitionUpdate{partition(0, 1, 1)}},
			{Name: "there", ID: cluster.TopicID{3}, Config: map[string]string{"x": "y"}, Partitions: []cluster.PartitionUpdate{partition(0, cluster.NoLeader, 2)}},
		},
	}
}

// images compares two pictures by the update that each would be.
func images(t *testing.T, got, want *cluster.Image) {
	t.Helper()
	a, b := cluster.Diff(nil, got), cluster.Diff(nil, want)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("taken as\n%+v\nwant\n%+v", a, b)
	}
}

// What a controller pushes is what the broker has afterwards, whichever of it
// the broker holds itself.
func TestPushIsTakenWhole(t *testing.T) {
	for _, id := range []int32{1, 2, 3, 4} {
		r, meta := receiver()
		to := cluster.Broker{ID: id, Epoch: 7}
		u := fullUpdate()
		requests := pushRequests(to, u)
		answer := take(t, r, requests...)
		if err := pushAnswer(answer); err != nil {
			t.Fatal(err)
		}
		want := u.Apply(nil)
		images(t, meta.Image(), want)
		if offline := offlineIn(answer, u); id != 4 && (len(offline) != 1 || offline[0] != cluster.TopicPartition{Topic: "bad", Partition: 1}) {
			t.Errorf("offline on broker %d: %v", id, offline)
		}

		next := &cluster.Update{ClusterID: "c", ControllerID: 2, ControllerEpoch: 4, Seq: 5, Brokers: u.Brokers[:1],
			Topics:  []cluster.TopicUpdate{{Name: "here", ID: cluster.TopicID{2}, Partitions: []cluster.PartitionUpdate{partition(1, 1, 1, 4)}}},
			Deleted: []cluster.DeletedTopic{{Name: "there", ID: cluster.TopicID{3}}}}
		if err := pushAnswer(take(t, r, pushRequests(to, next)...)); err != nil {
			t.Fatal(err)
		}
		images(t, meta.Image(), next.Apply(want))
	}
}

func TestPushIsRefused(t *testing.T) {
	to := cluster.Broker{ID: 1, Epoch: 7}
	r, meta := receiver()
	u := fullUpdate()
	u.Deleted = []cluster.DeletedTopic{{Name: "gone", ID: cluster.TopicID{9}}}
	requests := pushRequests(to, u)
	if len(requests) != 3 {
		t.Fatalf("%d requests", len(requests))
	}
	refused := func(what string, want error, requests ...kmsg.Request) {
		t.Helper()
		if err := pushAnswer(take(t, r, requests...)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	refused("the last part alone", cluster.ErrStaleUpdate, requests[2])
	refused("a part left out", cluster.ErrStaleUpdate, requests[0], requests[2])
	refused("a part twice", cluster.ErrStaleUpdate, requests[0], requests[1], requests[1])
	refused("for an earlier life", cluster.ErrStaleBrokerEpoch, pushRequests(cluster.Broker{ID: 1, Epoch: 6}, u)...)
	if meta.Image() != nil {
		t.Fatal("something was taken")
	}
	if err := pushAnswer(take(t, r, requests...)); err != nil {
		t.Fatal(err)
	}
	refused("a second time", cluster.ErrStaleUpdate, requests...)
	old := fullUpdate()
	old.ControllerEpoch, old.Seq = 3, 9
	refused("of an earlier controller", cluster.ErrStaleControllerEpoch, pushRequests(to, old)...)
	disordered := fullUpdate()
	disordered.Seq, disordered.Topics[0], disordered.Topics[1] = 9, disordered.Topics[1], disordered.Topics[0]
	refused("out of order", errBadUpdate, pushRequests(cluster.Broker{ID: 9, Epoch: 7}, disordered)...)
}

// FuzzReceiver takes requests that no controller of ours would send.
func FuzzReceiver(f *testing.F) {
	for _, req := range pushRequests(cluster.Broker{ID: 1, Epoch: 7}, fullUpdate()) {
		f.Add(int8(req.Key()), req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, key int8, body []byte) {
		r, _ := receiver()
		if key < 4 || key > 6 {
			key = 4 + int8(rand.N(3))
		}
		req := kmsg.RequestForKey(int16(key))
		req.SetVersion(map[int8]int16{4: leaderAndISRVersion, 5: stopReplicaVersion, 6: updateMetadataVersion}[key])
		if req.ReadFrom(body) != nil {
			return
		}
		take(t, r, req)
	})
}
