package hdfs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/sluice-io/sluice/pipelines"
	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/directory/filetest"
	"github.com/sluice-io/sluice/sinks/hdfs"
)

var everyStep = flag.Bool("every-step", false, "kill and freeze at every step, not at every few")

func stride(n int) int {
	if *everyStep {
		return 1
	}
	return n
}

// TestMain makes the binary a worker on ADDR,USER,PATH where filetest has started it.
func TestMain(m *testing.M) {
	filetest.Child(func(name string) (directory.FS, error) {
		part := strings.Split(name, ",")
		return open(part[0], part[1], part[2])
	})
	os.Exit(m.Run())
}

// pipeline is one whose sink is on an HDFS; user may be empty, and more are lines of its settings.
func pipeline(addr, user, path, more string) (*pipelines.Pipeline, error) {
	if user != "" {
		more = "    user: " + user + "\n" + more
	}
	text := fmt.Sprintf("pipeline: p\ncollect: {file: {include: [/x]}}\nprocess: [{parse: json}]\nsink:\n  hdfs:\n    namenodes: [%s]\n    path: %s\n%s", addr, path, more)
	pipes, err := pipelines.Parse("test.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	return pipes[0], nil
}

// open makes the root and returns its file system.
func open(addr, user, path string) (directory.FS, error) {
	pipe, err := pipeline(addr, user, path, "")
	if err != nil {
		return nil, err
	}
	return openWith(pipe)
}

func openWith(pipe *pipelines.Pipeline) (directory.FS, error) {
	sink, err := hdfs.New(slog.New(slog.DiscardHandler), pipe.Sinks[0])
	if err != nil {
		return nil, err
	}
	_, err = sink.Check(context.Background())
	if err := errors.Join(err, sink.Close()); err != nil {
		return nil, err
	}
	return hdfs.NewFS(pipe.Sinks[0].HDFS)
}

var roots atomic.Int64

// named is an empty directory of the shared HDFS, and the name by which a child opens it.
func named(t testing.TB) (string, directory.FS) {
	t.Helper()
	s := testenv.HDFS(t)
	root := fmt.Sprintf("/test-%d-%d", os.Getpid(), roots.Add(1))
	f, err := open(s.Addr, s.User, root)
	if err != nil {
		t.Fatal(err)
	}
	return s.Addr + "," + s.User + "," + root, f
}

func fresh(t testing.TB) directory.FS {
	_, f := named(t)
	return f
}

func TestFSContract(t *testing.T) { filetest.Contract(t, fresh(t)) }

func TestKilledAtEveryStep(t *testing.T) { filetest.Killed(t, fresh, "json", stride(31)) }

func TestSIGKILLed(t *testing.T) { filetest.SIGKILLed(t, named, "parquet", 5, stride(41)) }

func TestFrozenAtEveryStep(t *testing.T) { filetest.Frozen(t, fresh, stride(23)) }

func TestRenameLandsLate(t *testing.T) {
	if !*everyStep {
		t.Skip("a matter of the ledger, tested on local directories; -every-step does it here too")
	}
	filetest.LateRenames(t, fresh)
}

// wantNoEmptyFiles walks all that readers see, and wants no file but those that have rows.
func wantNoEmptyFiles(t testing.TB, f directory.FS, withRows map[string]bool, at string) {
	t.Helper()
	entries, err := f.List(at)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := path.Join(at, e.Name)
		switch {
		case strings.HasPrefix(e.Name, "_") || strings.HasPrefix(e.Name, "."):
		case e.Dir:
			wantNoEmptyFiles(t, f, withRows, name)
		case !withRows[name]:
			t.Errorf("%s has no row", name)
		}
	}
}
