package sinks

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestBatchesAdaptToTheDestination follows the size of batches over answers of a destination.
func TestBatchesAdaptToTheDestination(t *testing.T) {
	w := newWorld(t, true)
	l := testLimits(100_000)
	m := w.join(l)
	p := m.slot.partition
	answer := func(err error, took time.Duration) int {
		w.append(2, 0) // one of them may be a control record
		m.fetch(2)
		m.now = m.now.Add(l.age)
		for a := p.step(m.now, true); a.do != actWrite; a = p.step(m.now, true) {
			if a.do == actNone {
				t.Fatal("no write")
			}
			p.committedNow(commitDone, m.now)
		}
		p.hand.records = make10k(p.hand.records.runs[0])
		m.now = m.now.Add(took)
		p.written(err, m.now)
		if err != nil { // the batch itself stays as it is
			if p.hand == nil {
				t.Fatal("given up")
			}
			p.settle(m.now)
		}
		p.retryAt = time.Time{}
		return p.size.rows
	}
	trouble := errors.New("trouble")
	for i, c := range []struct {
		err  error
		took time.Duration
		want int
	}{
		{nil, 0, 100_000},
		{trouble, 0, 5000},           // half of what failed
		{trouble, 0, 2500},           // and on
		{nil, time.Second, 5000},     // success doubles
		{nil, 6 * time.Second, 2500}, // a slow one does not
		{nil, 3 * time.Second, 2500}, // in between it stays
		{fmt.Errorf("busy: %w", ErrTooOften), 0, 2500},
		{trouble, 0, 1250}, {trouble, 0, 1000}, {trouble, 0, 1000}, // never below the least
		{nil, 0, 2000}, {nil, 0, 4000}, {nil, 0, 8000}, {nil, 0, 16_000}, {nil, 0, 32_000}, {nil, 0, 64_000}, {nil, 0, 100_000}, {nil, 0, 100_000},
	} {
		if got := answer(c.err, c.took); got != c.want {
			t.Fatalf("answer %d (%v, %s): batches of %d, want %d", i, c.err, c.took, got, c.want)
		}
	}
}

// TestRefusedForItsSizeIsSealedSmaller: a batch that the destination refuses for its size becomes a claim of its first half, unless an earlier write of it
// may still arrive.
func TestRefusedForItsSizeIsSealedSmaller(t *testing.T) {
	for _, uncertain := range []bool{false, true} {
		w := newWorld(t, true)
		w.append(6, 0)
		m := w.join(testLimits(6))
		m.fetch(6)
		p := m.slot.partition
		if a := p.step(m.now, true); a.do != actCommit {
			t.Fatalf("%+v", a)
		}
		p.committedNow(commitDone, m.now)
		if a := p.step(m.now, true); a.do != actWrite {
			t.Fatalf("%+v", a)
		}
		if uncertain {
			p.written(errors.New("no answer"), m.now)
			p.phase = phaseWriting
		}
		p.written(fmt.Errorf("memory limit: %w", ErrTooMuch), m.now)
		want := int64(2)
		if uncertain {
			want = 5
		}
		if got := p.hand.claim; got.Lo != 0 || got.Hi != want || p.sealed != want+1 {
			t.Errorf("uncertain=%t: claim %d to %d, sealed %d", uncertain, got.Lo, got.Hi, p.sealed)
		}
	}
}

// make10k is a batch of 10,000 records, all like the run's first.
func make10k(x run) (out records) {
	all := run{data: x.data}
	for range 10_000 {
		all.records = append(all.records, x.records[0])
	}
	all.measure()
	out.add(all)
	return out
}
