// Package clickhouse_test runs the example as its README says, against a real ClickHouse.
package clickhouse_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

func TestExample(t *testing.T) {
	server := testenv.ClickHouse(t)
	for _, statement := range statements(t, "table.sql") {
		server.Query(t, statement)
	}
	dir := t.TempDir()
	writeLines(t, dir)
	pipeline := edit(t, "pipeline.yaml", "127.0.0.1:9000", server.Addr)
	run(t, dir, pipeline)
	run(t, dir, pipeline) // nothing is stored a second time

	queries := statements(t, "queries.sql")
	if len(queries) != 3 {
		t.Fatalf("queries.sql has %d queries", len(queries))
	}
	for i, want := range []string{
		"/p/0\t150\t20\n/p/1\t150\t20", // the lines with status 500 are left out
		"2026-11-30 09:00:00\t200\t20\n2026-11-30 10:00:00\t201\t21",
		"",
	} {
		if got := server.Query(t, queries[i]); got != want {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", queries[i], got, want)
		}
	}
	odd := server.Query(t, "SELECT path, method, status, host != '', file_id != '' FROM page_views WHERE status = 400")
	if want := "\x16\x03\t\t400\t1\t1"; odd != want {
		t.Errorf("the request that is none: %q, want %q", odd, want)
	}
}

// writeLines writes 401 lines to store, one probe and one that is no access line.
func writeLines(t *testing.T, dir string) {
	var b strings.Builder
	for i := range 400 {
		status := 200
		if i%4 > 1 && i < 200 {
			status = 500
		}
		fmt.Fprintf(&b, "203.0.113.%d - - [30/Nov/2026:%02d:00:00 +0000] \"GET /p/%d?n=%d HTTP/1.1\" %d %d \"-\" \"curl/8.9\"\n",
			i/2%20, 9+i/200, i%2, i, status, i)
	}
	b.WriteString(`198.51.100.9 - - [30/Nov/2026:10:00:00 +0000] "\x16\x03" 400 157 "-" "-"` + "\n")
	b.WriteString(`10.0.0.1 - - [30/Nov/2026:10:00:00 +0000] "GET /healthz HTTP/1.1" 200 2 "-" "kube-probe/1.31"` + "\n")
	b.WriteString("no access line\n")
	if err := os.MkdirAll(filepath.Join(dir, "build/demo"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "build/demo/access.log"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run runs the pipeline once in dir.
func run(t *testing.T, dir, pipeline string) {
	cmd := exec.Command(testenv.Sluice(t), "run", pipeline, "--once", "--metrics", "")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sluice run: %v\n%s", err, out)
	}
}

// edit copies a file of the example with one text replaced.
func edit(t *testing.T, name, old, new string) string {
	src, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(src), old) {
		t.Fatalf("%s has no %s", name, old)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(src), old, new)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// statements are the statements of a file, without comments.
func statements(t *testing.T, name string) []string {
	src, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for line := range strings.Lines(string(src)) {
		if !strings.HasPrefix(line, "--") {
			code.WriteString(line)
		}
	}
	var out []string
	for s := range strings.SplitSeq(code.String(), ";") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
