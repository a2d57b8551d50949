package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-io/sluice/sinks"
)

// A CONSTRAINT of the table refuses a block whole for one row that breaks it, and would do so for ever. Which rows do is asked of the server: it puts the constraints'
// own expressions to the rows, and stores nothing. So no piece of the batch has to be tried, which a repetition could not tell from the batch. The rows are then refused
// like a value that does not fit: the batch is encoded anew without them and written under the identity that it has, of which nothing was stored.
//
// A constraint of a table that a materialised view fills is another matter: the table itself has taken the rows by then, so none is refused any more. Such
// a batch is held until the view takes it.

// constraint is a condition that all rows of a table meet.
type constraint struct{ name, check string }

// derived is a column that the INSERT does not fill.
type derived struct{ name, typ, expr string }

// violated says that the server refused a block for a constraint.
func violated(err error) bool {
	e, ok := serverErrorOf(err)
	return ok && e.code == errViolatedConstraint
}

// turnAway finds the rows of a block that was refused for a constraint, and has them refused when the batch is encoded anew, which it asks for.
func (s *Sink) turnAway(ctx context.Context, b *block, c sinks.Claim, refused error) error {
	var broken map[int64]string
	err := s.with(ctx, c.Partition, func(conn transport) (err error) {
		broken, err = findBroken(ctx, conn, b)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("ask which of %d rows break a constraint: %v (after: %w)", b.rows, err, refused)
	case len(broken) == 0:
		return refused // that of a view's table
	}
	s.refused.put(c, broken, time.Now())
	if b.table.behind != nil { // other shards may have their rows: what is stored is read back before the batch is written again
		return fmt.Errorf("%d rows break a constraint of the tables behind, and go to the dead-letter topic with the next try: %v", len(broken), refused)
	}
	return fmt.Errorf("%w: %d rows break a constraint: %v", sinks.ErrSchemaChanged, len(broken), refused)
}

// findBroken asks which rows of the block break which constraint.
func findBroken(ctx context.Context, conn transport, b *block) (map[int64]string, error) {
	constraints, err := b.table.readConstraints(ctx, conn)
	if err != nil || len(constraints) == 0 {
		return nil, err
	}
	others, err := b.table.readDerived(ctx, conn)
	if err != nil {
		return nil, err
	}
	rows, err := conn.ask(ctx, b, brokenQuery(constraints, others))
	if err != nil {
		return nil, err
	}
	broken := make(map[int64]string, len(rows))
	for _, row := range rows {
		offset, err := strconv.ParseInt(row[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the offset of a row: %w", err)
		}
		broken[offset] = row[1]
	}
	return broken, nil
}

// brokenQuery has a row for each that breaks a constraint, with the first that it breaks. A condition that is null is not met.
func brokenQuery(constraints []constraint, others []derived) string {
	var with, cases []string
	for _, d := range others {
		with = append(with, d.alias())
	}
	for _, c := range constraints {
		cases = append(cases, fmt.Sprintf("NOT ifNull((%s) != 0, 0), %s", c.check, quoteString(c.name+" CHECK "+c.check)))
	}
	query := "SELECT toString(" + quoteName(columnOffset) + ") AS sluice_offset, multiIf(" + strings.Join(cases, ", ") + ", '') AS sluice_broken FROM " + keysTable + " WHERE sluice_broken != ''"
	if len(with) > 0 {
		query = "WITH " + strings.Join(with, ", ") + " " + query
	}
	return query
}

// alias has the column as the server would fill it.
func (d derived) alias() string {
	value := "defaultValueOfTypeName(" + quoteString(d.typ) + ")"
	if d.expr != "" {
		value = "CAST((" + d.expr + "), " + quoteString(d.typ) + ")"
	}
	return value + " AS " + quoteName(d.name)
}

// system is a table of the server's own and the condition for what it says of the table that has the rows: for a Distributed one, those behind.
func (t *table) system(name, tableColumn string) (from string) {
	if t.behind == nil {
		return fmt.Sprintf("system.%s WHERE database = %s AND %s = %s", name, quoteString(t.database), tableColumn, quoteString(t.table))
	}
	return fmt.Sprintf("clusterAllReplicas(%s, system.%s) WHERE database = %s AND %s = %s",
		quoteString(t.behind.cluster), name, quoteString(t.behind.database), tableColumn, quoteString(t.behind.table))
}

func (t *table) readConstraints(ctx context.Context, conn transport) (all []constraint, err error) {
	rows, err := conn.query(ctx, "SELECT DISTINCT create_table_query FROM "+t.system("tables", "name"), 1, nil)
	if err != nil {
		return nil, fmt.Errorf("read the constraints of %s: %w", t.name(), err)
	}
	for _, row := range rows {
		some, err := constraintsOf(row[0])
		if err != nil {
			return nil, fmt.Errorf("read the constraints of %s: %w", t.name(), err)
		}
		for _, c := range some {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// readDerived are the columns that a constraint may name and the block does not have.
func (t *table) readDerived(ctx context.Context, conn transport) (out []derived, err error) {
	rows, err := conn.query(ctx, "SELECT DISTINCT name, type, default_expression FROM "+t.system("columns", "table"), 3, nil)
	if err != nil {
		return nil, fmt.Errorf("read the defaults of %s: %w", t.name(), err)
	}
	for _, row := range rows {
		if !slices.ContainsFunc(t.written, func(w writtenColumn) bool { return w.name == row[0] }) {
			out = append(out, derived{row[0], row[1], row[2]})
		}
	}
	return out, nil
}

// constraintsOf are those of a CREATE TABLE as the server writes it; ASSUME is not checked by it.
func constraintsOf(create string) (out []constraint, err error) {
	elements, err := elementsOf(create)
	if err != nil {
		return nil, err
	}
	for _, element := range elements {
		rest, ok := strings.CutPrefix(element, "CONSTRAINT ")
		if !ok {
			continue
		}
		name, check, ok := strings.Cut(rest, " CHECK ")
		if ok && !strings.Contains(name, " ASSUME ") {
			out = append(out, constraint{unquoteName(name), check})
		}
	}
	return out, nil
}

// elementsOf are what stands in the first parentheses of a CREATE TABLE: columns, indexes, constraints.
func elementsOf(create string) (out []string, err error) {
	depth, start := 0, 0
	var quote byte // that we are in
	for i := 0; i < len(create); i++ {
		c := create[i]
		switch {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '`' || c == '"':
			quote = c
		case c == '(' || c == '[' || c == '{':
			if depth++; depth == 1 {
				start = i + 1
			}
		case c == ')' || c == ']' || c == '}':
			if depth--; depth == 0 {
				return append(out, strings.TrimSpace(create[start:i])), nil
			}
		case c == ',' && depth == 1:
			out = append(out, strings.TrimSpace(create[start:i]))
			start = i + 1
		}
	}
	return nil, errors.New("its CREATE TABLE has no list of columns")
}

// refusedRows are the rows that the server has refused for a constraint, by partition, until the others of their batch are stored. Safe for concurrent use.
type refusedRows struct {
	some atomic.Bool // there are any

	mu sync.Mutex // guards what follows
	of map[int32]*refusedOf
}

// refusedOf are those of one partition.
type refusedOf struct {
	topic  string
	id     sinks.TopicID
	at     time.Time // when the server said so last
	reads  int       // how often the batch was read back since
	broken map[int64]string
}

// What the server said of rows holds for the repetition that follows, and no longer: the constraint may be another by then.
const (
	refusedReads = 1                // a batch is read back before each repetition
	refusedKept  = 30 * time.Second // above the longest wait before it; for batches that are repeated without
)

func (r *refusedRows) put(c sinks.Claim, broken map[int64]string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[int32]*refusedOf{}
	}
	p := r.of[c.Partition]
	if p == nil || !p.is(c, now) {
		p = &refusedOf{topic: c.Topic, id: c.TopicID, broken: map[int64]string{}}
		r.of[c.Partition] = p
	}
	p.at, p.reads = now, 0
	for offset, why := range broken {
		p.broken[offset] = why
	}
	r.some.Store(true)
}

func (p *refusedOf) is(c sinks.Claim, now time.Time) bool {
	return p.topic == c.Topic && p.id == c.TopicID && now.Sub(p.at) < refusedKept
}

// reason is why a row is refused; "" when it is not. It is asked of every row, so it is quick while there are none.
func (r *refusedRows) reason(partition int32, offset int64) string {
	if !r.some.Load() {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.of[partition]; p != nil && time.Since(p.at) < refusedKept {
		return p.broken[offset]
	}
	return ""
}

// pass forgets what the claim, which is being read back or is stored, has no use for: all below it, and what is of another topic of the name or has expired.
func (r *refusedRows) pass(c sinks.Claim, stored bool, now time.Time) {
	if !r.some.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.of[c.Partition]; p != nil {
		if !stored {
			p.reads++
		}
		for offset := range p.broken {
			if offset < c.Lo || stored && offset <= c.Hi {
				delete(p.broken, offset)
			}
		}
		if len(p.broken) == 0 || p.reads > refusedReads || !p.is(c, now) {
			delete(r.of, c.Partition)
		}
	}
	r.some.Store(len(r.of) > 0)
}
