package cluster

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// A trie does what a map does, its versions stay as they were, and a comparison
// of two finds exactly what differs, also where hashes collide.
func TestTrieIsAMap(t *testing.T) {
	for _, bits := range []uint64{^uint64(0), 0x3f, 0} { // from a good hash to none at all
		t.Run(fmt.Sprintf("%x", bits), func(t *testing.T) {
			good := newTrieHash[int]()
			hash := func(k int) uint64 { return good(k) & bits }
			rapid.Check(t, func(t *rapid.T) {
				var tr *trie[int, int]
				model := map[int]int{}
				old, oldModel := tr, map[int]int{}
				for _, op := range rapid.SliceOfN(rapid.IntRange(-60, 60), 0, 200).Draw(t, "ops") {
					if op%17 == 0 {
						old, oldModel = tr, maps.Clone(model)
					}
					if op < 0 {
						tr = tr.without(hash, -op)
						delete(model, -op)
					} else {
						tr = tr.with(hash, op, len(model)+1) // a zero would stand for absence
						model[op] = len(model) + 1
					}
				}
				equalMaps(t, hash, tr, model)
				equalMaps(t, hash, old, oldModel)
				diffTrie(old, tr, func(k, was, is int) {
					if oldModel[k] != was || model[k] != is {
						t.Fatalf("key %d went from %d to %d, not %d to %d", k, oldModel[k], model[k], was, is)
					}
					delete(oldModel, k)
					delete(model, k)
				})
				if !maps.Equal(oldModel, model) {
					t.Fatalf("not reported: %v became %v", oldModel, model)
				}
			})
		})
	}
}

func equalMaps(t *rapid.T, hash trieHash[int], tr *trie[int, int], model map[int]int) {
	n := 0
	tr.each(func(k, v int) {
		n++
		if want, ok := model[k]; !ok || want != v {
			t.Fatalf("%d is %d, want %d", k, v, want)
		}
	})
	if n != len(model) {
		t.Fatalf("%d entries, want %d", n, len(model))
	}
	for k, v := range model {
		if got, ok := tr.get(hash, k); !ok || got != v {
			t.Fatalf("%d is %d, %v; want %d", k, got, ok, v)
		}
	}
}

func BenchmarkImageTopic(b *testing.B) {
	im := NewImage("c", nil)
	for i := range 5000 {
		im = im.With(&Topic{Name: fmt.Sprintf("topic-%d", i), ID: TopicID{byte(i), byte(i >> 8)}})
	}
	b.Run("lookup", func(b *testing.B) {
		for b.Loop() {
			im.Topic("topic-4242")
		}
	})
	t := *im.Topic("topic-7")
	b.Run("update", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			im.With(&t)
		}
	})
}
