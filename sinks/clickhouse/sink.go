package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ClickHouse/ch-go"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// The columns by which a row is known.
const (
	columnTopic     = "_topic"
	columnTopicID   = "_topic_id" // optional
	columnPartition = "_partition"
	columnOffset    = "_offset"
	columnTime      = "_time"  // optional
	columnMarks     = "_marks" // optional: the columns that hold something else than the record said
)

// Sink is a ClickHouse table as destination. Safe for concurrent use.
type Sink struct {
	log  *slog.Logger
	spec *pipelines.SinkSpec
	dial dialer

	lastBlock atomic.Int64 // of a table with views, as the last Check found it

	mu      sync.Mutex // guards what follows
	table   *table     // nil until Check succeeded; never changed in place
	servers servers

	largest largest
	refused refusedRows
}

// New makes the sink of spec.ClickHouse. The server is not asked before Check.
func New(log *slog.Logger, spec *pipelines.SinkSpec) (*Sink, error) {
	if _, err := spec.NewColumns(); err != nil {
		return nil, err
	}
	for _, c := range spec.Columns {
		if _, err := sinks.OwnColumn(c, columnTopic, columnTopicID, columnPartition, columnOffset); err != nil {
			return nil, err
		}
	}
	dial, err := newDialer(spec.ClickHouse)
	return &Sink{log: log, spec: spec, dial: dial, servers: servers{free: map[string][]transport{}, failed: map[string]time.Time{}}}, err
}

// Check asks the first server that answers for the table, and compares its columns with the mapping.
func (s *Sink) Check(ctx context.Context) (sinks.Destination, error) {
	t, err := s.readTable(ctx)
	if err != nil {
		return sinks.Destination{}, fmt.Errorf("ClickHouse: %w", explain(err))
	}
	if err := t.match(s.spec); err != nil {
		return sinks.Destination{}, fmt.Errorf("ClickHouse %s: %w", t.server, err)
	}
	if err := s.mark(ctx, t); err != nil {
		return sinks.Destination{}, fmt.Errorf("ClickHouse %s: %w", t.server, err)
	}
	if s.replace(t) {
		s.warn(t)
	}
	return sinks.Destination{
		Server: t.server, Schema: t.hash(), DropsRepeats: t.dropsRepeats(), Guarantee: t.guarantee(), Alterable: true,
		RepeatsFill: t.repeatsFill(),
	}, nil
}

// replace makes t the table in force, unless it is as it was.
func (s *Sink) replace(t *table) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table != nil && reflect.DeepEqual(*s.table, *t) {
		return false
	}
	s.table = t
	return true
}

// warn says what the table lacks.
func (s *Sink) warn(t *table) {
	if !t.dropsRepeats() {
		s.log.Warn("the table has no dedup window", "table", t.name(), "guarantee", t.guarantee())
	}
	if !t.tellsTopics() {
		s.log.Warn("the table has no column "+columnTopicID+": a partition is held when nothing tells rows of an earlier topic of the same name from those of this one",
			"table", t.name(), "mend", "ALTER TABLE "+t.name()+" ADD COLUMN "+columnTopicID+" LowCardinality(String)")
	}
}

func (s *Sink) current() (*table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return nil, errors.New("the table has not been checked yet")
	}
	return s.table, nil
}

// NewBlock returns a block of the table's columns.
func (s *Sink) NewBlock() (sinks.Block, error) {
	t, err := s.current()
	if err != nil {
		return nil, err
	}
	b, err := newBlock(s.spec, t)
	if err != nil {
		return nil, err
	}
	b.refused = &s.refused
	return b, nil
}

