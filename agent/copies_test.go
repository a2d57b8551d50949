package agent

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/journal"
	"github.com/sluice-io/sluice/agent/tail"
)

// Each case here was found by a random schedule: a copy that was read again, or a line that was not.

// never has no chance come true.
type never struct{}

func (never) Uint64() uint64 { return math.MaxUint64 }

// scripted is a schedule whose steps a test takes itself.
func scripted(t *testing.T) *schedule {
	g := newStage(t, rand.New(never{}), t.TempDir())
	g.nested, g.openFiles, g.memory = true, 100, 16<<20
	s := g.join("test", schedulePipeline)
	s.world = newStoreWorld(s)
	s.inodes = newInodes(s)
	s.makeDirs()
	t.Cleanup(func() {
		if s.up() {
			s.down()
		}
		if t.Failed() {
			t.Log(strings.Join(s.trace, "\n"))
		}
	})
	return s
}

// begun starts the agent, with the topic known.
func (s *schedule) begun() {
	s.launch()
	s.prepare()
}

// pass lets the agent work while some time passes.
func (s *schedule) pass(d time.Duration) {
	for until := s.now.Add(d); s.now.Before(until); s.now = s.now.Add(100 * time.Millisecond) {
		s.work()
	}
}

// send has what is there read and sent, before another scan.
func (s *schedule) send() {
	s.work()
	s.now = s.now.Add(10 * time.Millisecond)
	s.work()
}

// truncate empties a file, which the agent is not told.
func (s *schedule) truncate(name string) {
	s.must(os.Truncate(s.path(name), 0))
	s.must(os.Chtimes(s.path(name), s.now, s.now))
}

func (s *schedule) copyTo(from, to string) {
	data, err := os.ReadFile(s.path(from))
	s.must(err)
	s.writeRaw(to, string(data))
}

// expect compares all that is stored.
func (s *schedule) expect(want ...string) {
	s.t.Helper()
	var got []string
	for _, rec := range s.world.stored() {
		got = append(got, rec.value)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		s.t.Errorf("stored %q, want %q", got, want)
	}
}

var zeroes = strings.Repeat("\x00", 200)

// goneZeroes has the agent read NULs from a file that is removed while it is down, when the next one begins with as many.
func goneZeroes(t *testing.T) *schedule {
	s := scripted(t)
	s.begun()
	s.write("app.log", zeroes)
	s.pass(2 * time.Second)
	s.save()
	s.down()
	s.remove("app.log")
	s.now = s.now.Add(time.Second)
	s.write("app.log", zeroes+"line 1\n")
	return s
}

// begunWithZeroes has it read the next one, too.
func begunWithZeroes(t *testing.T) *schedule {
	s := goneZeroes(t)
	s.begun()
	s.pass(2 * time.Second)
	s.expect("line 1")
	return s
}

// What is gone and looks like a copy's beginning is no more than that while an original that was emptied a moment ago is not known to be.
func TestCopyOfAFileEmptiedAMomentAgo(t *testing.T) {
	s := begunWithZeroes(t)
	s.copyTo("app.log", "app.log.1")
	s.write("app.log", "line 2\n")
	s.pass(2 * time.Second)
	s.truncate("app.log")
	s.pass(2 * scheduleGrace)
	s.expect("line 1", "line 2")
}

// The same while the original is there, and not read as far as what is gone was.
func TestCopyOfAFileNotReadYet(t *testing.T) {
	s := goneZeroes(t)
	s.launch() // and no topic is known: nothing is read
	s.pass(1200 * time.Millisecond)
	s.copyTo("app.log", "app.log.1")
	s.pass(1200 * time.Millisecond)
	s.prepare()
	s.pass(2 * time.Second)
	s.truncate("app.log")
	s.pass(2 * scheduleGrace)
	s.expect("line 1")
}

// The same of a copy that was compressed: the place that has more of it counts, be it where a copy ended that waited.
func TestCompressedCopyOfAFileThatGrew(t *testing.T) {
	s := begunWithZeroes(t)
	s.copyTo("app.log", "app.log.1")
	s.write("app.log", "line 2\n")
	s.pass(2 * time.Second)
	s.writeRaw("app.log.1.gz", string(gzipped(t, zeroes+"line 1\n")))
	s.remove("app.log.1")
	s.truncate("app.log")
	s.pass(3 * scheduleGrace)
	s.expect("line 1", "line 2")
}

// A copy ends within a line that its original has all of before it is emptied, while the agent is down after a crash.
func TestWhereACopyEndsIsKnownAfterACrash(t *testing.T) {
	s := scripted(t)
	s.begun()
	s.write("app.log", "line 1\nline 2\n")
	s.pass(2 * time.Second)
	s.write("app.log", "lin")
	s.copyTo("app.log", "app.log.1")
	s.pass(1200 * time.Millisecond)
	s.write("app.log", "e 3\n")
	s.send()
	s.expect("line 1", "line 2", "line 3")
	s.down()
	s.truncate("app.log")
	s.now = s.now.Add(time.Second)
	s.begun()
	s.pass(2 * scheduleGrace)
	s.expect("line 1", "line 2", "line 3")
}

