package sinks

import "testing"

// TestSchemaChangesBetweenPieces: the destination takes a batch in two pieces, and its schema changes after the first. The batch is encoded anew then, and what the first
// piece stored is not stored again, though the destination remembers no writes.
func TestSchemaChangesBetweenPieces(t *testing.T) {
	r := newRig(t, 1, "")
	r.produce("a", 10, 1)
	sink := newMemSink(false)
	writes := 0
	sink.fail = func(b *Batch, stored bool) error {
		rows := b.Block.(*memBlock).offsets
		switch {
		case stored:
		case len(rows) == 10:
			return &SplitError{Pieces: [][]int64{{0, 1, 2}, {3, 4, 5, 6, 7, 8, 9}}}
		default:
			if writes++; writes == 2 {
				return ErrSchemaChanged
			}
		}
		return nil
	}
	r.once(sink)
	r.verify(sink, "a", 10)
	if writes < 3 {
		t.Errorf("%d writes of pieces", writes)
	}
}
