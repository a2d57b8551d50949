package sinks

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The records of all partitions together have one limit, Config.MemoryBytesMax or what SetRecordMemory made of it. Past three quarters of it the partitions that hold more than their share
// are not fetched until half of it is free again, so one partition whose writes fail cannot keep the others from going on. A claim that a predecessor left
// can only be written whole, whatever room there is: past the limit one such partition is fetched alone, and what the others had of theirs is let go and
// fetched again later.

// fairShare is what each partition may hold when memory is short: those that wait for their turn need none.
func (s *session) fairShare() int64 {
	return s.w.recordMemory() / int64(max(len(s.parts)-s.waiting, 1))
}

// Where more lies in the log than there is memory for, partitions are fetched in turn, a few at a time, so that each fills a batch of some size: a little of each
// would make as many small batches as there are partitions, and a destination takes few large ones best. A turn ends when its batch is sealed, and then all others
// come first. Partitions that are up to date are always fetched. One whose write fails gets no turn, and what it has beyond its batch is let go; of what such batches
// leave free a turn takes a part, so that however many there are, the others go on.

const (
	// turnPart is the part of the free memory for records that a turn fills, and turnPartLeast the least, of all of it.
	turnPart      = 4
	turnPartLeast = 64
	// lagBytesMin is how far, in bytes, a partition has to lag to be fetched in turn only.
	lagBytesMin = sizeBytesMin
	// turnIdleMax is how long a partition keeps its turn though nothing comes: its leader may be gone.
	turnIdleMax = time.Second
)

// takeTurns decides whose turn it is.
func (s *session) takeTurns(now time.Time) {
	limit := s.w.recordMemory()
	var wanted, stuck, hands int64
	for _, p := range s.order {
		wanted += max(p.held(), min(limit/turnPart, p.filling.bytes+p.lagBytes(s.recordBytes)))
		switch {
		case p.stuck():
			stuck += p.hand.records.bytes
		case p.hand != nil:
			hands += p.hand.records.bytes
		}
	}
	s.waiting, s.turn = 0, 0
	s.limit.Store(max(limit, stuck+limit/turnPart))
	if wanted <= limit || s.alone != nil {
		for _, p := range s.order {
			p.waits, p.inTurn = false, false
		}
		return
	}
	s.turn = max((limit-stuck)/turnPart, limit/turnPartLeast)
	s.line(now)
	room := max(limit-stuck-hands, 0)
	if hands == 0 {
		room = max(room, 1) // there is always somebody whose turn it is
	}
	for _, p := range s.order {
		s.offerTurn(p, &room, now)
	}
}

// offerTurn gives the partition a turn while there is room.
func (s *session) offerTurn(p *slot, room *int64, now time.Time) {
	lag := p.lagBytes(s.recordBytes)
	switch {
	case p.stuck():
		p.inTurn, p.waits = false, true
		p.letGo()
	case p.replay != nil, lag < lagBytesMin && !p.inTurn:
		p.waits = false
		*room -= p.filling.bytes
	default:
		if !p.inTurn {
			p.turnBegan = now
		}
		p.inTurn = *room > 0
		p.waits = !p.inTurn
		*room -= max(p.filling.bytes, min(s.turn, p.filling.bytes+lag))
	}
	if p.waits {
		s.waiting++
	}
}

// line puts the partitions in the order in which they are offered a turn: those that have one, then those whose last ended first.
func (s *session) line(now time.Time) {
	for _, p := range s.order {
		if p.inTurn && p.filling.n == 0 && now.Sub(p.turnBegan) >= turnIdleMax {
			s.endTurn(p)
		}
	}
	slices.SortStableFunc(s.order, func(a, b *slot) int {
		if a.inTurn != b.inTurn {
			if a.inTurn {
				return -1
			}
			return 1
		}
		return int(a.turnEnded - b.turnEnded)
	})
}

// stuck says that the partition's write has failed and is to be repeated.
func (p *slot) stuck() bool { return p.hand != nil && p.hand.attempts > 0 }

// lagBytes is about what the partition's log holds beyond what was fetched, as far as the last fetch knew.
func (p *slot) lagBytes(record int64) int64 { return max(p.fetchEnd-p.next, 0) * record }

// turnFull says that the partition has made good use of its turn: nothing more comes, or it holds enough.
func (s *session) turnFull(p *slot) bool {
	return p.inTurn && (p.filling.bytes >= s.turn/4*3 || p.next >= p.fetchEnd)
}

// endTurn sends a partition whose batch was sealed to the end of the line.
func (s *session) endTurn(p *slot) {
	s.turnsEnded++
	p.turnEnded, p.inTurn = s.turnsEnded, false
}

// balance decides who is fetched.
func (s *session) balance(held int64, now time.Time) {
	limit := s.w.recordMemory()
	if s.alone != nil && (s.parts[s.alone.base.Partition] != s.alone || s.alone.replay == nil || s.alone.stopped() != nil) {
		s.alone = nil
	}
	if held > limit && s.alone == nil {
		s.alone = s.chooseReplay()
	}
	s.takeTurns(now)
	share := s.fairShare()
	for id, p := range s.parts {
		switch {
		case s.alone != nil:
			p.crowded = p != s.alone
			if p.crowded && p.replay != nil {
				p.letGo()
			}
		case s.turn > 0:
			p.crowded = p.filling.bytes >= s.turn && p.replay == nil
		case held > limit/4*3:
			p.crowded = p.crowded || p.held() > share && p.replay == nil
		case held < limit/2:
			p.crowded = false
		}
		s.pause(id, p)
	}
	s.needed.Store(s.alone != nil)
	s.askRewind()
}

// chooseReplay is the replay that has come furthest, nil when there is none.
func (s *session) chooseReplay() (best *slot) {
	for _, p := range s.parts {
		if p.replay != nil && p.stopped() == nil && (best == nil || p.held() > best.held()) {
			best = p
		}
	}
	return best
}

// askRewind has the poller rewind partitions that may be fetched again.
func (s *session) askRewind() {
	wanted := false
	for _, p := range s.parts {
		wanted = wanted || p.mayRewind()
	}
	if s.rewinds.Swap(wanted) || !wanted {
		if s.needed.Load() {
			s.wakePoller()
		}
		return
	}
	s.wakePoller()
	s.mu.Lock()
	stop := s.stopPoll
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// mayRewind says that a partition was let go and nothing keeps it from being fetched again.
func (p *slot) mayRewind() bool {
	return p.rewinding && !p.crowded && !p.waits && p.barred == nil && p.failed == nil && !p.draining && !p.fenced
}

func (s *session) wakePoller() {
	select {
	case s.room <- struct{}{}:
	default:
	}
}

// rewind has fetching begin again where partitions were let go. It runs between a poll and AllowRebalance, as the client demands: no partition can
// be taken away meanwhile, and what was fetched before is thrown away by the client.
func (s *session) rewind() {
	if !s.rewinds.Load() {
		return
	}
	at := map[int32]kgo.EpochOffset{}
	var back []*slot
	s.call(func() {
		for id, p := range s.parts {
			if p.mayRewind() {
				at[id] = kgo.EpochOffset{Epoch: -1, Offset: p.sealed}
				back = append(back, p)
			}
		}
	})
	if len(at) == 0 {
		return
	}
	s.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{s.w.pipe.Topic.Name: at})
	s.call(func() {
		for _, p := range back {
			p.rewound()
		}
	})
}
