package directory_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-io/sluice/sinks/directory"
	"github.com/sluice-io/sluice/sinks/directory/filetest"
)

var everyStep = flag.Bool("every-step", false, "kill and freeze at every step, not at every few")

// stride is how many steps lie between two deaths.
func stride(n int) int {
	if *everyStep {
		return 1
	}
	return n
}

func TestMain(m *testing.M) {
	filetest.Child(func(name string) (directory.FS, error) {
		return directory.OSFS(name, directory.OSConfig{NoSync: true})
	})
	os.Exit(m.Run())
}

func local(t testing.TB) directory.FS {
	_, f := named(t)
	return f
}

func named(t testing.TB) (string, directory.FS) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "table")
	f, err := directory.OSFS(dir, directory.OSConfig{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	return dir, f
}

func TestFSContract(t *testing.T) { filetest.Contract(t, local(t)) }

func TestKilledAtEveryStep(t *testing.T) {
	t.Run("json", func(t *testing.T) { filetest.Killed(t, local, "json", stride(3)) })
	t.Run("parquet", func(t *testing.T) { filetest.Killed(t, local, "parquet", stride(19)) })
	t.Run("avro", func(t *testing.T) { filetest.Killed(t, local, "avro", stride(11)) })
}

func TestSIGKILLed(t *testing.T) { filetest.SIGKILLed(t, named, "json", 3, stride(9)) }

func TestFrozenAtEveryStep(t *testing.T) { filetest.Frozen(t, local, 1) }

func TestRenameLandsLate(t *testing.T) { filetest.LateRenames(t, local) }

func TestFilesOutliveTheDeadline(t *testing.T) { filetest.Deadline(t, local) }
