package tail

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func nuls(n int) string { return strings.Repeat("\x00", n) }

// Contents that begin with a hole and end in one are told apart by what lies between.
func TestHolesAtBothEnds(t *testing.T) {
	content := func(between string) string { return nuls(5000) + between + nuls(300) }
	a, b := strings.NewReader(content("line 1\n")), strings.NewReader(content("line 2\n"))
	p, err := EndOf(a, a.Size())
	if err != nil {
		t.Fatal(err)
	}
	old := p // of an earlier version
	old.Tail = sumOf([]byte(nuls(windowBytes)))
	for name, tc := range map[string]struct {
		p    Position
		r    *strings.Reader
		want bool
	}{
		"itself": {p, a, true}, "another": {p, b, false}, "only NULs": {p, strings.NewReader(nuls(int(a.Size()))), false},
		"of an earlier version": {old, a, true},
	} {
		if got, err := tc.p.Matches(tc.r); got != tc.want || err != nil {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

// A file is emptied and gets a hole again, larger, before it is looked at.
func TestHoleAfterAHole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	write := func(content string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Unix(1_800_000_000, 0)
	before, after := nuls(5000)+"line 1\n"+nuls(300), nuls(6000)+"line 2\n"
	write(before, began)
	cfg := &FileConfig{Blocks: &Blocks{}}
	for name, prepare := range map[string]func(*File) *File{
		"followed": func(f *File) *File { return f },
		"resumed": func(f *File) *File {
			again, err := Open(path, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := again.Resume(f.Position()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			return again
		},
	} {
		write(before, began)
		f, err := Open(path, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var c Chunk
		if o, _, err := f.Read(&c, Whole); o != Idle || err != nil || c.End.Offset != int64(len(before)) {
			t.Fatal(name, o, c.End, err)
		}
		c.Release()
		g := prepare(f)
		write(after, began.Add(time.Second))
		if o, _, err := g.Read(&c, Whole); o != Rewritten || err != nil {
			t.Errorf("%s: %v %v", name, o, err)
		}
		f.Close()
		g.Close()
	}
}

// However a content is passed over, piece by piece or not at all, its positions are the same.
func TestPositionsOfHoles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "a.log")
	for range 200 {
		var b strings.Builder
		for range 1 + rnd.IntN(8) {
			b.WriteString(strings.Repeat("x", rnd.IntN(300)) + "\n" + nuls(rnd.IntN(3)*rnd.IntN(400)))
			if rnd.IntN(20) == 0 {
				b.WriteString(nuls(textBytesMax - 200 + rnd.IntN(400)))
			}
		}
		content := b.String()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path, &FileConfig{Blocks: &Blocks{}})
		if err != nil {
			t.Fatal(err)
		}
		var p past
		for more := true; more; {
			c := Chunk{BytesMax: 1 + rnd.IntN(500)}
			o, _, err := f.Read(&c, Whole)
			if err != nil {
				t.Fatal(err)
			}
			for n := int64(0); p.at < f.Offset(); n++ { // in pieces of its own
				p.add([]byte(content[p.at : p.at+min(1+rnd.Int64N(200), f.Offset()-p.at)]))
			}
			want, err := EndOf(f.Handle(), f.Offset())
			if err != nil {
				t.Fatal(err)
			}
			got := f.Position()
			got.Skip = false
			if got != want || p.position() != want {
				t.Fatalf("at %d: %+v and %+v, want %+v", f.Offset(), got, p.position(), want)
			}
			more = o == More
			c.Release()
		}
		f.Close()
	}
}
