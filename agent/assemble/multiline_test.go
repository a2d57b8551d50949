package assemble

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func pattern(t testing.TB, expr string) *Pattern {
	t.Helper()
	if expr == "" {
		return nil
	}
	negate := strings.HasPrefix(expr, "!")
	p, err := NewPattern(strings.TrimPrefix(expr, "!"), negate)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// join puts lines through a joiner and flushes it.
func join(cfg Config, lines ...string) (out []string, splits int) {
	j := NewJoiner(cfg)
	take := func(r Record) {
		out = append(out, string(r.Text))
		if r.Split {
			splits++
		}
	}
	at := int64(0)
	for _, l := range lines {
		j.Add([]byte(l), at, at+int64(len(l))+1, take)
		at += int64(len(l)) + 1
	}
	j.Flush(take)
	return out, splits
}

func TestPatterns(t *testing.T) {
	for name, tc := range map[string]struct {
		start, cont, end string
		lines            string
		want             string // records separated by |
	}{
		"start":                {start: `^\d`, lines: "1 a/b/c/2 d/3 e/f", want: "1 a/b/c|2 d|3 e/f"},
		"before the first":     {start: `^\d`, lines: "x/y/1 a", want: "x/y|1 a"},
		"start negated":        {start: `!^\s`, lines: "a/ b/ c/d", want: "a/ b/ c|d"},
		"continue":             {cont: `^\s`, lines: "a/ b/ c/d/e", want: "a/ b/ c|d|e"},
		"continue comes first": {cont: `^\s`, lines: " b/ c/d", want: " b/ c|d"},
		"end":                  {end: `;$`, lines: "a/b;/c;/d/e", want: "a/b;|c;|d/e"},
		"end negated":          {end: `!\\$`, lines: `a\/b\/c/d/e\`, want: `a\/b\/c|d|e\`},
		"start and continue":   {start: `^E`, cont: `^\s`, lines: "E a/ b/x/ y/E c/ d", want: "E a/ b|x| y|E c/ d"},
		"continue before start": {start: `^\S`, cont: `^(\s|Caused)`,
			lines: "E/ at/Caused by/ at/E", want: "E/ at/Caused by/ at|E"},
		"start and end": {start: `^\{$`, end: `^\}$`, lines: "x/{/a/}/y/{/}/{/b/{/c/}", want: "x|{/a/}|y|{/}|{/b|{/c/}"},
		"all three":     {start: `^B`, cont: `^\s`, end: `^\s*E`, lines: "B/ x/ E/ y/B/ z/q", want: "B/ x/ E| y|B/ z|q"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Start: pattern(t, tc.start), Continue: pattern(t, tc.cont), End: pattern(t, tc.end)}
			got, _ := join(cfg, strings.Split(tc.lines, "/")...)
			if text := strings.ReplaceAll(strings.Join(got, "|"), "\n", "/"); text != tc.want {
				t.Errorf("records %s, want %s", text, tc.want)
			}
		})
	}
}

func TestLimitsSplit(t *testing.T) {
	cfg := Config{Continue: pattern(t, `^\s`), LinesMax: 3}
	got, splits := join(cfg, "a", " 1", " 2", " 3", " 4", " 5", " 6", "b")
	if want := []string{"a\n 1\n 2", " 3\n 4\n 5", " 6", "b"}; !slices.Equal(got, want) || splits != 2 {
		t.Errorf("records %q with %d splits, want %q", got, splits, want)
	}
	cfg = Config{Continue: pattern(t, `^\s`), BytesMax: 7}
	got, splits = join(cfg, "abc", " de", " f", "0123456789", " g")
	if want := []string{"abc\n de", " f", "0123456789", " g"}; !slices.Equal(got, want) || splits != 2 {
		t.Errorf("records %q with %d splits, want %q", got, splits, want)
	}
}

func TestPlacesOfRecords(t *testing.T) {
	j := NewJoiner(Config{Start: pattern(t, `^\d`)})
	var got []string
	take := func(r Record) { got = append(got, fmt.Sprintf("%d-%d %d", r.From, r.To, r.Lines)) }
	j.Add([]byte("1"), 10, 12, take)
	j.Add([]byte("x"), 12, 14, take)
	if from, ok := j.Held(); !ok || from != 10 {
		t.Errorf("held from %d, %v", from, ok)
	}
	j.Add([]byte("2"), 14, 16, take)
	j.Flush(take)
	if want := []string{"10-14 2", "14-16 1"}; !slices.Equal(got, want) {
		t.Errorf("places %q, want %q", got, want)
	}
	if _, ok := j.Held(); ok {
		t.Error("a flushed joiner holds a line")
	}
}

var traces = map[Preset][]string{
	PresetJava: {
		"2026-11-30 10:00:00 ERROR request failed\njava.lang.IllegalStateException: no session\n\tat shop.Cart.open(Cart.java:12)\n\tat shop.Main.main(Main.java:3)\n" +
			"Caused by: java.io.IOException\n\tat shop.Store.read(Store.java:99)\n\t... 12 more\n\tSuppressed: java.lang.RuntimeException: x\n\t\tat a.B.c(B.java:1)",
		"2026-11-30 10:00:01 INFO fine",
	},
	PresetPython: {
		"ERROR:root:failed\nTraceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f()\nKeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n" +
			"Traceback (most recent call last):\n  File \"a.py\", line 5, in <module>\n    g()\nshop.errors.CartError: no",
		"INFO:root:fine",
	},
	PresetGo: {
		"panic: runtime error: index out of range [3] with length 2\n[signal SIGSEGV: segmentation violation code=0x1]\n\ngoroutine 1 [running]:\nmain.(*cart).open(0xc000012345, 0x3)\n" +
			"\t/src/cart.go:12 +0x1d\nmain.main()\n\t/src/main.go:7 +0x25\ncreated by main.start in goroutine 1\n\t/src/main.go:3 +0x11\nexit status 2",
		"2026/11/30 10:00:00 listening",
	},
}

func TestPresets(t *testing.T) {
	for preset, want := range traces {
		t.Run(string(preset), func(t *testing.T) {
			cfg, ok := PresetConfig(preset)
			if !ok {
				t.Fatal("no such preset")
			}
			want := append([]string{want[1]}, append(want, want[1])...)
			if preset == PresetGo { // a panic begins a record of its own after what is no part of it
				want = append(traces[preset], want[1], want[1])
			}
			got, _ := join(cfg, strings.Split(strings.Join(want, "\n"), "\n")...)
			if !slices.Equal(got, want) {
				t.Errorf("records\n%q, want\n%q", got, want)
			}
		})
	}
	if _, ok := PresetConfig("cobol"); ok {
		t.Error("a preset of no language")
	}
}
