package sinks

import "github.com/twmb/franz-go/pkg/kgo"

// The records of all partitions together have one limit, Config.MemoryBytesMax. Past three quarters of it the partitions that hold more than their share
// are not fetched until half of it is free again, so one partition whose writes fail cannot keep the others from going on. A claim that a predecessor left
// can only be written whole, whatever room there is: past the limit one such partition is fetched alone, and what the others had of theirs is let go and
// fetched again later.

// fairShare is what each partition may hold when memory is short.
func (s *session) fairShare() int64 { return s.w.cfg.MemoryBytesMax / int64(max(len(s.parts), 1)) }

// balance decides who is fetched.
func (s *session) balance(held int64) {
	limit := s.w.cfg.MemoryBytesMax
	if s.alone != nil && (s.parts[s.alone.base.Partition] != s.alone || s.alone.replay == nil || s.alone.stopped() != nil) {
		s.alone = nil
	}
	if held > limit && s.alone == nil {
		s.alone = s.chooseReplay()
	}
	share := s.fairShare()
	for id, p := range s.parts {
		switch {
		case s.alone != nil:
			p.crowded = p != s.alone
			if p.crowded && p.replay != nil {
				p.letGo()
			}
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
	return p.rewinding && !p.crowded && p.barred == nil && p.failed == nil && !p.draining && !p.fenced
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
