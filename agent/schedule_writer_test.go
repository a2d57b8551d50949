package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/agent/tail"
)

// What writers, rotations and operators do to files beyond appending, renaming and copying: holes, compressed copies, other names of a
// file, directories that move or are switched, inodes that are used again.

// rareOps are such; each stands once.
var rareOps = []scheduleOp{
	{"compress", (*schedule).compress}, {"compress", (*schedule).compress},
	{"compress live", (*schedule).compressTruncate}, {"rename packed", (*schedule).renamePacked}, {"remove packed", (*schedule).removePacked},
	{"hole", (*schedule).hole}, {"zeroes", (*schedule).zeroes},
	{"hard link", (*schedule).link}, {"unlink", (*schedule).unlink},
	{"switch", (*schedule).switchLink}, {"move", (*schedule).moveDir},
	{"reuse inode", (*schedule).reuseInode}, {"growth", (*schedule).copyGrowTruncate},
	{"reload", (*schedule).reload}, {"remove pipeline", (*schedule).removePipeline},
}

// makeDirs makes the directory that files are written to, and the link that leads to it.
func (s *schedule) makeDirs() {
	s.makeDir("v0")
	s.must(os.Symlink("v0", filepath.Join(s.dir, "cur")))
}

func (s *schedule) makeDir(name string) {
	s.must(os.Mkdir(filepath.Join(s.dir, name), 0o700))
	s.inodes.made(filepath.Join(s.dir, name))
}

// hole writes a line behind a hole, as a writer does that does not append after its file was emptied.
func (s *schedule) hole() {
	s.finishLine()
	s.create("app.log")
	f, err := os.OpenFile(s.path("app.log"), os.O_WRONLY, 0o600)
	s.must(err)
	info, err := f.Stat()
	s.must(err)
	_, err = f.WriteAt([]byte(s.encode(s.line()+"\n")), info.Size()+2*int64(1+s.rnd.IntN(5000)))
	s.must(err)
	s.must(f.Close())
	s.touched("app.log")
}

// zeroes ends a file in NULs, as a file system does that was not told of the data before the power went.
func (s *schedule) zeroes() {
	s.finishLine()
	s.writeRaw("app.log", strings.Repeat("\x00", 2*(1+s.rnd.IntN(300))))
}

// link gives a file one more name.
func (s *schedule) link() {
	if !s.exists() || len(s.links) >= 4 {
		return
	}
	name := fmt.Sprintf("app.log.%dl", s.next)
	if err := os.Link(s.path("app.log"), s.path(name)); err == nil {
		s.links = append(s.links, name)
		s.touched(name)
	}
}

// unlink takes a name away; the last one only of a file that was read.
func (s *schedule) unlink() {
	if len(s.links) == 0 {
		return
	}
	i := s.rnd.IntN(len(s.links))
	name := s.links[i]
	info, err := tail.Stat(s.path(name))
	s.must(err)
	if info.Links == 1 {
		if !s.up() || s.nested {
			return
		}
		s.sync()
	}
	s.links = append(s.links[:i], s.links[i+1:]...)
	s.remove(name)
}

// switchLink has the link lead to a new directory. The old one stays where the patterns find it.
func (s *schedule) switchLink() {
	s.finishLine()
	s.dirs++
	name := fmt.Sprintf("v%d", s.dirs)
	s.makeDir(name)
	s.must(os.Symlink(name, filepath.Join(s.dir, "new")))
	s.must(os.Rename(filepath.Join(s.dir, "new"), filepath.Join(s.dir, "cur")))
	s.kept, s.links, s.packed = 0, nil, nil
	s.renamed()
}

// moveDir gives the directory that is written to another name; the link follows.
func (s *schedule) moveDir() {
	old, err := os.Readlink(filepath.Join(s.dir, "cur"))
	s.must(err)
	s.dirs++
	name := fmt.Sprintf("v%d", s.dirs)
	s.must(os.Rename(filepath.Join(s.dir, old), filepath.Join(s.dir, name)))
	s.between()
	s.must(os.Symlink(name, filepath.Join(s.dir, "new")))
	s.must(os.Rename(filepath.Join(s.dir, "new"), filepath.Join(s.dir, "cur")))
	s.renamed()
}

