package server

import (
	"context"
	"math/bits"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	smallestFrameBits = 9  // 512 bytes
	largestFrameBits  = 24 // 16 MiB; larger ones are not kept
	// largeFrameBytes is where a frame is charged to the budget for large ones
	// and gets its memory as its bytes arrive.
	largeFrameBytes = 1 << 20
)

// frame is the memory of one request.
type frame struct {
	buf     []byte
	charged int64
	// sums are those of its pieces, if wanted is set.
	wanted bool
	sums   []uint32
}

// memory hands out frames within a budget and keeps some for later. It is safe
// for concurrent use; its lock is a leaf.
type memory struct {
	// A frame is charged once, with its final size, to one of the two budgets:
	// nobody waits for memory while holding some.
	small, large *semaphore.Weighted

	idleMax int64

	mu   sync.Mutex
	idle int64                                              // bytes in free
	free [largestFrameBits - smallestFrameBits + 1][][]byte // by power of two
	low  [largestFrameBits - smallestFrameBits + 1]int      // least length of free since the last trim
}

func newMemory(budget, idleMax int64) *memory {
	return &memory{
		small:   semaphore.NewWeighted(budget / 2),
		large:   semaphore.NewWeighted(budget / 2),
		idleMax: idleMax,
	}
}

// class returns the index of the smallest class that holds n bytes, -1 if
// none does.
func class(n int) int {
	b := bits.Len(uint(max(n, 1) - 1))
	if b > largestFrameBits {
		return -1
	}
	return max(b-smallestFrameBits, 0)
}

func (m *memory) budget(charged int64) *semaphore.Weighted {
	if charged > largeFrameBytes {
		return m.large
	}
	return m.small
}

// charge waits until n bytes fit into the budget.
func (m *memory) charge(ctx context.Context, n int) (*frame, error) {
	f := &frame{charged: int64(n)}
	if err := m.budget(f.charged).Acquire(ctx, f.charged); err != nil {
		return nil, err
	}
	return f, nil
}

// take gives f memory for n bytes, if force is not set only what is kept idle.
// What f had is not carried over.
func (m *memory) take(f *frame, n int, force bool) bool {
	c := class(n)
	if c < 0 {
		if force {
			f.buf = make([]byte, n)
		}
		return force
	}
	if buf := m.pop(c); buf != nil {
		f.buf = buf[:n]
		return true
	}
	if force {
		f.buf = make([]byte, n, 1<<(c+smallestFrameBits))
	}
	return force
}

func (m *memory) pop(c int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.free[c])
	if n == 0 {
		return nil
	}
	buf := m.free[c][n-1]
	m.free[c][n-1] = nil
	m.free[c] = m.free[c][:n-1]
	m.idle -= int64(cap(buf))
	m.low[c] = min(m.low[c], n-1)
	return buf
}

// put ends the use of f.
func (m *memory) put(f *frame) {
	m.keep(f.buf)
	f.buf = nil
	m.budget(f.charged).Release(f.charged)
}

func (m *memory) keep(buf []byte) {
	c := class(cap(buf))
	if buf == nil || c < 0 || cap(buf) != 1<<(c+smallestFrameBits) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.idle+int64(cap(buf)) > m.idleMax {
		return
	}
	m.free[c] = append(m.free[c], buf)
	m.idle += int64(cap(buf))
}

// trim gives up the buffers that were not needed since the last trim.
func (m *memory) trim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.free {
		keep := len(m.free[c]) - m.low[c]
		for _, buf := range m.free[c][keep:] {
			m.idle -= int64(cap(buf))
		}
		clear(m.free[c][keep:])
		m.free[c] = m.free[c][:keep]
		m.low[c] = keep
	}
}
