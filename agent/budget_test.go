package agent

import "testing"

// A pipeline that takes all it can leaves the others their part, and who waits is woken.
func TestBudget(t *testing.T) {
	b := newBudget(budgetShare * 800) // 800 for lines: 100 for each of four, and 400 for whoever comes first
	woken := map[int]int{}
	var shares []*share
	for i := range 4 {
		shares = append(shares, b.join(func() { woken[i]++ }))
	}
	greedy := shares[0]
	for greedy.room() {
		greedy.add(10)
	}
	if greedy.used != 500 {
		t.Errorf("one takes %d", greedy.used)
	}
	for _, s := range shares[1:] {
		for s.room() {
			s.add(10)
		}
		if s.used != 100 {
			t.Errorf("another gets %d", s.used)
		}
	}
	if got := b.taken(); got != 800 {
		t.Errorf("together they take %d", got)
	}
	shares[1].add(-10)
	if woken[0] != 1 || woken[2] != 1 || woken[3] != 1 {
		t.Errorf("woken: %v", woken)
	}
	if !shares[1].room() || greedy.room() {
		t.Error("what was given back within a part is not its owner's")
	}
	greedy.leave()
	if !shares[2].room() {
		t.Error("what left is not given back")
	}
}