// A file of which nothing was read yet may be emptied and written anew without notice. Its copy is then no copy of what was read.
func TestCopyOfAFileNotBegun(t *testing.T) {
	s := scripted(t)
	s.launch() // and no topic is known: nothing is read
	s.write("app.log", "line 1\n")
	s.pass(1200 * time.Millisecond)
	s.copyTo("app.log", "app.log.1")
	s.pass(1200 * time.Millisecond)
	s.truncate("app.log")
	s.write("app.log", "line 2\nline 3\n")
	s.prepare()
	s.send()
	s.truncate("app.log")
	s.pass(2 * scheduleGrace)
	s.expect("line 1", "line 2", "line 3")
}

// Of a compressed copy there were two bytes when it was found, too few to tell what it is, and all of it at a reload.
func TestReloadWhileACompressedCopyIsWritten(t *testing.T) {
	s := scripted(t)
	s.begun()
	s.write("app.log.1", "line 1\n")
	s.pass(2 * time.Second)
	packed := string(zstdPacked(t, "line 1\n"))
	s.writeRaw("app.log.1.zst", packed[:2])
	s.pass(2 * time.Second)
	s.writeRaw("app.log.1.zst", packed[2:])
	s.remove("app.log.1")
	s.nested = false
	s.reload()
	s.nested = true
	s.prepare()
	s.pass(3 * scheduleGrace)
	s.expect("line 1")
}

// The original of a compressed copy has no descriptor, for want of them, and is removed just before the scan that tells what the copy is.
func TestCompressedCopyOfAParkedFileThatIsGone(t *testing.T) {
	s := scripted(t)
	s.openFiles = 2
	s.begun()
	s.write("app.log.1", "line 1\n")
	s.pass(2 * time.Second)
	s.write("app.log", "line 2\n")
	s.pass(2 * time.Second)
	s.writeRaw("app.log.1.gz", string(gzipped(t, "line 1\n")))
	surveyed := func() bool {
		for _, v := range s.runner.surveys {
			return v.done
		}
		return false
	}
	for until := s.now.Add(time.Minute); !surveyed(); s.now = s.now.Add(100 * time.Millisecond) {
		if s.now.After(until) {
			t.Fatal("the copy is not looked at")
		}
		s.step()
	}
	s.remove("app.log.1")
	s.pass(3 * scheduleGrace)
	s.expect("line 1", "line 2")
}

// A content that the journal tells of was gone when the next one in its file was read, or when the checkpoint looked at that: a copy may be
// made after the content was read.
func TestContentsOfTheJournalWereGoneLaterThanTheyWereRead(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	move := func(generation uint64, seen int64) journal.Range {
		return journal.Range{Input: inputFile, Path: "/d/app.log", Dev: 1, Ino: 2, Born: 3, Generation: generation, To: 7, Seen: seen}
	}
	id := tail.ID{Dev: 1, Ino: 2}
	for name, tc := range map[string]struct {
		known *track
		moves []journal.Range
	}{
		"the next one in the journal": {
			&track{id: id, born: 3, path: "/d/app.log", seen: at(100), acked: tail.Position{Offset: 7}}, []journal.Range{move(1, 200)},
		},
		"the next one in the checkpoint": {
			&track{id: id, born: 3, path: "/d/app.log", seen: at(200), generation: 1, acked: tail.Position{Offset: 7}}, []journal.Range{move(0, 100)},
		},
	} {
		r := &files{runner: &runner{cfg: Config{Now: func() time.Time { return at(300) }}}, tracks: map[tail.ID]*track{id: tc.known}}
		r.replay(tc.moves)
		i := slices.IndexFunc(r.orphans, func(o orphan) bool { return o.is(id, 3, 0) })
		if i < 0 {
			t.Errorf("%s: %+v", name, r.orphans)
			continue
		}
		if o := &r.orphans[i]; o.endedBefore(at(150).UnixNano()) || !o.endedBefore(at(250).UnixNano()) {
			t.Errorf("%s: gone since %v", name, o.since)
		}
	}
}

// What was read and is not delivered when the agent stops is read again, and may be another content by then.
func TestMarksOfACheckpointAreDelivered(t *testing.T) {
	at := func(offset int64) tail.Position { return tail.Position{Offset: offset} }
	for acked, want := range map[int64][2]int{0: {0, 0}, 7: {1, 1}, 14: {2, 1}} {
		x := &track{acked: at(acked), marks: []tail.Position{at(7), at(14)}, ends: []tail.Position{at(10)}}
		r := &files{runner: &runner{ended: true}, tracks: map[tail.ID]*track{{}: x}}
		var p savedPipeline
		r.saveLocked(&p)
		if f := p.Files[0]; len(f.Marks) != want[0] || len(f.Ends) != want[1] {
			t.Errorf("delivered to %d: marks %+v, ends %+v", acked, f.Marks, f.Ends)
		}
	}
}

// A copy may be younger than the step in which its original is found empty.
func TestGoneSinceItWasNoticed(t *testing.T) {
	now := time.Unix(100, 0)
	r := &files{runner: &runner{cfg: Config{Now: func() time.Time { return now }}}, tracks: map[tail.ID]*track{}}
	now = now.Add(time.Second)
	r.orphan(&track{}, tail.Position{Offset: 7}, "/d/app.log")
	if o := &r.orphans[0]; o.endedBefore(now.UnixNano()) {
		t.Errorf("gone since %v", o.since)
	}
}
