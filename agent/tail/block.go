package tail

import (
	"math/bits"
	"sync"
)

const (
	// blockBytesMin is the smallest block: what a few lines of a quiet file take.
	blockBytesMin = 4 << 10
	// BlockBytes is the block that a busy file is read in. It fits the
	// second-level cache, and is the quantum of fairness among files.
	BlockBytes = 256 << 10
)

// Blocks is a pool of blocks by size class (powers of two). Blocks for lines
// that are longer than BlockBytes are there one at a time, and are not kept:
// who wants one waits for the other. Nobody holds two. Safe for concurrent use.
type Blocks struct {
	classes [32]sync.Pool
	large   sync.Mutex
}

// get returns a block of at least size bytes.
func (b *Blocks) get(size int) *[]byte {
	class := classOf(size)
	if 1<<class > BlockBytes {
		b.large.Lock()
		buf := make([]byte, 1<<class)
		return &buf
	}
	if p, ok := b.classes[class].Get().(*[]byte); ok {
		return p
	}
	buf := make([]byte, 1<<class)
	return &buf
}

// put gives a block back.
func (b *Blocks) put(p *[]byte) {
	if len(*p) > BlockBytes {
		b.large.Unlock()
		return
	}
	b.classes[classOf(len(*p))].Put(p)
}

func classOf(size int) int {
	return bits.Len(uint(max(size, blockBytesMin) - 1))
}
