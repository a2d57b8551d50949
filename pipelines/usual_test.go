package pipelines

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// decoded is all that comes of a text. An event that is new has no names to expect, so that it reads each member in the general way.
func decoded(e *Event, src string) string {
	e.Reset([]byte(src))
	err := e.DecodeJSON(e.Raw)
	out := fmt.Sprintf("error %v, parsed %t, verbatim %q\n", err, e.Parsed(), e.Verbatim())
	for i := range e.Len() {
		name, v := e.Field(i)
		out += fmt.Sprintf("%q: kind %d number %d zone %d nsec %d text %q (nil %t)\n", name, v.kind, v.num, v.zone, v.nsec, v.text, v.text == nil)
	}
	return out
}

// sameTwice compares the usual way with the general one, also for the record behind.
func sameTwice(t *testing.T, before, src string) {
	t.Helper()
	e := new(Event)
	decoded(e, before)
	for range 2 {
		if d := cmp.Diff(decoded(new(Event), src), decoded(e, src)); d != "" {
			t.Fatalf("%q behind %q: -general +usual\n%s", src, before, d)
		}
	}
}

const usualRecord = `{"ts":"2026-11-30T10:00:00.123Z","host":"web-1","status":200,"zero":0,"seconds":0.25,"agent":"Mozilla/5.0 (X11; Linux)","n":123456789012345678}`

func FuzzRepeat(f *testing.F) {
	f.Add(usualRecord, usualRecord)
	f.Add(usualRecord, `{"ts":"","host":"a\"b","status":-1,"zero":00,"seconds":1.,"agent":null,"n":1234567890123456789}`)
	f.Add(`{"a":1,"b":"x"}`, `{"a":1.5e3,"b":"`+"\x01"+`"}`)
	f.Add(`{"a":1,"b":"x"}`, `{"a":1,"b":"x"`)
	f.Add(`{"a":1,"b":"x"}`, `{"a":1,"b":"x","b":"y"}`)
	f.Fuzz(func(t *testing.T, before, src string) { sameTwice(t, before, src) })
}

// mutated changes some bytes of a text, mostly to those that mean something in it.
func mutated(r *rand.Rand, text, bytes string) string {
	b := []byte(text)
	for range 1 + r.IntN(3) {
		at := r.IntN(len(b))
		switch r.IntN(4) {
		case 0:
			b = append(b[:at], b[at+1:]...)
		case 1:
			b = append(b[:at], append([]byte{bytes[r.IntN(len(bytes))]}, b[at:]...)...)
		default:
			b[at] = bytes[r.IntN(len(bytes))]
		}
		if len(b) == 0 {
			return ""
		}
	}
	return string(b)
}

func TestRepeatIsAsTheGeneralWay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		sameTwice(t, usualRecord, mutated(r, usualRecord, "\"\\:,.{}[]01289eE-+ \n\x01\x80tnu"))
	}
}

// TestRepeatIsUsed: the comparison would be of nothing if the usual way were never taken.
func TestRepeatIsUsed(t *testing.T) {
	e := new(Event)
	decoded(e, usualRecord)
	e.Reset([]byte(usualRecord))
	d := decoder{src: e.Raw, pos: 1, event: e, same: true}
	if !d.repeat() || d.pos != len(usualRecord)-len(`,"n":123456789012345678}`)+len(`,"n":123456789012345678`) || e.Len() != 7 {
		t.Errorf("stopped at byte %d of %d with %d fields", d.pos, len(usualRecord), e.Len())
	}
}

var momentShape = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([zZ]|[+-]\d\d:\d\d)$`)

// TestTimesAsTheLibraryHasThem compares with time.Parse.
func TestTimesAsTheLibraryHasThem(t *testing.T) {
	r, good := rand.New(rand.NewPCG(3, 4)), 0
	for _, from := range []string{"2026-11-30T10:00:00.123Z", "2024-02-29 23:59:59+01:30", "0000-01-01t00:00:00z", "9999-12-31T23:59:59.999999999-23:59"} {
		for range 20_000 {
			text := mutated(r, from, "0123456789-:.TtZz +/")
			want, err := time.Parse(time.RFC3339Nano, strings.ToUpper(strings.Replace(text, " ", "T", 1)))
			ok := err == nil && momentShape.MatchString(text)
			if n := len(text); ok && n > 6 && (text[n-2:] == "60" || text[n-5:n-3] == "24") { // the library takes zones of 24 hours and 60 minutes
				continue
			}
			seconds, nsec, zone, got := parseMoment([]byte(text))
			if got != ok {
				t.Fatalf("%q: %t, the library says %v", text, got, err)
			}
			if !ok {
				continue
			}
			good++
			if _, z := want.Zone(); seconds != want.Unix() || nsec != int64(want.Nanosecond()) || zone != int64(z) {
				t.Fatalf("%q: %d.%09d zone %d, want %s", text, seconds, nsec, zone, want)
			}
			v := StringOf(text)
			if s, n, ok := v.UsualTime(); !ok || s != seconds || n != nsec {
				t.Fatalf("%q: %d.%09d, %t", text, s, n, ok)
			}
		}
	}
	if good < 1000 {
		t.Errorf("only %d times were times", good)
	}
}

var nginxShape = regexp.MustCompile(`^\[\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\]$`)

// TestTimesOfNginx compares with time.Parse.
func TestTimesOfNginx(t *testing.T) {
	r, good := rand.New(rand.NewPCG(5, 6)), 0
	for range 40_000 {
		text := mutated(r, "[28/Feb/2024:10:09:59 +0130]", "0123456789[]/: +-FebJun")
		want, err := time.Parse("[02/Jan/2006:15:04:05 -0700]", text)
		got, ok := nginxTimeAt([]byte(text))
		// Only this takes a leap second, and only the library zones of 24 hours and 60 minutes.
		if !nginxShape.MatchString(text) || text[19:21] == "60" || text[23:25] == "24" || text[25:27] == "60" {
			continue
		}
		if ok != (err == nil) {
			t.Fatalf("%q: %t, the library says %v", text, ok, err)
		}
		if ok {
			good++
			if !got.Time().Equal(want) {
				t.Fatalf("%q: %s, want %s", text, got.Time(), want)
			}
		}
	}
	if good < 1000 {
		t.Errorf("only %d times were times", good)
	}
}

func TestUsualFloat(t *testing.T) {
	r, used := rand.New(rand.NewPCG(7, 8)), 0
	for range 50_000 {
		text := mutated(r, []string{"0.034", "123.456789", "99999999999999.9", "0.00000000000001", "7.0"}[r.IntN(5)], "0123456789.eE-+")
		if !isNumber([]byte(text)) {
			continue
		}
		v := numberOf([]byte(text))
		got, ok := v.UsualFloat()
		if !ok {
			continue
		}
		used++
		if want, err := v.ToFloat64(); err != nil || math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%s: %v, want %v, %v", text, got, want, err)
		}
	}
	if used < 10_000 {
		t.Errorf("only %d numbers were usual", used)
	}
}