// Write inserts the block. One connection carries one query at a time; a connection that had an error is not used again.
func (s *Sink) Write(ctx context.Context, b *sinks.Batch) error {
	t, err := s.current()
	if err != nil {
		return err
	}
	rows := b.Block.(*block)
	if rows.table != t {
		return sinks.ErrSchemaChanged
	}
	if err := rows.fill(&b.Claim); err != nil {
		return err
	}
	if err := s.remembered(ctx, t, b); err != nil {
		return err
	}
	err = s.with(ctx, b.Claim.Partition, func(conn transport) error {
		parts, err := conn.insert(ctx, rows, b.Identity, s.insertSettings(ctx, b.Identity))
		b.Parts = parts
		if err != nil {
			return err
		}
		return kept(ctx, conn, t, rows, b)
	})
	if tooManyPartitions(err) {
		refused := err
		err = s.with(ctx, b.Claim.Partition, func(conn transport) error { return s.split(ctx, conn, rows, refused) })
		if split := (*sinks.SplitError)(nil); errors.As(err, &split) {
			return split
		}
	}
	switch {
	case err == nil:
		s.refused.pass(b.Claim, true, time.Now())
	case violated(err):
		return explain(s.turnAway(ctx, rows, b.Claim, err))
	}
	return s.keepWhole(ctx, t, b.Claim, explain(err))
}

// queryID is the same for every write under an identity, so that the server refuses a second while the first still runs.
func queryID(identity string) string { return "sluice:" + identity }

// settings of one INSERT. The profile of the user may say otherwise, so all that bears on the guarantee is said each time. Servers pass over
// those they do not know.
func (s *Sink) insertSettings(ctx context.Context, identity string) []ch.Setting {
	settings := []ch.Setting{
		{Key: "insert_deduplication_token", Value: identity, Important: true},
		{Key: "insert_deduplicate", Value: "1"},
		{Key: "deduplicate_blocks_in_dependent_materialized_views", Value: "1"},
		{Key: "async_insert", Value: "0"},
		{Key: "wait_for_async_insert", Value: "1"},
		{Key: "distributed_foreground_insert", Value: "1"},
		{Key: "insert_distributed_sync", Value: "1"},
		// One block is one part, or one for each partition of the table: the server may neither cut the claim's block nor join it with another.
		{Key: "max_insert_block_size", Value: blockRowsMax},
		{Key: "min_insert_block_size_rows", Value: blockRowsMax},
		{Key: "min_insert_block_size_bytes", Value: "0"},
	}
	if quorum := s.spec.ClickHouse.Quorum; quorum > 0 {
		settings = append(settings, ch.Setting{Key: "insert_quorum", Value: strconv.Itoa(quorum)}, ch.Setting{Key: "insert_quorum_parallel", Value: "0"})
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := max(int(time.Until(deadline).Seconds()), 1)
		settings = append(settings,
			ch.Setting{Key: "receive_timeout", Value: strconv.Itoa(left)},
			ch.Setting{Key: "max_execution_time", Value: strconv.Itoa(left)},
			ch.Setting{Key: "insert_quorum_timeout", Value: strconv.Itoa(1000 * left)}) // milliseconds; the wait for a quorum ends by no other
	}
	return settings
}

// blockRowsMax is above the most rows a batch can have.
const blockRowsMax = "16000000"

// Stored reads back which of the claim's rows the table holds.
func (s *Sink) Stored(ctx context.Context, c sinks.Claim) (stored sinks.Stored, err error) {
	t, err := s.current()
	if err != nil {
		return sinks.Stored{Max: -1, MaxUnknown: -1}, err
	}
	s.refused.pass(c, false, time.Now())
	err = s.with(ctx, c.Partition, func(conn transport) error { return stillRuns(ctx, conn, c) }) // before anything is read
	if err != nil {
		return sinks.Stored{Max: -1, MaxUnknown: -1}, explain(err)
	}
	largest, err := s.largestOf(ctx, t, c)
	stored = sinks.Stored{Max: largest.all, MaxUnknown: largest.unknown, Mend: t.mendUnknown(c)}
	if err != nil || stored.Max < c.Lo {
		return stored, explain(err)
	}
	err = s.with(ctx, c.Partition, func(conn transport) (err error) {
		if err := s.catchUp(ctx, conn, t); err != nil {
			return err
		}
		stored.Present, err = readPresent(ctx, conn, t, c)
		return err
	})
	return stored, explain(err)
}

