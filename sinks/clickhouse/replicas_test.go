package clickhouse

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// ask runs a statement on an old server, which has no HTTP.
func ask(t *testing.T, addr, statement string, columns int) [][]string {
	t.Helper()
	conn, _, err := open(t.Context(), pipeline(t, addr, "x", "").Sinks[0].ClickHouse)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.close()
	rows, err := conn.query(t.Context(), statement, columns, nil)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return rows
}

// TestReplicas writes to a ReplicatedMergeTree on two real servers: a write that is repeated through the other replica, or after one died, changes nothing. These
// servers know no tokens; they know a block by its content, which _partition and _offset make unlike any other.
func TestReplicas(t *testing.T) {
	servers := testenv.ClickHouseReplicas(t, testenv.ZooKeeper(t).Addr, 2)
	for _, s := range servers {
		ask(t, s.Addr, "CREATE TABLE default.replicated (n Int32, _topic_id String, _topic String, _partition UInt32, _offset UInt64) "+
			"ENGINE = ReplicatedMergeTree('/tables/replicated', '{replica}') PARTITION BY tuple() ORDER BY _offset", 0)
	}
	r := &rig{T: t, table: "replicated"}
	r.pipe = pipeline(t, servers[0].Addr, "replicated", "")
	spec := r.pipe.Sinks[0].ClickHouse
	spec.Addr = append(spec.Addr, servers[1].Addr)
	if d := r.restart(); !d.DropsRepeats || !strings.Contains(d.Guarantee, "exactly once") || !strings.Contains(d.Server, ",") {
		t.Errorf("%+v", d)
	}
	block := func(lo int64, rows int) {
		t.Helper()
		r.offset = lo
		for i := range rows {
			if err := r.add(fmt.Sprintf(`{"n":%d}`, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(lo int64, rows int) error {
		t.Helper()
		block(lo, rows)
		return r.write(lo)
	}
	holds := func(what, want string) {
		t.Helper()
		if got := ask(t, servers[0].Addr, "SELECT toString(count()), toString(uniqExact(_offset)) FROM default.replicated", 2); strings.Join(got[0], " ") != want {
			t.Errorf("%s: %v, want %s", what, got, want)
		}
	}
	if err := write(0, 100); err != nil {
		t.Fatal(err)
	}
	// The other replica, as when the first does not answer any more.
	r.sink.fail(servers[1].Addr)
	if err := write(0, 100); err != nil {
		t.Fatal(err)
	}
	// The same content at other offsets is other rows.
	if err := write(100, 100); err != nil {
		t.Fatal(err)
	}
	stored, err := r.sink.Stored(t.Context(), sinks.Claim{Topic: "p", Partition: 3, Lo: 50, Hi: 300})
	if err != nil || stored.Max != 199 || fmt.Sprint(stored.Present) != "[{50 199}]" {
		t.Errorf("%+v %v", stored, err)
	}
	holds("both", "200 200")
	servers[1].Kill()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := write(200, 50)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	holds("one server left", "250 250")
	servers[1].Restart(t)
	r.sink.fail(servers[0].Addr)
	for write(200, 50) != nil {
		if time.Now().After(deadline.Add(time.Minute)) {
			t.Fatal("the server that came back takes nothing")
		}
		pause(200 * time.Millisecond)
	}
	holds("repeated through the one that came back", "250 250")
	one := pipeline(t, servers[0].Addr, "plain", "").Sinks[0]
	ask(t, servers[0].Addr, "CREATE TABLE default.plain (n Int32, _topic String, _partition UInt32, _offset UInt64) ENGINE = MergeTree PARTITION BY tuple() ORDER BY _offset", 0)
	one.ClickHouse.Addr = append(one.ClickHouse.Addr, servers[1].Addr)
	s, err := New(quiet(), one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "name one address") {
		t.Errorf("two servers for a table that is not replicated: %v", err)
	}
}
