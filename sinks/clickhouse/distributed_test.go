package clickhouse

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestDistributed writes through a Distributed table to two servers: a write that is repeated changes nothing, and what the tables behind remember decides what is
// promised.
func TestDistributed(t *testing.T) {
	other := testenv.ClickHouse(t)
	server := testenv.StartClickHouse(t, testenv.ClickHouseConfig{Shards: []string{other.Addr}})
	local := func(name, settings string) {
		for _, s := range []*testenv.ClickHouseServer{server, other} {
			s.Query(t, "CREATE TABLE "+name+" (n Int32, "+ownDDL+") ENGINE = MergeTree ORDER BY _offset"+settings)
		}
	}
	local("local", " SETTINGS non_replicated_deduplication_window = 100")
	local("forgetful", "")
	r := newRig(t, server, "n Int32", "Distributed('shards', 'default', 'local', _offset)", "")
	if d := r.restart(); !d.DropsRepeats || !strings.Contains(d.Guarantee, "last 100 inserts") {
		t.Errorf("%+v", d)
	}
	for range 2 {
		r.offset = 0
		for i := range 200 {
			if err := r.add(fmt.Sprintf(`{"n":%d}`, i)); err != nil {
				t.Fatal(err)
			}
		}
		r.mustWrite(0)
	}
	if got := r.query("count(), uniqExact(_offset)"); got != "200\t200" {
		t.Error(got)
	}
	for _, s := range []*testenv.ClickHouseServer{server, other} {
		if got := s.Query(t, "SELECT count() FROM local"); got != "100" {
			t.Errorf("a shard has %s rows", got)
		}
	}
	if d := newRig(t, server, "n Int32", "Distributed('shards', 'default', 'local', rand())", "").restart(); d.DropsRepeats || !strings.Contains(d.Guarantee, "chance") {
		t.Errorf("%+v", d)
	}
	if d := newRig(t, server, "n Int32", "Distributed('shards', 'default', 'forgetful', _offset)", "").restart(); d.DropsRepeats || !strings.Contains(d.Guarantee, "remember no inserts") {
		t.Errorf("%+v", d)
	}
}
