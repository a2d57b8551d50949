package tail

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readAll reads until idle.
func readAll(t *testing.T, f *File) (lines []string, o Outcome, lost int64) {
	t.Helper()
	for {
		var c Chunk
		o, lost, err := f.Read(&c, Whole)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.Lines {
			lines = append(lines, string(c.Value(&c.Lines[i])))
		}
		c.Release()
		if o != More {
			return lines, o, lost
		}
	}
}

func openAt(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path, &FileConfig{Blocks: &Blocks{}, LineBytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestReadVerifiesWhatIsBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, tc := range []struct {
		name, before, after string
		want                Outcome
	}{
		{"grown", "one\ntwo\n", "one\ntwo\nthree\n", Idle},
		{"unchanged", "one\ntwo\n", "one\ntwo\n", Idle},
		{"shorter", "one\ntwo\n", "one\n", Truncated},
		{"empty", "one\ntwo\n", "", Truncated},
		{"same size", "one\ntwo\n", "one\nTWO\n", Rewritten},
		{"larger", "one\ntwo\n", "uno\ndue\ntre\n", Rewritten},
		{"same end", "one" + strings.Repeat("x", 200) + "\n", "ONE" + strings.Repeat("x", 200) + "\n", Rewritten},
	} {
		t.Run(tc.name, func(t *testing.T) {
			write(t, path, tc.before)
			f := openAt(t, path)
			readAll(t, f)
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			write(t, path, tc.after)
			if _, o, _ := readAll(t, f); o != tc.want {
				t.Errorf("outcome %d, want %d", o, tc.want)
			}
		})
	}
}

func TestLostBytesAreThoseSeenAndNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "one\nunfinished")
	f := openAt(t, path)
	readAll(t, f)
	write(t, path, "x\n")
	if _, o, lost := readAll(t, f); o != Truncated || lost != int64(len("unfinished")) {
		t.Errorf("outcome %d, lost %d", o, lost)
	}
	f.Reset()
	if lines, _, _ := readAll(t, f); len(lines) != 1 || lines[0] != "x" {
		t.Errorf("then %q", lines)
	}
}

func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var text strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&text, "line %d of a file longer than its head\n", i)
	}
	write(t, path, text.String())
	f := openAt(t, path)
	readAll(t, f)
	p := f.Position()
	write(t, path, text.String()+"more\n")
	g := openAt(t, path)
	if ok, err := g.Resume(p); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if lines, _, _ := readAll(t, g); len(lines) != 1 || lines[0] != "more" {
		t.Errorf("resumed to %q", lines)
	}
	for name, other := range map[string]string{
		"other head": "LINE" + text.String()[4:],
		"other tail": text.String()[:text.Len()-5] + "HEAD\n",
		"shorter":    text.String()[:text.Len()-1],
	} {
		write(t, path, other)
		if ok, err := openAt(t, path).Resume(p); ok || err != nil {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
}

func TestLongLinesAcrossBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var want []string
	for _, n := range []int{10, BlockBytes - 200, BlockBytes, BlockBytes + 1, 3 * BlockBytes, 1<<20 - 1, 1 << 20, 7} {
		want = append(want, strings.Repeat("x", n))
	}
	write(t, path, strings.Join(want, "\n")+"\n")
	f := openAt(t, path)
	got, _, _ := readAll(t, f)
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("line %d has %d bytes, want %d", i, len(got[i]), len(want[i]))
		}
	}
}

func TestSkipToEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, tc := range []struct {
		content string
		want    int64
	}{
		{"", 0}, {"a\n", 2}, {"a\nhalf", 2}, {"half", 0},
		{"a\n" + strings.Repeat("x", 9000), 2}, {"a\n" + strings.Repeat("x", 3<<20), 2 + 3<<20},
	} {
		write(t, path, tc.content)
		f := openAt(t, path)
		if err := f.SkipToEnd(); err != nil || f.Offset() != tc.want {
			t.Errorf("of %d bytes: offset %d, want %d (%v)", len(tc.content), f.Offset(), tc.want, err)
		}
	}
}

func TestNoAllocationPerLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeAccessLog(t, path, 20_000)
	f := openAt(t, path)
	var c Chunk
	read := func() {
		f.Reset()
		for {
			o, _, err := f.Read(&c, Whole)
			if err != nil {
				t.Fatal(err)
			}
			c.Release()
			if o != More {
				return
			}
		}
	}
	read()
	if n := testing.AllocsPerRun(5, read); n > 200 {
		t.Errorf("%v allocations for 20,000 lines", n)
	}
}

// What is not terminated, or may go on, is taken at the end of the file alone: where a block ends there is more.
func TestExtentHoldsAtTheEndOfTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	long := strings.Repeat("x", 3*blockBytesMin) // longer than the block
	write(t, path, long+"\nanother one\nunfinished")
	for _, extent := range []Extent{Ripe, All} {
		f := openAt(t, path)
		var got []string
		for range 20 {
			c := Chunk{BytesMax: 8}
			o, _, err := f.Read(&c, extent)
			if err != nil {
				t.Fatal(err)
			}
			for i := range c.Lines {
				got = append(got, string(c.Value(&c.Lines[i])))
			}
			c.Release()
			if o == Idle {
				break
			}
		}
		want := []string{long, "another one"}
		if extent == All {
			want = append(want, "unfinished")
		}
		if !slices.Equal(got, want) {
			t.Errorf("extent %d: %d lines, the first of %d bytes", extent, len(got), len(got[0]))
		}
	}
}
