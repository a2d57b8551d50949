package agent

import (
	"fmt"
	"sync"

	"github.com/sluice-io/sluice/pipelines"
)

const (
	// MemoryMaxDefault is the memory that an agent's process may take unless told otherwise.
	MemoryMaxDefault = 256 << 20
	// memoryBase is what a process takes beside lines, and lineCopies how often a long line may be in memory while it is worked on: in its
	// block, which is a power of two, in the batch that is built, compressed, and in the request.
	memoryBase = 40 << 20
	lineCopies = 6
	// budgetShare is the part of the limit that lines on their way may take: a batch is in memory twice while it is sent, and the garbage
	// collector needs room.
	budgetShare = 4
)

// budget divides the memory of lines on their way among all pipelines: half of it is theirs in equal parts, whatever the others do, so
// that one whose brokers are away starves none; the other half goes to whoever asks first.
type budget struct {
	limit int64

	mu     sync.Mutex
	shares map[*share]bool // guarded by mu: whether it waits for room
}

// share is one pipeline's part.
type share struct {
	budget *budget
	used   int64  // guarded by budget.mu
	wake   func() // called, with locks held, when there may be room again; must not block
}

func newBudget(memoryMax int64) *budget {
	return &budget{limit: memoryMax / budgetShare, shares: map[*share]bool{}}
}

func (b *budget) join(wake func()) *share {
	s := &share{budget: b, wake: wake}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares[s] = false
	return s
}

// leave gives all back.
func (s *share) leave() {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	delete(s.budget.shares, s)
	s.budget.wakeLocked()
}

// add takes memory, or gives it back.
func (s *share) add(bytes int64) {
	if bytes == 0 {
		return
	}
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.used += bytes
	if bytes < 0 {
		s.budget.wakeLocked()
	}
}

func (b *budget) wakeLocked() {
	for s, waits := range b.shares {
		if waits {
			b.shares[s] = false
			s.wake()
		}
	}
}

// room says whether another chunk may be read. Whoever is refused is woken when memory is given back.
func (s *share) room() bool {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.limit / 2 / int64(max(len(b.shares), 1))
	if s.used == 0 || s.used < own {
		return true
	}
	common := int64(0)
	for x := range b.shares {
		common += max(x.used-own, 0)
	}
	if common < b.limit/2 {
		return true
	}
	b.shares[s] = true
	return false
}

// Used is how much is taken.
func (b *budget) taken() (sum int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.shares {
		sum += s.used
	}
	return sum
}

// checkMemory refuses lines that the process has no memory for.
func checkMemory(p *pipelines.Pipeline, memoryMax int64) error {
	line := int64(p.Collect.Options().LineBytesMax)
	if need := memoryBase + lineCopies*line; need > memoryMax {
		return fmt.Errorf("pipeline %s: lines of %d bytes (line_bytes_max) need a process of %d MiB, and it may have %d: raise --memory-max, or lower line_bytes_max",
			p.Name, line, (need+1<<20-1)>>20, memoryMax>>20)
	}
	return nil
}
