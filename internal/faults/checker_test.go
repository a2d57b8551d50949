package faults

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// sound is a log of two producers, and the history of clients that know all of
// it. Record i was sent at i milliseconds and acknowledged 2 ms later.
func sound(n int) (partitionHistory, []entry) {
	h := newHistory("t", 1)
	h.began = time.Unix(0, 0)
	var log []entry
	for i := range n {
		e := entry{int64(i), h.send(0, i%2)}
		at := h.began.Add(time.Duration(i) * time.Millisecond)
		h.acknowledged(0, ack{e, at, at.Add(2 * time.Millisecond)})
		h.saw("reader", 0, sight{e, at.Add(time.Millisecond), at.Add(3 * time.Millisecond)})
		log = append(log, e)
	}
	return h.snapshot(0), log
}

func TestCheckPassesWhatIsSound(t *testing.T) {
	before, log := sound(100)
	if complaints := check(before, before.sent, log); len(complaints) > 0 {
		t.Errorf("complaints: %q", complaints)
	}
	if got := linearizable(time.Unix(0, 0), before, log); got != porcupine.Ok {
		t.Errorf("porcupine says %s", got)
	}
}

// TestCheckFinds breaks a sound log or history in one place.
func TestCheckFinds(t *testing.T) {
	renumber := func(log []entry) []entry {
		for i := range log {
			log[i].offset = int64(i)
		}
		return log
	}
	for _, c := range []struct {
		name  string
		spoil func(before *partitionHistory, log []entry) []entry
		want  string
	}{
		{"the last record lost", func(_ *partitionHistory, log []entry) []entry { return log[:len(log)-1] },
			"record 1/9, acknowledged at offset 19, is lost: the log ends before it"},
		{"a record lost in the middle", func(_ *partitionHistory, log []entry) []entry { return renumber(slices.Delete(log, 7, 8)) },
			"record 1/3, acknowledged at offset 7, is lost: 0/4 is there"},
		{"a record lost that was read, not acknowledged", func(before *partitionHistory, log []entry) []entry {
			before.acks = before.acks[:len(before.acks)-1]
			return log[:len(log)-1]
		}, "record 1/9, consumed at offset 19, is lost"},
		{"a record replaced by another", func(_ *partitionHistory, log []entry) []entry {
			log[19].value = value{0, 10}
			return log
		}, "record 1/9, acknowledged at offset 19, is lost: 0/10 is there"},
		{"a record doubled", func(_ *partitionHistory, log []entry) []entry { return append(log, entry{20, value{1, 9}}) },
			"record 1/9 is doubled: offsets 19 and 20"},
		{"two records of a producer exchanged", func(before *partitionHistory, log []entry) []entry {
			log[4].value, log[6].value = log[6].value, log[4].value
			return log
		}, "record 0/3 at offset 4 is not the next of its producer"},
		{"two producers' records exchanged", func(_ *partitionHistory, log []entry) []entry {
			log[4].value, log[5].value = log[5].value, log[4].value
			return log
		}, "record 0/2, acknowledged at offset 4, is at 5"},
		{"a record that nobody sent", func(_ *partitionHistory, log []entry) []entry { return append(log, entry{20, value{1, 10}}) },
			"record 1/10 at offset 20 was never sent"},
		{"a hole", func(_ *partitionHistory, log []entry) []entry {
			log[19].offset = 20
			return log
		}, "the record after 19 others has offset 20"},
	} {
		before, log := sound(20)
		sent := map[int]int{0: 11, 1: 10}
		complaints := check(before, sent, c.spoil(&before, log))
		if !slices.ContainsFunc(complaints, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%s: complaints %q, none says %q", c.name, complaints, c.want)
		}
	}
}

func TestConsumersMustAgree(t *testing.T) {
	h := newHistory("t", 1)
	h.saw("one", 0, sight{entry: entry{3, value{0, 3}}})
	h.saw("another", 0, sight{entry: entry{3, value{0, 3}}})
	if len(h.complaints) > 0 {
		t.Errorf("the same record twice: %q", h.complaints)
	}
	h.saw("another", 0, sight{entry: entry{3, value{1, 3}}})
	if len(h.complaints) != 1 {
		t.Errorf("two records at one offset: %q", h.complaints)
	}
}

// TestPorcupineFinds gives it what the offsets alone do not show.
func TestPorcupineFinds(t *testing.T) {
	began := time.Unix(0, 0)
	before, log := sound(20)
	// Sent after 5 was acknowledged, yet stored before it.
	before.acks[4].sent, before.acks[4].at = began.Add(time.Second), began.Add(2*time.Second)
	if got := linearizable(began, before, log); got != porcupine.Illegal {
		t.Errorf("an append before its time: porcupine says %s", got)
	}
	before, log = sound(20)
	before.sights[19].asked, before.sights[19].at = began, began.Add(time.Millisecond)
	if got := linearizable(began, before, log); got != porcupine.Illegal {
		t.Errorf("a read before the append: porcupine says %s", got)
	}
	before, log = sound(20)
	before.acks = slices.Delete(before.acks, 4, 5)
	if got := linearizable(began, before, log); got != porcupine.Ok {
		t.Errorf("an append whose acknowledgement was lost: porcupine says %s", got)
	}
}

func TestLongestSilence(t *testing.T) {
	h := newHistory("t", 1)
	at := func(s int) time.Time { return h.began.Add(time.Duration(s) * time.Second) }
	for _, s := range []int{1, 2, 6, 7} {
		h.acknowledged(0, ack{at: at(s)})
	}
	if got := h.longestSilence(at(0), at(8)); got != 4*time.Second {
		t.Errorf("silence between acknowledgements: %s", got)
	}
	if got := h.longestSilence(at(6), at(20)); got != 13*time.Second {
		t.Errorf("silence until the end: %s", got)
	}
	h2 := newHistory("t", 2)
	h2.acknowledged(0, ack{at: h2.began.Add(time.Second)})
	if got := h2.longestSilence(h2.began, h2.began.Add(2*time.Second)); got != 2*time.Second {
		t.Errorf("a partition without any acknowledgement: %s", got)
	}
}
