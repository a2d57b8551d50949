package sinks

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPacerHoldsOver64Partitions asks for partitions that all want to seal at once: in any second no more parts are made than the limit and its burst.
func TestPacerHoldsOver64Partitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 100).Draw(t, "limit")
		parts := rapid.IntRange(1, 5).Draw(t, "parts")
		p := newPacer(float64(limit))
		for range 100 {
			p.made(parts)
		}
		start := time.Unix(1_700_000_000, 0)
		sealed := 0
		const seconds = 10
		for ms := range seconds * 1000 {
			now := start.Add(time.Duration(ms) * time.Millisecond)
			for range 64 {
				if p.ready(now) {
					p.seal(now)
					sealed++
				}
			}
		}
		most := limit*(seconds+1) + parts + 1
		if made := sealed * parts; made > most || made < limit*seconds-parts {
			t.Fatalf("%d parts in %d s under a limit of %d", made, seconds, limit)
		}
	})
}

func TestPacerWithoutLimit(t *testing.T) {
	p := newPacer(0)
	now := time.Unix(1_700_000_000, 0)
	for range 1000 {
		if !p.ready(now) {
			t.Fatal("held back without a limit")
		}
		p.seal(now)
	}
}
