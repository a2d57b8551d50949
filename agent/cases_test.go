package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/tail"
)

func TestLinesArriveWithHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
pipeline: test
collect:
  file: {include: ["DIR/*.log"], identity: true}
  labels: {site: shop}
topic: {name: lines, partitions: 3}
`)
	r.write("a.log", "one\ntwo\n")
	r.start()
	r.wants("one", "two")
	rec := r.store.all()[1]
	for k, v := range map[string]string{"host": "web-1", "path": r.path("a.log"), "site": "shop", "file_offset": "4"} {
		if rec.headers[k] != v {
			t.Errorf("header %s is %q, want %q", k, rec.headers[k], v)
		}
	}
	if len(rec.headers["file_id"]) != 16 || rec.topic != "lines" {
		t.Errorf("record %+v", rec)
	}
	if err := r.agent.Ready(); err != nil {
		t.Error(err)
	}
}

func TestInodeUsedAgainWhileStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "first content\n")
	r.start()
	r.wants("first content")
	r.settled()
	r.halt()
	ino := inode(t, r.path("a.log"))
	r.remove("a.log")
	r.write("a.log", "other content, and longer\n")
	t.Logf("inode used again: %v", inode(t, r.path("a.log")) == ino)
	r.start()
	r.wants("first content", "other content, and longer")
}

func TestSamePathAndInodeAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	r.write("a.log", "hello\n")
	r.wants("hello")
	r.remove("a.log")
	r.write("a.log", "again\n")
	r.wants("hello", "again")
	r.settled()
	r.halt()
	r.remove("a.log")
	r.write("a.log", "again\n") // even the same content is a new file
	r.start()
	r.wants("hello", "again", "again")
}

func TestSameBeginnings(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	banner := strings.Repeat("#", 999) + "\n"
	r.write("a.log", banner+"from a\n")
	r.write("b.log", banner+"from b\n")
	r.start()
	r.wants(banner[:999], banner[:999], "from a", "from b")
	r.settled()
	r.halt()
	r.write("c.log", banner+"from c\n")
	r.write("a.log", "more a\n")
	r.start()
	r.wants(banner[:999], banner[:999], banner[:999], "from a", "from b", "from c", "more a")
}

func TestShortFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "\n")
	r.write("b.log", "x\n")
	r.start()
	r.wants("", "x")
	for i := range 5 {
		r.settled()
		r.halt()
		r.write("b.log", fmt.Sprintf("%d\n", i))
		r.start()
	}
	r.wants("", "x", "0", "1", "2", "3", "4")
}

func TestShorterThanStored(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("a.log", "a long first line\n")
	r.start()
	r.wants("a long first line")
	r.settled()
	r.halt()
	r.rewrite("a.log", "short\n")
	r.start()
	r.wants("a long first line", "short")
	if a := r.account(); a.Truncations != 1 {
		t.Errorf("%d truncations counted", a.Truncations)
	}
	if n := strings.Count(r.log.String(), "truncated or replaced"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func TestWriterGoesOnAfterRename(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	f, err := os.Create(r.path("x.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.start()
	var want []string
	for i := range 30 {
		line := fmt.Sprintf("line %d", i)
		want = append(want, line)
		fmt.Fprintln(f, line)
		if i == 10 {
			r.rename("x.log", "x.log.1")
		}
		if i == 20 {
			r.write("x.log", "new\n")
			want = append(want, "new")
		}
	}
	r.wants(want...)
	r.steady("nothing is sent twice", 300*time.Millisecond, func() bool { return r.store.count() == len(want) })
}

func TestRenamedOutOfThePattern(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.ReplaceAll(plainPipeline, "*.log*", "*.log"))
	f, err := os.Create(r.path("x.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintln(f, "a")
	r.start()
	r.wants("a")
	r.rename("x.log", "x.old")
	fmt.Fprintln(f, "late")
	r.write("x.log", "b\n")
	r.wants("a", "late", "b")
	fmt.Fprint(f, "no newline")
	r.wants("a", "late", "b", "no newline")
	r.eventually("the old file is let go", func() bool { return r.account().FilesOpen == 1 })
}

// A write, a rename, a write to each: the agent is stopped and started at every
// combination of places in between.
func TestRestartBetweenRotationSteps(t *testing.T) {
	t.Parallel()
	for mask := range 32 {
		t.Run(fmt.Sprintf("%05b", mask), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, plainPipeline)
			r.start()
			steps := []func(){
				func() { r.write("x.log", "a\n") },
				func() { r.write("x.log", "b\n") },
				func() { r.rename("x.log", "x.log.1") },
				func() { r.write("x.log.1", "c\n") },
				func() { r.write("x.log", "d\n") },
			}
			for i, step := range steps {
				step()
				if mask&(1<<i) != 0 {
					r.halt()
					r.start()
				}
			}
			r.wants("a", "b", "c", "d")
		})
	}
}

func TestRotatedWhileDown(t *testing.T) {
	t.Parallel()
	for _, times := range []int{1, 3} {
		r := newRig(t, plainPipeline)
		r.write("x.log", "0\n")
		r.start()
		r.wants("0")
		r.settled()
		r.halt()
		want := []string{"0"}
		for i := range times {
			r.write("x.log", fmt.Sprintf("tail of %d\n", i))
			for k := i + 1; k > 1; k-- {
				r.rename(fmt.Sprintf("x.log.%d", k-1), fmt.Sprintf("x.log.%d", k))
			}
			r.rename("x.log", "x.log.1")
			r.write("x.log", fmt.Sprintf("head of %d\n", i+1))
			want = append(want, fmt.Sprintf("tail of %d", i), fmt.Sprintf("head of %d", i+1))
		}
		r.start()
		r.wants(want...)
		if got := r.store.values(); got[1] != "tail of 0" {
			t.Errorf("the oldest was not first: %q", got)
		}
		r.halt()
	}
}

func TestDirectoryLinkSwitched(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.ReplaceAll(plainPipeline, "DIR/*.log*", "DIR/current/*.log"))
	for _, d := range []string{"v1", "v2"} {
		if err := os.Mkdir(r.path(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link(t, r.path("v1"), r.path("current"))
	r.write("v1/a.log", "one\n")
	r.start()
	r.wants("one")
	r.write("v1/a.log", "two\n")
	r.write("v2/a.log", "three\n")
	link(t, r.path("v2"), r.path("current"))
	r.wants("one", "two", "three")
	r.write("v2/a.log", "four\n")
	r.wants("one", "two", "three", "four")
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

func TestDeletedWhileHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.store.hold()
	r.cfg.InFlightBytesMax = 1 // one chunk at a time
	var want []string
	var text strings.Builder
	for i := range 20_000 {
		want = append(want, fmt.Sprintf("line %05d of the deleted file", i))
		text.WriteString(want[i] + "\n")
	}
	r.write("x.log", text.String())
	r.start()
	r.eventually("a first chunk is sent", func() bool { return r.store.heldLines() > 0 })
	r.remove("x.log")
	r.eventually("what it keeps on disk is shown", func() bool { return r.account().DeletedBytes == int64(text.Len()) })
	r.store.letGo()
	r.wants(want...)
	r.eventually("it is let go", func() bool { return r.account().FilesOpen == 0 && r.account().DeletedBytes == 0 })
}

func TestEveryRewriteIsRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("Mon Nov 30 10:%02d:00 UTC 2026", i)) // never another size
		r.rewrite("f.log", want[i]+"\n")
		r.wants(want...)
	}
	if a := r.account(); a.Truncations != 49 || a.LostBytes != 0 {
		t.Errorf("account %+v", a)
	}
}

func TestTruncationLosesOnlyTheUnread(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	sent, lost := 0, int64(0)
	r.write("f.log", "start\n")
	r.wants("start")
	r.store.hold()
	r.store.letGo()
	for i := range 50 {
		line := fmt.Sprintf("append %d\n", i)
		if i%10 == 9 {
			r.rewrite("f.log", line)
		} else {
			r.write("f.log", line)
		}
		sent += len(line)
	}
	r.eventually("the last line", func() bool {
		v := r.store.values()
		return len(v) > 0 && v[len(v)-1] == "append 49"
	})
	a := r.account()
	lost = int64(sent) - (a.Acked.Bytes - int64(len("start\n")))
	if lost < a.LostBytes {
		t.Errorf("estimated %d bytes lost, at most %d are", a.LostBytes, lost)
	}
	t.Logf("of %d bytes %d were lost, %d of them known; %d truncations", sent, lost, a.LostBytes, a.Truncations)
}

func TestHoleAfterTruncation(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	f, err := os.Create(r.path("f.log")) // without O_APPEND
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.start()
	fmt.Fprintln(f, "before")
	r.wants("before")
	if _, err := f.Seek(124<<20, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(r.path("f.log"), 0); err != nil {
		t.Fatal(err)
	}
	r.eventually("the truncation is seen", func() bool { return r.account().Truncations == 1 })
	fmt.Fprintln(f, "after the hole")
	r.wants("before", "after the hole")
	if got := r.account().Dropped[dropNUL].Bytes; got != 124<<20 {
		t.Errorf("%d NULs counted", got)
	}
}

func TestCopyTruncateSendsNothingAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	r.write("f.log", "one\ntwo\n")
	r.wants("one", "two")
	copyFile(t, r.path("f.log"), r.path("f.log.1"))
	r.write("f.log", "") // the gap between copy and truncation
	if err := os.Truncate(r.path("f.log"), 0); err != nil {
		t.Fatal(err)
	}
	r.write("f.log", "three\n")
	r.wants("one", "two", "three")
	r.steady("the copy is not sent", 500*time.Millisecond, func() bool { return r.store.count() == 3 })
	r.write("f.log.1", "late in the copy\n")
	r.wants("one", "two", "three", "late in the copy")
	if a := r.account(); a.Copies != 1 {
		t.Errorf("%d copies counted", a.Copies)
	}
}

func TestFileMadeAfterTheTruncationIsNoCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	r.write("f.log", "starting\n")
	r.wants("starting")
	f, err := os.Open(r.path("f.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if tail.Born(f) == 0 {
		t.Skip("the file system does not tell when files are made")
	}
	if err := os.Truncate(r.path("f.log"), 0); err != nil {
		t.Fatal(err)
	}
	r.eventually("the truncation is seen", func() bool { return r.account().Truncations == 1 })
	r.eventually("the file system's clock goes on", passed(20*time.Millisecond))
	r.write("f.log.2", "starting\n")
	r.wants("starting", "starting")
}

func TestCopyTruncateWhileDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	r.write("f.log", "one\ntwo\n")
	r.wants("one", "two")
	r.settled()
	r.halt()
	r.write("f.log", "unread\n")
	copyFile(t, r.path("f.log"), r.path("f.log.1"))
	r.rewrite("f.log", "three\n")
	r.start()
	r.wants("one", "two", "unread", "three")
	r.steady("the copy is not sent again", 300*time.Millisecond, func() bool { return r.store.count() == 4 })
}

func TestTwinsAreTwoFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	r.write("f.log", "same\n")
	r.wants("same")
	r.write("f.log.bak", "same\n")
	r.wants("same", "same")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPartialLines(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.cfg.LineIdle = time.Hour
	r.start()
	r.write("f.log", "whole\nab")
	r.wants("whole")
	r.steady("the beginning of a line waits", 150*time.Millisecond, func() bool { return r.store.count() == 1 })
	r.write("f.log", "cd\n")
	r.wants("whole", "abcd")
	r.write("f.log", "half")
	r.settledAt(int64(len("whole\nabcd\n")))
	r.halt()
	if r.store.count() != 2 {
		t.Fatal("an unterminated line was sent at shutdown")
	}
	r.start()
	r.write("f.log", " and half\n")
	r.wants("whole", "abcd", "half and half")
}

// settledAt waits for a checkpoint at an offset.
func (r *rig) settledAt(offset int64) {
	r.t.Helper()
	r.eventually("the position", func() bool {
		x := r.agent.list()[0].input.(*files)
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, tr := range x.tracks {
			if tr.acked.Offset == offset {
				return true
			}
		}
		return false
	})
}

func TestUnterminatedLineIsSentWhenIdle(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.start()
	r.write("f.log", "no end")
	r.wants("no end")
	r.write("f.log", "\n") // its newline makes no empty line
	r.write("f.log", "next\n")
	r.wants("no end", "next")
	r.write("f.log", "again no end")
	r.wants("no end", "next", "again no end")
	r.write("f.log", "; the rest is a line\n")
	r.wants("no end", "next", "again no end", "; the rest is a line")
}

func TestLineLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
pipeline: test
collect:
  file: {include: ["DIR/*.log*"], line_bytes_max: 100}
topic: {name: lines}
`)
	r.start()
	long := strings.Repeat("ü", 60) // the limit falls within none of them
	r.write("f.log", "a"+long+"\nshort\n")
	r.wants("a"+strings.Repeat("ü", 49), "short")
	if h := r.store.all()[0].headers["truncated"]; h != "true" {
		t.Error("the cut line is not flagged")
	}
	a := r.account()
	if a.CutLines != 1 || a.Dropped[dropTooLong].Bytes != int64(2*11+1) {
		t.Errorf("account %+v", a)
	}
	hugeBytes := 64 << 20
	if testing.Short() {
		hugeBytes = 8 << 20
	}
	huge := strings.Repeat("y", hugeBytes)
	r.write("f.log", huge)
	r.eventually("the head of an endless line", func() bool { return r.store.count() == 3 })
	r.halt()
	r.start() // in the middle of the line
	r.write("f.log", "the rest\nafter\n")
	r.wants("a"+strings.Repeat("ü", 49), "short", huge[:100], "after")
}

func TestOwnFilesAreNotShipped(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.ReplaceAll(plainPipeline, "DIR/*.log*", "DIR/**"))
	r.state = r.path("state")
	r.write("a.log", "one\n")
	r.start()
	r.wants("one")
	r.steady("no checkpoint is shipped", 300*time.Millisecond, func() bool { return r.store.count() == 1 })
}

func TestStartAtEndConcernsOnlyTheFirstStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
pipeline: test
collect:
  file: {include: ["DIR/*.log*"], start_at: end}
topic: {name: lines}
`)
	r.write("a.log", "old\nhalf")
	r.start()
	r.eventually("the first scan", func() bool { return r.account().FilesFollowed == 1 })
	r.write("a.log", " a line\n")
	r.write("b.log", "later file\n")
	r.wants("half a line", "later file")
	r.settled()
	r.halt()
	r.write("c.log", "made while down\n")
	r.start()
	r.wants("half a line", "later file", "made while down")
}
