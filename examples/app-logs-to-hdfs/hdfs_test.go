// Package hdfs_test runs the example as its README says, against a real HDFS.
package hdfs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/hdfs"
)

// now is the time of the lines that are not late.
var now = time.Now()

func TestExample(t *testing.T) {
	server := testenv.HDFS(t)
	dir := t.TempDir()
	writeLines(t, dir)
	pipeline := edit(t, server)
	run(t, dir, pipeline)
	run(t, dir, pipeline) // nothing is stored a second time

	got := map[string]int{}
	seen := map[string]bool{}
	read(t, pipeline, func(row directory.Row) error {
		got[filepath.Dir(row.File)]++
		line := fmt.Sprint(row.Fields["file_id"], "/", row.Fields["file_offset"])
		if seen[line] || row.Fields["site"] != "fra1" || row.Fields["message"] == nil || row.Fields["host"] == "" {
			return fmt.Errorf("a line that is doubled or damaged: %+v", row)
		}
		seen[line] = true
		return nil
	})
	// The records' timestamps are of now, so events of a past day are late, and those of this minute are not.
	if got["late/dt=2026-11-01"] != 200 {
		t.Errorf("%v", got)
	}
	delete(got, "late/dt=2026-11-01")
	n := 0
	for path, rows := range got {
		if !strings.HasPrefix(path, "dt="+now.UTC().Format("2006-01-02/hour=15/service=")) {
			t.Errorf("%d rows in %s", rows, path)
		}
		n += rows
	}
	if n != 200 || len(got) != 3 {
		t.Errorf("%v", got)
	}
	if names := list(t, server, "/warehouse/app_logs"); !slices.Contains(names, "_sluice") || !slices.Contains(names, "_schema-000001") {
		t.Error(names)
	}
}

func list(t *testing.T, server *testenv.HDFSServer, path string) (names []string) {
	var answer struct {
		FileStatuses struct {
			FileStatus []struct{ PathSuffix string }
		}
	}
	if err := json.Unmarshal(server.WebHDFS(t, http.MethodGet, path, url.Values{"op": {"LISTSTATUS"}}), &answer); err != nil {
		t.Fatal(err)
	}
	for _, s := range answer.FileStatuses.FileStatus {
		names = append(names, s.PathSuffix)
	}
	return names
}

// read reads what the pipeline's sink has stored.
func read(t *testing.T, pipeline string, fn func(directory.Row) error) {
	pipes, err := pipelines.Load(pipeline)
	if err != nil {
		t.Fatal(err)
	}
	f, err := hdfs.NewFS(pipes[0].Sinks[0].HDFS)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := directory.ReadFrom(f, fn); err != nil {
		t.Fatal(err)
	}
}

// writeLines writes 200 lines of a past day and 200 of now, and 100 that are dropped.
func writeLines(t *testing.T, dir string) {
	var b strings.Builder
	for i := range 500 {
		ts, level := "2026-11-01T10:00:00Z", "info"
		if i%5 >= 2 {
			ts = now.UTC().Format("2006-01-02T15:04:05Z")
		}
		if i%5 == 4 {
			level = "debug"
		}
		service := []string{`"cart"`, `"search"`, "null"}[i%3]
		fmt.Fprintf(&b, `{"ts":%q,"level":%q,"service":%s,"message":"message %d","duration_ms":%d.5}`+"\n", ts, level, service, i, i)
	}
	b.WriteString("no object\n")
	if err := os.MkdirAll(filepath.Join(dir, "build/app-logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "build/app-logs/cart.log"), []byte(b.String()), 0o644); err != nil {
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

// edit copies the pipeline with the test's HDFS in it.
func edit(t *testing.T, server *testenv.HDFSServer) string {
	src, err := os.ReadFile("pipeline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("127.0.0.1:8020", server.Addr, "user: etl", "user: "+server.User).Replace(string(src))
	name := filepath.Join(t.TempDir(), "pipeline.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}
