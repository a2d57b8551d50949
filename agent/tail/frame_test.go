package tail

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// frameAll frames content that becomes readable in pieces.
func frameAll(pieces []string, limit int, final bool) (lines []string, skipped Skipped) {
	f := framer{lineBytesMax: limit, linesMax: 3}
	st := frameState{atStart: true}
	var left []byte
	run := func(final bool) {
		for {
			var c Chunk
			end, more := f.frame(&c, left, 0, &st, final)
			c.Data = left
			for i := range c.Lines {
				v := string(c.Value(&c.Lines[i]))
				if c.Lines[i].Cut {
					v += "…"
				}
				if c.Lines[i].Partial {
					v += "¬"
				}
				lines = append(lines, v)
			}
			skipped.NULs += c.Skipped.NULs
			skipped.Mark += c.Skipped.Mark
			skipped.TooLong += c.Skipped.TooLong
			skipped.Late += c.Skipped.Late
			skipped.Cuts += c.Skipped.Cuts
			left = left[end:]
			if !more {
				return
			}
		}
	}
	for _, p := range pieces {
		left = append(slices.Clone(left), p...)
		run(false)
	}
	if final {
		run(true)
	}
	return lines, skipped
}

func TestFrame(t *testing.T) {
	for _, tc := range []struct {
		name   string
		pieces []string
		final  bool
		want   []string
		skip   Skipped
	}{
		{"lines", []string{"a\nb\n\nc\n"}, false, []string{"a", "b", "", "c"}, Skipped{}},
		{"line in pieces", []string{"ab", "cd\n"}, false, []string{"abcd"}, Skipped{}},
		{"unterminated is kept", []string{"a\nb"}, false, []string{"a"}, Skipped{}},
		{"unterminated is sent", []string{"a\nb"}, true, []string{"a", "b¬"}, Skipped{}},
		{"CRLF", []string{"a\r\nb\r\n"}, false, []string{"a", "b"}, Skipped{}},
		{"CRLF split", []string{"a\r", "\nb\r\n"}, false, []string{"a", "b"}, Skipped{}},
		{"CR within", []string{"a\rb\n"}, false, []string{"a\rb"}, Skipped{}},
		{"byte-order mark", []string{"\xEF\xBB\xBFa\n"}, false, []string{"a"}, Skipped{Mark: 3}},
		{"byte-order mark split", []string{"\xEF", "\xBB", "\xBFa\n"}, false, []string{"a"}, Skipped{Mark: 3}},
		{"no mark after all", []string{"\xEF", "\xBB", "a\n"}, false, []string{"\xEF\xBBa"}, Skipped{}},
		{"mark later is text", []string{"a\n\xEF\xBB\xBFb\n"}, false, []string{"a", "\xEF\xBB\xBFb"}, Skipped{}},
		{"NULs before a line", []string{"\x00\x00", "\x00a\n\x00b\n"}, false, []string{"a", "b"}, Skipped{NULs: 4}},
		{"NULs within", []string{"a\x00b\n"}, false, []string{"a\x00b"}, Skipped{}},
		{"invalid UTF-8 is kept", []string{"\xff\xfe\n"}, false, []string{"\xff\xfe"}, Skipped{}},
		{"at the limit", []string{"12345678\n12345678\r\n"}, false, []string{"12345678", "12345678"}, Skipped{}},
		{"over the limit", []string{"123456789\na\n"}, false, []string{"12345678…", "a"}, Skipped{TooLong: 2, Cuts: 1}},
		{"over the limit with CRLF", []string{"123456789\r\na\n"}, false, []string{"12345678…", "a"}, Skipped{TooLong: 3, Cuts: 1}},
		{"over the limit in pieces", []string{"12345678", "9", "0", "1\nb\n"}, false, []string{"12345678…", "b"}, Skipped{TooLong: 4, Cuts: 1}},
		{"limit and CR in pieces", []string{"12345678\r", "\nb\n"}, false, []string{"12345678", "b"}, Skipped{}},
		{"limit and other in pieces", []string{"12345678\r", "x\nb\n"}, false, []string{"12345678…", "b"}, Skipped{TooLong: 3, Cuts: 1}},
		{"rune at the limit", []string{"123456ü€\nb\n"}, false, []string{"123456ü…", "b"}, Skipped{TooLong: 4, Cuts: 1}},
		{"rune over the limit", []string{"1234567ü\nb\n"}, false, []string{"1234567…", "b"}, Skipped{TooLong: 3, Cuts: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lines, skipped := frameAll(tc.pieces, 8, tc.final)
			if !slices.Equal(lines, tc.want) || skipped != tc.skip {
				t.Errorf("got %q, %+v", lines, skipped)
			}
		})
	}
}

func TestLateNewline(t *testing.T) {
	f := framer{lineBytesMax: 8, linesMax: 10}
	for _, tc := range []struct{ rest, want string }{{"\nb\n", "b"}, {"\r\nb\n", "b"}, {"b\n", "b"}} {
		st := frameState{}
		var c Chunk
		f.frame(&c, []byte("a"), 0, &st, true)
		c = Chunk{Data: []byte(tc.rest)}
		f.frame(&c, c.Data, 0, &st, false)
		if len(c.Lines) != 1 || string(c.Value(&c.Lines[0])) != tc.want {
			t.Errorf("after %q: %d lines", tc.rest, len(c.Lines))
		}
	}
}

// FuzzFrame: however the bytes come, the lines are the same, and no byte is
// unaccounted for.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("a\r\nbc\n\n123456789\n\x00\x00x"), uint8(3))
	f.Add([]byte("\xEF\xBB\xBFa\n1234567\xe2\x82\xac\n"), uint8(1))
	f.Fuzz(func(t *testing.T, content []byte, step uint8) {
		var pieces []string
		for rest := content; len(rest) > 0; {
			n := min(int(step)+1, len(rest))
			pieces, rest = append(pieces, string(rest[:n])), rest[n:]
		}
		whole, a := frameAll([]string{string(content)}, 8, false)
		split, b := frameAll(pieces, 8, false)
		if !slices.Equal(whole, split) || a != b {
			t.Errorf("whole %q %+v, in pieces %q %+v", whole, a, split, b)
		}
		if bytes.IndexByte(content, 0) < 0 && bytes.IndexByte(content, '\r') < 0 && a.Cuts == 0 && a.Mark == 0 {
			complete := content[:bytes.LastIndexByte(content, '\n')+1]
			if got := strings.Join(append(whole, ""), "\n"); got != string(complete) {
				t.Errorf("lines %q of %q", got, complete)
			}
		}
	})
}
