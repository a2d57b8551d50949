// Package convert reads what other log shippers leave: their configuration, of which it makes pipelines, and their positions in files. It
// says of everything that it cannot carry over, with the line it stands in.
package convert

import (
	"cmp"
	"maps"
	"slices"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
