package sinks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commitEntry is one partition's commit that is due.
type commitEntry struct {
	id     int32
	slot   *slot
	action action
}

// startCommit sends everything that is due in one request, unless one is under way: what becomes due meanwhile goes with the next. So
// there is one request a round trip, however many partitions there are, and a commit of a partition never overtakes another.
func (s *session) startCommit() {
	if s.committing || len(s.due) == 0 {
		return
	}
	entries := s.due
	s.due = nil
	s.committing = true
	go func() {
		outcomes, refusal := s.commit(entries)
		s.call(func() { s.committed(entries, outcomes, refusal, time.Now()) })
	}()
}

// committed takes the outcomes of a commit; refusal is why it was refused for who we are, if it was.
func (s *session) committed(entries []commitEntry, outcomes map[int32]outcome, refusal error, now time.Time) {
	s.committing = false
	for _, e := range entries {
		if s.parts[e.id] != e.slot {
			continue // lost or revoked meanwhile
		}
		o := outcomes[e.id]
		if s.gone && o == commitRetry {
			o = commitFenced // there is no such partition any more
		}
		e.slot.committedNow(o, now)
		if e.slot.fenced {
			s.fenceAll()
			if errors.Is(refusal, kerr.FencedInstanceID) {
				s.failure = s.shutOut(refusal) // to join again would shut out the other, and so on in turn
			}
			return
		}
	}
}

// fenceAll ends all partitions when a commit was refused because of who we are: the group has given away those that were not in it, too. The client joins again by
// itself after such a refusal and says nothing of what it lost meanwhile, so under its new generation a claim of an old partition would be taken.
//
// The session ends, and the worker joins with a new client, as soon as the inserts that the old generation has in hand have had their answer or passed their
// deadline. It need not wait any longer: what it then gets from the group it takes up at the group's commits, as any worker does that takes partitions over,
// and reads back what an open claim has stored before it writes again.
func (s *session) fenceAll() {
	for id, p := range s.parts {
		p.fence()
		s.disown(id)
		s.w.log.Warn("fenced: the group has given the partition away", "partition", id)
	}
	s.due = nil
	if !s.stopping {
		s.result = errRejoin
		s.drainAll()
	}
}

// shutOut says what it means that the group knows another under our instance ID.
func (s *session) shutOut(err error) error {
	return fmt.Errorf("sink %s: another worker runs under the instance ID %q: %w", s.w.spec.Group(), s.w.cfg.InstanceID, err)
}

// errNotOwned keeps a commit from being sent for a partition that was lost after the commit was made ready.
var errNotOwned = errors.New("a partition of the commit is not ours any more")

// commit sends one request. The client holds off the group's joins while it runs, so the generation in the request is the one under which the
// partitions are owned; the check in the middle catches what was lost before the request was made.
func (s *session) commit(entries []commitEntry) (outcomes map[int32]outcome, refusal error) {
	topic := s.w.pipe.Topic.Name
	offsets := make(map[int32]kgo.EpochOffset, len(entries))
	metadata := make(map[int32]string, len(entries))
	for _, e := range entries {
		offsets[e.id] = kgo.EpochOffset{Epoch: e.action.epoch, Offset: e.action.offset}
		metadata[e.id] = e.action.metadata
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.w.cfg.WriteDeadline)
	defer cancel()
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		setMetadata(req, metadata)
		return s.stillOwned(entries)
	})
	outcomes = make(map[int32]outcome, len(entries))
	s.cl.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			for _, e := range entries {
				outcomes[e.id] = commitRetry
			}
			if err != nil {
				if s.refused.fresh(err, time.Now()) {
					s.w.log.Warn("commit failed, trying again", "error", err)
				}
				return
			}
			refusal = s.readOutcomes(resp, outcomes)
		})
	return outcomes, refusal
}

// setMetadata replaces the member ID, which the client puts there, by our text.
func setMetadata(req *kmsg.OffsetCommitRequest, metadata map[int32]string) {
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			text := metadata[p.Partition]
			p.Metadata = &text
		}
	}
}

func (s *session) stillOwned(entries []commitEntry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		if s.owned[e.id] != e.slot {
			return fmt.Errorf("partition %d: %w", e.id, errNotOwned)
		}
	}
	return nil
}

func (s *session) readOutcomes(resp *kmsg.OffsetCommitResponse, outcomes map[int32]outcome) (refusal error) {
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			o, err := outcomeOf(p.ErrorCode)
			outcomes[p.Partition] = o
			if o == commitFenced {
				refusal = err
				continue
			}
			if errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition) {
				s.doubtTopic()
			}
			if err != nil && s.refused.fresh(err, time.Now()) {
				s.w.log.Warn("commit refused, trying again", "partition", p.Partition, "error", err)
			}
		}
	}
	return refusal
}

// outcomeOf reads an error code of a commit. Codes that say that another has our place end the partition; everything else is waited out: during a rebalance, or
// under an epoch that has just passed, the same commit is right as long as the partition is ours.
func outcomeOf(code int16) (outcome, error) {
	err := kerr.ErrorForCode(code)
	switch {
	case err == nil:
		return commitDone, nil
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID),
		errors.Is(err, kerr.FencedInstanceID), errors.Is(err, kerr.FencedMemberEpoch):
		return commitFenced, err
	default:
		return commitRetry, err
	}
}
