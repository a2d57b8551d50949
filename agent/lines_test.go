package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// linesPipeline is a pipeline with settings of its input.
func linesPipeline(settings string) string {
	return "pipeline: test\ncollect:\n  file: {include: [\"DIR/*.log*\"], identity: true, " + settings + "}\ntopic: {name: lines, partitions: 3}\n"
}

func TestStackTraces(t *testing.T) {
	t.Parallel()
	r := newRig(t, linesPipeline(`multiline: {preset: java, idle: 150ms}, partial_after: 1h`))
	r.start()
	first := "ERROR failed\njava.io.IOException: no\n\tat a.B.c(B.java:1)\nCaused by: x.Y\n\tat d.E.f(E.java:2)"
	r.write("a.log", first[:30])
	r.write("a.log", first[30:]+"\nINFO next\n")
	r.eventually("the first record", func() bool { return r.store.count() >= 1 })
	if got := r.store.values()[0]; got != first {
		t.Errorf("stored %q", got)
	}
	r.wants(first, "INFO next") // the last one, when nothing has come for a while
	if h := r.store.all()[1].headers; h["file_offset"] != fmt.Sprint(len(first)+1) || h["split"] != "" {
		t.Errorf("headers %v", h)
	}
	r.write("a.log", "INFO half")
	r.steady("a line without end is no record", 400*time.Millisecond, func() bool { return r.store.count() == 2 })
	r.write("a.log", " a line\r\n\tat x.Y\r\nlast\n")
	r.wants(first, "INFO next", "INFO half a line\n\tat x.Y", "last")
}

// What is open at a stop stays in the file, and comes once and whole.
func TestOpenRecordOverARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, linesPipeline(`multiline: {start: "^\\d", idle: 10m}`))
	r.start()
	r.write("a.log", "1 one\n a\n2 two\n b\n")
	r.wants("1 one\n a")
	r.settledAt(int64(len("1 one\n a\n")))
	r.halt()
	r.write("a.log", " c\n3 three\n")
	r.start()
	r.wants("1 one\n a", "2 two\n b\n c")
}

func TestRecordLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, linesPipeline(`multiline: {continue: "^ ", lines_max: 3, bytes_max: 64B, idle: 100ms}, line_bytes_max: 1KiB`))
	r.start()
	r.write("a.log", "a\n 1\n 2\n 3\n 4\nb\n "+strings.Repeat("x", 70)+"\n"+strings.Repeat("y", 2000)+"\n z\n")
	r.wants("a\n 1\n 2", " 3\n 4", "b", " "+strings.Repeat("x", 70), strings.Repeat("y", 1024), " z")
	if a := r.account(); a.SplitRecords != 2 || a.CutLines != 1 {
		t.Errorf("%d split, %d cut", a.SplitRecords, a.CutLines)
	}
	byValue := map[string]map[string]string{}
	for _, x := range r.store.all() {
		byValue[x.value] = x.headers
	}
	if byValue["a\n 1\n 2"]["split"] != "true" || byValue[strings.Repeat("y", 1024)]["truncated"] != "true" {
		t.Errorf("headers %v", byValue)
	}
	if n := strings.Count(r.log.String(), "records over a limit are split"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// A record that is larger than a block, of more lines than a chunk holds.
func TestLargeRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, linesPipeline(`multiline: {start: "^begin", lines_max: 5000, bytes_max: 2MiB, idle: 100ms}, line_bytes_max: 2MiB`))
	r.store.topicBytes = 4 << 20
	long := "begin" + strings.Repeat("\n"+strings.Repeat("x", 300), 4000)
	short := strings.Repeat("begin\n", 20_000)
	r.write("a.log", "begin first\n"+long+"\n"+short)
	r.start()
	r.eventually("all", func() bool { return r.store.count() == 20_002 })
	if got := r.store.values()[1]; got != long {
		t.Errorf("a record of %d bytes, want %d", len(got), len(long))
	}
}

func TestUTF16Files(t *testing.T) {
	t.Parallel()
	for name, encode := range map[string]func(string) string{
		"utf-16be": utf16be,
		"utf-16le": func(s string) string {
			b := []byte(utf16be(s))
			for i := 0; i < len(b); i += 2 {
				b[i], b[i+1] = b[i+1], b[i]
			}
			return string(b)
		},
	} {
		r := newRig(t, linesPipeline("encoding: "+name))
		r.cfg.LineIdle = time.Hour
		r.start()
		r.write("a.log", encode("\uFEFFfirst ä\r\n\u0A0A\u0A00 rows\nha")) // ਊ has the newline's byte
		r.wants("first ä", "\u0A0A\u0A00 rows")
		r.settledAt(int64(len(encode("\uFEFFfirst ä\r\n\u0A0A\u0A00 rows\n"))))
		whole := encode("lf\n")
		r.write("a.log", whole[:5]) // in the middle of the newline
		r.halt()
		r.start()
		r.write("a.log", whole[5:]+encode("more\n"))
		r.wants("first ä", "\u0A0A\u0A00 rows", "half", "more")
		r.halt()
	}
}

func TestInvalidUTF8(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"keep": "a\xff\xfeb", "replace": "a\uFFFDb"} {
		r := newRig(t, linesPipeline("invalid_utf8: "+setting))
		r.write("a.log", "\xEF\xBB\xBFa\xff\xfeb\nfine\n")
		r.start()
		r.wants(want, "fine")
		r.halt()
	}
}

func TestRate(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	r := rate{lines: allowance{second: 100}}
	total := 0
	for now := at; now.Before(at.Add(10 * time.Second)); now = now.Add(3 * time.Millisecond) {
		if r.ready(now) {
			n, bytes := r.allowed()
			if bytes != 0 {
				t.Fatal("a bound that was not set")
			}
			r.spend(n, 1<<20)
			total += n
		} else if due := r.due(); !due.After(now) || due.After(now.Add(time.Second)) {
			t.Fatalf("due %s after now", due.Sub(now))
		}
	}
	if total < 1000 || total > 1050+1 {
		t.Errorf("%d lines in 10 s at 100 a second", total)
	}
	// What is too large for a second's share passes, and is waited for.
	r = rate{bytes: allowance{second: 1000}}
	r.ready(at)
	r.spend(1, 10_500)
	if due := r.due().Sub(at); due < 10*time.Second || due > 10100*time.Millisecond {
		t.Errorf("due after %s", due)
	}
	var none rate
	if lines, bytes := none.allowed(); lines != 0 || bytes != 0 || !none.ready(at) {
		t.Error("a rate that was not set bounds")
	}
}

func TestRateLimitKeepsLinesInTheFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, linesPipeline("rate_limit: {lines: 200}"))
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprintf("line %d", i))
	}
	r.write("a.log", strings.Join(want, "\n")+"\n")
	begun := time.Now()
	r.start()
	r.eventually("the first", func() bool { return r.store.count() > 0 })
	if n := r.store.count(); n > 250 {
		t.Errorf("%d lines at once", n)
	}
	r.wants(want...)
	if took := time.Since(begun); took < 900*time.Millisecond {
		t.Errorf("300 lines took %s at 200 a second", took)
	}
}
