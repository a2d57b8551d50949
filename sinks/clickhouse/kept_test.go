package clickhouse

import (
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestTokenWithoutRows: the table knows the token of an insert whose rows it has not. A mutation makes it so here; an insert that breaks off between the two would.
// The repeat, which the table drops, is not believed.
func TestTokenWithoutRows(t *testing.T) {
	server := testenv.StartClickHouse(t, testenv.ClickHouseConfig{})
	for _, partitions := range []string{"", " PARTITION BY n % 3"} {
		server.Query(t, "DROP TABLE IF EXISTS kept SYNC")
		server.Query(t, "CREATE TABLE kept (n Int64, _topic_id String, "+ownDDL+") ENGINE = MergeTree"+partitions+" ORDER BY _offset SETTINGS non_replicated_deduplication_window = 100")
		s := newSupply(t, server.Addr, "kept", nil)
		count := func() string { return server.Query(t, "SELECT count(), uniqExact(_offset) FROM kept") }
		s.produce(100)
		s.passed()
		s.proxy.MuteAfter("INSERT INTO")
		s.produce(100)
		s.until("the rows at the server", func() bool { return count() == "200\t200" })
		server.Query(t, "ALTER TABLE kept DELETE WHERE _offset >= 100 SETTINGS mutations_sync = 2")
		s.losesAnswer()
		s.produce(100)
		s.passed()
		if got := count(); got != "300\t300" {
			t.Errorf("with%s the table holds %s", partitions, got)
		}
	}
}
