package replica

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/internal/record"
)

// followers makes partitions that follow broker 2.
func followers(t *testing.T, n int, isr ...int32) []*Partition {
	t.Helper()
	var list []*Partition
	dir := t.TempDir()
	for i := range n {
		l, _, err := commitlog.Open(commitlog.OSFS{}, filepath.Join(dir, fmt.Sprintf("t-%d", i)), commitlog.Config{}, commitlog.OpenOptions{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Abort)
		p := New(l, Options{Topic: "t", Partition: int32(i), BrokerID: 1}, DefaultTopicConfig())
		if err := p.Follow(cluster.Partition{Leader: 2, Replicas: []int32{2, 1}, ISR: isr}, now); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

func indexes(req *FetchRequest) (list []int32) {
	for i := range req.Partitions {
		list = append(list, req.Partitions[i].Partition.Index())
	}
	return list
}

// batchAt is a batch as a leader has it.
func batchAt(t *testing.T, offset int64, records int) record.Batch {
	t.Helper()
	b := batch(t, records)
	b.SetBaseOffset(offset)
	b.SetLeaderEpoch(0)
	return b
}

// A leader whose answers have room for a few of many partitions serves all in turn,
// whatever each has to give.
func TestAllPartitionsHaveTheirTurn(t *testing.T) {
	const parts, room = 10, 3
	f := NewFetcher(FetcherConfig{Leader: 2})
	f.Add(followers(t, parts, 2)...)
	served := map[int32]int{}
	for range 20 {
		req, _ := f.Next(now)
		resp := &FetchResponse{}
		for i := range req.Partitions[:room] { // the leader goes by the order, and every partition has more
			q := &req.Partitions[i]
			resp.Partitions = append(resp.Partitions, FetchedPartition{
				Partition: q.Partition.Index(), Records: batchAt(t, q.Offset, 1), HighWatermark: q.Offset,
			})
			served[q.Partition.Index()]++
		}
		f.Answer(req, resp, nil, now)
	}
	for i := range int32(parts) {
		if served[i] != 20*room/parts {
			t.Errorf("partition %d got %d of %d answers", i, served[i], 20*room)
		}
	}
}

// A partition that fails rests, and the others go on meanwhile.
func TestAFailingPartitionSlowsNoOther(t *testing.T) {
	list := followers(t, 3, 2)
	var failed []int32
	f := NewFetcher(FetcherConfig{Leader: 2, Backoff: time.Second, Failed: func(p *Partition, _ error) { failed = append(failed, p.Index()) }})
	f.Add(list...)
	req, _ := f.Next(now)
	f.Answer(req, &FetchResponse{Partitions: []FetchedPartition{
		{Partition: 0, Err: ErrNotLeader},
		{Partition: 1, Err: errors.New("its disk")},
		{Partition: 2, Records: batchAt(t, 0, 2), HighWatermark: 1},
	}}, nil, now)
	if fmt.Sprint(failed) != "[1]" {
		t.Errorf("told of failures of %v; that of who leads is settled by news", failed)
	}
	if list[2].Log().EndOffset() != 2 || list[2].HighWatermark() != 1 {
		t.Errorf("end %d, high watermark %d", list[2].Log().EndOffset(), list[2].HighWatermark())
	}
	if req, _ = f.Next(now); fmt.Sprint(indexes(req)) != "[2]" {
		t.Errorf("asks for %v", indexes(req))
	}
	f.Answer(req, &FetchResponse{}, nil, now)
	later := now.Add(time.Second)
	if req, _ = f.Next(later); len(req.Partitions) != 3 {
		t.Errorf("a second later it asks for %v", indexes(req))
	}
	// A request that fails as a whole has all rest.
	f.Answer(req, nil, errors.New("the connection"), later)
	if req, at := f.Next(later); req != nil || at != later.Add(time.Second) {
		t.Errorf("asks for %v, next at %v", req, at)
	}
}

// A leader that has not heard of its office yet is asked again soon, and ever less often.
func TestAPassingDisagreementRestsShortly(t *testing.T) {
	list := followers(t, 1, 2)
	f := NewFetcher(FetcherConfig{Leader: 2, Backoff: 50 * time.Millisecond})
	f.Add(list...)
	at := now
	disagree := func(want time.Duration) {
		t.Helper()
		req, _ := f.Next(at)
		f.Answer(req, &FetchResponse{Partitions: []FetchedPartition{{Partition: 0, Err: ErrNotLeader}}}, nil, at)
		req, next := f.Next(at)
		if req != nil || next.Sub(at) != want {
			t.Fatalf("asks for %v, next after %v, want %v", req, next.Sub(at), want)
		}
		at = next
	}
	disagree(10 * time.Millisecond)
	disagree(20 * time.Millisecond)
	disagree(40 * time.Millisecond)
	disagree(50 * time.Millisecond)
	disagree(50 * time.Millisecond)
	req, _ := f.Next(at)
	f.Answer(req, &FetchResponse{Partitions: []FetchedPartition{{Partition: 0, Records: batchAt(t, 0, 2), HighWatermark: 1}}}, nil, at)
	disagree(10 * time.Millisecond) // it went well in between
}

// The rate bounds replicas that are named and not in sync; the others pass them.
func TestOnlyThrottledReplicasWait(t *testing.T) {
	var throttle Throttle
	throttle.SetRate(10)
	list := append(followers(t, 2, 2), followers(t, 3, 2, 1)[2:]...) // 0 and 1 are not in sync
	f := NewFetcher(FetcherConfig{
		Leader: 2, Throttle: &throttle, Throttled: func(p *Partition) bool { return p.Index() != 1 },
	})
	f.Add(list...)
	req, _ := f.Next(now)
	data := batchAt(t, 0, 1)
	resp := &FetchResponse{}
	for i := range int32(3) {
		resp.Partitions = append(resp.Partitions, FetchedPartition{Partition: i, Records: batchAt(t, 0, 1), HighWatermark: 0})
	}
	f.Answer(req, resp, nil, now)
	req, _ = f.Next(now)
	if fmt.Sprint(indexes(req)) != "[1 2]" {
		t.Errorf("asks for %v", indexes(req))
	}
	f.Answer(req, &FetchResponse{}, nil, now)
	// What went is paid for: only that of partition 0.
	due := now.Add(time.Duration(len(data)) * time.Second / 10)
	if req, _ = f.Next(due.Add(-time.Millisecond)); len(req.Partitions) != 2 {
		t.Errorf("just before, it asks for %v", indexes(req))
	}
	f.Answer(req, &FetchResponse{}, nil, now)
	if req, _ = f.Next(due.Add(time.Millisecond)); len(req.Partitions) != 3 {
		t.Errorf("just after, it asks for %v", indexes(req))
	}
}

// DeleteRecords is answered when no in-sync replica has anything left of what was
// deleted, whatever those out of sync have.
func TestLowWatermark(t *testing.T) {
	p := open(t, t.TempDir(), Options{})
	st := cluster.Partition{Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}}
	if err := p.Lead(st, now); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, p, 10)
	if low := p.LowWatermark(); low != -1 {
		t.Errorf("%d before the followers have said what they have", low)
	}
	fetch := func(replica int32, offset, start int64) {
		t.Helper()
		if _, err := p.FollowerFetch(FollowerFetch{Replica: replica, BrokerEpoch: 1, LeaderEpoch: 1, Offset: offset, LastEpoch: -1, LogStart: start}, now); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, want int64) {
		t.Helper()
		if low := p.LowWatermark(); low != want {
			t.Errorf("%s: %d, want %d", what, low, want)
		}
	}
	fetch(2, 10, 0)
	fetch(3, 4, 0)
	if err := p.Log().SetStartOffset(5); err != nil {
		t.Fatal(err)
	}
	check("the leader alone has deleted", 0)
	fetch(2, 10, 5)
	check("all in sync have", 5)
	st.PartitionEpoch, st.ISR = 2, []int32{1, 2, 3}
	if err := p.Lead(st, now); err != nil {
		t.Fatal(err)
	}
	check("another one is in sync that has not", 0)
	st.PartitionEpoch, st.ISR = 3, []int32{1}
	if err := p.Lead(st, now); err != nil {
		t.Fatal(err)
	}
	check("only the leader is in sync", 5)
	p.Resign(2)
	check("of a replica that does not lead", 5)
}

// A follower that ends where its leader's log starts, with a record of an earlier epoch
// than the first there, may have another record than the leader had: it begins again.
func TestWhatAStartHidesIsNotKept(t *testing.T) {
	p := open(t, t.TempDir(), Options{})
	st := cluster.Partition{Leader: 1, LeaderEpoch: 1, Replicas: []int32{1, 2}, ISR: []int32{1}}
	if err := p.Lead(st, now); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, p, 5)
	st.LeaderEpoch = 3
	if err := p.Lead(st, now); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, p, 5)
	if err := p.Log().SetStartOffset(7); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset    int64
		lastEpoch int32
		want      *EpochEnd
	}{
		{7, 3, nil},  // the same leader's
		{7, -1, nil}, // it has no record
		{8, 3, nil},
		{7, 1, &EpochEnd{1, 7}},
		{7, 2, &EpochEnd{2, 7}},
		{8, 1, &EpochEnd{1, 7}},
	} {
		got, err := p.FollowerFetch(FollowerFetch{Replica: 2, BrokerEpoch: 1, LeaderEpoch: 3, Offset: c.offset, LastEpoch: c.lastEpoch}, now)
		if err != nil || (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("at %d after epoch %d: %+v, %v; want %+v", c.offset, c.lastEpoch, got, err, c.want)
		}
	}
	// A follower does begin again then.
	f := followers(t, 1, 2)[0]
	if _, err := f.Log().AppendAsFollower(batchAt(t, 0, 7), 0, now); err != nil {
		t.Fatal(err)
	}
	fetcher := NewFetcher(FetcherConfig{Leader: 2})
	fetcher.Add(f)
	req, _ := fetcher.Next(now)
	fetcher.Answer(req, &FetchResponse{Partitions: []FetchedPartition{{Diverging: &EpochEnd{1, 7}, HighWatermark: 9, LogStart: 7}}}, nil, now)
	if f.Log().StartOffset() != 7 || f.Log().EndOffset() != 7 || f.Log().Size() != 0 {
		t.Errorf("it has %d to %d, %d bytes", f.Log().StartOffset(), f.Log().EndOffset(), f.Log().Size())
	}
}
