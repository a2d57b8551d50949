package pipelines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func decode(t testing.TB, src string) *Event {
	t.Helper()
	e := new(Event)
	e.Reset([]byte(src))
	if err := e.DecodeJSON(e.Raw); err != nil {
		t.Fatalf("decode %s: %v", src, err)
	}
	return e
}

func TestDecodeJSONTypes(t *testing.T) {
	e := decode(t, ` { "s" : "a\u00e9\ud83d\ude00\ud800x\"\\\/\b\f\n\r\t" , "i":-5,"max":9223372036854775807,"min":-9223372036854775808,
		"u":9223372036854775808,"big":18446744073709551616,"neg":-9223372036854775809,"zero":-0,"f":1.50,"e":1e400,
		"t":true,"n":null,"l":[ 1 , {"a" : "b c\" ]"} ],"m":{},"le":[ ],"k\u0041":1} `)
	var got []string
	for i := range e.Len() {
		name, v := e.Field(i)
		got = append(got, fmt.Sprintf("%s %d %s", name, v.Kind(), v.AppendJSON(nil)))
	}
	want := []string{
		`s 5 "aé😀` + "\uFFFD" + `x\"\\/\u0008\u000c\n\r\t"`, "i 2 -5", "max 2 9223372036854775807", "min 2 -9223372036854775808",
		"u 3 9223372036854775808", "big 4 18446744073709551616", "neg 4 -9223372036854775809", "zero 4 -0", "f 4 1.50", "e 4 1e400",
		"t 1 true", "n 0 null", `l 7 [1,{"a":"b c\" ]"}]`, "m 8 {}", "le 7 []", "kA 2 1",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	v, _ := e.Get("l")
	if d := cmp.Diff([]any{int64(1), map[string]any{"a": `b c" ]`}}, v.Any()); d != "" {
		t.Error(d)
	}
}

func TestDecodeJSONErrors(t *testing.T) {
	for src, want := range map[string]string{
		``:                            "json: byte 0: want an object, {",
		`[1]`:                         "json: byte 0: want an object, {",
		`{"a":1} x`:                   "json: byte 8: want nothing after the object",
		`{"a":1`:                      "json: byte 6: want , or }",
		`{"a"}`:                       "json: byte 4: want :",
		`{a:1}`:                       "json: byte 1: want a key in quotes",
		`{"a":1,}`:                    "json: byte 7: want a key in quotes",
		`{"a":01}`:                    "json: byte 6: want , or }",
		`{"a":+1}`:                    "json: byte 5: want a value",
		`{"a":1.}`:                    "json: byte 7: want a digit",
		`{"a":1e}`:                    "json: byte 7: want a digit",
		`{"a":-}`:                     "json: byte 6: want a digit",
		`{"a":tru}`:                   "json: byte 5: want true",
		`{"a":NaN}`:                   "json: byte 5: want a value",
		`{"a":"x`:                     "json: byte 7: the string has no end",
		`{"a":"\x"}`:                  "json: byte 6: unknown escape in a string",
		`{"a":"\u12g4"}`:              "json: byte 6: unknown escape in a string",
		"{\"a\":\"\n\"}":              "json: byte 6: control character in a string",
		`{"a":[1,]}`:                  "json: byte 8: want a value",
		`{"a":[1 2]}`:                 "json: byte 8: want , or the end of the list or object",
		`{"a":{"b" 1}}`:               "json: byte 10: want :",
		`{"a":{1:1}}`:                 "json: byte 6: want a key in quotes",
		`{"a":[}`:                     "json: byte 6: want a value",
		`{"a":[1}`:                    "json: byte 7: want , or the end of the list or object",
		`{"a":` + nest(129) + `}`:     "json: byte 133: nested more than 128 deep",
		`{` + manyFields(1025) + `}`:  "json: byte 8115: more than 1024 fields",
		`{"a":` + nest(128)[:200]:     "json: byte 205: want , or the end of the list or object",
		`{"a":{"b":[1,{"c":"d\q"}]}}`: "json: byte 20: unknown escape in a string",
	} {
		e := new(Event)
		e.Reset([]byte(src))
		err := e.DecodeJSON(e.Raw)
		if err == nil || err.Error() != want {
			if len(src) > 100 {
				src = src[:100]
			}
			t.Errorf("%s: %v, want %s", src, err, want)
		}
		if e.Len() != 0 || e.Parsed() {
			t.Errorf("%s: fields are left", src)
		}
	}
	decode(t, `{"a":`+nest(128)+`}`)
	decode(t, `{`+manyFields(1024)+`}`)
}

func nest(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func manyFields(n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(`"%d":1`, i)
	}
	return strings.Join(parts, ",")
}

// TestDecodeJSONShapes decodes events of changing shapes with one Event: what
// it remembers of one must not show in the next.
func TestDecodeJSONShapes(t *testing.T) {
	e := new(Event)
	for _, c := range []struct{ in, out string }{
		{`{"a":1,"b":2,"c":3}`, `{"a":1,"b":2,"c":3}`},
		{`{"a":1}`, `{"a":1}`},
		{`{"c":1,"b":2,"c":3}`, `{"c":3,"b":2}`},
		{`{"a":1,"a":2,"a":3}`, `{"a":3}`},
		{`{"a":1,"b":2,"b":3,"a":4}`, `{"a":4,"b":3}`},
		{`{}`, `{}`},
		{`{"a":1,"b":2,"b":3}`, `{"a":1,"b":3}`},
	} {
		e.Reset([]byte(c.in))
		if err := e.DecodeJSON(e.Raw); err != nil {
			t.Fatal(err)
		}
		if got := string(e.AppendJSON(nil)); got != c.out {
			t.Errorf("%s: got %s, want %s", c.in, got, c.out)
		}
	}
}

func TestEventFields(t *testing.T) {
	e := decode(t, `{"a":1,"b":2,"c":3}`)
	e.Set("b", StringOf("x"))
	e.Delete("a")
	e.Delete("none")
	e.Set("d", Float(1))
	if got, want := string(e.AppendJSON(nil)), `{"b":"x","c":3,"d":1.0}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, ok := e.Get("a"); ok {
		t.Error("a is still there")
	}
}

// TestAppendJSONIsValid: whatever the bytes, the output is one line of JSON
// that says the same, with U+FFFD for what is not UTF-8.
func TestAppendJSONIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name, value := string(rapid.SliceOf(rapid.Byte()).Draw(t, "name")), rapid.SliceOf(rapid.Byte()).Draw(t, "value")
		e := new(Event)
		e.Reset(nil)
		e.Set(name, String(value))
		out := e.AppendJSON(nil)
		var got map[string]string
		if err := json.Unmarshal(out, &got); err != nil || bytes.ContainsAny(out, "\n\r") || !utf8.Valid(out) {
			t.Fatalf("%q: %v", out, err)
		}
		// Each byte that is not UTF-8 is one U+FFFD, as in encoding/json.
		if want := string([]rune(string(value))); got[string([]rune(name))] != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

func TestAppendJSONNumbersAndTimes(t *testing.T) {
	zone := time.FixedZone("", -5*3600-30*60)
	for want, v := range map[string]Value{
		"0.0":                          Float(0),
		"-1.5":                         Float(-1.5),
		"1e+21":                        Float(1e21),
		"1e-07":                        Float(1e-7),
		"null":                         Float(math.NaN()),
		"18446744073709551615":         Uint(math.MaxUint64),
		"7":                            Uint(7),
		`"2026-11-30T10:00:00Z"`:       Time(time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)),
		`"2026-11-30T10:00:00-05:30"`:  Time(time.Date(2026, 11, 30, 10, 0, 0, 0, zone)),
		`"2026-11-30T10:00:00.00012Z"`: Time(time.Date(2026, 11, 30, 10, 0, 0, 120_000, time.UTC)),
		`"0001-01-01T00:00:00Z"`:       Time(time.Time{}),
		`"1969-12-31T23:59:59Z"`:       Time(time.Unix(-1, 0).UTC()),
		`"2026-11-30T10:00:10Z"`:       Time(time.Date(2026, 11, 30, 10, 0, 20, 0, time.FixedZone("", 10))),
	} {
		if got := string(v.AppendJSON(nil)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestTimeText compares rendering and reading of times with the standard library.
func TestTimeText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Int64Range(timeSecondsMin+secondsPerDay, timeSecondsMax-secondsPerDay).Draw(t, "seconds")
		nsec := rapid.Int64Range(0, 999_999_999).Draw(t, "nsec")
		zone := rapid.IntRange(-23*60, 23*60).Draw(t, "minutes") * 60
		want := time.Unix(seconds, nsec).In(time.FixedZone("", zone))
		v := Time(want)
		text := string(v.AppendText(nil))
		if zone != 0 && text != want.Format(time.RFC3339Nano) || zone == 0 && text != want.UTC().Format(time.RFC3339Nano) {
			t.Fatalf("%s is rendered %s", want, text)
		}
		back, err := StringOf(text).ToTime()
		if err != nil || !back.Equal(want) {
			t.Fatalf("%s is read %s, %v", text, back, err)
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"c\u0041"}],"d":1.5e3,"a":null,"\ud800":"` + "\xff" + `"}`))
	f.Add([]byte(` { "a" : { "x" : [ ] } } `))
	f.Fuzz(func(t *testing.T, src []byte) {
		e := new(Event)
		e.Reset(src)
		err := e.DecodeJSON(src)
		trimmed := bytes.TrimLeft(src, " \t\r\n")
		limited := len(src) > 100 // limits of our own may apply
		if valid := json.Valid(src) && len(trimmed) > 0 && trimmed[0] == '{'; valid != (err == nil) && !limited {
			t.Fatalf("valid %v, but %v", valid, err)
		}
		if err != nil {
			return
		}
		out := e.AppendJSON(nil)
		if !json.Valid(out) || !utf8.Valid(out) || bytes.ContainsAny(out, "\n\r") {
			t.Fatalf("not one line of JSON: %q", out)
		}
		if same := e.Verbatim(); same != nil && !bytes.Equal(same, out) {
			t.Fatalf("verbatim %q, written %q", same, out)
		}
		back := new(Event)
		back.Reset(out)
		if err := back.DecodeJSON(out); err != nil {
			t.Fatal(err)
		}
		if again := back.AppendJSON(nil); back.Len() == e.Len() && !bytes.Equal(again, out) {
			t.Fatalf("changed on the way: %s to %s", out, again)
		}
		for i := range e.Len() {
			_, v := e.Field(i)
			v.Any()
			v.ToInt64()
			v.ToUint(8)
			v.ToFloat64()
			v.ToFloat32()
			v.ToBool()
			v.ToTime()
			v.AppendText(nil)
		}
	})
}

