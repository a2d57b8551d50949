package clickhouse

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go/proto"
)

const engineDistributed = "Distributed"

// behind are the tables behind a Distributed one.
type behind struct {
	cluster, database, table string
	engines                  string // of the tables, as found
	window                   int    // the least of them
	scatters                 bool   // the sharding key puts the same row now here, now there
}

func isReplicated(engine string) bool {
	return strings.HasPrefix(engine, "Replicated") || strings.HasPrefix(engine, "Shared")
}

func (t *table) replicated() bool { return isReplicated(t.engine) }

// anyServer says that a write may be repeated through another server than before: the replicas, or the tables behind, remember it.
func (t *table) anyServer() bool {
	return t.replicated() || t.behind != nil && t.dropsRepeats()
}

func (t *table) dropsRepeats() bool { return t.window > 0 && (t.behind == nil || !t.behind.scatters) }

// guarantee says what a crash can do to the table's rows.
func (t *table) guarantee() string {
	switch {
	case forgetsRows(t.engine):
		return "none: the engine " + t.engine + " keeps rows in memory, or not at all, so a server that dies takes rows with it that the group has passed; store into a MergeTree"
	case losesRows(t.engine):
		return "none: the engine " + t.engine + " takes rows away when it merges, with the offsets by which the sink knows what is stored; a repeated write may store again " +
			"what was merged away; store into a MergeTree, and have a materialised view fill this table"
	case t.behind != nil && t.behind.scatters:
		return fmt.Sprintf("exactly once unless a write that seemed lost is finished after it was read back: the sharding key of %s depends on chance, so a repeated write reaches other shards; "+
			"shard by _partition or another column", t.name())
	case t.behind != nil && t.window == 0:
		return fmt.Sprintf("exactly once unless a write that seemed lost is finished after it was read back: the tables %s.%s (%s) on the cluster %s remember no inserts; "+
			"to close the gap: ALTER TABLE %s.%s ON CLUSTER %s MODIFY SETTING non_replicated_deduplication_window = 10000",
			t.behind.database, t.behind.table, t.behind.engines, t.behind.cluster, t.behind.database, t.behind.table, t.behind.cluster)
	case t.behind != nil:
		return fmt.Sprintf("exactly once: the tables behind (%s.%s, %s) remember at least the last %d inserts of all writers; keep that at least twice the parts made within a session timeout",
			t.behind.database, t.behind.table, t.behind.engines, t.window)
	case t.window > 0:
		return fmt.Sprintf("exactly once: the table remembers the last %d inserts of all writers; keep that at least twice the parts made within a session timeout", t.window)
	default:
		return "exactly once unless a write that seemed lost is finished by the server after it was read back: the table remembers no inserts; " +
			"to close the gap: ALTER TABLE " + t.name() + " MODIFY SETTING non_replicated_deduplication_window = 10000"
	}
}

// forgetsRows says that what the engine has taken is not on disk.
func forgetsRows(engine string) bool {
	switch engine {
	case "Buffer", "Memory", "Null", "Set", "Join":
		return true
	}
	return false
}

// losesRows says that the engine merges rows away.
func losesRows(engine string) bool {
	engine = strings.TrimPrefix(strings.TrimPrefix(engine, "Replicated"), "Shared")
	switch engine {
	case "ReplacingMergeTree", "SummingMergeTree", "AggregatingMergeTree", "CollapsingMergeTree", "VersionedCollapsingMergeTree", "CoalescingMergeTree", "GraphiteMergeTree":
		return true
	}
	return false
}

var windowSetting = regexp.MustCompile(`\b(replicated_|non_replicated_)deduplication_window = '?(\d+)`)

// replicatedWindowDefault is what servers remember of a Replicated table that do not say it, as very old ones.
const replicatedWindowDefault = 100

// dedupWindow is how many inserts a table remembers: its own setting, or the server's default for its engine.
func dedupWindow(ctx context.Context, conn transport, engine, engineFull string) (int, error) {
	prefix, settings, unknown := "non_replicated_", "system.merge_tree_settings", 0
	if isReplicated(engine) {
		prefix, settings, unknown = "replicated_", "system.replicated_merge_tree_settings", replicatedWindowDefault
	} else if !strings.HasSuffix(engine, "MergeTree") {
		return 0, nil
	}
	for _, m := range windowSetting.FindAllStringSubmatch(engineFull, -1) {
		if m[1] == prefix {
			return strconv.Atoi(m[2])
		}
	}
	rows, err := conn.query(ctx, "SELECT value FROM "+settings+" WHERE name = "+quoteString(prefix+"deduplication_window"), 1, nil)
	if e, ok := serverErrorOf(err); ok && e.code == proto.ErrUnknownTable {
		rows, err = nil, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the server's dedup window: %w", err)
	}
	if len(rows) == 0 {
		return unknown, nil
	}
	return strconv.Atoi(rows[0][0])
}

// readBehind looks at the tables behind a Distributed one, on all servers of its cluster.
func readBehind(ctx context.Context, conn transport, engineFull string) (*behind, error) {
	t, err := parseType(strings.TrimSpace(cutSettings(engineFull)))
	if err != nil || len(t.args) < 3 {
		return nil, fmt.Errorf("read the engine %q: %w", engineFull, err)
	}
	b := &behind{}
	for i, to := range []*string{&b.cluster, &b.database, &b.table} {
		if *to, err = unquote(t.args[i]); err != nil {
			*to = t.args[i]
		}
	}
	if len(t.args) > 3 {
		key := strings.ToLower(t.args[3])
		b.scatters = strings.Contains(key, "rand") || strings.Contains(key, "uuid") || strings.Contains(key, "now")
	}
	rows, err := conn.query(ctx, fmt.Sprintf("SELECT engine, engine_full FROM clusterAllReplicas(%s, system.tables) WHERE database = %s AND name = %s",
		quoteString(b.cluster), quoteString(b.database), quoteString(b.table)), 2, nil)
	if err != nil {
		return nil, fmt.Errorf("look at the tables %s.%s on the cluster %s: %w", b.database, b.table, b.cluster, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("there is no table %s.%s on the cluster %s", b.database, b.table, b.cluster)
	}
	for i, row := range rows {
		window, err := dedupWindow(ctx, conn, row[0], row[1])
		if err != nil {
			return nil, err
		}
		if i == 0 || window < b.window {
			b.window = window
		}
		if !strings.Contains(b.engines, row[0]) {
			b.engines = strings.TrimPrefix(b.engines+", "+row[0], ", ")
		}
	}
	return b, nil
}

// cutSettings is an engine without what follows its arguments.
func cutSettings(engineFull string) string {
	depth := 0
	for i, c := range engineFull {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return engineFull[:i+1]
			}
		}
	}
	return engineFull
}
