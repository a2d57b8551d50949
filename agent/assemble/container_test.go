package assemble

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseCRI(t *testing.T) {
	const at = "2026-11-30T10:00:00.123456789Z"
	for line, want := range map[string]Part{
		at + " stdout F hello world": {Stream: []byte("stdout"), Time: []byte(at), Text: []byte("hello world")},
		at + " stderr P part":        {Stream: []byte("stderr"), Time: []byte(at), Text: []byte("part"), Partial: true},
		at + " stdout F ":            {Stream: []byte("stdout"), Time: []byte(at)},
		at + " stdout F":             {Stream: []byte("stdout"), Time: []byte(at)},
		at + " stdout P:tag  two":    {Stream: []byte("stdout"), Time: []byte(at), Text: []byte(" two"), Partial: true},
		at + " stdlog F x":           {},
		at + " stdout X x":           {},
		at + " stdout FF x":          {},
		"hello stdout F x":           {},
		at:                           {},
		"":                           {},
		`{"log":"x\n"}`:              {},
		" stdout F x":                {},
		at + " stdout":               {},
	} {
		got, ok := ParseCRI([]byte(line))
		if ok != (want.Time != nil) || string(got.Text) != string(want.Text) || string(got.Stream) != string(want.Stream) ||
			string(got.Time) != string(want.Time) || got.Partial != want.Partial {
			t.Errorf("%q: %v %+v", line, ok, got)
		}
	}
}

func TestParseDocker(t *testing.T) {
	for line, want := range map[string]string{ // text, then P for a part; "-" for none
		`{"log":"hello\n","stream":"stdout","time":"T"}`:                                       "hello",
		`{"log":"part","stream":"stderr","time":"T"}`:                                          "part P",
		`{"log":"","stream":"stderr","time":"T"}`:                                              " P",
		`{"log":"\n","stream":"stdout","time":"T"}`:                                            "",
		`{"log":"a\r\n","stream":"stdout","time":"T"}`:                                         "a",
		`{"log":"\u003ca\u003e \"q\" \\ \u00e4\ud83d\ude00\t\n","stream":"stdout"}`:            "<a> \"q\" \\ ä😀\t",
		`{"log":"\ud83dx\n","stream":"stdout"}`:                                                "\uFFFDx",
		`{"attrs":{"a":["x",1,{"}":null}],"b":true},"log":"x\n","stream":"stdout","n":-1.5e3}`: "x",
		` { "log" : "x\n" , "stream" : "stdout" } `:                                            "x",
		`{"log":"x\n"}`:                        "-",
		`{"stream":"stdout"}`:                  "-",
		`{"log":"x\n","stream":"stdout"`:       "-",
		`{"log":"x\n","stream":"stdout"} more`: "-",
		`{"log":"\q","stream":"stdout"}`:       "-",
		`{"log":"\u12g4","stream":"stdout"}`:   "-",
		`{"log":3,"stream":"stdout"}`:          "-",
		`{"log":"x\n","stream":"stdout","deep":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}": "-",
		`plain text`: "-",
		``:           "-",
	} {
		p, _, ok := ParseDocker([]byte(line), nil)
		got := string(p.Text)
		if p.Partial {
			got += " P"
		}
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// What encoding/json writes, the scanner reads.
func FuzzParseDocker(f *testing.F) {
	f.Add("hello\n", []byte(`{"log":"a\n","stream":"stdout"}`))
	f.Add("\u2028<>&\"\\", []byte(`{"log":"\ud83d`))
	f.Fuzz(func(t *testing.T, text string, junk []byte) {
		_, _, _ = ParseDocker(junk, nil)
		_, _ = ParseCRI(junk)
		line, err := json.Marshal(map[string]any{"log": text + "\n", "stream": "stdout", "time": "T", "attrs": map[string]string{"a": text}})
		if err != nil {
			t.Fatal(err)
		}
		p, _, ok := ParseDocker(line, nil)
		if !ok || p.Partial {
			t.Fatalf("%+v of %s, %v", p, line, ok)
		}
		var back struct{ Log string }
		if err := json.Unmarshal(line, &back); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(strings.TrimSuffix(back.Log, "\n"), "\r"); string(p.Text) != got {
			t.Fatalf("%q, want %q", p.Text, got)
		}
	})
}
