package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// TestRunReload has a `sluice run` into ClickHouse take changed files under load: another topic, stages and columns, a sink that comes and one that goes, a broken file, and a
// SIGKILL right after a SIGHUP. Each line is in the table once, whatever was changed, and the sink that did not change stays in its group.
func TestRunReload(t *testing.T) {
	warehouse := testenv.ClickHouse(t)
	for _, table := range []string{"changed", "same"} {
		warehouse.Query(t, "CREATE TABLE "+table+` (n UInt64, twice Nullable(UInt64), _topic LowCardinality(String), _topic_id String, _partition Int32, _offset Int64)
			ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 1000`)
	}
	dir := t.TempDir()
	file, metrics := filepath.Join(dir, "p.yaml"), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	configure := func(topic, stage, columns, more string) {
		t.Helper()
		text := fmt.Sprintf(`pipeline: reload
collect: {file: {include: [%[1]s/app.log]}}
process: [{parse: json}%[4]s]
topic: {name: %[3]s, partitions: 2}
sinks:
  changed: {clickhouse: {addr: [%[2]q], table: changed, columns: {n: n%[5]s}}, batch: {age: 50ms}}
%[6]s---
pipeline: same
collect: {file: {include: [%[1]s/app.log]}}
process: [{parse: json}]
topic: {name: same, partitions: 2}
sink: {clickhouse: {addr: [%[2]q], table: same, columns: {n: n}}, batch: {age: 50ms}}
`, dir, warehouse.Addr, topic, stage, columns, more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := func() *testenv.Process {
		return testenv.Start(t, testenv.Command{Name: "run", Path: testenv.Sluice(t), Dir: dir,
			Args: []string{"run", file, "--data", filepath.Join(dir, "data"), "--metrics", metrics},
			Ready: func(ctx context.Context) error {
				warehouse.Query(t, "SELECT 1") // starts the test's server again should it have died of its client's end
				return getOK(ctx, "http://"+metrics+"/readyz")
			}})
	}
	written := 0
	write := func() {
		t.Helper()
		var b strings.Builder
		for range 2000 {
			fmt.Fprintf(&b, `{"n":%d}`+"\n", written)
			written++
		}
		log, err := os.OpenFile(filepath.Join(dir, "app.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if _, err := log.WriteString(b.String()); err != nil {
			t.Fatal(err)
		}
	}
	configure("first", "", "", "")
	process := start()
	hangUp := func(result, want string) {
		t.Helper()
		if err := process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "reload "+want+" of "+result, func() bool {
			return strings.Contains(getText(t, "http://"+metrics+"/metrics"), fmt.Sprintf("sluice_config_reloads_total{result=%q} %s\n", result, want))
		})
	}
	count := func(query string) int {
		n, err := strconv.Atoi(strings.TrimSpace(warehouse.Query(t, query)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	third := fmt.Sprintf("  third: {directory: {path: %s/third, format: json}, batch: {age: 50ms}}\n", dir)

	write()
	write()
	configure("first", ", {set: {twice: 'int(n)*2'}}", ", twice: twice", "")
	hangUp("success", "1")
	write()
	waitUntil(t, "the changed columns are filled", func() bool { return count("SELECT countIf(twice = n * 2) FROM changed") > 0 })
	configure("first", ", {set: {twice: 'int(n)*2'}}", ", twice: twice", third)
	write()
	hangUp("success", "2")
	waitUntil(t, "the sink that came has stored", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "third", "*"))
		return len(files) > 0
	})
	configure("second", "", "", "    nonsense: true\n")
	write()
	hangUp("failure", "1")
	// What is left in a topic that is no longer named stays there.
	waitUntil(t, "the first topic is stored", func() bool { return count("SELECT uniqExact(n) FROM changed") == written })
	configure("second", "", "", "")
	hangUp("success", "3")
	write()
	if n := strings.Count(process.Output(), "pipeline=same msg=\"partition assigned\"") + strings.Count(process.Output(), "msg=\"partition assigned\" role=sink pipeline=same"); n != 2 {
		t.Errorf("the sink that did not change was given its 2 partitions %d times", n)
	}
	waitUntil(t, "the second topic is stored", func() bool {
		return count("SELECT uniqExact(n) FROM changed") == written && count("SELECT count() FROM changed WHERE _topic = 'second'") > 0
	})
	configure("second", ", {set: {twice: 'int(n)*2'}}", ", twice: twice", "")
	write()
	changes := func() int { return strings.Count(process.Output(), "msg=\"the sink has changed") }
	before := changes()
	if err := process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the reload is under way", func() bool { return changes() > before })
	process.Kill()
	process = start()
	write()
	for _, table := range []string{"changed", "same"} {
		waitUntil(t, table+" has every line", func() bool { return count("SELECT uniqExact(n) FROM "+table) == written })
		if rows := count("SELECT count() FROM " + table); rows != written {
			t.Errorf("%s: %d rows for %d lines", table, rows, written)
		}
	}
	if err := process.Stop(); err != nil {
		t.Error(err)
	}
}
