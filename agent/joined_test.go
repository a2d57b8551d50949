package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/agent/stream"
	"github.com/sluice-io/sluice/agent/tail"
)

const joinedSyslogPipeline = `
pipeline: test
collect:
  syslog:
    listen: ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"]
    zone: UTC
    FORMAT
    multiline: {start: '^\S', idle: 200ms, lines_max: 4}
topic: {name: lines, partitions: 3}
`

// messagesOf are the hosts, applications and texts of the events.
func (r *rig) messagesOf() (out []string) {
	for _, v := range r.store.values() {
		var e struct{ Host, App, Message string }
		if err := json.Unmarshal([]byte(v), &e); err != nil {
			r.t.Fatal(err)
		}
		out = append(out, e.Host+"/"+e.App+": "+e.Message)
	}
	slices.Sort(out)
	return out
}

func (r *rig) wantsMessages(want ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d messages", len(want)), func() bool { return r.store.count() >= len(want) })
	slices.Sort(want)
	if got := r.messagesOf(); !slices.Equal(got, want) {
		r.t.Errorf("%q, want %q", got, want)
	}
}

// The lines of stack traces of several applications come across each other, over a connection and as datagrams.
func TestRecordsOfSyslog(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.Replace(joinedSyslogPipeline, "FORMAT", "format: event", 1))
	r.cfg.DrainTimeout = patience // connections are read for a moment more
	r.start()
	c, d := r.dial("tcp"), r.dial("udp")
	line := func(app, text string) string { return "<14>Nov 30 10:00:00 web " + app + ": " + text + "\n" }
	r.send(c, line("a[1]", "ERROR one")+line("b[2]", "fine")+line("a[1]", "\tat x")+line("b[2]", "\tgoes on")+line("a[1]", "\tat y")+line("a[1]", "INFO two"))
	r.send(d, "<14>1 2026-11-30T10:00:00Z db c - - - start")
	r.send(d, "<14>1 2026-11-30T10:00:00Z db c - - -   more")
	r.wantsMessages("web/a: ERROR one\n\tat x\n\tat y", "web/b: fine\n\tgoes on", "web/a: INFO two", "db/c: start\n  more") // after the idle time
	for range 2 {
		r.send(c, line("a", "long")+line("a", " 2")+line("a", " 3")+line("a", " 4")+line("a", " 5"))
	}
	r.eventually("the record over the limit", func() bool { return r.account().SplitRecords == 2 && r.store.count() == 8 })
	if x := r.store.all()[4]; x.headers["split"] != "true" {
		t.Errorf("%+v", x)
	}
	r.send(c, line("a", "held")+line("a", " at the end"))
	r.eventually("it is taken", func() bool { return heldOf(r) > 0 || r.store.count() == 9 })
	r.halt() // which sends what is held
	if got := r.messagesOf(); len(got) != 9 || !slices.Contains(got, "web/a: held\n at the end") {
		t.Errorf("%q", got)
	}
}

// heldOf is what an input holds of records that may go on.
func heldOf(r *rig) int64 {
	j := r.agent.list()[0].input.(*streams).joining.Load()
	if j == nil {
		return 0
	}
	return j.held.Load()
}

// As raw lines the first message is as it came, and those that go on with it are their texts.
func TestRawRecordsOfSyslog(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.Replace(joinedSyslogPipeline, "FORMAT", "format: raw", 1))
	r.start()
	c := r.dial("tcp")
	r.send(c, "<14>Nov 30 10:00:00 web a: one\n<14>Nov 30 10:00:00 web a:  two\nwhat is this\n and this\n")
	r.wants("<14>Nov 30 10:00:00 web a: one\n two", "what is this\n and this")
	a := r.account()
	if want := int64(len("<14>Nov 30 10:00:00 web a: one\n<14>Nov 30 10:00:00 web a:  two\nwhat is this\n and this\n")); a.Read.Bytes != want || a.Read.Lines != 2 {
		t.Errorf("account %+v, want %d bytes", a, want)
	}
}

