package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

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
}

func (t *table) name() string { return quoteName(t.database) + "." + quoteName(t.table) }

func (t *table) replicated() bool {
	return strings.HasPrefix(t.engine, "Replicated") || strings.HasPrefix(t.engine, "Shared")
}

func (t *table) dropsRepeats() bool { return t.window > 0 }

// guarantee says what a crash can do to the table's rows.
func (t *table) guarantee() string {
	switch {
	case t.engine == "Distributed":
		return "that of the tables behind the Distributed table; see them with a sink of their own"
	case t.window > 0:
		return fmt.Sprintf("exactly once: the table remembers the last %d inserts of all writers; keep that at least twice the parts made within a session timeout", t.window)
	default:
		return "exactly once unless a write that seemed lost is finished by the server after it was read back: the table remembers no inserts; " +
			"to close the gap: ALTER TABLE " + t.name() + " MODIFY SETTING non_replicated_deduplication_window = 10000"
	}
}

// readTable asks the first server that answers.
func (s *Sink) readTable(ctx context.Context) (*table, error) {
	var errs []error
	for _, addr := range s.spec.ClickHouse.Addr {
		client, err := s.dial(ctx, addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t, err := describe(ctx, client, s.spec.ClickHouse)
		if err != nil {
			client.Close()
			return nil, fmt.Errorf("%s: %w", addr, err)
		}
		t.server = addr
		s.release(client)
		if len(s.spec.ClickHouse.Addr) > 1 && !t.replicated() {
			return nil, fmt.Errorf("table %s has the engine %s, so a write repeated on another server would store its rows twice: "+
				"name one address, or make the table Replicated", t.name(), t.engine)
		}
		return t, nil
	}
	return nil, errors.Join(errs...)
}

// describe reads engine, window and columns.
func describe(ctx context.Context, client *ch.Client, spec *pipelines.ClickHouse) (*table, error) {
	t := &table{database: spec.Database, table: spec.Table}
	where := fmt.Sprintf(" WHERE database = %s AND %s = %s", quoteString(t.database), "%s", quoteString(t.table))
	rows, err := query(ctx, client, "SELECT engine, engine_full FROM system.tables"+fmt.Sprintf(where, "name"), 2)
	if err != nil {
		return nil, fmt.Errorf("look for table %s: %w", t.name(), err)
	}
	if len(rows) == 0 {
		return nil, t.missing(ctx, client)
	}
	t.engine = rows[0][0]
	if t.window, err = dedupWindow(ctx, client, t, rows[0][1]); err != nil {
		return nil, err
	}
	rows, err = query(ctx, client,
		"SELECT name, type, default_kind FROM system.columns"+fmt.Sprintf(where, "table")+" ORDER BY position", 3)
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", t.name(), err)
	}
	for _, row := range rows {
		t.columns = append(t.columns, tableColumn{row[0], row[1], row[2]})
	}
	return t, nil
}

// missing says whether it is the table that is not there or its database.
func (t *table) missing(ctx context.Context, client *ch.Client) error {
	rows, err := query(ctx, client, "SELECT name FROM system.databases WHERE name = "+quoteString(t.database), 1)
	if err != nil {
		return fmt.Errorf("look for database %s: %w", t.database, err)
	}
	if len(rows) == 0 {
		return fmt.Errorf("there is no database %q: create it or correct the sink's database", t.database)
	}
	return fmt.Errorf("there is no table %q in database %q that this user may see: create it or correct the sink's table", t.table, t.database)
}

var windowSetting = regexp.MustCompile(`\b(replicated_|non_replicated_)deduplication_window = '?(\d+)`)

// dedupWindow is how many inserts the table remembers: its own setting, or the server's default for its engine.
func dedupWindow(ctx context.Context, client *ch.Client, t *table, engine string) (int, error) {
	prefix, settings := "non_replicated_", "system.merge_tree_settings"
	if t.replicated() {
		prefix, settings = "replicated_", "system.replicated_merge_tree_settings"
	} else if !strings.HasSuffix(t.engine, "MergeTree") {
		return 0, nil
	}
	for _, m := range windowSetting.FindAllStringSubmatch(engine, -1) {
		if m[1] == prefix {
			return strconv.Atoi(m[2])
		}
	}
	name := prefix + "deduplication_window"
	rows, err := query(ctx, client, "SELECT value FROM "+settings+" WHERE name = "+quoteString(name), 1)
	if err != nil || len(rows) == 0 {
		return 0, errors.Join(err, ctx.Err()) // a server that does not know the setting remembers nothing
	}
	return strconv.Atoi(rows[0][0])
}

// query returns rows of n columns, as text.
func query(ctx context.Context, client *ch.Client, statement string, n int) ([][]string, error) {
	columns := make([]proto.ColStr, n)
	var results proto.Results
	for i := range columns {
		results = append(results, proto.ResultColumn{Data: &columns[i]})
	}
	var rows [][]string
	err := client.Do(ctx, ch.Query{Body: statement, Result: results, OnResult: func(_ context.Context, block proto.Block) error {
		for i := range block.Rows {
			row := make([]string, n)
			for c := range columns {
				row[c] = columns[c].Row(i)
			}
			rows = append(rows, row)
		}
		return nil
	}})
	return rows, err
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
	if mapping.Default() {
		t.named = t.fieldsOf(mapping.Names())
		if mapping, err = spec.NewColumnsNamed(t.named); err != nil {
			return err
		}
	}
	t.mapping = mapping.Hash()
	var errs []error
	for i, name := range mapping.Names() {
		if !isOwn(name) {
			errs = append(errs, t.write(name, i))
		}
	}
	errs = append(errs, t.writeOwn(mapping.Names()))
	return errors.Join(errs...)
}

// fieldsOf is the default mapping: each column that can be written and is not better left to its DEFAULT.
func (t *table) fieldsOf(known []string) []string {
	names := []string{}
	for _, c := range t.columns {
		if isOwn(c.name) || c.name == columnTime || c.kind != "" && !(c.kind == "DEFAULT" && slices.Contains(known, c.name)) {
			continue
		}
		names = append(names, c.name)
	}
	return names
}

func (t *table) find(name string) (tableColumn, bool) {
	i := slices.IndexFunc(t.columns, func(c tableColumn) bool { return c.name == name })
	if i < 0 {
		return tableColumn{}, false
	}
	return t.columns[i], true
}

// write adds a column to the INSERT.
func (t *table) write(name string, from int) error {
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
	t.written = append(t.written, writtenColumn{name, c.typ, from})
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
		t.written = append(t.written, writtenColumn{own.name, c.typ, own.from})
	}
	if lacking {
		return fmt.Errorf("table %s lacks columns by which a row is known, without which nothing can be stored exactly once: ALTER TABLE %s %s",
			t.name(), t.name(), strings.Join(missing, ", "))
	}
	if c, ok := t.find(columnTime); ok && c.kind == "" && !slices.Contains(mapped, columnTime) {
		return t.write(columnTime, fromTime)
	}
	return nil
}
