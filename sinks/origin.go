package sinks

import (
	"context"
	"fmt"
	"time"
)

// Rows at the destination that do not say which topic they are of may only be taken for this topic's where the group's commit vouches for it: a note of a
// worker of ours names the topic's ID, and its first claim was made when no such row was in the way. Without a note (a new group, a commit of
// another tool, an expired one) or with one of an earlier topic, offsets alone would take the rows of that topic for those of this one, and
// its records would be lost without a word. Then the partition is held before its first claim.

// startAsk asks the destination for rows of unknown origin at or above offset.
func (s *session) startAsk(id int32, p *slot, offset int64) {
	c := p.base
	c.Lo, c.Hi = offset, offset
	s.writes.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
		defer cancel()
		stored, err := s.w.originOf(ctx, c)
		s.call(func() { s.asked(id, p, offset, stored, err, time.Now()) })
	})
}

// originOf reads back what is stored, by the schema of now: the operator may have mended it a moment ago.
func (w *Worker) originOf(ctx context.Context, c Claim) (Stored, error) {
	if w.destination.Load().Alterable {
		if _, err := w.check(ctx); err != nil {
			return Stored{}, err
		}
	}
	stored, err := w.sink.Stored(ctx, c)
	if err != nil {
		return Stored{}, fmt.Errorf("read back what is stored: %w", err)
	}
	return stored, nil
}

func (s *session) asked(id int32, p *slot, offset int64, stored Stored, err error, now time.Time) {
	if s.parts[id] != p || p.draining {
		return
	}
	var barred error
	if err == nil && stored.MaxUnknown >= offset {
		barred = fmt.Errorf("the destination holds rows of topic %s, partition %d, up to offset %d that do not say whether they are of this topic (ID %s) or of an "+
			"earlier one of its name, and the group has no commit that does, so nothing is stored from offset %d on: %s",
			p.base.Topic, id, stored.MaxUnknown, p.base.TopicID, offset, stored.Mend)
	}
	if err == nil && barred == nil {
		p.verifyTo, p.verifySet = stored.Max, true // the first write need not ask again
	}
	before := p.barred
	p.trouble = err
	p.asked(barred, err, now)
	s.w.destinationSaid(id, err, now)
	switch {
	case barred != nil && before == nil:
		s.w.log.Error("partition stopped: it needs an operator", "partition", id, "error", barred)
	case barred == nil && before != nil:
		s.w.log.Info("the rows of unknown origin are out of the way; going on", "partition", id, "offset", offset)
	}
}
