package clickhouse

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-io/sluice/pipelines"
)

// Report is what a table gives, and why.
type Report struct {
	Server    string   `json:"server"`
	Table     string   `json:"table"`
	Engine    string   `json:"engine"`
	Window    int      `json:"dedup_window"`
	Exact     bool     `json:"exactly_once"` // whatever dies, and however late a write ends
	Guarantee string   `json:"guarantee"`
	Findings  []string `json:"findings"` // what to look at
	Unfilled  []string `json:"unfilled_columns"`
}

// Inspect reads a sink's table and what hangs on it. within is how long a write may be repeated after it was first sent: deadline and session timeout.
// An error says that the table does not fit the pipeline, or could not be read.
func Inspect(ctx context.Context, spec *pipelines.SinkSpec, within time.Duration) (Report, error) {
	s, err := New(slog.New(slog.DiscardHandler), spec)
	if err != nil {
		return Report{}, err
	}
	defer s.Close()
	if _, err := s.Check(ctx); err != nil {
		return Report{}, err
	}
	t, err := s.current()
	if err != nil {
		return Report{}, err
	}
	r := Report{
		Server: t.server, Table: t.name(), Engine: t.engine, Window: t.window, Guarantee: t.guarantee(),
		Exact: t.dropsRepeats() && !losesRows(t.engine), Findings: []string{}, Unfilled: t.unfilled(),
	}
	err = s.with(ctx, 0, func(conn transport) error { return r.look(ctx, conn, t, within) })
	return r, err
}

func (r *Report) find(format string, args ...any) {
	r.Findings = append(r.Findings, fmt.Sprintf(format, args...))
}

func (r *Report) look(ctx context.Context, conn transport, t *table, within time.Duration) error {
	if !t.tellsTopics() {
		r.find("there is no column %s: a partition is held when nothing tells rows of an earlier topic of the same name from those of this one; ALTER TABLE %s ADD COLUMN %s LowCardinality(String)",
			columnTopicID, t.name(), columnTopicID)
	}
	if err := r.lookAtParts(ctx, conn, t, within); err != nil {
		return err
	}
	return r.lookAtViews(ctx, conn, t)
}

// lookAtParts compares the dedup window with the parts that all writers made of late.
func (r *Report) lookAtParts(ctx context.Context, conn transport, t *table, within time.Duration) error {
	rows, err := conn.query(ctx, fmt.Sprintf("SELECT toString(countIf(level = 0 AND modification_time > now() - %d)), toString(countIf(active)) FROM system.parts WHERE database = %s AND table = %s",
		int(within.Seconds()), quoteString(t.database), quoteString(t.table)), 2, nil)
	if err != nil || len(rows) == 0 {
		return err
	}
	made, _ := strconv.Atoi(rows[0][0])
	if t.window > 0 && t.window < 2*made {
		r.Exact = false
		r.find("the table remembers %d inserts and %d parts were made within the last %s, in which a write may be repeated: make the dedup window at least %d", t.window, made, within, 2*made)
	}
	return nil
}

var viewTarget = regexp.MustCompile("(?s)\\bTO (`[^`]+`|[A-Za-z0-9_]+)\\.(`[^`]+`|[A-Za-z0-9_]+)")

// lookAtViews looks at the tables that materialised views fill: each drops repeated inserts by its own window.
func (r *Report) lookAtViews(ctx context.Context, conn transport, t *table) error {
	views, err := conn.query(ctx, fmt.Sprintf("SELECT d, v FROM system.tables ARRAY JOIN dependencies_database AS d, dependencies_table AS v WHERE database = %s AND name = %s",
		quoteString(t.database), quoteString(t.table)), 2, nil)
	if err != nil {
		return fmt.Errorf("look for materialised views: %w", err)
	}
	for _, v := range views {
		rows, err := conn.query(ctx, fmt.Sprintf("SELECT create_table_query, toString(uuid) FROM system.tables WHERE database = %s AND name = %s", quoteString(v[0]), quoteString(v[1])), 2, nil)
		if err != nil || len(rows) == 0 {
			return fmt.Errorf("look at view %s.%s: %w", v[0], v[1], err)
		}
		database, names := v[0], []string{".inner_id." + rows[0][1], ".inner." + v[1]}
		if m := viewTarget.FindStringSubmatch(rows[0][0]); m != nil {
			database, names = unquoteName(m[1]), []string{unquoteName(m[2])}
		}
		if err := r.lookAtView(ctx, conn, v[0]+"."+v[1], database, names); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) lookAtView(ctx context.Context, conn transport, view, database string, names []string) error {
	for _, name := range names {
		rows, err := conn.query(ctx, fmt.Sprintf("SELECT engine, engine_full FROM system.tables WHERE database = %s AND name = %s", quoteString(database), quoteString(name)), 2, nil)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			continue
		}
		window, err := dedupWindow(ctx, conn, rows[0][0], rows[0][1])
		if err != nil {
			return err
		}
		if window == 0 {
			r.find("the materialised view %s fills %s.%s, which remembers no inserts: a repeated write is dropped by the table and goes into the view again; ALTER TABLE %s.%s MODIFY SETTING "+
				"non_replicated_deduplication_window = %d", view, database, name, quoteName(database), quoteName(name), proposedWindow)
		} else {
			r.find("the materialised view %s fills %s.%s, which remembers the last %d inserts: a repeated write fills what is absent there, once", view, database, name, window)
		}
		return nil
	}
	r.find("the materialised view %s fills a table that cannot be looked at here: see that it remembers inserts (non_replicated_deduplication_window), or a repeated write goes into the view again", view)
	return nil
}

func unquoteName(s string) string {
	if len(s) > 1 && s[0] == '`' {
		return s[1 : len(s)-1]
	}
	return s
}

// unfilled are the columns that the sink leaves to their defaults.
func (t *table) unfilled() []string {
	out := []string{}
	for _, c := range t.columns {
		if !slices.ContainsFunc(t.written, func(w writtenColumn) bool { return w.name == c.name }) && (c.kind == "" || c.kind == "DEFAULT") {
			out = append(out, c.name)
		}
	}
	return out
}

// Create makes the table by a statement that Propose wrote.
func Create(ctx context.Context, spec *pipelines.ClickHouse, statement string) error {
	conn, addr, err := open(ctx, spec)
	if err != nil {
		return err
	}
	defer conn.close()
	if _, err := conn.query(ctx, statement, 0, nil); err != nil {
		return fmt.Errorf("%s: create the table: %w", addr, err)
	}
	return nil
}
