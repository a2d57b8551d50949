package sinks

import (
	"context"
	"errors"
	"time"
)

// Follower is a Sink that makes use of how far the log is stored, to say what of the destination is complete.
type Follower interface {
	Sink
	// Passed tells that all records which a partition's log held at a time are stored. It is called now and then by the partition's owner; an error
	// is logged, and the next call comes.
	Passed(ctx context.Context, p Position) error
}

// Position is a place in the log that has been stored up to.
type Position struct {
	Topic      string
	TopicID    TopicID
	Partition  int32
	Partitions int       // how many the topic has
	At         time.Time // when the log ended there
}

// passedInterval is how often a sink hears of what is stored.
const passedInterval = 5 * time.Second

// watchPassed asks where the partitions end, and tells the sink of those that are stored up to there.
func (s *session) watchPassed(ctx context.Context) {
	sink, ok := s.w.sink.(Follower)
	if !ok {
		return
	}
	failed := trouble{}
	for sleep(ctx, passedInterval) == nil {
		at := time.Now()
		ends, starts, err := s.askEnds(ctx)
		if err == nil {
			err = s.tellPassed(ctx, sink, at, starts, ends)
		}
		if err != nil && ctx.Err() == nil && failed.fresh(err, at) {
			s.w.log.Warn("note what is stored up to now, trying again", "error", err)
		}
	}
}

// askEnds are the ends and the starts of the topic's partitions.
func (s *session) askEnds(ctx context.Context) (ends, starts map[int32]int64, err error) {
	topic := s.w.pipe.Topic.Name
	atEnd, err := s.w.admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = atEnd.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	atStart, err := s.w.admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = atStart.Error()
	}
	if err != nil {
		return nil, nil, err
	}
	ends, starts = map[int32]int64{}, map[int32]int64{}
	for id, o := range atEnd[topic] {
		ends[id], starts[id] = o.Offset, atStart[topic][id].Offset
	}
	return ends, starts, nil
}

// tellPassed tells the sink of each partition of ours that is stored up to its end.
func (s *session) tellPassed(ctx context.Context, sink Follower, at time.Time, starts, ends map[int32]int64) error {
	var positions []Position
	s.call(func() {
		for id, p := range s.parts {
			end, known := ends[id]
			if known && p.passed(starts[id], end) {
				positions = append(positions, Position{Topic: p.base.Topic, TopicID: p.base.TopicID, Partition: id, Partitions: len(ends), At: at})
			}
		}
	})
	var errs []error
	for _, p := range positions {
		errs = append(errs, sink.Passed(ctx, p))
	}
	return errors.Join(errs...)
}

// passed says that all records from the log's start to end are stored, and nothing is on its way.
func (p *partition) passed(start, end int64) bool {
	if p.fenced || p.draining || p.stopped() != nil || p.hand != nil || p.replay != nil || p.filling.n > 0 {
		return false
	}
	return start == end || p.stored >= end
}
