package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// table is what the server says of a table, and how the pipeline's rows go into it. Never changed once made.
type table struct {
	server   string
	database string
	table    string
	engine   string
	window   int // of tokens the table remembers
	columns  []tableColumn
	behind   *behind // of a Distributed table: the tables that hold its rows
	views    int     // materialised views that hang on it

	partitionKey string
	version      string // of the server

	misfit  pipelines.Misfit
	mapping string // its hash
	named   []string
	written []writtenColumn
}

// tableColumn is a column as the server describes it.
type tableColumn struct {
	name string
	typ  string
	kind string // "", DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL
}

// writtenColumn is a column of the INSERT.
type writtenColumn struct {
	name string
	typ  string
	from int
	key  string // see field
}

func (t *table) name() string { return quoteName(t.database) + "." + quoteName(t.table) }

// readTable asks the first server that answers.
func (s *Sink) readTable(ctx context.Context) (*table, error) {
	var t *table
	conn, addr, err := s.conn(ctx, 0)
	if err != nil {
		return nil, err
	}
	if t, err = describe(ctx, conn, s.spec.ClickHouse); err != nil {
		conn.close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	s.release(conn, addr)
	t.server = addr
	if len(s.spec.ClickHouse.Addr) > 1 {
		t.server = strings.Join(s.spec.ClickHouse.Addr, ",")
		if !t.anyServer() {
			return nil, fmt.Errorf("table %s has the engine %s, so a write repeated on another server would store its rows twice: "+
				"name one address, make the table Replicated, or write through a Distributed table over tables with a dedup window", t.name(), t.engine)
		}
	}
	return t, nil
}

// describe reads engine, window and columns.
func describe(ctx context.Context, conn transport, spec *pipelines.ClickHouse) (*table, error) {
	t := &table{database: spec.Database, table: spec.Table, misfit: spec.Misfit}
	where := fmt.Sprintf(" WHERE database = %s AND %s = %s", quoteString(t.database), "%s", quoteString(t.table))
	rows, err := conn.query(ctx, "SELECT engine, engine_full, partition_key, version() FROM system.tables"+fmt.Sprintf(where, "name"), 4, nil)
	if err != nil {
		return nil, fmt.Errorf("look for table %s: %w", t.name(), err)
	}
	if len(rows) == 0 {
		return nil, t.missing(ctx, conn)
	}
	t.engine, t.partitionKey, t.version = rows[0][0], rows[0][2], rows[0][3]
	if t.engine == engineDistributed {
		if t.behind, err = readBehind(ctx, conn, rows[0][1]); err != nil {
			return nil, err
		}
		t.window = t.behind.window
	} else if t.window, err = dedupWindow(ctx, conn, t.engine, rows[0][1]); err != nil {
		return nil, err
	}
	if t.views, err = countViews(ctx, conn, t); err != nil {
		return nil, fmt.Errorf("look for views of %s: %w", t.name(), err)
	}
	rows, err = conn.query(ctx,
		"SELECT name, type, default_kind FROM system.columns"+fmt.Sprintf(where, "table"), 3, nil)
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", t.name(), err)
	}
	for _, row := range rows {
		t.columns = append(t.columns, tableColumn{row[0], row[1], row[2]})
	}
	return t, nil
}

// missing says whether it is the table that is not there or its database.
func (t *table) missing(ctx context.Context, conn transport) error {
	rows, err := conn.query(ctx, "SELECT name FROM system.databases WHERE name = "+quoteString(t.database), 1, nil)
	if err != nil {
		return fmt.Errorf("look for database %s: %w", t.database, err)
	}
	if len(rows) == 0 {
		return fmt.Errorf("there is no database %q: create it or correct the sink's database", t.database)
	}
	return fmt.Errorf("there is no table %q in database %q that this user may see: create it or correct the sink's table", t.table, t.database)
}

// compile makes the mapping whose indexes the written columns name.
func (t *table) compile(spec *pipelines.SinkSpec) (*pipelines.Columns, error) {
	if t.named != nil {
		return spec.NewColumnsNamed(t.named)
	}
	return spec.NewColumns()
}

// match lays the mapping over the table's columns.
func (t *table) match(spec *pipelines.SinkSpec) error {
	mapping, err := spec.NewColumns()
	if err != nil {
		return err
	}
	columns, keys := mapping.Names(), make([]string, len(mapping.Names()))
	if mapping.Default() {
		columns = t.fieldsOf(mapping.Names())
		t.named, keys = t.rootsOf(columns)
		if mapping, err = spec.NewColumnsNamed(t.named); err != nil {
			return err
		}
	}
	t.mapping = mapping.Hash()
	var errs []error
	for i, name := range columns {
		if !isOwn(name) {
			errs = append(errs, t.write(name, i, keys[i]))
		}
	}
	errs = append(errs, t.writeOwn(columns))
	return errors.Join(errs...)
}

// rootsOf are the fields that fill the columns, and for the columns n.a, n.b of a Nested column n the field of its objects.
func (t *table) rootsOf(columns []string) (roots, keys []string) {
	roots, keys = []string{}, make([]string, len(columns))
	for i, name := range columns {
		c, _ := t.find(name)
		if root, key, ok := strings.Cut(name, "."); ok && root != "" && strings.HasPrefix(c.typ, "Array(") {
			name, keys[i] = root, key
		}
		roots = append(roots, name)
	}
	return roots, keys
}