// TestNamesOfTheEventBefore: a key is taken for that of the event before only when it is that key.
func TestNamesOfTheEventBefore(t *testing.T) {
	var e Event
	for _, c := range []struct{ in, out string }{
		{`{"a":1,"b":2,"a\\n":3}`, `{"a":1,"b":2,"a\\n":3}`},
		{`{"a":1,"b":2,"a\n":3}`, `{"a":1,"b":2,"a\n":3}`}, // in bytes the name of before
		{`{"a" :4, "b": 5}`, `{"a":4,"b":5}`},
		{`{"a":6}`, `{"a":6}`},
		{`{"a":7,"b":8,"c":9}`, `{"a":7,"b":8,"c":9}`},
		{`{"a":1,"a":2,"c":3}`, `{"a":2,"c":3}`},
		{`{"ab":1,"b":2}`, `{"ab":1,"b":2}`},
		{`{"ab\"":1}`, `{"ab\"":1}`},
		{`{"ab":1}`, `{"ab":1}`},
	} {
		e.Reset([]byte(c.in))
		if err := e.DecodeJSON(e.Raw); err != nil {
			t.Errorf("%s: %v", c.in, err)
		} else if got := string(e.AppendJSON(nil)); got != c.out {
			t.Errorf("%s: %s, want %s", c.in, got, c.out)
		}
	}
	for _, bad := range []string{`{"ab`, `{"ab"`, `{"ab":`, `{"ab":}`, `{"ab":1`, `{"ab\":1}`} {
		e.Reset([]byte(bad))
		if err := e.DecodeJSON(e.Raw); err == nil || e.Len() != 0 {
			t.Errorf("%s: %v, %d fields", bad, err, e.Len())
		}
	}
}

