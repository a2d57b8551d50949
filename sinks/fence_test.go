package sinks

import (
	"log/slog"
	"testing"
	"time"
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
	s.committed([]commitEntry{{id: 0, slot: s.parts[0]}}, map[int32]outcome{0: commitFenced}, now)
	for id, p := range s.parts {
		if !p.fenced || p.fencedAt != now {
			t.Errorf("partition %d goes on", id)
		}
	}
	if err := s.stillOwned([]commitEntry{idle}); err == nil {
		t.Error("a commit of a partition that was given away may be sent")
	}
	if len(s.due) > 0 {
		t.Errorf("%d commits are still due", len(s.due))
	}
}