// fieldsOf is the default mapping: each column that can be written and is not better left to its DEFAULT.
func (t *table) fieldsOf(known []string) []string {
	names := []string{}
	for _, c := range t.columns {
		if isOwn(c.name) || c.name == columnTime || c.name == columnMarks || c.kind != "" && !(c.kind == "DEFAULT" && slices.Contains(known, c.name)) {
			continue
		}
		names = append(names, c.name)
	}
	return names
}

// newColumnFor makes the column that a block has for a written one.
func (t *table) newColumnFor(w writtenColumn) (column, error) {
	if isConstant(w.from) {
		return newConstant(w.typ, t.knowsLowCardinality())
	}
	return newColumn(w.typ)
}

// lowCardinalitySince is the year of the first server that reads LowCardinality over every protocol.
const lowCardinalitySince = 20

func (t *table) knowsLowCardinality() bool {
	year, _, _ := strings.Cut(t.version, ".")
	n, err := strconv.Atoi(year)
	return err == nil && n >= lowCardinalitySince
}

func (t *table) find(name string) (tableColumn, bool) {
	i := slices.IndexFunc(t.columns, func(c tableColumn) bool { return c.name == name })
	if i < 0 {
		return tableColumn{}, false
	}
	return t.columns[i], true
}

// write adds a column to the INSERT.
func (t *table) write(name string, from int, key string) error {
	c, ok := t.find(name)
	if !ok {
		return fmt.Errorf("table %s has no column %s: add it (ALTER TABLE %s ADD COLUMN %s ...) or take it out of the sink's columns",
			t.name(), name, t.name(), quoteName(name))
	}
	if c.kind != "" && c.kind != "DEFAULT" {
		return fmt.Errorf("column %s of table %s is %s and cannot be written: take it out of the sink's columns", name, t.name(), c.kind)
	}
	if _, err := newColumn(c.typ); err != nil {
		return fmt.Errorf("column %s of table %s: %w", name, t.name(), err)
	}
	t.written = append(t.written, writtenColumn{name, c.typ, from, key})
	return nil
}

// ownColumns are the columns by which rows are known, the types they may have, and the type to propose.
var ownColumns = []struct {
	name    string
	from    int
	types   []string
	propose string
	needed  bool
}{
	{columnTopic, fromTopic, []string{"String", "LowCardinality(String)"}, "LowCardinality(String)", true},
	{columnTopicID, fromTopicID, []string{"String", "LowCardinality(String)", "UUID"}, "LowCardinality(String)", false},
	{columnPartition, fromPartition, []string{"Int32", "UInt32", "Int64", "UInt64"}, "UInt32", true},
	{columnOffset, fromOffset, []string{"Int64", "UInt64"}, "UInt64", true},
}

func isOwn(column string) bool {
	return column == columnTopic || column == columnTopicID || column == columnPartition || column == columnOffset
}

// tellsTopics says that rows of a topic can be told from those of an earlier one of its name.
func (t *table) tellsTopics() bool {
	_, ok := t.find(columnTopicID)
	return ok
}

// mendUnknown says how rows that do not tell their topic can be made to. A column's DEFAULT holds for the rows that were there before it.
func (t *table) mendUnknown(c sinks.Claim) string {
	if t.tellsTopics() {
		return fmt.Sprintf("ALTER TABLE %s UPDATE %s = '...' WHERE %s = %s AND %s = %d AND empty(%s), with '%s' if the rows are of this topic and any other text (UUID) if "+
			"they are of an earlier one; or remove the rows; or commit a position above them for the group",
			t.name(), columnTopicID, columnTopic, quoteString(c.Topic), columnPartition, c.Partition, columnTopicID, c.TopicID)
	}
	add := "ALTER TABLE " + t.name() + " ADD COLUMN " + columnTopicID + " LowCardinality(String) DEFAULT "
	return fmt.Sprintf("if the rows are of an earlier topic, %s'earlier'; if they are of this one (its group was reset), %s'%s'; or remove the rows; or commit a position above "+
		"them for the group", add, add, c.TopicID)
}

// writeOwn adds the columns by which rows are known, and the record's time where there is a place for it.
func (t *table) writeOwn(mapped []string) error {
	var missing []string
	lacking := false
	for _, own := range ownColumns {
		c, ok := t.find(own.name)
		if !ok {
			missing = append(missing, "ADD COLUMN "+own.name+" "+own.propose)
			lacking = lacking || own.needed
			continue
		}
		if c.kind != "" && c.kind != "DEFAULT" {
			return fmt.Errorf("column %s of table %s is %s and cannot be written: make it an ordinary one", own.name, t.name(), c.kind)
		}
		if !slices.Contains(own.types, c.typ) {
			return fmt.Errorf("column %s of table %s has type %s: make it %s", own.name, t.name(), c.typ, own.propose)
		}
		t.written = append(t.written, writtenColumn{own.name, c.typ, own.from, ""})
	}
	if lacking {
		return fmt.Errorf("table %s lacks columns by which a row is known, without which nothing can be stored exactly once: ALTER TABLE %s %s",
			t.name(), t.name(), strings.Join(missing, ", "))
	}
	for _, optional := range []struct {
		name string
		from int
	}{{columnTime, fromTime}, {columnMarks, fromMarks}} {
		if c, ok := t.find(optional.name); ok && c.kind == "" && !slices.Contains(mapped, optional.name) {
			if err := t.write(optional.name, optional.from, ""); err != nil {
				return err
			}
		}
	}
	return nil
}
