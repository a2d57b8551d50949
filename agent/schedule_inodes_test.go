package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

// inodes gives the files of a schedule identities that follow from its seed: their numbers, which of them are used again, and when files
// were made, by the schedule's clock.
type inodes struct {
	schedule *schedule
	byReal   map[uint64]uint64 // by the system's number
	born     map[uint64]int64
	free     []uint64 // of removed files, the last one last
	next     uint64
}

const (
	// inodeDev is the device of them all.
	inodeDev = 1
	// inodeTick is how coarse the clock is that dates files.
	inodeTick = 4 * time.Millisecond
)

func newInodes(s *schedule) *inodes {
	return &inodes{schedule: s, byReal: map[uint64]uint64{}, born: map[uint64]int64{}, next: 100}
}

// made numbers a file or directory that was just made.
func (n *inodes) made(path string) {
	info, err := tail.Stat(path)
	n.schedule.must(err)
	ino := n.pick()
	n.byReal[info.Ino], n.born[ino] = ino, n.tick()
	if *traceFlag {
		n.schedule.note(fmt.Sprintf("    inode %d: %s", ino, filepath.Base(path)))
	}
}

func (n *inodes) tick() int64 { return n.schedule.now.Truncate(inodeTick).UnixNano() }

// pick chooses a number: of a removed file at times, as file systems do, unless that file is open still or was made in this tick.
func (n *inodes) pick() uint64 {
	if s := n.schedule; len(n.free) > 0 && !s.nested && s.chance(2) {
		i := len(n.free) - 1 - s.rnd.IntN(min(len(n.free), 3))
		if ino := n.free[i]; n.born[ino] != n.tick() && !n.open(ino) {
			n.free = slices.Delete(n.free, i, i+1)
			return ino
		}
	}
	n.next++
	return n.next
}

// open says that the agent holds a file open.
func (n *inodes) open(ino uint64) (open bool) {
	id := tail.ID{Dev: inodeDev, Ino: ino}
	n.schedule.each(func(m *schedule) {
		s := m.runner.sources[id]
		open = open || s != nil && s.file.Handle() != nil || m.runner.surveys[id] != nil
	})
	return open
}

// remove removes a name, and frees the number with the last one.
func (n *inodes) remove(path string) {
	info, err := tail.Stat(path)
	n.schedule.must(err)
	n.schedule.must(os.Remove(path))
	if info.Links == 1 {
		n.free = append(n.free, n.byReal[info.Ino])
	}
}

// looks show the agent these identities. A removed file that is still open keeps its own.
func (n *inodes) looks() *tail.Looks {
	return &tail.Looks{
		As: func(info tail.Info) tail.Info {
			if ino, ok := n.byReal[info.Ino]; ok {
				info.ID = tail.ID{Dev: inodeDev, Ino: ino}
			}
			return info
		},
		Born: func(id tail.ID) int64 { return n.born[n.byReal[id.Ino]] },
	}
}

// scheduleDir makes the directory of a schedule; kind is a letter. Its name is of one length, as it is in what is sent.
func scheduleDir(t *testing.T, kind rune, seed uint64) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("sluice-schedule-%c-%020d-%010d", kind, seed, os.Getpid()))
	_ = os.RemoveAll(dir) // of a test that was killed and had this process's number
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
