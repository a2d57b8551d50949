package sinks

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A commit that is refused because the group does not know the member any more ends what the member had of partitions that were not in it, too: the group has given them
// away as well, and the client joins again without a word.
func TestRefusedMemberLosesAllPartitions(t *testing.T) {
	s := turnsOf(8<<20, 10, 10, 10)
	s.w.log = slog.New(slog.DiscardHandler)
	for id, p := range s.parts {
		s.owned[id] = p
	}
	idle := commitEntry{id: 2, slot: s.parts[2]}
	s.due = []commitEntry{idle}
	now := time.Unix(1_700_000_000, 0)
	writing := s.parts[1]
	writing.hand, writing.phase = &batch{claim: writing.base}, phaseWriting
	s.committed([]commitEntry{{id: 0, slot: s.parts[0]}}, map[int32]outcome{0: commitFenced}, kerr.UnknownMemberID, now)
	for id, p := range s.parts {
		if !p.fenced {
			t.Errorf("partition %d goes on", id)
		}
	}
	if err := s.stillOwned([]commitEntry{idle}); err == nil {
		t.Error("a commit of a partition that was given away may be sent")
	}
	if len(s.due) > 0 {
		t.Errorf("%d commits are still due", len(s.due))
	}
	if done, _ := s.finished(); done {
		t.Error("the session ends while an insert is in hand")
	}
	writing.written(errors.New("no answer"), now)
	if done, err := s.finished(); !done || !errors.Is(err, errRejoin) {
		t.Errorf("after the insert: done %t, %v", done, err)
	}
}

// A worker that was shut out by another with its instance ID must not join again, or they would shut each other out in turn.
func TestShutOutMemberDoesNotJoinAgain(t *testing.T) {
	s := turnsOf(8<<20, 10)
	s.w.log = slog.New(slog.DiscardHandler)
	s.committed([]commitEntry{{id: 0, slot: s.parts[0]}}, map[int32]outcome{0: commitFenced}, kerr.FencedInstanceID, time.Unix(1_700_000_000, 0))
	if done, err := s.finished(); !done || errors.Is(err, errRejoin) || !errors.Is(err, kerr.FencedInstanceID) {
		t.Errorf("done %t, %v", done, err)
	}
}

// TestExpelledMemberIsBackAtOnce: a member whose place in the group is taken away is back long before its session would have ended, and what came meanwhile is stored once.
func TestExpelledMemberIsBackAtOnce(t *testing.T) {
	const session = 30 * time.Second
	for _, instance := range []string{"", "static"} {
		t.Run("instance="+instance, func(t *testing.T) {
			r := newRig(t, 2, "")
			sink := newMemSink(false)
			w := r.start(sink, Config{SessionTimeout: session, InstanceID: instance})
			r.produce("a", 100, 2)
			r.await("the rows", func() bool { return sink.total() == 100 })
			r.expelAll()
			expelled := time.Now()
			r.produce("b", 100, 2)
			r.await("the rows that came after", func() bool { return sink.total() == 200 })
			if took := time.Since(expelled); took > session/3 {
				t.Errorf("it took %s", took)
			}
			r.stop(w)
			r.verify(sink, "a", 100)
			r.verify(sink, "b", 100)
		})
	}
}
