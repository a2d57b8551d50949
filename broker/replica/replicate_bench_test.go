package replica

import (
	"math"
	"testing"

	"github.com/sluice-io/sluice/broker/cluster"
)

// pair is the state of a partition with this node, 1, and another, 2, in sync.
func pair(leader int32) cluster.Partition {
	return cluster.Partition{Leader: leader, LeaderEpoch: 1, Replicas: []int32{1, 2}, ISR: []int32{1, 2}}
}

// BenchmarkLeaderAppend is what a gigabyte costs the leader of a replicated
// partition to append, without fetches: compare with BenchmarkFollow.
func BenchmarkLeaderAppend(b *testing.B) {
	p := open(b, b.TempDir(), Options{GroupFsync: true, Notify: func(*Partition) {}})
	if err := p.Lead(pair(1), now); err != nil {
		b.Fatal(err)
	}
	one := batch(b, 1000)
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Append(one, 2, now); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFollow is what it costs to be read by a follower and to be appended
// there: FollowerFetch, ReadForFollower, Answer, without the network.
func BenchmarkFollow(b *testing.B) {
	leader := open(b, b.TempDir(), Options{GroupFsync: true, Notify: func(*Partition) {}})
	if err := leader.Lead(pair(1), now); err != nil {
		b.Fatal(err)
	}
	follower := open(b, b.TempDir(), Options{})
	follower.opt.BrokerID = 2
	if err := follower.Follow(pair(1), now); err != nil {
		b.Fatal(err)
	}
	f := NewFetcher(FetcherConfig{Leader: 1})
	f.Add(follower)
	one := batch(b, 1000)
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if _, err := leader.Append(one, 2, now); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		req, _ := f.Next(now)
		q := &req.Partitions[0]
		ask := FollowerFetch{Replica: 2, BrokerEpoch: 1, LeaderEpoch: q.LeaderEpoch, Offset: q.Offset, LastEpoch: q.LastEpoch, LogStart: q.LogStart}
		if _, err := leader.FollowerFetch(ask, now); err != nil {
			b.Fatal(err)
		}
		region, err := leader.ReadForFollower(ask, math.MaxInt32, true)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := region.File.ReadAt(buf[:region.Len], region.Pos); err != nil {
			b.Fatal(err)
		}
		got := FetchedPartition{Records: buf[:region.Len], HighWatermark: leader.HighWatermark()}
		region.Release()
		f.Answer(req, &FetchResponse{Partitions: []FetchedPartition{got}}, nil, now)
	}
	if follower.Log().EndOffset() != leader.Log().EndOffset() {
		b.Fatal("the follower is behind")
	}
}
