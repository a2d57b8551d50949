package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// BenchmarkHeartbeat is one heartbeat, in a coordinator with 1,000 members in 100 groups.
func BenchmarkHeartbeat(b *testing.B) {
	f := newFixture(b, Config{})
	var reqs []HeartbeatRequest
	for g := range 100 {
		req := joinRequest(fmt.Sprint("g", g))
		req.RequireMemberID, req.SessionTimeout, req.RebalanceTimeout = false, 30*time.Minute, 30*time.Minute
		for range 10 {
			req.InstanceID = fmt.Sprint("i", len(reqs))
			w := f.join(req)
			f.clock.advance(time.Millisecond)
			if len(w.answers) == 1 {
				reqs = append(reqs, HeartbeatRequest{Group: req.Group, MemberID: w.answers[0].MemberID, Generation: w.answers[0].Generation})
			} else {
				reqs = append(reqs, HeartbeatRequest{Group: req.Group, MemberID: req.InstanceID})
			}
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_ = f.c.Heartbeat(reqs[i%len(reqs)])
	}
}

// BenchmarkCommit is one commit of 12 partitions, to a log in memory that commits at once.
func BenchmarkCommit(b *testing.B) {
	f := newFixture(b, Config{})
	req := CommitRequest{Group: "g", Generation: -1}
	for p := range int32(12) {
		req.Commits = append(req.Commits, Commit{Topic: "access", Partition: p, Metadata: "claim"})
	}
	failed := 0
	b.ReportAllocs()
	for b.Loop() {
		f.c.Commit(req, func(r CommitResponse) {
			if r.Err != nil {
				failed++
			}
		})
		f.log.batches = f.log.batches[:0]
	}
	if failed > 0 {
		b.Fatalf("%d commits failed", failed)
	}
}

// BenchmarkReplay is the load of 100,000 commits of 12 partitions.
func BenchmarkReplay(b *testing.B) {
	f := newFixture(b, Config{})
	req := CommitRequest{Group: "g", Generation: -1}
	for p := range int32(12) {
		req.Commits = append(req.Commits, Commit{Topic: "access", Partition: p})
	}
	for range 100000 / 12 {
		f.c.Commit(req, func(CommitResponse) {})
	}
	log := f.log.prefix(f.log.end)
	b.ReportAllocs()
	for b.Loop() {
		f.elect(log)
		if state, _ := f.c.shards[0].State(); state != coordinator.Active {
			b.Fatal("not loaded")
		}
	}
	b.ReportMetric(float64(log.end)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkConsumerHeartbeat is one heartbeat of the consumer protocol that changes nothing, in a
// group of so many members.
func BenchmarkConsumerHeartbeat(b *testing.B) {
	for _, members := range []int{10, 1000} {
		b.Run(fmt.Sprint("members=", members), func(b *testing.B) {
			f, all := consumersOf(b, members)
			f.settle(all...)
			reqs := make([]ConsumerHeartbeat, members)
			for i, c := range all {
				reqs[i] = c.request()
				reqs[i].Owned = nil
			}
			refused := 0
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f.c.ConsumerHeartbeat(reqs[i%members], func(r ConsumerHeartbeatResponse) {
					if r.Err != nil {
						refused++
					}
				})
			}
			if refused > 0 {
				b.Fatalf("%d heartbeats refused", refused)
			}
		})
	}
}

// BenchmarkConsumerRebalance is a group of so many members from the first heartbeat of one more to
// the last one's of the rest, with ten partitions for each member.
func BenchmarkConsumerRebalance(b *testing.B) {
	for _, members := range []int{10, 1000} {
		b.Run(fmt.Sprint("members=", members), func(b *testing.B) {
			f, all := consumersOf(b, members)
			f.settle(all...)
			for b.Loop() {
				more := f.consumer("more", "big")
				f.settle(append(all, more)...)
				more.leave(leaveEpoch)
				f.settle(all...)
			}
		})
	}
}

func consumersOf(b *testing.B, members int) (f *consumerFixture, all []*consumer) {
	f = newConsumerFixture(b, Config{ConsumerSessionTimeout: time.Hour, ConsumerAssignmentInterval: always(time.Second)})
	f.topic("big", members*10)
	for i := range members {
		all = append(all, f.consumer(fmt.Sprintf("m%04d", i), "big"))
	}
	return f, all
}
