package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/sinks"
)

// errStillRuns keeps a batch from being read back, and so from being written again, while the server still has an earlier write of its partition in hand: what that is
// going to store cannot be seen yet.
var errStillRuns = errors.New("an earlier insert of the partition still runs at the server; waiting for its end")

// stillRuns asks the server whether it has an insert of the claim's partition in hand, by the query ID that each has. One that the server has not read yet is
// not seen: then the table's dedup window alone keeps it from doubling rows.
func stillRuns(ctx context.Context, conn transport, c sinks.Claim) error {
	prefix := queryID(c.IdentityPrefix())
	rows, err := conn.query(ctx, fmt.Sprintf("SELECT query_id, toString(elapsed) FROM system.processes WHERE substring(query_id, 1, %d) = %s", len(prefix), quoteString(prefix)), 2, nil)
	if e, ok := serverErrorOf(err); ok && e.code == proto.ErrAccessDenied {
		return nil // a server that does not show a user's own queries
	}
	if err != nil {
		return fmt.Errorf("look for inserts that still run: %w", err)
	}
	if len(rows) > 0 {
		return fmt.Errorf("%w (%s, for %s s)", errStillRuns, rows[0][0], rows[0][1])
	}
	return nil
}

// A materialised view that fails leaves the rows in its table, and is filled when the insert is repeated under its token: a table that drops the rows hands them to its
// views all the same. So a batch for a table with views is repeated whole, and nothing that is stored is left out of it, for as long as the table surely knows
// the token.

// repeatableElsewhere is for how long that is so where the inserts since cannot be counted: for Replicated tables and those behind a Distributed one.
const repeatableElsewhere = time.Minute

// repeatsFill says that the table has views, which a repeated write fills.
func (t *table) repeatsFill() bool { return t.views > 0 && t.dropsRepeats() }

// remembered sees to it that a repeated batch is only sent to a table with views while that knows its token: not more inserts than its window holds can have come since the
// first write. That is marked by the last block's number as a Check read it, which is the first write's at the most.
func (s *Sink) remembered(ctx context.Context, t *table, b *sinks.Batch) error {
	if !t.repeatsFill() {
		return nil
	}
	counts := !t.replicated() && t.behind == nil
	if b.Mark == 0 {
		if b.Mark = time.Now().UnixMilli(); counts {
			b.Mark = s.lastBlock.Load() + 1
		}
	}
	if !b.Repeat {
		return nil
	}
	now, limit := time.Now().UnixMilli(), repeatableElsewhere.Milliseconds()
	if counts {
		limit = int64(t.window)
		err := s.with(ctx, b.Claim.Partition, func(conn transport) (err error) {
			now, err = lastBlock(ctx, conn, t)
			return err
		})
		if err != nil {
			return err
		}
	}
	if now-b.Mark >= limit {
		return fmt.Errorf("the table's views may lack rows of the batch: %w", sinks.ErrForgotten)
	}
	return nil
}

// mark reads the last block's number for the batches to come, where it is of use.
func (s *Sink) mark(ctx context.Context, t *table) error {
	if !t.repeatsFill() || t.replicated() || t.behind != nil {
		return nil
	}
	return s.with(ctx, 0, func(conn transport) error {
		n, err := lastBlock(ctx, conn, t)
		if err == nil {
			s.lastBlock.Store(n)
		}
		return err
	})
}

// lastBlock is the number of the last block that was inserted into a MergeTree table.
func lastBlock(ctx context.Context, conn transport, t *table) (int64, error) {
	rows, err := conn.query(ctx, fmt.Sprintf("SELECT toString(max(max_block_number)) FROM system.parts WHERE database = %s AND table = %s",
		quoteString(t.database), quoteString(t.table)), 1, nil)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return strconv.ParseInt(rows[0][0], 10, 64)
}

// keepWhole takes the mark from an error that has batches cut smaller, where the table has the batch: its views alone had too much, and are only filled by the same
// batch.
func (s *Sink) keepWhole(ctx context.Context, t *table, c sinks.Claim, err error) error {
	if !t.repeatsFill() || !errors.Is(err, sinks.ErrTooMuch) {
		return err
	}
	var present []sinks.Range
	asked := s.with(ctx, c.Partition, func(conn transport) (err error) {
		present, err = readPresent(ctx, conn, t, c)
		return err
	})
	if asked == nil && len(present) == 0 {
		return err
	}
	return fmt.Errorf("a materialised view of the table: %v", err)
}

// countViews is how many views hang on a table; servers of before 2018's end do not say.
func countViews(ctx context.Context, conn transport, t *table) (int, error) {
	rows, err := conn.query(ctx, fmt.Sprintf("SELECT toString(length(dependencies_table)) FROM system.tables WHERE database = %s AND name = %s", quoteString(t.database), quoteString(t.table)), 1, nil)
	if e, ok := serverErrorOf(err); ok && (e.code == proto.ErrUnknownIdentifier || e.code == proto.ErrNotFoundColumnInBlock || e.code == proto.ErrThereIsNoColumn) {
		return 0, nil
	}
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return strconv.Atoi(rows[0][0])
}
