// Package quickstart_test runs the example as its README says and reads the
// files with a real ClickHouse.
package quickstart_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

const table = "build/demo/table"

func TestExample(t *testing.T) {
	server := testenv.ClickHouse(t)
	dir := t.TempDir()
	writeLines(t, dir)
	pipeline, err := filepath.Abs("pipeline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testenv.Sluice(t), "run", pipeline, "--once", "--metrics", "")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("sluice run: %v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, table, "*.parquet"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v\n%s", err, out)
	}
	var got []string
	for _, q := range queries(t, "clickhouse-local") {
		got = append(got, server.Query(t, strings.ReplaceAll(q, table, filepath.Join(dir, table))))
	}
	want := []string{"/p/0\t200\t10\n/p/1\t200\t10", "2026-11-30 09:00:00\t200\t20\n2026-11-30 10:00:00\t200\t20"}
	if len(got) != len(want) {
		t.Fatalf("queries.sql has %d queries for ClickHouse", len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("query %d\ngot:\n%s\nwant:\n%s", i+1, got[i], want[i])
		}
	}
	if n := len(queries(t, "duckdb")); n != len(want) {
		t.Errorf("queries.sql has %d queries for DuckDB", n)
	}
}

func writeLines(t *testing.T, dir string) {
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, "203.0.113.%d - - [30/Nov/2026:%02d:00:00 +0000] \"GET /p/%d?n=%d HTTP/1.1\" 200 %d \"-\" \"curl/8.9\"\n",
			i%20, 9+i/200, i%2, i, i)
	}
	b.WriteString(`10.0.0.1 - - [30/Nov/2026:10:00:00 +0000] "GET /healthz HTTP/1.1" 200 2 "-" "kube-probe/1.31"` + "\n")
	b.WriteString("no access line\n")
	path := filepath.Join(dir, "build/demo/access.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// queries are the statements of queries.sql below a comment that names the engine.
func queries(t *testing.T, engine string) []string {
	src, err := os.ReadFile("queries.sql")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for part := range strings.SplitSeq(string(src), "\n-- "+engine+"\n") {
		statement, _, _ := strings.Cut(part, ";")
		out = append(out, statement)
	}
	return out[1:]
}
