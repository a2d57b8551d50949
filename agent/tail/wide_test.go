package tail

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

func utf16Bytes(text string, e Encoding) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(text)) {
		if e == UTF16BE {
			out = binary.BigEndian.AppendUint16(out, u)
		} else {
			out = binary.LittleEndian.AppendUint16(out, u)
		}
	}
	return out
}

// A file in UTF-16, read as it grows byte by byte in random steps, gives the
// lines of the same file in UTF-8, and positions between them.
func TestWideIsReadLikeNarrow(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"a", "line", "ä", "\u0A0A", "\u0A00", "\U0001F600", "\r", "\r\n", "\n", "\n\n", "\x00\x00", strings.Repeat("x", 30)}
	for round := range 100 {
		text := ""
		if rnd.IntN(2) == 0 {
			text = "\uFEFF"
		}
		for range rnd.IntN(40) {
			text += pieces[rnd.IntN(len(pieces))]
		}
		text += "end\n"
		e := []Encoding{UTF16LE, UTF16BE}[round%2]
		wide, narrow := utf16Bytes(text, e), []byte(text)
		got := growing(t, wide, e, rnd)
		if want := growing(t, narrow, UTF8, rnd); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q gives %q, want %q", seed, text, got, want)
		}
	}
}

// growing reads a file that grows, going back to its position at times.
func growing(t *testing.T, content []byte, e Encoding, rnd *rand.Rand) (out []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "")
	cfg := &FileConfig{Blocks: &Blocks{}, LineBytesMax: 20, Encoding: e}
	f, err := Open(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { f.Close() }()
	for at := 0; at < len(content); {
		n := min(1+rnd.IntN(9), len(content)-at)
		add(t, path, content[at:at+n])
		at += n
		var c Chunk
		before := f.Offset()
		for o := More; o == More; {
			if o, _, err = f.Read(&c, Whole); err != nil {
				t.Fatal(err)
			}
			for i := range c.Lines {
				out = append(out, fmt.Sprintf("%q %v", c.Value(&c.Lines[i]), c.Lines[i].Cut))
			}
			c.Release()
		}
		if f.Offset() > before && rnd.IntN(3) == 0 {
			p := f.Position()
			f.Close()
			if f, err = Open(path, cfg); err != nil {
				t.Fatal(err)
			}
			if ok, err := f.Resume(p); !ok || err != nil {
				t.Fatalf("not resumed at %d: %v", p.Offset, err)
			}
		}
	}
	return out
}

func add(t *testing.T, path string, content []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// pairs is a form that makes a record of each two lines.
type pairs struct{ ends []End }

func (p *pairs) Shape(c *Chunk, end End) int {
	p.ends = append(p.ends, end)
	n := len(c.Lines) &^ 1
	if end != MayGoOn {
		n = len(c.Lines)
	}
	for i := 0; i < n; i += 2 {
		to := min(i+2, n)
		l := c.Lines[i]
		for _, x := range c.Lines[i+1 : to] {
			l.Next += x.Next - x.Start
		}
		l.Split = end == Full && to == i+1
		c.Record(l, c.Joined(i, to))
	}
	return n
}

func TestLinesLeftByAFormComeAgain(t *testing.T) {
	for _, e := range []Encoding{UTF8, UTF16LE} {
		path := filepath.Join(t.TempDir(), "f")
		text := func(s string) []byte {
			if e == UTF8 {
				return []byte(s)
			}
			return utf16Bytes(s, e)
		}
		write(t, path, string(text("\uFEFFa\r\nb\n\x00\x00c\n\x00d")))
		f, err := Open(path, &FileConfig{Blocks: &Blocks{}, LineBytesMax: 100, Encoding: e, Form: &pairs{}})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var total Skipped
		var covered int64
		read := func(extent Extent) (out []string) {
			var c Chunk
			if _, _, err := f.Read(&c, extent); err != nil {
				t.Fatal(err)
			}
			lines := int64(0)
			for i := range c.Lines {
				out = append(out, string(c.Value(&c.Lines[i])))
				lines += int64(c.Lines[i].Next - c.Lines[i].Start)
			}
			if lines+c.Skipped.Bytes() != c.Bytes() {
				t.Errorf("%d bytes of lines, %+v skipped, %d in all", lines, c.Skipped, c.Bytes())
			}
			covered += c.Bytes()
			total.NULs += c.Skipped.NULs
			total.Mark += c.Skipped.Mark
			c.Release()
			return out
		}
		if got := read(Whole); !slices.Equal(got, []string{"a\nb"}) {
			t.Errorf("read %q", got)
		}
		if got := read(Whole); got != nil {
			t.Errorf("read %q", got)
		}
		add(t, path, text("\n"))
		if got := read(Whole); !slices.Equal(got, []string{"c\nd"}) {
			t.Errorf("read %q", got)
		}
		add(t, path, text("e\nf"))
		if got := read(Whole); got != nil {
			t.Errorf("read %q", got)
		}
		if got := read(Ripe); !slices.Equal(got, []string{"e"}) {
			t.Errorf("read %q", got)
		}
		if got := read(All); !slices.Equal(got, []string{"f"}) {
			t.Errorf("read %q", got)
		}
		unit := e.unit()
		if total.NULs != 3*unit || covered != f.Seen().Size {
			t.Errorf("%d NULs, %d bytes of %d", total.NULs, covered, f.Seen().Size)
		}
	}
}

// never is a form that takes nothing of its own will.
type never struct{ pairs }

func (n *never) Shape(c *Chunk, end End) int {
	if end == MayGoOn {
		return 0
	}
	return n.pairs.Shape(c, end)
}

func TestWhatIsHeldBackIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for name, content := range map[string]string{
		"lines": strings.Repeat("x\n", 3*linesMax+1),
		"bytes": strings.Repeat(strings.Repeat("x", 999)+"\n", 3000),
	} {
		write(t, path, content)
		f, err := Open(path, &FileConfig{Blocks: &Blocks{}, LineBytesMax: 1000, Form: &never{}})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for o := More; o == More; {
			var c Chunk
			if o, _, err = f.Read(&c, Whole); err != nil {
				t.Fatal(err)
			}
			if c.Memory() > 4*BlockBytes {
				t.Fatalf("%s: a block of %d bytes", name, c.Memory())
			}
			c.Release()
		}
		if f.Unread() > int64(f.cfg.hold())+BlockBytes || f.Offset() == 0 {
			t.Errorf("%s: %d bytes held back", name, f.Unread())
		}
	}
}
