package clickhouse

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/sinks"
)

// quorate is a ReplicatedMergeTree on two real servers with a ZooKeeper, whose profile asks for a quorum of both: they are too old to take it with the INSERT.
type quorate struct {
	*rig
	servers []*testenv.OldClickHouse
}

const bothReplicas = "<insert_quorum>2</insert_quorum><insert_quorum_timeout>1000</insert_quorum_timeout><select_sequential_consistency>1</select_sequential_consistency>"

func (q *quorate) create(server int) {
	q.Helper()
	ask(q.T, q.servers[server].Addr, "CREATE TABLE default.q (n Int32, _topic_id String, _topic String, _partition UInt32, _offset UInt64) "+
		"ENGINE = ReplicatedMergeTree('/tables/q', '{replica}') PARTITION BY tuple() ORDER BY _offset", 0)
}

// through has the sink go to these servers; the rig's partition prefers the first of two.
func (q *quorate) through(servers ...int) {
	q.Helper()
	spec := q.pipe.Sinks[0].ClickHouse
	spec.Addr = nil
	for _, i := range servers {
		spec.Addr = append([]string{q.servers[i].Addr}, spec.Addr...) // an odd partition prefers the second address
	}
	q.restart()
}

// claim is [lo,lo+rows) under a deadline of two seconds.
func (q *quorate) claim(lo int64, rows int) (context.Context, sinks.Claim) {
	ctx, cancel := context.WithTimeout(q.Context(), 2*time.Second)
	q.Cleanup(cancel)
	return ctx, sinks.Claim{Pipeline: "p", Topic: "p", Partition: 3, Lo: lo, Hi: lo + int64(rows) - 1}
}

// put writes the claim once, and what was refused the way that the worker does: after it was read back.
func (q *quorate) put(lo int64, rows int) error {
	q.Helper()
	ctx, c := q.claim(lo, rows)
	stored, err := q.sink.Stored(ctx, c)
	if err != nil {
		return err
	}
	if len(stored.Present) > 0 {
		if want := []sinks.Range{{Lo: c.Lo, Hi: c.Hi}}; fmt.Sprint(stored.Present) != fmt.Sprint(want) {
			q.Fatalf("%v of the claim are stored, want all or nothing", stored.Present)
		}
		return nil
	}
	q.block.Reset()
	q.offset = lo
	q.fill(rows)
	return q.sink.Write(ctx, &sinks.Batch{Claim: c, Block: q.block, Identity: c.Identity()})
}

// until puts the claim again and again until the outcome is as wanted.
func (q *quorate) until(lo int64, rows int, wanted func(error) bool) {
	q.Helper()
	for deadline := time.Now().Add(time.Minute); ; pause(100 * time.Millisecond) {
		err := q.put(lo, rows)
		if wanted(err) {
			return
		}
		if time.Now().After(deadline) {
			q.Fatal(err)
		}
	}
}

func taken(err error) bool { return err == nil }

func says(what string) func(error) bool {
	return func(err error) bool { return err != nil && strings.Contains(err.Error(), what) }
}

// both says that each server by itself holds so many rows, each offset once.
func (q *quorate) both(what string, rows int) {
	q.Helper()
	for i, s := range q.servers {
		got := strings.Join(ask(q.T, s.Addr, "SELECT toString(count()), toString(uniqExact(_offset)) FROM default.q", 2)[0], " ")
		if want := fmt.Sprintf("%d %d", rows, rows); got != want {
			q.Errorf("%s: replica %d has %s, want %s", what, i, got, want)
		}
	}
}

// TestQuorumOfReplicas: an answer means that both replicas have the rows. Where there is only one, where one fetches nothing, and without ZooKeeper, an insert is refused with what is the
// matter, and goes through, once, when that is over. A replica that lags says of no row that it is absent: the batch waits until it has caught up.
func TestQuorumOfReplicas(t *testing.T) {
	zk := testenv.StartZooKeeper(t)
	q := &quorate{servers: testenv.ClickHouseReplicas(t, zk.Addr, 2, bothReplicas)}
	q.rig = &rig{T: t, table: "q"}
	q.pipe = pipeline(t, q.servers[0].Addr, "q", "")
	q.create(0)
	q.through(0)
	if err := q.put(0, 100); !says("fewer replicas than the sink's quorum")(err) {
		t.Errorf("with one replica: %v", err)
	}
	q.create(1)
	q.through(0, 1)
	q.until(0, 100, taken)
	q.both("written", 100)

	ask(t, q.servers[1].Addr, "SYSTEM STOP FETCHES", 0)
	if err := q.put(100, 100); err == nil {
		t.Error("an insert was answered that one replica has not fetched")
	}
	q.sink.fail(q.servers[0].Addr)
	ctx, c := q.claim(100, 100)
	if stored, err := q.sink.Stored(ctx, c); err == nil {
		t.Errorf("the replica that lags has answered: %+v", stored)
	}
	ask(t, q.servers[1].Addr, "SYSTEM START FETCHES", 0)
	q.until(100, 100, taken)
	q.both("fetched late", 200)

	zk.Kill()
	q.until(200, 100, func(err error) bool {
		return says("read-only: see system.replicas")(err) || says("Keeper or ZooKeeper")(err)
	})
	zk.Restart(t)
	q.until(200, 100, taken)
	q.both("ZooKeeper was dead", 300)
}

// TestQuorumIsSent: today's server has the quorum of the pipeline in force for the INSERT, and a wait for it that ends by the claim's deadline, over both protocols.
func TestQuorumIsSent(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, protocol := range protocols {
		r := newRigOver(t, server, protocol, "n Int32, q String DEFAULT toString(getSetting('insert_quorum')), parallel String DEFAULT toString(getSetting('insert_quorum_parallel')), "+
			"wait Int64 DEFAULT toInt64(getSetting('insert_quorum_timeout'))", window, "      n: n\n")
		r.pipe.Sinks[0].ClickHouse.Quorum = 2
		r.fill(1)
		r.mustWrite(0)
		if got := r.query("q, parallel IN ('0', 'false'), wait BETWEEN 8000 AND 10000"); got != "2\t1\t1" {
			t.Errorf("%s: %s", protocol, got)
		}
	}
}
