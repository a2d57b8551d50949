package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const pipePipeline = `
pipeline: test
collect:
  pipe: {path: DIR/in.pipe}
  labels: {site: shop}
topic: {name: lines, partitions: 3}
`

// opened waits for the agent to have made a named pipe, and opens it as a writer does.
func (r *rig) opened(name string) *os.File {
	r.t.Helper()
	r.eventually("the pipe is there", func() bool { _, err := os.Stat(r.path(name)); return err == nil })
	f, err := os.OpenFile(r.path(name), os.O_WRONLY, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

func (r *rig) say(f *os.File, text string) {
	r.t.Helper()
	if _, err := f.WriteString(text); err != nil {
		r.t.Fatal(err)
	}
}

func TestPipeOutlivesItsWriters(t *testing.T) {
	t.Parallel()
	r := newRig(t, pipePipeline)
	r.start()
	var want []string
	for i := range 5 {
		f := r.opened("in.pipe")
		r.say(f, fmt.Sprintf("writer %d\n", i))
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("writer %d", i))
	}
	r.wants(want...)
	if h := r.store.all()[0].headers; h["host"] != "web-1" || h["path"] != r.path("in.pipe") || h["site"] != "shop" {
		t.Errorf("headers %v", h)
	}
	f := r.opened("in.pipe")
	r.say(f, "no end")
	r.wants(append(want, "no end")...) // after the time for partial lines
	r.say(f, "last")
	r.halt() // what is read is sent
	if got := r.store.values(); !slices.Contains(got, "last") {
		t.Errorf("stored %q", got)
	}
	f.Close()
}

func TestPipeThatIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t, pipePipeline)
	r.start()
	old := r.opened("in.pipe")
	r.say(old, "old\n")
	r.wants("old")
	r.rename("in.pipe", "gone.pipe")
	r.say(old, "late\n")
	f := r.opened("in.pipe") // made anew
	r.say(f, "new\n")
	r.wants("old", "late", "new")
	old.Close()
	f.Close()
	r.remove("in.pipe")
	r.write("in.pipe", "a file\n")
	r.eventually("it is not ready", func() bool {
		err := r.agent.Ready()
		return err != nil && strings.Contains(err.Error(), "is not a named pipe")
	})
}

// What cannot be taken is not read: the writer waits.
func TestPipeHoldsItsWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t, pipePipeline)
	r.store.hold() // without a journal a line is kept when it is acknowledged
	r.start()
	f := r.opened("in.pipe")
	r.eventually("the topic is there", func() bool { return r.agent.Ready() == nil })
	line := strings.Repeat("x", 999) + "\n"
	if err := f.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	written := 0
	for {
		n, err := f.WriteString(line)
		written += n
		if err != nil {
			break
		}
	}
	if read := r.account().Read.Bytes; read > 8<<10 || int64(written) > read+(80<<10) {
		t.Errorf("%d bytes were written and %d read while nothing was kept", written, read)
	}
	f.Close()
	r.store.letGo()
	r.eventually("all of it", func() bool { return r.account().Acked.Bytes == int64(written) })
}

const stdinPipeline = `
pipeline: test
collect: {stdin: {line_bytes_max: 64B}}
topic: {name: lines}
`

func TestStdin(t *testing.T) {
	t.Parallel()
	r := newRig(t, stdinPipeline)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Stdin = in
	go func() {
		defer out.Close()
		_, _ = out.WriteString("one\r\ntwo\n" + strings.Repeat("y", 100) + "\nno end")
	}()
	acc := r.once() // to its end
	r.wants("one", "two", strings.Repeat("y", 64), "no end")
	if acc.CutLines != 1 || acc.Dropped[dropTooLong].Bytes != 37 {
		t.Errorf("account %+v", acc)
	}
}

func TestExecRunsOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
pipeline: test
collect: {exec: {command: [sh, -c, 'echo "$A"; echo oh >&2; exit 3'], environment: {A: hello}, restart_max: 10ms}}
topic: {name: lines}
`)
	r.start()
	r.eventually("two runs", func() bool { return r.store.count() >= 4 })
	for _, x := range r.store.all() {
		if want := map[string]string{"hello": "stdout", "oh": "stderr"}[x.value]; want == "" || x.headers["stream"] != want {
			t.Errorf("stored %+v", x)
		}
	}
	stats := r.agent.list()[0].input.(*streams).feed.Stats()
	if stats.Starts < 2 || stats.Exits["3"] < 1 {
		t.Errorf("stats %+v", stats)
	}
}

// At an interval, with a time limit that ends the whole group.
func TestExecAtAnInterval(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
pipeline: test
collect: {exec: {command: [sh, -c, 'sleep 1000 & echo $!; wait'], directory: DIR, interval: 100ms, timeout: 200ms, stderr: drop}}
topic: {name: lines}
`)
	r.start()
	r.eventually("three runs", func() bool { return r.store.count() >= 3 })
	r.halt()
	for _, pid := range r.store.values() {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		r.eventually("the sleeper is gone", func() bool { return gone(n) })
	}
}

// gone says that a process has ended, whether somebody reaped it or not.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestExecThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect: {exec: {command: [/no/such/program]}}\ntopic: {name: lines}\n")
	r.start()
	r.eventually("it is said", func() bool {
		err := r.agent.Ready()
		return err != nil && strings.Contains(err.Error(), "/no/such/program")
	})
}

// Much output, of which the last comes when the command has ended already.
func TestExecOnceTakesAll(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect: {exec: {command: [seq, '1', '200000']}}\ntopic: {name: lines}\n")
	acc := r.once()
	if acc.Acked.Lines != 200_000 || r.store.count() != 200_000 {
		t.Errorf("account %+v", acc)
	}
}

// Records of several lines, in another encoding, with a limit; the last is sent when nothing comes for a while.
func TestPipeOfRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
pipeline: test
collect:
  pipe:
    path: DIR/in.pipe
    multiline: {start: '^[A-Z]', idle: 100ms, lines_max: 3}
topic: {name: lines}
`)
	r.start()
	f := r.opened("in.pipe")
	r.say(f, "A\n 1\n")
	r.say(f, " 2\nB\nC\n 1\n 2\n 3\nD\n")
	r.wants("A\n 1\n 2", "B", "C\n 1\n 2", " 3", "D")
	if acc := r.account(); acc.Read.Bytes != int64(len("A\n 1\n 2\nB\nC\n 1\n 2\n 3\nD\n")) {
		t.Errorf("account %+v", acc)
	}
	r.say(f, "E\n no end")
	r.eventually("the open record with its last line", func() bool {
		return slices.Contains(r.store.values(), "E\n no end") || slices.Contains(r.store.values(), " no end")
	})
	f.Close()
}

func TestStdinInUTF16(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect: {stdin: {encoding: utf-16le}}\ntopic: {name: lines}\n")
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Stdin = in
	go func() {
		defer out.Close()
		_, _ = out.WriteString("\xff\xfeo\x00n\x00e\x00\n\x00\xfc\x00\n\x00")
	}()
	r.once()
	r.wants("one", "ü")
}

// What a rate leaves waits with the writer.
func TestPipeAtARate(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.Replace(pipePipeline, "path: DIR/in.pipe", "path: DIR/in.pipe, rate_limit: {lines: 100}", 1))
	r.start()
	f := r.opened("in.pipe")
	begun := time.Now()
	for i := range 150 {
		r.say(f, fmt.Sprintf("line %d\n", i))
		r.eventually("it is taken", func() bool { return r.account().Read.Lines == int64(i+1) })
	}
	if took := time.Since(begun); took < 900*time.Millisecond {
		t.Errorf("150 lines took %s at 100 a second", took)
	}
	f.Close()
}
