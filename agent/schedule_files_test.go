package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The writer's side.

func (s *schedule) path(name string) string { return filepath.Join(s.dir, "cur", name) }

func (s *schedule) must(err error) {
	if err != nil {
		s.t.Helper()
		s.t.Fatal(err)
	}
}

// touched gives a file the schedule's time and mostly tells the agent.
func (s *schedule) touched(name string) {
	s.must(os.Chtimes(s.path(name), s.now, s.now))
	if *traceFlag {
		s.note("    touched " + name)
	}
	s.each(func(m *schedule) {
		if !s.chance(5) {
			m.runner.hints.Changed(s.path(name))
		}
	})
}

func (s *schedule) renamed() {
	s.each(func(m *schedule) {
		if !s.chance(5) {
			m.runner.hints.Renamed()
		}
	})
}

func (s *schedule) write(name, text string) { s.writeRaw(name, s.encode(text)) }

func (s *schedule) writeRaw(name, text string) {
	s.create(name)
	f, err := os.OpenFile(s.path(name), os.O_APPEND|os.O_WRONLY, 0o600)
	s.must(err)
	_, err = f.WriteString(text)
	s.must(err)
	s.must(f.Close())
	s.touched(name)
}

// create makes a file that is not there.
func (s *schedule) create(name string) {
	f, err := os.OpenFile(s.path(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return
	}
	s.must(err)
	s.must(f.Close())
	s.inodes.made(s.path(name))
}

func (s *schedule) rename(from, to string) {
	s.must(os.Rename(s.path(from), s.path(to)))
	s.renamed()
	s.each(func(m *schedule) {
		if s.chance(2) {
			m.runner.hints.Changed(s.path(to))
		}
	})
}

func (s *schedule) remove(name string) {
	s.inodes.remove(s.path(name))
	s.renamed()
}

func (s *schedule) size() int64 {
	info, err := os.Stat(s.path("app.log"))
	if err != nil {
		return -1
	}
	return info.Size()
}

func (s *schedule) exists() bool { return s.size() >= 0 }

func (s *schedule) appendLines() {
	s.finishLine()
	var b strings.Builder
	for range 1 + s.rnd.IntN(20) {
		b.WriteString(s.line() + "\n")
	}
	s.write("app.log", b.String())
}

// writePartial begins or goes on with a line.
func (s *schedule) writePartial() {
	if s.partial == "" {
		s.partial = s.line()
		s.write("app.log", s.partial[:4])
		return
	}
	s.finishLine()
}

func (s *schedule) finishLine() {
	if s.partial != "" {
		s.write("app.log", s.partial[4:]+"\n")
		s.partial = ""
	}
}

// shift makes room for app.log.1.
func (s *schedule) shift() {
	for i := s.kept; i >= 1; i-- {
		s.rename(fmt.Sprintf("app.log.%d", i), fmt.Sprintf("app.log.%d", i+1))
		s.between()
	}
	s.kept++
}

// between lets the agent take a step in the middle of a rotation.
func (s *schedule) between() {
	if s.nested || !s.up() || !s.chance(8) {
		return
	}
	s.nested = true
	s.step()
	s.nested = false
}

// prune removes the oldest rotated files when all is read.
func (s *schedule) prune() {
	if s.kept <= 4 || !s.up() || s.nested {
		return
	}
	s.sync()
	for ; s.kept > 4; s.kept-- {
		s.remove(fmt.Sprintf("app.log.%d", s.kept))
	}
}

func (s *schedule) rotate() {
	if !s.exists() {
		return
	}
	s.prune()
	s.shift()
	s.rename("app.log", "app.log.1")
	s.between()
	if s.partial != "" { // the writer has not been signalled yet
		s.write("app.log.1", s.partial[4:]+"\n")
		s.partial = ""
	} else if s.chance(2) {
		s.write("app.log.1", s.line()+"\n")
	}
}

func (s *schedule) copyTruncate() {
	if !s.exists() {
		return
	}
	s.finishLine()
	s.prune()
	s.shift()
	data, err := os.ReadFile(s.path("app.log"))
	s.must(err)
	s.write("app.log.1", "")
	s.between()
	half := s.rnd.IntN(len(data) + 1)
	s.writeRaw("app.log.1", string(data[:half]))
	s.between()
	s.writeRaw("app.log.1", string(data[half:]))
	if !s.nested && s.up() && s.chance(2) { // the copy waits
		s.nested = true
		s.turn()
		s.nested = false
	}
	s.must(os.Truncate(s.path("app.log"), 0))
	s.touched("app.log")
}

// deleteAndMakeAgain needs all of the old content read, or it would be lost, and
// a copy of it seen: after a crash nothing would tell that it is one.
func (s *schedule) deleteAndMakeAgain() {
	if !s.exists() || !s.up() {
		return
	}
	s.sync()
	s.settle()
	s.remove("app.log")
	s.between()
	s.write("app.log", s.line()+"\n")
}

// rewriteSameSize needs all of the old content read, too.
func (s *schedule) rewriteSameSize() {
	if !s.exists() || !s.up() {
		return
	}
	s.sync()
	var b strings.Builder
	for size := s.size(); int64(b.Len()) < size; {
		b.WriteString(s.encode(s.line() + "\n"))
	}
	s.now = s.now.Add(time.Millisecond)
	s.must(os.WriteFile(s.path("app.log"), []byte(b.String()), 0o600))
	s.touched("app.log")
}
