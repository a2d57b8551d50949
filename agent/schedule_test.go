package agent

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	schedules = flag.Int("schedules", 24, "random schedules to run")
	seedFlag  = flag.Uint64("seed", 0, "run this one schedule")
)

// TestRandomSchedules does to files what writers and rotations do, in random
// order, while the agent follows, stops, crashes and starts. No line may be
// missing, and none may come twice but those that no checkpoint held at a crash.
func TestRandomSchedules(t *testing.T) {
	if *seedFlag != 0 {
		runSchedule(t, *seedFlag)
		return
	}
	base := uint64(time.Now().UnixNano())
	for i := range *schedules {
		seed := base + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			runSchedule(t, seed)
		})
	}
}

// schedule is one random run. The model is simple: every line has a number,
// and every number written must be stored.
type schedule struct {
	*rig
	rnd     *rand.Rand
	next    int
	running bool
	partial string // written of a line without its newline
	kept    int    // rotated files
	safe    int    // stored records that a checkpoint is known to hold
	crashes int
	again   map[string]int // lines that may come again, and how often
	trace   []string
}

const schedulePipeline = `
pipeline: test
collect:
  file: {include: ["DIR/app.log*"], identity: true}
topic: {name: lines, partitions: 3}
`

func runSchedule(t *testing.T, seed uint64) {
	s := &schedule{rig: newRig(t, schedulePipeline), rnd: rand.New(rand.NewPCG(seed, 0)), again: map[string]int{}}
	s.cfg.LineIdle = time.Hour
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("run again with -run TestRandomSchedules -seed %d\n%s", seed, strings.Join(s.trace, "\n"))
		}
	})
	s.launch()
	for range 60 {
		s.step()
	}
	s.finishLine()
	if !s.running {
		s.launch()
	}
	s.sync()
	s.check()
}

// ops are weighted by how often they stand here.
var ops = []struct {
	name string
	do   func(*schedule)
}{
	{"append", (*schedule).appendLines}, {"append", (*schedule).appendLines}, {"append", (*schedule).appendLines},
	{"append", (*schedule).appendLines}, {"partial", (*schedule).writePartial}, {"partial", (*schedule).writePartial},
	{"rename", (*schedule).rotate}, {"rename", (*schedule).rotate}, {"copytruncate", (*schedule).copyTruncate},
	{"copytruncate", (*schedule).copyTruncate}, {"delete", (*schedule).deleteAndMakeAgain}, {"rewrite", (*schedule).rewriteSameSize},
	{"restart", (*schedule).restart}, {"crash", (*schedule).crashOrLaunch}, {"sync", (*schedule).sync},
}

func (s *schedule) step() {
	op := ops[s.rnd.IntN(len(ops))]
	s.note("%s", op.name)
	op.do(s)
}

func (s *schedule) note(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...)+fmt.Sprintf(" (next %d, stored %d, running %v)", s.next, s.store.count(), s.running))
}

func (s *schedule) line() string {
	s.next++
	return fmt.Sprintf("line %06d", s.next-1) // of one length, for the rewrite
}

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
	}
	s.kept++
	if s.kept > 4 && s.running {
		s.sync()
		s.remove(fmt.Sprintf("app.log.%d", s.kept))
		s.kept--
	}
}

func (s *schedule) exists() bool {
	_, err := os.Stat(s.path("app.log"))
	return err == nil
}

func (s *schedule) rotate() {
	if !s.exists() {
		return
	}
	s.shift()
	s.rename("app.log", "app.log.1")
	if s.partial != "" || s.rnd.IntN(2) == 0 { // the writer has not been signalled yet
		late := s.partial
		if late == "" {
			late = s.line()
			s.write("app.log.1", late+"\n")
		} else {
			s.write("app.log.1", late[4:]+"\n")
		}
		s.partial = ""
	}
}

func (s *schedule) copyTruncate() {
	if !s.exists() {
		return
	}
	s.finishLine()
	s.shift()
	copyFile(s.t, s.path("app.log"), s.path("app.log.1"))
	if s.rnd.IntN(2) == 0 && s.running {
		s.steady("the copy waits", time.Duration(s.rnd.IntN(30))*time.Millisecond, func() bool { return true })
	}
	if err := os.Truncate(s.path("app.log"), 0); err != nil {
		s.t.Fatal(err)
	}
}

func (s *schedule) deleteAndMakeAgain() {
	if !s.exists() || !s.running {
		return
	}
	s.sync()
	s.remove("app.log")
	s.write("app.log", s.line()+"\n")
}

// rewriteSameSize needs all of the old content read, or it would be lost.
func (s *schedule) rewriteSameSize() {
	if !s.exists() || !s.running {
		return
	}
	s.sync()
	info, err := os.Stat(s.path("app.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	var b strings.Builder
	for int64(b.Len()) < info.Size() {
		b.WriteString(s.line() + "\n")
	}
	s.rewrite("app.log", b.String())
}

func (s *schedule) restart() {
	if s.running {
		s.halt()
		s.safe = s.store.count()
		s.running = false
		return
	}
	s.launch()
}

func (s *schedule) launch() {
	s.start()
	s.running = true
}

func (s *schedule) crashOrLaunch() {
	if !s.running {
		s.launch()
		return
	}
	s.crash()
	s.crashes++
	s.running = false
	for _, v := range s.store.values()[s.safe:] {
		s.again[v]++
	}
}

// sync waits until all complete lines are stored and in the checkpoint.
func (s *schedule) sync() {
	if !s.running {
		return
	}
	s.finishLine()
	want := map[string]bool{}
	for i := range s.next {
		want[fmt.Sprintf("line %06d", i)] = true
	}
	from := 0
	s.eventually("all lines", func() bool {
		values := s.store.values()
		for _, v := range values[from:] {
			delete(want, v)
		}
		from = len(values)
		return len(want) == 0
	})
	s.settled()
	s.safe = s.store.count()
}

// placesOf says where a line's records come from.
func (s *schedule) placesOf(line string) (out []string) {
	for i, rec := range s.store.all() {
		if rec.value == line {
			out = append(out, fmt.Sprintf("#%d %s@%s of %s", i, rec.headers["file_id"], rec.headers["file_offset"], rec.headers["path"]))
		}
	}
	return out
}

// check compares what is stored with the model.
func (s *schedule) check() {
	s.steady("no more comes", 300*time.Millisecond, func() bool { return true })
	times := map[string]int{}
	offsets := map[string]int64{}
	for _, rec := range s.store.all() {
		times[rec.value]++
		if times[rec.value] > 1+s.again[rec.value] {
			s.t.Errorf("%s is stored %d times: %v", rec.value, times[rec.value], s.placesOf(rec.value))
		}
		offset, err := strconv.ParseInt(rec.headers["file_offset"], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		id := rec.headers["file_id"]
		if offset == 0 && s.crashes > 0 {
			// A file that was read, but in no checkpoint, and emptied after a
			// crash is taken for one content.
			delete(offsets, id)
		}
		if last, ok := offsets[id]; ok && offset <= last && times[rec.value] == 1 {
			s.t.Errorf("%s at offset %d of file %s came after offset %d", rec.value, offset, id, last)
		}
		offsets[id] = max(offsets[id], offset)
	}
	var missing []string
	for i := range s.next {
		if v := fmt.Sprintf("line %06d", i); times[v] == 0 {
			missing = append(missing, v)
		}
	}
	if len(missing) > 0 || len(times) != s.next {
		s.t.Errorf("%d different lines of %d; missing %q", len(times), s.next, slices.Clip(missing))
	}
}
