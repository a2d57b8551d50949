package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
)

// What a user types or writes wrongly, or finds out of order, is answered with the place and the mend; what heals is not restarted.

// commandTimeout bounds a command that has to fail by itself.
const commandTimeout = 30 * time.Second

// failing runs the binary, which must fail with the exit code, and returns what it printed.
func failing(t *testing.T, code int, args ...string) string {
	t.Helper()
	binary := testenv.Sluice(t) // building it is not the command's time
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("sluice %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("sluice %s: exit code %d, want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	return string(out)
}

func mustSay(t *testing.T, output string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(output, w) {
			t.Errorf("the message does not say %q:\n%s", w, output)
		}
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestWrongCommandLine(t *testing.T) {
	mustSay(t, failing(t, exitUsage, "nosuch"), "nosuch")
	mustSay(t, failing(t, exitUsage, "run"), "a pipeline file is missing", "--help")
	mustSay(t, failing(t, exitUsage, "broker", "--colour"), "--colour", "--help")
	mustSay(t, failing(t, exitUsage, "broker", "--log-level", "loud"), "loud", "debug, info, warn or error")
	mustSay(t, failing(t, exitFailure, "topics", "list", "--brokers", "127.0.0.1:1"), "127.0.0.1:1", "is it running")
}

func TestBrokenPipelineFile(t *testing.T) {
	file := writeFile(t, "p.yaml", "pipeline: x\ncolect:\n  file: {include: [/tmp/*.log]}\ntopic: {name: x, partitons: 3}\nsink:\n  directory: {path: out, format: parket}\n")
	for _, command := range []string{"validate", "run", "agent", "sink"} {
		out := failing(t, exitUsage, command, file)
		mustSay(t, out, file+":2:1:", `did you mean "collect"?`, file+":4:18:", `did you mean "partitions"?`, file+":6:34:", `did you mean "parquet"?`)
	}
	mustSay(t, failing(t, exitUsage, "validate", file+".not"), "no such file")
}

func TestRoleWithoutWork(t *testing.T) {
	onlySink := writeFile(t, "p.yaml", "pipeline: x\ntopic: {name: x}\nsink:\n  directory: {path: out}\n")
	mustSay(t, failing(t, exitUsage, "agent", onlySink, "--metrics", ""), "collect")
	onlyCollect := writeFile(t, "p.yaml", "pipeline: x\ncollect:\n  file: {include: [/tmp/none/*.log]}\n")
	mustSay(t, failing(t, exitUsage, "sink", onlyCollect, "--metrics", ""), "sink")
}

func TestOnceWithoutFiles(t *testing.T) {
	file := writeFile(t, "p.yaml", "pipeline: x\ncollect:\n  file: {include: [nothing/*.log]}\nsink:\n  directory: {path: out}\n")
	mustSay(t, failing(t, exitFailure, "run", file, "--once", "--metrics", ""), "pipeline x", "collect.file.include", "not checked")
}

func TestBrokerCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	mustSay(t, failing(t, exitFailure, "broker", "--data", "d", "--listen", addr, "--metrics", ""), addr, "in use", "--listen")
	out := failing(t, exitFailure, "broker", "--data", "d", "--listen", "127.0.0.1:0", "--metrics", addr)
	if mustSay(t, out, addr, "in use", "--metrics"); strings.Contains(out, "is ready") {
		t.Errorf("it says that it is ready before it fails:\n%s", out)
	}
	file := writeFile(t, "a-file", "")
	mustSay(t, failing(t, exitFailure, "broker", "--data", filepath.Join(file, "x"), "--listen", "127.0.0.1:0", "--metrics", ""), file, "--data")
	config := writeFile(t, "broker.yaml", "log.dirs: data\nnum.partition: 3\n")
	mustSay(t, failing(t, exitUsage, "broker", "--config", config, "--metrics", ""), config+":2:1:", `num.partitions`)
}

// A pipeline whose directory of logs and whose ClickHouse are not there yet waits, says for what, and goes on when they come.
func TestHealsWithoutRestart(t *testing.T) {
	ch := testenv.ClickHouse(t)
	ch.Kill()
	dir := t.TempDir()
	logs := filepath.Join(dir, "logs")
	file := writeFile(t, "p.yaml", fmt.Sprintf(`pipeline: heal
collect:
  file: {include: ["%s/*.log"]}
process:
  - parse: json
topic: {name: heal, partitions: 1}
sink:
  clickhouse: {addr: ["%s"], table: heal, columns: {n: n}}
  batch: {age: 100ms}
`, logs, ch.Addr))
	run := testenv.Start(t, testenv.Command{Name: "run", Path: testenv.Sluice(t),
		Args: []string{"run", file, "--data", filepath.Join(dir, "data"), "--metrics", ""}})
	waitOutput(t, run, logs)    // the directory that is missing is named
	waitOutput(t, run, ch.Addr) // and so is the server that does not answer

	if err := os.Mkdir(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	for n := range 1000 {
		fmt.Fprintf(&lines, "{\"n\":%d}\n", n)
	}
	if err := os.WriteFile(filepath.Join(logs, "a.log"), lines.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	ch.Restart(t)
	waitOutput(t, run, "heal") // the table that is missing
	ch.Query(t, `CREATE TABLE heal (n UInt64, _topic String, _partition Int32, _offset Int64) ENGINE = MergeTree ORDER BY n SETTINGS non_replicated_deduplication_window = 1000`)
	deadline := time.Now().Add(commandTimeout)
	for ch.Query(t, "SELECT count(), uniqExact(n) FROM heal") != "1000\t1000" {
		if time.Now().After(deadline) {
			t.Fatalf("after %s the table holds %s", commandTimeout, ch.Query(t, "SELECT count(), uniqExact(n) FROM heal"))
		}
		select {
		case <-run.Done():
			t.Fatalf("sluice ended: %v", run.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func waitOutput(t *testing.T, p *testenv.Process, words string) {
	t.Helper()
	for deadline := time.Now().Add(commandTimeout); !strings.Contains(p.Output(), words); {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not said within %s", words, commandTimeout)
		}
		select {
		case <-p.Done():
			t.Fatalf("sluice ended: %v", p.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
