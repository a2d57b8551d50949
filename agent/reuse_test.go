package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A rotation that compresses the old file only when the new one exists frees
// the old inode then. The log after the next rotation may get it, under the
// path that the same inode had before: content decides, not the pair.
func TestInodeAndPathUsedAgain(t *testing.T) {
	t.Parallel()
	const banner = "# a banner that begins every log\n"
	first := banner + strings.Repeat("first log, line of some length\n", 200)
	third := banner + strings.Repeat("third log, line of some length\n", 300)
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running=%v", running), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, strings.ReplaceAll(plainPipeline, `["DIR/*.log*"]`, `["DIR/x.log*"], exclude: ["DIR/*.gz"]`))
			r.write("x.log", first)
			known := inode(t, r.path("x.log"))
			r.start()
			r.eventually("the first log", func() bool { return r.store.count() == 201 })
			r.settled()
			if !running {
				r.halt()
			}
			r.rename("x.log", "x.log.1")
			r.write("x.log", banner+"second log\n")
			r.write("x.log.1.gz", "compressed")
			r.remove("x.log.1") // the first inode is free when the agent lets go
			if running {
				r.eventually("the old log is let go", func() bool { return r.account().FilesOpen == 1 })
			}
			r.rename("x.log", "x.log.1")
			reuse(t, r, "x.log", known, third)
			if !running {
				r.start()
			}
			want := strings.Split(strings.TrimSuffix(first+banner+"second log\n"+third, "\n"), "\n")
			r.wants(want...)
		})
	}
}

// reuse makes a file with a certain inode, where the file system gives it.
func reuse(t *testing.T, r *rig, name string, ino uint64, text string) {
	t.Helper()
	const tries = 200
	for i := range tries {
		tmp := fmt.Sprintf("candidate-%d", i)
		r.write(tmp, text)
		if got := inode(t, r.path(tmp)); got == ino || i == tries-1 {
			t.Logf("inode %d used again: %v", ino, got == ino)
			r.rename(tmp, name)
			break
		}
	}
	for i := range tries {
		_ = os.Remove(r.path(fmt.Sprintf("candidate-%d", i)))
	}
}
