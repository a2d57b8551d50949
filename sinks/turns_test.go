package sinks

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluice-io/sluice/pipelines"
)

// turnsOf makes a session of partitions that lag by so many records of about 300 bytes.
func turnsOf(memory int64, lags ...int64) *session {
	w := &Worker{cfg: Config{MemoryBytesMax: memory}.withDefaults(), metrics: newMetrics(nil, "p", ""), spec: &pipelines.SinkSpec{}}
	w.SetRecordMemory(memory)
	s := newSession(w)
	s.recordBytes = 300
	for id, lag := range lags {
		p := &slot{partition: newPartition(testLimits(100_000), Claim{Partition: int32(id)}, 0, nil, func() float64 { return 0 }), fetchEnd: lag}
		s.parts[int32(id)] = p
	}
	s.inTurn()
	return s
}

// arrive has the partitions that are fetched take in what the log has, up to n records.
func (s *session) arrive(n int, now time.Time) {
	for _, p := range s.parts {
		var fetched []*kgo.Record
		for at := p.next; !p.waits && at < p.fetchEnd && len(fetched) < n; at++ {
			fetched = append(fetched, &kgo.Record{Offset: at, Value: make([]byte, 252)})
		}
		for _, x := range newRuns(fetched) {
			p.take(x, now)
		}
	}
}

// TestTurnsReachEveryPartition: what does not fit into memory is fetched a few partitions at a time, each until it holds a batch worth writing, and nobody is forgotten.
func TestTurnsReachEveryPartition(t *testing.T) {
	const memory = 8 << 20
	lags := make([]int64, 32)
	for i := range lags {
		lags[i] = 10_000 // 3 MB each
	}
	s := turnsOf(memory, lags...)
	now := time.Unix(1_700_000_000, 0)
	batches := 0
	for round := 0; ; round++ {
		if round == 500 {
			t.Fatal("some partitions do not get on")
		}
		s.inTurn()
		s.takeTurns(now)
		if n := len(s.parts) - s.waiting; n < 1 {
			t.Fatal("nobody is fetched")
		}
		s.arrive(1000, now)
		var held int64
		done := true
		for _, p := range s.parts {
			held += p.held()
			done = done && p.next >= p.fetchEnd
			if s.turnFull(p) {
				batches++
				p.filling = records{}
				s.endTurn(p)
			}
		}
		if held > memory*3/2 {
			t.Fatalf("%d bytes are held", held)
		}
		if done {
			break
		}
	}
	if batches > 96 {
		t.Errorf("%d batches for 32 partitions of 3 MB: a turn has 2", batches)
	}
}

// TestTurnsPassOverWhatIsStuck: partitions whose writes fail hold their batch and nothing else, and however many they are, the others get turns.
func TestTurnsPassOverWhatIsStuck(t *testing.T) {
	const memory = 4 << 20
	s := turnsOf(memory, 100_000, 100_000, 100_000, 0)
	now := time.Unix(1_700_000_000, 0)
	for id, n := range map[int32]int{0: 12_000, 1: 3000} {
		p := s.parts[id]
		s.arrive(0, now)
		for _, x := range newRuns(func() (out []*kgo.Record) {
			for i := range n {
				out = append(out, &kgo.Record{Offset: int64(i), Value: make([]byte, 252)})
			}
			return out
		}()) {
			p.take(x, now)
		}
		p.setHand(n - 100)
		p.hand.attempts = 1
	}
	s.takeTurns(now)
	for id, waits := range map[int32]bool{0: true, 1: true, 2: false, 3: false} {
		if p := s.parts[id]; p.waits != waits || waits && (p.filling.n > 0 || !p.rewinding) {
			t.Errorf("partition %d: waits %t, has %d records beyond its batch", id, p.waits, p.filling.n)
		}
	}
	if !s.parts[2].inTurn || s.limit.Load() < s.parts[0].held()+s.parts[1].held()+memory/turnPart {
		t.Errorf("in turn %t, limit %d", s.parts[2].inTurn, s.limit.Load())
	}
}

// TestTurnsEnd: a partition whose leader gives nothing loses its turn, and all wait for none when everything fits.
func TestTurnsEnd(t *testing.T) {
	s := turnsOf(1<<20, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000)
	now := time.Unix(1_700_000_000, 0)
	s.takeTurns(now)
	first := map[*slot]bool{}
	for _, p := range s.parts {
		first[p] = p.inTurn
	}
	s.takeTurns(now.Add(turnIdleMax))
	for _, p := range s.parts {
		if p.inTurn && first[p] {
			t.Error("a partition of which nothing comes keeps its turn")
		}
		p.fetchEnd = 100
	}
	s.takeTurns(now.Add(turnIdleMax))
	for _, p := range s.parts {
		if p.waits || p.inTurn {
			t.Error("a partition waits though there is memory for all")
		}
	}
}
