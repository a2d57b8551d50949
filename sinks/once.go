package sinks

import (
	"context"
	"time"
)

// endOffset is what a Once worker has to reach in one partition.
type endOffset struct {
	start int64 // of the log, when the end was asked for
	end   int64 // offset after the last record
}

// endsPollInterval is how often a Once worker asks for the topic's ends and for the commits of other members of its group.
const endsPollInterval = 250 * time.Millisecond

// watchEnds tells the loop where the topic ends, once nothing more is to be produced, and then what other members have committed.
func (s *session) watchEnds(ctx context.Context) {
	if done := s.w.cfg.ProducerDone; done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
	known := false
	for ctx.Err() == nil {
		if !known {
			known = s.learnEnds(ctx)
		} else {
			s.learnCommits(ctx)
		}
		if sleep(ctx, endsPollInterval) != nil {
			return
		}
	}
}

func (s *session) learnEnds(ctx context.Context) bool {
	topic := s.w.pipe.Topic.Name
	ends, err := s.w.admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		s.w.log.Warn("ask for the topic's end, trying again", "error", err)
		return false
	}
	starts, err := s.w.admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		s.w.log.Warn("ask for the topic's start, trying again", "error", err)
		return false
	}
	known := map[int32]endOffset{}
	for id, end := range ends[topic] {
		known[id] = endOffset{start: starts[topic][id].Offset, end: end.Offset}
	}
	return s.call(func() { s.ends = known })
}

func (s *session) learnCommits(ctx context.Context) {
	commits, err := s.w.admin.FetchOffsetsForTopics(ctx, s.w.spec.Group(), s.w.pipe.Topic.Name)
	if err != nil {
		return // asked again soon
	}
	s.call(func() {
		for id, c := range commits[s.w.pipe.Topic.Name] {
			if c.Err == nil {
				s.settled[id] = c.At
			}
		}
	})
}

// onceDone says that every partition's commit has reached the end a Once worker was to reach; the error is that of a partition that
// stopped before.
func (s *session) onceDone() (done bool, err error) {
	if s.ends == nil {
		return false, nil
	}
	for id, e := range s.ends {
		at := s.settled[id]
		if p := s.parts[id]; p != nil {
			if stopped := p.stopped(); stopped != nil {
				err = stopped
				continue
			}
			at = p.committed
		}
		if e.end > e.start && at < e.end {
			return false, nil
		}
	}
	return true, err
}
