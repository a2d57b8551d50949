package assemble

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Lines of several sources lie across each other: each source's records are its own, in order.
func TestSourcesLieAcrossEachOther(t *testing.T) {
	start, err := NewPattern(`^\S`, false)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSources[string, int](Config{Start: start, LinesMax: 3}, 2)
	var got []string
	take := func(h *Held[int]) {
		got = append(got, fmt.Sprintf("%d %s %d %v", h.First, strings.ReplaceAll(string(h.Text), "\n", "|"), h.Bytes, h.Split))
	}
	now, n := time.Unix(0, 0), 0
	add := func(key, line string) {
		n++
		first := n
		s.Add(key, []byte(line), int64(len(line)), func() int { return first }, now, take)
	}
	add("a", "a1")
	add("b", "b1")
	add("a", " a2")
	add("b", " b2")
	add("b", "b3")
	now = now.Add(time.Second)
	add("b", " b4")
	s.End(func(h *Held[int]) bool { return h.Quiet(time.Unix(0, 0)) }, false, take) // a is
	add("b", " b5")
	add("b", " b6") // one too many
	add("c", "c1")
	add("d", "d1") // a third: the oldest is ended
	s.EndOf("c", take)
	s.EndOf("c", take)
	s.End(func(*Held[int]) bool { return true }, false, take)
	want := []string{"2 b1| b2 5 false", "1 a1| a2 5 false", "5 b3| b4| b5 8 true", "8  b6 3 true", "9 c1 2 false", "10 d1 2 false"}
	if !slices.Equal(got, want) || s.Open() != 0 {
		t.Errorf("%q, want %q; %d open", got, want, s.Open())
	}
}
