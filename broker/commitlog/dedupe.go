package commitlog

import (
	"crypto/sha256"
	"encoding/binary"
)

const (
	// dedupeSlotBytes is what a key takes in the map: 16 bytes of hash and an offset.
	dedupeSlotBytes = 24
	// The map is filled to three quarters, so that a search takes few steps.
	dedupeLoadNum, dedupeLoadDen = 3, 4
	// dedupeRetainBytes is the largest map whose memory is kept for the next log.
	dedupeRetainBytes = 1 << 20
)

// dedupeSlot is a key's hash and one more than its newest offset; 0: empty.
type dedupeSlot struct {
	hash [2]uint64
	next int64
}

// offsetMap knows the newest offset of each key of a stretch of log, in memory
// of a fixed size. Keys are known by 128 bits of their SHA-256, so that nobody can
// make one key pass for another. Not safe for concurrent use.
type offsetMap struct {
	slots []dedupeSlot
	used  int
}

// reset empties the map and gives it room for keys, within limitBytes.
func (m *offsetMap) reset(keys int64, limitBytes int64) {
	want := keys*dedupeLoadDen/dedupeLoadNum + dedupeLoadDen
	n := int(max(min(want, limitBytes/dedupeSlotBytes), 2))
	m.used = 0
	if n <= cap(m.slots) && n >= cap(m.slots)/dedupeLoadDen {
		m.slots = m.slots[:n]
		clear(m.slots)
		return
	}
	m.slots = make([]dedupeSlot, n)
}

// shrink gives a large map's memory back.
func (m *offsetMap) shrink() {
	if cap(m.slots)*dedupeSlotBytes > dedupeRetainBytes {
		m.slots = nil
	}
}

// full says that no further key fits.
func (m *offsetMap) full() bool {
	return m.used >= max(len(m.slots)*dedupeLoadNum/dedupeLoadDen, 1)
}

// put notes a key's offset, which is above all before; false when it does not fit.
func (m *offsetMap) put(key []byte, offset int64) bool {
	hash := dedupeHash(key)
	s := m.find(hash)
	if s.next == 0 {
		if m.full() {
			return false
		}
		m.used++
		s.hash = hash
	}
	s.next = offset + 1
	return true
}

// newest is the newest offset of a key; noOffset when it is not there.
func (m *offsetMap) newest(key []byte) int64 {
	return m.find(dedupeHash(key)).next - 1
}

// find returns the slot of a hash, or the empty one where it belongs.
func (m *offsetMap) find(hash [2]uint64) *dedupeSlot {
	for i := hash[0] % uint64(len(m.slots)); ; {
		s := &m.slots[i]
		if s.next == 0 || s.hash == hash {
			return s
		}
		if i++; i == uint64(len(m.slots)) {
			i = 0
		}
	}
}

func dedupeHash(key []byte) [2]uint64 {
	sum := sha256.Sum256(key)
	return [2]uint64{binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])}
}
