package sinks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// errTopicGone ends a session whose topic was deleted. The client does not take a topic that is made again under the same name for the one it had, so
// the worker waits for it and joins the group with a new client.
var errTopicGone = errors.New("the topic was deleted, or made again")

// topicWatchInterval is how often a session asks whether its topic is still the one it began with; an error of a fetch has it ask at once.
const topicWatchInterval = 5 * time.Second

// doubtTopic has watchTopic look at once.
func (s *session) doubtTopic() {
	select {
	case s.doubt <- struct{}{}:
	default:
	}
}

// watchTopic ends the session when the topic is another than at its start, or none.
func (s *session) watchTopic(ctx context.Context) {
	var first TopicID
	known := false
	for ctx.Err() == nil {
		id, _, err := s.w.topicID(ctx)
		switch {
		case err == nil && !known:
			first, known = id, true
		case err == nil && id != first, errors.Is(err, errNoTopic):
			s.call(func() { s.topicGone() })
			return
		}
		timer := time.NewTimer(topicWatchInterval)
		select {
		case <-timer.C:
		case <-s.doubt:
			_ = sleep(ctx, s.w.cfg.BackoffMin) // an error at every fetch asks no oftener than this
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// topicGone brings what is being written to its end, and the session after it.
func (s *session) topicGone() {
	if s.gone || s.stopping {
		return
	}
	s.gone = true
	s.result = fmt.Errorf("topic %s: %w", s.w.pipe.Topic.Name, errTopicGone)
	s.w.setWaiting("topic", s.result)
	s.w.log.Error("the topic was deleted; waiting until it is made again", "topic", s.w.pipe.Topic.Name)
	s.drainAll()
}

// countGone counts the records that were fetched or known to be there, and are not stored.
func (s *session) countGone() {
	var lost int64
	for _, p := range s.parts {
		from := p.stored
		if from < 0 {
			from = p.logStart
		}
		if n := p.logEnd - from; n > 0 {
			lost += n
			s.w.log.Error("records were deleted with the topic before they were stored", "partition", p.base.Partition, "from", from, "to", p.logEnd-1, "lost", n)
		}
	}
	s.w.countLost(lost)
}

// countLost counts records that were removed before they were stored.
func (w *Worker) countLost(n int64) {
	w.metrics.lostOffsets.Add(float64(n))
	w.mu.Lock()
	w.account.Lost += n
	w.mu.Unlock()
}

// trouble keeps the log from being flooded with what a broker can answer many times a second: an error of each kind is logged once per troubleInterval. Not
// safe for concurrent use.
type trouble map[string]time.Time

// troubleInterval is how often an error that does not end is logged.
const troubleInterval = time.Minute

// fresh says that an error is to be logged.
func (f trouble) fresh(err error, now time.Time) bool {
	kind := err.Error()
	var code *kerr.Error
	if errors.As(err, &code) {
		kind = code.Message
	}
	last, seen := f[kind]
	if seen && now.Sub(last) < troubleInterval {
		return false
	}
	f[kind] = now
	return true
}
