package clickhouse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-io/sluice/sinks"
)

// The server takes rows of at most max_partitions_per_insert_block partitions of the table at once, and refuses a block of more, whole and for ever. Such
// a block is written in pieces: each has the rows of so many partitions, in the order of the partitions' names. The server itself says which row is of
// which partition, for the key is any expression. The pieces depend on the rows alone: a repetition that finds some of them stored makes the same of the rest.

// piecePartitions is how many partitions a piece has: half of the server's default limit, which a profile may lower.
const piecePartitions = 50

// keysTable is the name under which the block's rows are sent to be asked about.
const keysTable = "sluice_rows"

func keysQuery(key string) string {
	return "SELECT toString(" + quoteName(columnOffset) + ") AS sluice_offset, toString(tuple(" + key + ")) AS sluice_key FROM " + keysTable
}

// split asks for the partitions of the block's rows after the server has refused it.
func (s *Sink) split(ctx context.Context, conn transport, b *block, refused error) error {
	if b.table.partitionKey == "" {
		return refused // the server would not have refused it
	}
	rows, err := conn.ask(ctx, b, keysQuery(b.table.partitionKey))
	if err != nil {
		return fmt.Errorf("ask for the partitions of %d rows: %w (after: %w)", b.rows, err, refused)
	}
	pieces, err := piecesOf(rows, piecePartitions)
	if err != nil {
		return err
	}
	if len(pieces) < 2 {
		return refused
	}
	return &sinks.SplitError{Pieces: pieces, Err: refused}
}

// piecesOf puts rows of offset and partition into pieces of at most so many partitions.
func piecesOf(rows [][]string, partitions int) ([][]int64, error) {
	byKey := map[string][]int64{}
	for _, row := range rows {
		offset, err := strconv.ParseInt(row[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the offset of a row: %w", err)
		}
		byKey[row[1]] = append(byKey[row[1]], offset)
	}
	var pieces [][]int64
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(byKey)), partitions) {
		var piece []int64
		for _, key := range keys {
			piece = append(piece, byKey[key]...)
		}
		slices.Sort(piece)
		pieces = append(pieces, piece)
	}
	return pieces, nil
}
