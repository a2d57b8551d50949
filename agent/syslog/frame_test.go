package syslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sluice-io/sluice/agent/tail"
)

// messages reads a connection to its end and checks that every byte is accounted for.
func messages(t testing.TB, r io.Reader, limit int) (out []string, skipped tail.Skipped) {
	s := tail.NewStream(newFraming(limit))
	var c tail.Chunk
	total, sum := int64(0), int64(0)
	for {
		n, err := s.Read(r)
		total += int64(n)
		extent := tail.Whole
		if err != nil {
			extent = tail.All
		}
		for s.Next(&c, extent) {
			for i := range c.Lines {
				l := &c.Lines[i]
				text := string(c.Value(l))
				if l.Cut {
					text += "|cut"
				}
				out = append(out, text)
				sum += int64(l.Next - l.Start)
			}
			sum += c.Skipped.Bytes()
			skipped.TooLong += c.Skipped.TooLong
			skipped.Cuts += c.Skipped.Cuts
			skipped.Frame += c.Skipped.Frame
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if sum != total {
		t.Fatalf("%d of %d bytes are accounted for", sum, total)
	}
	return out, skipped
}

func TestFraming(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"nothing", "", nil},
		{"by newlines", "<1>a\r\n<2>b\n<3>no end", []string{"<1>a", "<2>b", "<3>no end"}},
		{"counted", "4 <1>a6 <2>b\nc4 <3>d", []string{"<1>a", "<2>b\nc", "<3>d"}},
		{"counted, with newlines between and within", "5 <1>a\n\n4 <2>b\r\n4 <3>c", []string{"<1>a", "<2>b", "<3>c"}},
		{"a line that begins with digits", "2026-11-30 h a: b\n12 x\n", []string{"2026-11-30 h a: b", "12 x"}},
		{"digits alone", "123", []string{"123"}},
		{"a length alone", "12 ", []string{"12 "}},
		{"half a frame at the end", "4 <1>a10 <2>b", []string{"<1>a", "<2>b|cut"}},
		{"half a length at the end", "4 <1>a10", []string{"<1>a", "10"}},
		{"garbage where a length should be", "4 <1>a<2>b\n4 <3>c\n", []string{"<1>a", "<2>b", "4 <3>c"}},
		{"a length that is none", "4 <1>a999999999 <2>b\n<3>c\n", []string{"<1>a", "999999999 <2>b", "<3>c"}},
		{"a length of nothing", "4 <1>a0 x\n", []string{"<1>a", "0 x"}},
		{"a huge frame", "100 <1>" + strings.Repeat("x", 97) + "4 <2>b", []string{"<1>" + strings.Repeat("x", 17) + "|cut", "<2>b"}},
		{"a huge line", "<1>" + strings.Repeat("x", 97) + "\n<2>b\n", []string{"<1>" + strings.Repeat("x", 17) + "|cut", "<2>b"}},
		{"NUL at the end", "5 <1>a\x004 <2>b", []string{"<1>a", "<2>b"}},
	} {
		for how, r := range map[string]io.Reader{"at once": strings.NewReader(c.in), "by bytes": iotest.OneByteReader(strings.NewReader(c.in))} {
			if got, _ := messages(t, r, 20); !slices.Equal(got, c.want) {
				t.Errorf("%s, %s: %q, want %q", c.name, how, got, c.want)
			}
		}
	}
}

func TestFramingOfAHugeFrameTakesBoundedMemory(t *testing.T) {
	frame := fmt.Sprintf("%d <1>%s", 3+(8<<20), strings.Repeat("x", 8<<20)) + "4 <2>b"
	got, skipped := messages(t, strings.NewReader(frame), 1000)
	if len(got) != 2 || got[1] != "<2>b" || skipped.Cuts != 1 || skipped.TooLong != 3+(8<<20)-1000 {
		t.Errorf("%d messages, skipped %+v", len(got), skipped)
	}
}

// However the bytes come, the messages are the same.
func FuzzFraming(f *testing.F) {
	for _, seed := range []string{"4 <1>a6 <2>b\nc", "<1>a\n<2>b", "4 <1>axx", "12345678901 <", "9 <1>\x00\r\n\n"} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		whole, _ := messages(t, bytes.NewReader(in), 16)
		parts, _ := messages(t, &steps{in: in, step: max(step, 1)}, 16)
		if !slices.Equal(whole, parts) {
			t.Fatalf("%q and %q", whole, parts)
		}
	})
}

// steps reads some bytes at a time.
type steps struct {
	in   []byte
	step int
}

func (s *steps) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), s.step)], s.in)
	s.in = s.in[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
