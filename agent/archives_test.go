package agent

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

func gzipped(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstdPacked(t testing.TB, text string) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll([]byte(text), nil)
}

// put makes a file in one piece.
func (r *rig) put(name string, data []byte) {
	r.t.Helper()
	if err := os.WriteFile(r.path(name), data, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) numbered(from, to int) (lines []string, text string) {
	for i := from; i < to; i++ {
		lines = append(lines, fmt.Sprintf("line %06d of a file that is compressed", i))
	}
	return lines, strings.Join(lines, "\n") + "\n"
}

func TestCompressedFilesAreReadOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	a, textA := r.numbered(0, 1000)
	b, textB := r.numbered(1000, 1100)
	c, textC := r.numbered(2000, 2100)
	r.put("a.log.1.gz", append(gzipped(t, textA), gzipped(t, textB)...)) // two members
	r.put("c.log.zst", zstdPacked(t, strings.TrimSuffix(textC, "\n")))
	want := slices.Concat(a, b, c)
	r.start()
	r.wants(want...)
	r.eventually("no descriptor is kept", func() bool { return r.account().FilesOpen == 0 })
	r.settled()
	r.halt()
	r.start()
	r.eventually("the first scan", func() bool { return r.account().FilesFollowed == 2 })
	r.steady("nothing is sent again", 500*time.Millisecond, func() bool { return r.store.count() == len(want) })
	if a := r.account(); a.LagBytes != 0 || a.DamagedFiles != 0 {
		t.Errorf("account %+v", a)
	}
}

func TestCompressedFileOverRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, linesPipeline("rate_limit: {lines: 20000}"))
	want, text := r.numbered(0, 60_000) // 2.5 MB
	r.put("a.log.gz", gzipped(t, text))
	for range 3 { // is stopped in the middle
		before := r.store.count()
		r.start()
		r.eventually("some of it is read", func() bool { return r.store.count() > before })
		r.halt()
	}
	if n := r.store.count(); n == len(want) {
		t.Fatal("it was read in one go")
	}
	r.start()
	r.wants(want...)
}

func TestCompressedCopies(t *testing.T) {
	t.Parallel()
	for name, pack := range map[string]func(testing.TB, string) []byte{"x.log.1.gz": gzipped, "x.log-20261130.zst": zstdPacked} {
		for _, down := range []bool{false, true} {
			for _, rest := range []string{"", "written while it was down\n"} {
				r := newRig(t, plainPipeline)
				lines, text := r.numbered(0, 500)
				r.write("x.log", text)
				r.start()
				r.wants(lines...)
				r.settled()
				if down {
					r.halt()
					r.write("x.log", rest)
					text += rest
				}
				r.rename("x.log", "x.log.1")
				r.put(name, pack(t, text))
				r.remove("x.log.1")
				r.write("x.log", "new\n")
				if down {
					r.start()
					if rest != "" {
						lines = append(lines, strings.TrimSpace(rest))
					}
				}
				lines = append(lines, "new")
				r.wants(lines...)
				r.eventually("the copy is recognised", func() bool { return r.account().Copies == 1 })
				r.steady("nothing is sent again", 200*time.Millisecond, func() bool { return r.store.count() == len(lines) })
				r.halt()
			}
		}
	}
}

// gzip -k of a file that goes on being written.
func TestCompressedCopyBesideItsOriginal(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	lines, text := r.numbered(0, 500)
	r.write("x.log", text)
	r.start()
	r.wants(lines...)
	r.write("x.log", "more\n")
	lines = append(lines, "more")
	r.wants(lines...)
	r.put("x.log.gz", gzipped(t, text))
	r.eventually("the copy is recognised", func() bool { return r.account().Copies == 1 })
	r.write("x.log", "and more\n")
	r.wants(append(lines, "and more")...)
}

func TestCompressedFileOfTheSameName(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	r.write("x.log", "same beginning\n")
	r.start()
	r.wants("same beginning")
	r.put("x.log.1.gz", gzipped(t, "SAME beginning\nother\n")) // was never seen plain
	r.wants("same beginning", "SAME beginning", "other")
}

func TestDamagedArchives(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	lines, text := r.numbered(0, 5000)
	whole := gzipped(t, text)
	r.put("a.log.gz", whole[:len(whole)/2])
	flipped := slices.Clone(whole)
	flipped[len(flipped)-6] ^= 1 // the checksum
	r.put("b.log.gz", flipped)
	r.put("c.log.gz", append(gzipped(t, "fine\n"), "garbage"...))
	r.start()
	r.eventually("all are told", func() bool { return r.account().DamagedFiles == 3 })
	r.eventually("what comes before the damage", func() bool { return r.store.count() > 5000+1000 })
	r.eventually("the content before garbage", func() bool { return slices.Contains(r.store.values(), "fine") })
	if !strings.Contains(r.log.String(), "ends early") {
		t.Error("not said")
	}
	r.put("a.log.gz", whole) // the rest of it came
	r.eventually("the rest", func() bool {
		n := 0
		for _, x := range r.store.all() {
			if x.headers["path"] == r.path("a.log.gz") {
				n++
			}
		}
		return n >= len(lines)
	})
	r.steady("nothing comes again", 200*time.Millisecond, func() bool { return r.store.count() <= 2*5000+2 })
}

func TestStartAtTheEndOfCompressedFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pipeline: test\ncollect:\n  file: {include: [\"DIR/*.log*\"], start_at: end}\ntopic: {name: lines}\n")
	r.put("a.log.gz", gzipped(t, "old\n"))
	r.start()
	r.eventually("the first scan", func() bool { return r.account().FilesFollowed == 1 })
	r.put("b.log.gz", gzipped(t, "later\n"))
	r.wants("later")
	r.settled()
	r.halt()
	r.start()
	r.steady("nothing old comes", 500*time.Millisecond, func() bool { return r.store.count() == 1 })
}

func TestCompressedFilesOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	for i := range 5 {
		r.put(fmt.Sprintf("%d.log.gz", i), gzipped(t, fmt.Sprintf("line of %d\nno newline", i)))
	}
	if a := r.once(); a.Acked.Lines != 10 {
		t.Errorf("%d lines", a.Acked.Lines)
	}
}

// A file of one long line, decompressed, takes no more memory than the limits.
func TestCompressedBomb(t *testing.T) {
	t.Parallel()
	r := newRig(t, plainPipeline)
	size := 200 << 20
	if testing.Short() {
		size = 20 << 20
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	block := bytes.Repeat([]byte("x"), 1<<20)
	for range size >> 20 {
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write([]byte("\nafter\n")); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	r.put("a.log.gz", b.Bytes())
	r.start()
	r.eventually("the line after", func() bool { return slices.Contains(r.store.values(), "after") })
	if a := r.account(); a.CutLines != 1 {
		t.Errorf("account %+v", a)
	}
}
