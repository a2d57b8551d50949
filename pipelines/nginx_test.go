package pipelines

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

func TestNginx(t *testing.T) {
	datadriven.RunTest(t, "testdata/nginx", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		e := new(Event)
		for line := range strings.SplitSeq(d.Input, "\n") {
			e.Reset([]byte(line))
			if err := parseNginx(e); err != nil {
				fmt.Fprintln(&b, err)
				continue
			}
			fmt.Fprintf(&b, "%s\n", e.AppendJSON(nil))
		}
		return b.String()
	})
}

// TestNginxTime compares the time with the standard library's, through a year
// with a leap day and the odd offsets.
func TestNginxTime(t *testing.T) {
	const layout = "[02/Jan/2006:15:04:05 -0700]"
	start := time.Date(2027, 12, 30, 23, 59, 59, 0, time.UTC)
	for i := range 500 {
		zone := time.FixedZone("", (i%27-12)*3600+i%4*15*60)
		want := start.Add(time.Duration(i) * 25 * time.Hour).In(zone)
		got, ok := nginxTimeAt([]byte(want.Format(layout)))
		if !ok || !got.Time().Equal(want) {
			t.Fatalf("%s: got %v", want.Format(layout), got.Time())
		}
		if text := string(got.AppendText(nil)); text != want.Format(time.RFC3339) {
			t.Fatalf("%s is rendered %s", want.Format(time.RFC3339), text)
		}
	}
	for _, bad := range []string{
		"[29/Feb/2026:00:00:00 +0000]", "[31/Apr/2026:00:00:00 +0000]", "[00/Jan/2026:00:00:00 +0000]",
		"[01/jan/2026:00:00:00 +0000]", "[01/Jan/2026:24:00:00 +0000]", "[01/Jan/2026:00:60:00 +0000]",
		"[01/Jan/2026:00:00:00 *0000]", "[01/Jan/2026:00:00:00 +0000", "[01/Jan/2026:00:00:00 +2400]", "[01/Jan/2026:0a:00:00 +0000]",
	} {
		if v, ok := nginxTimeAt([]byte(bad)); ok {
			t.Errorf("%s: got %v, want none", bad, v.Time())
		}
	}
}

func TestNginxAllocatesNothing(t *testing.T) {
	e := new(Event)
	lines := [][]byte{[]byte(benchLine), []byte(strings.Replace(benchLine, "Mozilla", `\x22Mozilla\"`, 1))}
	var out []byte
	allocs := testing.AllocsPerRun(100, func() {
		for _, line := range lines {
			e.Reset(line)
			if err := parseNginx(e); err != nil {
				t.Fatal(err)
			}
			out = e.AppendJSON(out[:0])
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzNginx(f *testing.F) {
	f.Add([]byte(benchLine))
	f.Add([]byte(`::1 - a b [c [30/Nov/2026:10:00:00 -0130] "\x16\x03" 400 - "-" "\"\\" "x"`))
	f.Add([]byte(`h - - [30/Nov/2026:10:00:00 +0000] "GET / HTTP/1.0" 200 5`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e := new(Event)
		e.Reset(line)
		if err := parseNginx(e); err != nil {
			if e.Len() != 0 || e.Parsed() {
				t.Fatalf("fields are left after %v", err)
			}
			return
		}
		out := e.AppendJSON(nil)
		if !json.Valid(out) {
			t.Fatalf("not JSON: %s", out)
		}
		back := new(Event)
		back.Reset(out)
		if err := back.DecodeJSON(out); err != nil {
			t.Fatal(err)
		}
		if again := back.AppendJSON(nil); string(again) != string(out) {
			t.Fatalf("changed on the way: %s to %s", out, again)
		}
	})
}
