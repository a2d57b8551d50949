package tail

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func extentOf(final bool) Extent {
	if final {
		return All
	}
	return Whole
}

// drain reads a stream to its end.
func drain(t *testing.T, s *Stream, r io.Reader) (lines []string, most int, skipped Skipped) {
	t.Helper()
	var c Chunk
	total, at := s.base+int64(s.at), s.base+int64(s.at)
	for {
		n, err := s.Read(r)
		total += int64(n)
		for s.Next(&c, extentOf(err != nil)) {
			if c.From != at {
				t.Fatalf("a chunk from %d, after one to %d", c.From, at)
			}
			sum := c.Skipped.Bytes()
			for i := range c.Lines {
				l := &c.Lines[i]
				lines = append(lines, string(c.Value(l)))
				sum += int64(l.Next - l.Start)
			}
			if sum != c.Bytes() {
				t.Fatalf("lines and skipped bytes are %d of %d", sum, c.Bytes())
			}
			at = c.End.Offset
			skipped.TooLong += c.Skipped.TooLong
			skipped.Cuts += c.Skipped.Cuts
		}
		most = max(most, len(s.buf))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if at != total || s.Partial() {
		t.Fatalf("%d of %d bytes handed over", at, total)
	}
	return lines, most, skipped
}

func TestStreamFindsLinesHoweverTheyCome(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	var want []string
	for range 5000 {
		line := strings.Repeat("x", rnd.IntN(200))
		want = append(want, line)
		text.WriteString(line + []string{"\n", "\r\n"}[rnd.IntN(2)])
	}
	text.WriteString("no end")
	want = append(want, "no end")
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(text.String()), "by bytes": iotest.OneByteReader(strings.NewReader(text.String())),
		"by halves": iotest.HalfReader(strings.NewReader(text.String())), "end with data": iotest.DataErrReader(strings.NewReader(text.String())),
	} {
		lines, _, _ := drain(t, NewStream(NewLines(1000, UTF8)), r)
		if !slices.Equal(lines, want) {
			t.Errorf("%s: %d lines, want %d", name, len(lines), len(want))
		}
	}
}

func TestStreamCutsHugeLinesInBoundedMemory(t *testing.T) {
	huge := bytes.Repeat([]byte("y"), 8<<20)
	text := append(append([]byte("before\n"), huge...), "\nafter\n"...)
	lines, most, skipped := drain(t, NewStream(NewLines(1000, UTF8)), bytes.NewReader(text))
	if want := []string{"before", strings.Repeat("y", 1000), "after"}; !slices.Equal(lines, want) {
		t.Errorf("%d lines", len(lines))
	}
	if most > StreamBytes || skipped.Cuts != 1 || skipped.TooLong != int64(len(huge)-1000+1) {
		t.Errorf("%d bytes of memory, skipped %+v", most, skipped)
	}
	// A line within the limit may be longer than a read.
	long := strings.Repeat("z", 3*StreamBytes)
	if lines, _, _ = drain(t, NewStream(NewLines(4*StreamBytes, UTF8)), strings.NewReader(long+"\nx")); len(lines) != 2 || lines[0] != long {
		t.Errorf("%d lines", len(lines))
	}
}

func TestStreamGivesMemoryBack(t *testing.T) {
	s := NewStream(NewLines(0, UTF8))
	big := strings.Repeat(strings.Repeat("x", 99)+"\n", 10_000)
	drain(t, s, strings.NewReader(big))
	if len(s.buf) != StreamBytes {
		t.Fatalf("the buffer has %d bytes after a burst", len(s.buf))
	}
	drain(t, s, iotest.OneByteReader(strings.NewReader(strings.Repeat("a\n", streamShrinkAfter))))
	if len(s.buf) != streamBytesMin {
		t.Errorf("the buffer has %d bytes after quiet", len(s.buf))
	}
}
