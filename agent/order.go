package agent

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/sluice-io/sluice/agent/tail"
)

// inOrder goes through a map of files in order of their identities, where what is done depends on the order: equals are then chosen alike
// each time.
func inOrder[V any](m map[tail.ID]V) iter.Seq2[tail.ID, V] {
	return func(yield func(tail.ID, V) bool) {
		for _, id := range slices.SortedFunc(maps.Keys(m), compareIDs) {
			if !yield(id, m[id]) {
				return
			}
		}
	}
}

func compareIDs(a, b tail.ID) int {
	return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino))
}