// TestVerbatim: an event is its own JSON exactly as long as AppendJSON would write that.
func TestVerbatim(t *testing.T) {
	var e Event
	for _, c := range []struct {
		in   string
		same bool
	}{
		{`{"a":1,"b":"x","c":[1,{"d":null}],"e":1.50,"f":true}`, true},
		{`{}`, true}, {`{"a":-0}`, true}, {`{"a":12345678901234567890123}`, true}, {`{"n":{"s":"\/"}}`, true}, {`{"a":"é"}`, true},
		{`{"a": 1}`, false}, {`{"a":1} `, false}, {` {"a":1}`, false}, {`{"a":[1, 2]}`, false}, {`{"a":"\/"}`, false}, {`{"\u0061":1}`, false},
		{`{"a":1,"b":2,"a":3}`, false}, {"{\"a\":\"\xff\"}", false}, {"{\"a\":[\"\xff\"]}", false},
	} {
		e.Reset([]byte(c.in))
		if err := e.DecodeJSON(e.Raw); err != nil {
			t.Fatal(c.in, err)
		}
		out := string(e.AppendJSON(nil))
		if got := e.Verbatim(); (got != nil) != c.same || got != nil && string(got) != out {
			t.Errorf("%s: %q, and AppendJSON writes %s", c.in, got, out)
		}
	}
	for what, change := range map[string]func(){"set": func() { e.Set("a", Int(2)) }, "delete": func() { e.Delete("a") }, "add": func() { e.Set("z", Int(2)) }, "reset": func() { e.Reset(nil) }} {
		e.Reset([]byte(`{"a":1}`))
		if err := e.DecodeJSON(e.Raw); err != nil {
			t.Fatal(err)
		}
		if change(); e.Verbatim() != nil {
			t.Errorf("%s: %q", what, e.Verbatim())
		}
	}
}
