package clickhouse

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/sluice-io/sluice/sinks"
)

// A MergeTree notes the token of an insert before the part is in place. An insert that ends between the two, by a connection that breaks or a server that dies, can leave
// a token without rows: then the table drops each repeat, says that all is well, and the rows are nowhere. So a repeat that it took is read back.
// (In ReplicatedMergeTree both are one transaction, and a replica may have parts still to fetch.)

// keeps says that a repeated write of the table can be read back where it went.
func (t *table) keeps() bool {
	return t.window > 0 && !t.replicated() && t.behind == nil && !losesRows(t.engine) && !forgetsRows(t.engine)
}

// kept reads back, on the connection that had the insert, whether the table has the block's rows.
func kept(ctx context.Context, conn transport, t *table, rows *block, b *sinks.Batch) error {
	if !b.Repeat || b.Again >= sinks.AgainMax || !t.keeps() {
		return nil
	}
	if err := stillRuns(ctx, conn, b.Claim); err != nil { // it may be about to store them
		return err
	}
	present, err := readPresent(ctx, conn, t, b.Claim)
	if err != nil {
		return fmt.Errorf("read back a repeated insert: %w", err)
	}
	if n := rows.absentFrom(present); n > 0 {
		return fmt.Errorf("%d of %d rows: %w", n, rows.rows, sinks.ErrNotKept)
	}
	return nil
}

// absentFrom counts the block's rows whose offsets are not in the ranges.
func (b *block) absentFrom(present []sinks.Range) (n int) {
	for i := range b.fields {
		f := &b.fields[i]
		if f.number == nil {
			continue
		}
		for at := 0; at < len(f.number.data); at += 8 {
			if !sinks.Holds(present, int64(binary.LittleEndian.Uint64(f.number.data[at:]))) {
				n++
			}
		}
	}
	return n
}