// reuseInode removes a file that was read and makes others until one has its inode, or a few were made.
func (s *schedule) reuseInode() {
	if s.kept == 0 || !s.up() || s.nested {
		return
	}
	s.sync()
	s.settle()
	victim := fmt.Sprintf("app.log.%d", s.kept)
	looks := s.inodes.looks()
	was, err := looks.Stat(s.path(victim))
	s.must(err)
	s.remove(victim)
	s.kept--
	s.between()
	for range 8 {
		name := fmt.Sprintf("app.log.%dr", s.next)
		s.write(name, s.line()+"\n")
		now, err := looks.Stat(s.path(name))
		s.must(err)
		if now.ID == was.ID {
			return
		}
	}
}

// copyGrowTruncate is a copytruncate whose file grows between the copying and the truncation; the agent reads what it grew by. That takes
// less than the grace period, after which a copy whose original stays is a file of its own: not where records wait to be whole, or for their rate.
func (s *schedule) copyGrowTruncate() {
	if !s.exists() || !s.up() || s.nested || s.slow || s.dialect.name == "multiline" {
		return
	}
	s.finishLine()
	s.prune()
	s.sync()
	s.shift()
	data, err := os.ReadFile(s.path("app.log"))
	s.must(err)
	s.writeRaw("app.log.1", string(data))
	s.between()
	s.appendLines()
	s.sync()
	s.nested = true
	s.now = s.now.Add(scheduleScan) // a scan sees the copy
	s.work()
	s.nested = false
	s.grew = 2
	s.must(os.Truncate(s.path("app.log"), 0))
	s.touched("app.log")
}

// compress makes a compressed copy of the oldest rotated file, and removes it.
func (s *schedule) compress() {
	if s.kept == 0 {
		return
	}
	from := fmt.Sprintf("app.log.%d", s.kept)
	s.pack(from)
	s.remove(from)
	s.kept--
}

// compressTruncate makes a compressed copy of the file itself, and empties that.
func (s *schedule) compressTruncate() {
	if !s.exists() {
		return
	}
	s.finishLine()
	s.pack("app.log")
	s.must(os.Truncate(s.path("app.log"), 0))
	s.touched("app.log")
}

// pack writes a compressed copy of a file, in pieces.
func (s *schedule) pack(from string) {
	form := s.rnd.IntN(2)
	to := s.packedName() + []string{".gz", ".zst"}[form]
	data, err := os.ReadFile(s.path(from))
	s.must(err)
	s.writeRaw(to, "")
	s.between()
	pack := []func(testing.TB, string) []byte{gzipped, zstdPacked}[form]
	packed := string(pack(s.t, string(data)))
	half := s.rnd.IntN(len(packed) + 1)
	s.writeRaw(to, packed[:half])
	s.between()
	s.writeRaw(to, packed[half:])
	s.packed = append(s.packed, to)
}

// packedName is a name without its suffix that no compressed copy had.
func (s *schedule) packedName() string {
	s.packs++
	return fmt.Sprintf("app.log.%dc", s.packs)
}

// renamePacked gives a compressed copy another name, as the next rotation does.
func (s *schedule) renamePacked() {
	if len(s.packed) == 0 {
		return
	}
	x := &s.packed[s.rnd.IntN(len(s.packed))]
	to := s.packedName() + filepath.Ext(*x)
	s.rename(*x, to)
	*x = to
}

// removePacked removes the oldest compressed copy when all is read.
func (s *schedule) removePacked() {
	if len(s.packed) == 0 || s.runner == nil || s.nested {
		return
	}
	s.sync()
	s.remove(s.packed[0])
	s.packed = s.packed[1:]
}
