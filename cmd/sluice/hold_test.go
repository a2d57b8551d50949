package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
)

// TestRetentionWaitsForTheSinksOfARun: while the destination is away the embedded broker keeps what retention would
// take, and says how much; when it is back everything is stored, and then retention takes it.
func TestRetentionWaitsForTheSinksOfARun(t *testing.T) {
	const lines = 150_000
	dir := t.TempDir()
	var text bytes.Buffer
	random := rand.New(rand.NewPCG(1, 2))
	for i := range lines {
		fmt.Fprintf(&text, "line %08d %016x%016x%016x\n", i, random.Uint64(), random.Uint64(), random.Uint64()) // the agent compresses
	}
	log := filepath.Join(dir, "a.log")
	if err := os.WriteFile(log, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	pipeline := func(sink string) string {
		return fmt.Sprintf(`pipeline: x
collect: {file: {include: [%s]}}
topic: {name: x, partitions: 1, config: {segment.bytes: "1048576", retention.bytes: "1"}}
sink: {%s}
`, log, sink)
	}
	first := filepath.Join(dir, "data", "broker", "x-0", "00000000000000000000.log")

	away := startRun(t, dir, pipeline(`clickhouse: {addr: ["127.0.0.1:1"], database: d, table: t}`))
	waitUntil(t, "the broker holds what retention would take", func() bool { return away.held("x") > 2<<20 })
	away.stop()
	if _, err := os.Stat(first); err != nil {
		t.Fatalf("the first segment is gone before anything was stored: %v", err)
	}

	startRun(t, dir, pipeline(fmt.Sprintf(`directory: {path: %s, format: json, compression: none}, batch: {age: 100ms}`, out)))
	waitUntil(t, "retention takes what is stored", func() bool { _, err := os.Stat(first); return os.IsNotExist(err) })
	waitUntil(t, "everything is stored", func() bool { return len(storedLines(t, out)) == lines })
}

// storedLines are the different lines in the files of a directory.
func storedLines(t *testing.T, dir string) map[string]bool {
	t.Helper()
	stored := map[string]bool{}
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lineNumber.FindAllString(string(b), -1) {
			stored[line] = true
		}
	}
	return stored
}

var lineNumber = regexp.MustCompile(`line \d{8}`)

// testRun is a `sluice run` in this process.
type testRun struct {
	t    *testing.T
	log  testenv.Buffer
	stop func()
}

func startRun(t *testing.T, dir, yaml string) *testRun {
	t.Helper()
	pipes, err := pipelines.Parse("p.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	r := &testRun{t: t}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	o := runOptions{data: filepath.Join(dir, "data"), metrics: "127.0.0.1:0", retentionCheck: 50 * time.Millisecond}
	go func() { ended <- runPipelines(ctx, slog.New(slog.NewTextHandler(&r.log, nil)), pipes, o, io.Discard) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Logf("the run ended with %v", err)
		}
	})
	t.Cleanup(r.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it logged:\n%s", r.log.String())
		}
	})
	return r
}

var servedAt = regexp.MustCompile(`msg="metrics, health and readiness are served" url=(\S+)`)

// held is what the broker keeps of a topic for its sinks alone, in bytes.
func (r *testRun) held(topic string) (bytes float64) {
	m := servedAt.FindStringSubmatch(r.log.String())
	if m == nil {
		return 0
	}
	resp, err := http.Get(m[1] + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, `sluice_broker_held_bytes{topic="`+topic+`"} `); ok {
			_, _ = fmt.Sscan(rest, &bytes)
		}
	}
	return bytes
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in a minute: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}
