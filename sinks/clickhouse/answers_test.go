package clickhouse

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks"
)

// users are those of the tests below, each barred from something else. default is the one who is barred from nothing.
const users = `<clickhouse>
  <profiles>
    <default/>
    <few><max_concurrent_queries_for_user>1</max_concurrent_queries_for_user></few>
    <poor><max_memory_usage>6000000</max_memory_usage><max_untracked_memory>4096</max_untracked_memory></poor>
    <impatient><lock_acquire_timeout>1</lock_acquire_timeout></impatient>
    <reader><readonly>1</readonly></reader>
    <queued><async_insert>1</async_insert><wait_for_async_insert>0</wait_for_async_insert><async_insert_busy_timeout_min_ms>600000</async_insert_busy_timeout_min_ms>
      <async_insert_busy_timeout_max_ms>600000</async_insert_busy_timeout_max_ms><distributed_foreground_insert>0</distributed_foreground_insert></queued>
  </profiles>
  <quotas>
    <default/>
    <small><interval><duration>3600</duration><written_bytes>100</written_bytes></interval></small>
  </quotas>
  <users>%s</users>
</clickhouse>
`

// barredUsers are a user of each profile and two more.
func barredUsers() string {
	var b strings.Builder
	user := func(name, profile, quota, grants string) {
		fmt.Fprintf(&b, "<%[1]s><password></password><networks><ip>127.0.0.1</ip></networks><profile>%[2]s</profile><quota>%[3]s</quota>%[4]s</%[1]s>\n", name, profile, quota, grants)
	}
	for _, name := range []string{"default", "few", "poor", "impatient", "reader", "queued"} {
		user(name, name, "default", "")
	}
	user("small", "default", "small", "")
	user("stranger", "default", "default", "<grants><query>GRANT SELECT ON *.*</query></grants>")
	return fmt.Sprintf(users, b.String())
}

// as makes the rig's sink anew, as another user and over a protocol.
func (r *rig) as(user string, protocol pipelines.Protocol) {
	r.Helper()
	spec := r.pipe.Sinks[0].ClickHouse
	spec.Username, spec.Protocol = user, protocol
	spec.Addr = []string{r.server.Addr}
	if protocol == pipelines.ProtocolHTTP {
		spec.Addr = []string{r.server.HTTPAddr}
	}
	r.restart()
}

func (r *rig) fill(rows int) {
	r.Helper()
	for range rows {
		if err := r.add(`{"n":1}`); err != nil {
			r.Fatal(err)
		}
	}
}

// TestRefusalsAreToldApart has a real server refuse inserts for every reason that can be provoked: what passes by itself, what smaller batches help against and what
// somebody has to mend are told apart, none is taken for the records' fault, and the same batch goes through when the reason is gone.
func TestRefusalsAreToldApart(t *testing.T) {
	server := testenv.StartClickHouse(t, testenv.ClickHouseConfig{UsersXML: barredUsers()})
	for _, c := range []struct {
		name, user, engine string
		rows               int
		only               pipelines.Protocol
		begin, end         func(r *rig) // of the trouble, nil: it is the user's
		helps              error
		says               string
	}{
		{name: "too many queries", user: "few", begin: func(r *rig) { r.hold("few", "SELECT sleepEachRow(0.5) FROM numbers(3) SETTINGS max_block_size = 1", 0) },
			end: (*rig).letGo, helps: sinks.ErrTooOften},
		{name: "table locked", only: pipelines.ProtocolNative, user: "impatient", engine: "StripeLog", begin: func(r *rig) {
			r.hold("default", "INSERT INTO "+r.table+" SELECT 3, 'other', 0, number FROM numbers(4) WHERE sleepEachRow(0.85) = 0 SETTINGS max_block_size = 1, min_insert_block_size_rows = 1", 1100*time.Millisecond)
		}, end: (*rig).letGo, helps: sinks.ErrTooOften},
		{name: "memory", only: pipelines.ProtocolNative, user: "poor", rows: 400_000, helps: sinks.ErrTooMuch},
		{name: "read only user", user: "reader", says: "may only read"},
		{name: "no grant", user: "stranger", says: "GRANT SELECT, INSERT"},
		{name: "quota", user: "small", rows: 1000, says: "quota is used up"},
		{name: "read only table", user: "default", begin: set("table_readonly = 1"), end: set("table_readonly = 0"), says: "read-only"},
		{name: "space", user: "default", begin: set("min_free_disk_bytes_to_perform_insert = 1000000000000000"), end: reset("min_free_disk_bytes_to_perform_insert"), says: "disk is full"},
		{name: "parts", user: "default", begin: set("parts_to_throw_insert = 1, parts_to_delay_insert = 1, max_delay_to_insert = 1"), end: reset("parts_to_throw_insert, parts_to_delay_insert, max_delay_to_insert"),
			helps: sinks.ErrTooOften},
	} {
		for _, protocol := range protocols {
			if c.only != "" && c.only != protocol {
				continue
			}
			t.Run(c.name+" "+string(protocol), func(t *testing.T) {
				engine := c.engine
				if engine == "" {
					engine = window
				}
				r := newRig(t, server, "n Int32", engine, "")
				server.Query(t, "INSERT INTO "+r.table+" SELECT 2, 'other', 0, number FROM numbers(3)")
				r.as(c.user, protocol)
				if c.begin != nil {
					c.begin(r)
				}
				rows := max(c.rows, 10)
				r.fill(rows)
				err := r.write(0)
				if err == nil {
					t.Fatal("the server took it")
				}
				for _, help := range []error{sinks.ErrTooMuch, sinks.ErrTooOften, sinks.ErrSchemaChanged} {
					if errors.Is(err, help) != (help == c.helps) {
						t.Errorf("%v is %v: %t", err, help, errors.Is(err, help))
					}
				}
				if !strings.Contains(err.Error(), c.says) || errors.As(err, new(*sinks.RejectError)) {
					t.Errorf("%v\nwant: %s", err, c.says)
				}
				if c.end != nil {
					c.end(r)
				} else {
					r.as("default", protocol)
				}
				r.offset = 0
				r.fill(rows)
				r.mustWrite(0)
				if got := r.query("countIf(_topic = 'p'), uniqExactIf(_offset, _topic = 'p')"); got != fmt.Sprintf("%d\t%d", rows, rows) {
					t.Errorf("%s of %d rows are stored", got, rows)
				}
			})
		}
	}
}