// spokenJournal is a program that speaks as journalctl does, of the entries in a file.
func spokenJournal(t *testing.T) (script, entries string) {
	t.Helper()
	dir := t.TempDir()
	script, entries = filepath.Join(dir, "journalctl"), filepath.Join(dir, "entries")
	text := `#!/bin/sh
from=1
follow=
for a in "$@"; do
  case $a in
    --after-cursor=*i=*) from=$((${a##*i=} + 2)) ;;
    --cursor=*i=*) from=$((${a##*i=} + 1)) ;;
    --follow) follow=-f ;;
    --since=*) echo "$a" > ` + dir + `/since ;;
  esac
done
exec tail -n "+$from" $follow "` + entries + `"
`
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(entries, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return script, entries
}

// journalEntry is a line of journalctl.
func journalEntry(i int, unit string, pid int, message string) string {
	m, _ := json.Marshal(message) // a string
	if strings.HasPrefix(message, "bytes ") {
		m, _ = json.Marshal([]int{0x62, 0x79, 0x1b, 0x5b}) // as what is not printable
	}
	return fmt.Sprintf(`{"MESSAGE":%s,"__REALTIME_TIMESTAMP":"%d","_BOOT_ID":"b","_SYSTEMD_UNIT":"%s","_PID":"%d","__CURSOR":"s=1;i=%d"}`+"\n", m, 1764496800000000+i, unit, pid, i)
}

// Records of units and processes that lie across each other come once and whole, however often the agent is killed.
func TestRecordsOfTheJournalOverKills(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	script, entries := spokenJournal(t)
	r := newRig(t, fmt.Sprintf("pipeline: test\ncollect: {journald: {command: [%q], format: raw, multiline: {start: '^\\S', idle: 1h}}}\ntopic: {name: lines, partitions: 1}\n", script))
	var want []string
	open := map[string][]string{}
	n := 0
	write := func(unit string, pid int, message string) {
		f, err := os.OpenFile(entries, os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(journalEntry(n, unit, pid, message)); err != nil {
			t.Fatal(err)
		}
		n++
	}
	r.start()
	for round := range 12 {
		for range 1 + rng.IntN(40) {
			unit, pid := fmt.Sprintf("u%d", rng.IntN(3)), rng.IntN(3)
			key := fmt.Sprintf("%s %d", unit, pid)
			if len(open[key]) > 0 && rng.IntN(3) > 0 {
				message := fmt.Sprintf(" goes on %d", n)
				open[key] = append(open[key], message)
				write(unit, pid, message)
				continue
			}
			if len(open[key]) > 0 {
				want = append(want, strings.Join(open[key], "\n"))
			}
			open[key] = []string{fmt.Sprintf("%s begins %d", key, n)}
			write(unit, pid, open[key][0])
		}
		if round%2 == 0 {
			r.eventually("all that is whole is there", func() bool { return r.store.count() >= len(want) })
		}
		r.halt()
		r.start()
	}
	for key, lines := range open {
		want = append(want, strings.Join(lines, "\n"))
		var unit string
		var pid int
		if _, err := fmt.Sscanf(key, "%s %d", &unit, &pid); err != nil {
			t.Fatal(err)
		}
		write(unit, pid, "end")
	}
	r.eventually("all", func() bool { return r.store.count() >= len(want) })
	var got []string
	for _, v := range r.store.values() {
		var e struct{ MESSAGE string }
		if err := json.Unmarshal([]byte(v), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, e.MESSAGE)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d records, want %d\n%q\n%q", len(got), len(want), got, want)
	}
	// Without multiline what was open comes entry by entry.
	r.halt()
	before := r.store.count()
	r.yaml = strings.Replace(r.yaml, ", multiline: {start: '^\\S', idle: 1h}", "", 1)
	r.start()
	r.eventually("the ends", func() bool { return r.store.count() == before+len(open) })
}

// A record ends when nothing came for the idle time, and with once.
func TestIdleRecordsOfTheJournal(t *testing.T) {
	t.Parallel()
	script, entries := spokenJournal(t)
	text := journalEntry(0, "a", 1, "one") + journalEntry(1, "a", 1, " more") + journalEntry(2, "a", 1, "bytes ") + journalEntry(3, "b", 1, "two")
	if err := os.WriteFile(entries, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	yaml := "pipeline: test\ncollect: {journald: {command: [%q], multiline: {start: '^\\S', idle: %s}}}\nprocess: [{set: {m: MESSAGE}}]\ntopic: {name: lines}\n"
	r := newRig(t, fmt.Sprintf(yaml, script, "100ms"))
	messages := func(r *rig) string {
		var out []string
		for _, v := range r.store.values() {
			var e struct{ M string }
			if err := json.Unmarshal([]byte(v), &e); err != nil {
				t.Fatal(err)
			}
			out = append(out, e.M)
		}
		slices.Sort(out)
		return strings.Join(out, "|")
	}
	r.start()
	r.eventually("three records", func() bool { return r.store.count() == 3 })
	if got := messages(r); got != "by\x1b[|one\n more|two" {
		t.Errorf("%q", got)
	}
	once := newRig(t, fmt.Sprintf(yaml, script, "1h"))
	once.once()
	if got := messages(once); got != "by\x1b[|one\n more|two" {
		t.Errorf("once: %q", got)
	}
}

// What is held is bounded, and an origin that holds nothing is forgotten.
func TestJoiningIsBounded(t *testing.T) {
	r := newRig(t, strings.Replace(joinedSyslogPipeline, "FORMAT", "format: raw", 1))
	s, err := newStreams(mustRunner(t, r), nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	var taken takes
	j := newJoining(&taken, s.joins, time.Second, func() time.Time { return now }, func() lineReader { return &syslogLines{} })
	line := []byte("<14>Nov 30 10:00:00 web a: " + strings.Repeat("x", 60_000) + "\n")
	for i := range 200 {
		o := &stream.Offer{Origin: &stream.Origin{Name: fmt.Sprint(i)}}
		o.Chunk.Data = line
		o.Chunk.Lines = []tail.Line{{End: uint32(len(line) - 1), Next: uint32(len(line))}}
		o.Chunk.End.Offset = int64(len(line))
		if err := j.Take(o); err != nil {
			t.Fatal(err)
		}
		if held := j.held.Load(); held > joinedBytesMax+int64(len(line)) {
			t.Fatalf("%d bytes are held", held)
		}
	}
	if taken.records < 50 {
		t.Errorf("%d records were ended", taken.records)
	}
	now = now.Add(time.Minute)
	j.look() // ends them
	now = now.Add(time.Minute)
	j.look() // forgets them
	if n := len(j.all()); n != 0 || taken.records != 200 || taken.bytes != int64(200*len(line)) {
		t.Errorf("%d origins, %+v", n, taken)
	}
}

// takes counts what is taken.
type takes struct {
	records int
	bytes   int64
}

func (x *takes) Take(o *stream.Offer) error {
	x.records += len(o.Chunk.Lines)
	x.bytes += o.Chunk.Bytes()
	for i := range o.Chunk.Lines {
		if l := &o.Chunk.Lines[i]; !bytes.HasPrefix(o.Chunk.Value(l), []byte("<14>")) {
			return fmt.Errorf("a record %.20q", o.Chunk.Value(l))
		}
	}
	return nil
}

func (x *takes) Drop(string, int64, int64) {}

func mustRunner(t *testing.T, r *rig) *runner {
	t.Helper()
	x, err := newRunner(slog.New(slog.DiscardHandler), r.pipes()[0], Config{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	return x
}
