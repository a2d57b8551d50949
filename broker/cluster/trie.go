package cluster

import (
	"hash/maphash"
	"math/bits"
)

// trie is an immutable hash map (a hash array mapped trie): with and without
// return a changed copy that shares all but the O(log n) nodes on the way to
// the key. Two versions can be compared in time proportional to what differs.
//
// The nil *trie is the empty map. A trie is safe for concurrent readers.
type trie[K comparable, V comparable] struct {
	// bitmap has a bit for each of the 32 slots that is in use; slots holds them densely.
	bitmap uint32
	slots  []trieSlot[K, V]
}

// trieSlot is either a deeper node or the entries whose hashes agree this far;
// more than one entry only at the depth where the hash is used up.
type trieSlot[K comparable, V comparable] struct {
	node    *trie[K, V]
	entries []trieEntry[K, V]
}

type trieEntry[K comparable, V comparable] struct {
	key K
	val V
}

const (
	trieBits     = 5
	trieHashBits = 64
)

// trieHash is the hash a trie is built with. All versions that are compared
// must use the same.
type trieHash[K comparable] func(K) uint64

func newTrieHash[K comparable]() trieHash[K] {
	seed := maphash.MakeSeed()
	return func(k K) uint64 { return maphash.Comparable(seed, k) }
}

func (t *trie[K, V]) slot(h uint64, shift uint) (index int, bit uint32, used bool) {
	bit = 1 << ((h >> shift) & (1<<trieBits - 1))
	return bits.OnesCount32(t.bitmap & (bit - 1)), bit, t.bitmap&bit != 0
}

func (t *trie[K, V]) get(hash trieHash[K], k K) (v V, ok bool) {
	h := hash(k)
	for shift := uint(0); t != nil; shift += trieBits {
		i, _, used := t.slot(h, shift)
		if !used {
			return v, false
		}
		s := &t.slots[i]
		if s.node == nil {
			return findEntry(s.entries, k)
		}
		t = s.node
	}
	return v, false
}

func findEntry[K, V comparable](entries []trieEntry[K, V], k K) (v V, ok bool) {
	for i := range entries {
		if entries[i].key == k {
			return entries[i].val, true
		}
	}
	return v, false
}

func (t *trie[K, V]) with(hash trieHash[K], k K, v V) *trie[K, V] {
	return t.put(hash, hash(k), 0, trieEntry[K, V]{k, v})
}

func (t *trie[K, V]) put(hash trieHash[K], h uint64, shift uint, e trieEntry[K, V]) *trie[K, V] {
	if t == nil {
		t = &trie[K, V]{}
	}
	i, bit, used := t.slot(h, shift)
	if !used {
		return t.inserted(i, bit, trieSlot[K, V]{entries: []trieEntry[K, V]{e}})
	}
	s := t.slots[i]
	switch {
	case s.node != nil:
		s.node = s.node.put(hash, h, shift+trieBits, e)
	case s.entries[0].key == e.key || shift+trieBits >= trieHashBits:
		s.entries = putEntry(s.entries, e)
	default:
		// Two keys share the hash so far: push the one that was here a level down.
		old := s.entries[0]
		var deeper *trie[K, V]
		deeper = deeper.put(hash, hash(old.key), shift+trieBits, old)
		s = trieSlot[K, V]{node: deeper.put(hash, h, shift+trieBits, e)}
	}
	return t.replaced(i, s)
}

func putEntry[K, V comparable](entries []trieEntry[K, V], e trieEntry[K, V]) []trieEntry[K, V] {
	out := append(make([]trieEntry[K, V], 0, len(entries)+1), entries...)
	for i := range out {
		if out[i].key == e.key {
			out[i] = e
			return out
		}
	}
	return append(out, e)
}

func (t *trie[K, V]) inserted(i int, bit uint32, s trieSlot[K, V]) *trie[K, V] {
	slots := make([]trieSlot[K, V], len(t.slots)+1)
	copy(slots, t.slots[:i])
	slots[i] = s
	copy(slots[i+1:], t.slots[i:])
	return &trie[K, V]{bitmap: t.bitmap | bit, slots: slots}
}

func (t *trie[K, V]) replaced(i int, s trieSlot[K, V]) *trie[K, V] {
	slots := append([]trieSlot[K, V](nil), t.slots...)
	slots[i] = s
	return &trie[K, V]{bitmap: t.bitmap, slots: slots}
}

func (t *trie[K, V]) without(hash trieHash[K], k K) *trie[K, V] {
	return t.remove(hash(k), 0, k)
}

func (t *trie[K, V]) remove(h uint64, shift uint, k K) *trie[K, V] {
	if t == nil {
		return nil
	}
	i, bit, used := t.slot(h, shift)
	if !used {
		return t
	}
	s := t.slots[i]
	if s.node != nil {
		deeper := s.node.remove(h, shift+trieBits, k)
		if deeper == s.node {
			return t
		}
		s.node = deeper
	} else {
		entries := removeEntry(s.entries, k)
		if len(entries) == len(s.entries) {
			return t
		}
		s.entries = entries
	}
	if s.node == nil && len(s.entries) == 0 {
		return t.dropped(i, bit)
	}
	return t.replaced(i, s)
}

func removeEntry[K, V comparable](entries []trieEntry[K, V], k K) []trieEntry[K, V] {
	var out []trieEntry[K, V]
	for _, e := range entries {
		if e.key != k {
			out = append(out, e)
		}
	}
	return out
}

func (t *trie[K, V]) dropped(i int, bit uint32) *trie[K, V] {
	if len(t.slots) == 1 {
		return nil
	}
	slots := make([]trieSlot[K, V], 0, len(t.slots)-1)
	slots = append(slots, t.slots[:i]...)
	slots = append(slots, t.slots[i+1:]...)
	return &trie[K, V]{bitmap: t.bitmap &^ bit, slots: slots}
}

// each calls fn for every entry, in no particular order.
func (t *trie[K, V]) each(fn func(K, V)) {
	if t == nil {
		return
	}
	for i := range t.slots {
		t.slots[i].each(fn)
	}
}

func (s *trieSlot[K, V]) each(fn func(K, V)) {
	s.node.each(fn)
	for _, e := range s.entries {
		fn(e.key, e.val)
	}
}

// diffTrie calls fn for every key whose value differs between a and b, with the
// zero value where the key is absent. It skips what the two share.
func diffTrie[K, V comparable](a, b *trie[K, V], fn func(k K, old, new V)) {
	if a == b {
		return
	}
	if a == nil {
		a = &trie[K, V]{}
	}
	if b == nil {
		b = &trie[K, V]{}
	}
	ai, bi := 0, 0
	for used := a.bitmap | b.bitmap; used != 0; used &= used - 1 {
		bit := used & -used
		var as, bs trieSlot[K, V]
		if a.bitmap&bit != 0 {
			as = a.slots[ai]
			ai++
		}
		if b.bitmap&bit != 0 {
			bs = b.slots[bi]
			bi++
		}
		diffSlot(as, bs, fn)
	}
}

func diffSlot[K, V comparable](a, b trieSlot[K, V], fn func(k K, old, new V)) {
	if a.node != nil && b.node != nil {
		diffTrie(a.node, b.node, fn)
		return
	}
	// One side is a leaf, so what lies below both is small: compare as maps.
	old := make(map[K]V)
	a.each(func(k K, v V) { old[k] = v })
	b.each(func(k K, v V) {
		was := old[k]
		delete(old, k)
		if was != v {
			fn(k, was, v)
		}
	})
	var zero V
	for k, v := range old {
		fn(k, v, zero)
	}
}