// catchUp has a replica fetch what the others have before it is asked what is stored: the batch in question may have gone to another.
func (s *Sink) catchUp(ctx context.Context, conn transport, t *table) error {
	if len(s.spec.ClickHouse.Addr) < 2 || !t.replicated() {
		return nil
	}
	if _, err := conn.query(ctx, "SYSTEM SYNC REPLICA "+t.name(), 0, nil); err != nil {
		return fmt.Errorf("have the replica catch up: %w", err)
	}
	return nil
}

// rowsOf begins at FROM a query for the rows of a topic, and for those that may be of an earlier one of its name; unknown holds for the latter.
func (t *table) rowsOf(topic string, id sinks.TopicID) (where, unknown string) {
	where, unknown = " FROM "+t.name()+" WHERE "+quoteName(columnTopic)+" = "+quoteString(topic), "1"
	if t.tellsTopics() {
		unknown = topicIDText + " IN ('', " + quoteString(sinks.TopicID{}.String()) + ")"
		where += " AND (" + unknown + " OR " + topicIDText + " = " + quoteString(id.String()) + ")"
	}
	return where, unknown
}

func readPresent(ctx context.Context, conn transport, t *table, c sinks.Claim) (present []sinks.Range, err error) {
	where, _ := t.rowsOf(c.Topic, c.TopicID)
	rows, err := conn.query(ctx, fmt.Sprintf("SELECT toString(o) FROM (SELECT DISTINCT toInt64(%[1]s) AS o%[2]s AND %[3]s = %[4]d AND %[1]s BETWEEN %[5]d AND %[6]d ORDER BY o)",
		quoteName(columnOffset), where, quoteName(columnPartition), c.Partition, c.Lo, c.Hi), 1, readSettings)
	if err != nil {
		return nil, err
	}
	offsets := make([]int64, len(rows))
	for i, row := range rows {
		if offsets[i], err = strconv.ParseInt(row[0], 10, 64); err != nil {
			return nil, fmt.Errorf("read an offset: %w", err)
		}
	}
	slices.Sort(offsets)
	for _, o := range offsets {
		present = appendOffset(present, o)
	}
	return present, nil
}

// topicIDText is the column's content as sinks.TopicID has it, whether it is text or a UUID.
const topicIDText = "replaceAll(toString(" + columnTopicID + "), '-', '')"

// readSettings make a replicated table answer with what a quorum has, and keep a profile from cutting the answer.
var readSettings = []ch.Setting{
	{Key: "select_sequential_consistency", Value: "1"},
	{Key: "max_result_rows", Value: "0"},
	{Key: "limit", Value: "0"},
}

// appendOffset joins an offset to the last range, or begins another.
func appendOffset(ranges []sinks.Range, o int64) []sinks.Range {
	if n := len(ranges); n > 0 && ranges[n-1].Hi+1 == o {
		ranges[n-1].Hi = o
		return ranges
	}
	return append(ranges, sinks.Range{Lo: o, Hi: o})
}

// Close closes the idle connections.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, free := range s.servers.free {
		for _, conn := range free {
			conn.close()
		}
	}
	clear(s.servers.free)
	return nil
}

func quoteName(name string) string {
	return "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`").Replace(name) + "`"
}

func quoteString(s string) string {
	return "'" + strings.NewReplacer("\\", "\\\\", "'", "\\'").Replace(s) + "'"
}

// hash identifies mapping and columns: blocks made under another hash have other bytes.
func (t *table) hash() string {
	h := fnv.New64a()
	h.Write([]byte(t.mapping))
	for _, c := range t.written {
		fmt.Fprintf(h, "/%s:%s", c.name, c.typ)
		if c.key != "" {
			fmt.Fprintf(h, "=%s", c.key)
		}
	}
	if t.misfit != (pipelines.Misfit{}) {
		fmt.Fprintf(h, "/%+v", t.misfit)
	}
	return fmt.Sprintf("%016x", h.Sum64())
}