func set(what string) func(*rig) {
	return func(r *rig) { r.server.Query(r, "ALTER TABLE "+r.table+" MODIFY SETTING "+what) }
}

func reset(what string) func(*rig) {
	return func(r *rig) { r.server.Query(r, "ALTER TABLE "+r.table+" RESET SETTING "+what) }
}

// hold has a user run a statement that waits a while; it returns when the server has run it for so long.
func (r *rig) hold(user, statement string, since time.Duration) {
	r.Helper()
	ctx := r.Context()
	try := func() (again bool) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.server.HTTPAddr+"/?query_id=held", strings.NewReader(statement))
		if err != nil {
			return false
		}
		req.SetBasicAuth(user, "")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode != http.StatusOK // the worker's own query was there first
	}
	go func() {
		for try() {
			pause(10 * time.Millisecond)
		}
	}()
	r.awaitHeld(true)
	pause(since)
}

// letGo waits until it has ended: this build of the server does not survive a KILL QUERY.
func (r *rig) letGo() { r.awaitHeld(false) }

func (r *rig) awaitHeld(running bool) {
	r.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; pause(10 * time.Millisecond) {
		got := r.server.Query(r, "SELECT count() FROM system.processes WHERE query_id = 'held'")
		if (got == "1") == running {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("the statement that waits: %s", got)
		}
	}
}

// TestNothingIsOnlyQueued: whatever the user's profile says of queued inserts, an answer means that the rows are in the table; where they cannot be, there is none.
func TestNothingIsOnlyQueued(t *testing.T) {
	other := testenv.ClickHouse(t)
	server := testenv.StartClickHouse(t, testenv.ClickHouseConfig{Shards: []string{other.Addr}, UsersXML: barredUsers()})
	for _, protocol := range protocols {
		r := newRig(t, server, "n Int32", window, "")
		r.as("queued", protocol)
		r.fill(100)
		r.mustWrite(0)
		if got := r.query("count()"); got != "100" {
			t.Errorf("%s: %s of 100 rows are in the table when the insert was answered", protocol, got)
		}
	}
	for _, s := range []*testenv.ClickHouseServer{server, other} {
		s.Query(t, "CREATE TABLE behind (n Int32, "+ownDDL+") ENGINE = "+window)
	}
	r := newRig(t, server, "n Int32", "Distributed('shards', 'default', 'behind', _offset)", "")
	r.as("queued", pipelines.ProtocolNative)
	r.fill(100)
	r.mustWrite(0)
	if got := server.Query(t, "SELECT count() FROM behind") + " " + other.Query(t, "SELECT count() FROM behind"); got != "50 50" {
		t.Errorf("the shards have %s rows when the insert was answered", got)
	}
	other.Kill()
	r.fill(100)
	if err := r.write(100); err == nil {
		t.Error("an insert for a shard that is down was answered as stored")
	}
}

// TestAnswers has each code once.
func TestAnswers(t *testing.T) {
	for code, want := range map[proto.Error]error{
		proto.ErrUnknownTable: sinks.ErrSchemaChanged, proto.ErrMemoryLimitExceeded: sinks.ErrTooMuch, proto.ErrTooManySimultaneousQueries: sinks.ErrTooOften,
		proto.ErrTooManyParts: sinks.ErrTooOften, proto.ErrTimeoutExceeded: sinks.ErrTooMuch, proto.ErrNotEnoughSpace: nil, proto.ErrNetworkError: nil, proto.ErrUnknownStatusOfInsert: nil,
	} {
		err := explain(fmt.Errorf("insert: %w", &ch.Exception{Code: code}))
		for _, help := range []error{sinks.ErrTooMuch, sinks.ErrTooOften, sinks.ErrSchemaChanged} {
			if errors.Is(err, help) != (help == want) {
				t.Errorf("%v: %v", code, err)
			}
		}
	}
	if err := explain(&ch.Exception{Code: proto.ErrTimeoutExceeded, Message: "WRITE locking attempt has timed out! Lock timeout exceeded"}); !errors.Is(err, sinks.ErrTooOften) {
		t.Errorf("a lock: %v", err)
	}
}
