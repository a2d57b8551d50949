package tail

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Limits of reading compressed files.
const (
	// skipBytes is how much one Read decompresses on the way to its position.
	skipBytes = 4 << 20
	// sourceBytes is the buffer before a decompressor.
	sourceBytes = 64 << 10
	// zstdWindowMax bounds the memory of a zstd decompressor. Files made with
	// --long need more and are told as damaged.
	zstdWindowMax = 32 << 20
	zstdMemoryMax = 64 << 20
)

// magics are how compressed files begin.
var magics = []struct {
	kind  archiveKind
	bytes []byte
}{
	{gzipFile, []byte{0x1f, 0x8b, 0x08}},
	{zstdFile, []byte{0x28, 0xb5, 0x2f, 0xfd}},
}

type archiveKind uint8

const (
	gzipFile archiveKind = iota + 1
	zstdFile
)

// sniff finds out whether the file is compressed. It returns true when that
// cannot be told yet.
func (t *File) sniff() (undecided bool, err error) {
	var buf [4]byte
	n, err := t.f.ReadAt(buf[:], 0)
	if err != nil && err != io.EOF {
		return false, fmt.Errorf("read the beginning: %w", err)
	}
	if n == 0 {
		return false, nil
	}
	for _, m := range magics {
		switch {
		case bytes.HasPrefix(buf[:n], m.bytes):
			t.sniffed, t.arch = true, &archive{kind: m.kind}
			return false, nil
		case bytes.HasPrefix(m.bytes, buf[:n]):
			return true, nil
		}
	}
	t.sniffed = true
	return false, nil
}

// archive is the reading of a compressed file. Offsets are those of its
// content. The decompressor cannot go back: what a Read does not take is kept.
type archive struct {
	kind  archiveKind
	dec   io.Reader // nil: to be opened, or done with
	close func()
	ended bool // the end of the content was seen, or damage
	err   error
	as    Info   // the file when dec was opened
	at    int64  // decompressed so far
	kept  []byte // decompressed, and after the position
	// from is the position to come to, until that is verified.
	from *Position
	past past
	// finished says that it was read to its end by an earlier run.
	finished bool
	// unwanted says that nothing of it is to be read.
	unwanted bool
}

// past is what is remembered of content that is passed over.
type past struct {
	head Sum
	tail []byte // up to windowBytes before the end
	text text
	at   int64
}

// clone is a past that goes on by itself.
func (p *past) clone() past {
	c := *p
	c.tail = slices.Clone(p.tail)
	return c
}

// position is the place after it.
func (p *past) position() Position {
	return Position{Offset: p.at, Head: p.head, Tail: tailSum(p.tail, p.text.before(p.at))}
}

// is says that it is what was before a position.
func (p *past) is(at *Position) bool {
	return p.head == at.Head && at.isTail(p.tail, p.text.before(p.at))
}

func (p *past) add(b []byte) {
	p.at += int64(len(b))
	joined := b
	if len(b) < windowBytes || len(bytes.TrimRight(b, "\x00")) < windowBytes {
		joined = append(slices.Clone(p.tail), b...)
	}
	p.text.note(joined, len(joined)-len(b), p.at)
	if p.head.Len < headBytesMax {
		p.head.grow(b[:min(len(b), headBytesMax-p.head.Len)])
	}
	if len(b) >= windowBytes {
		p.tail = append(p.tail[:0], b[len(b)-windowBytes:]...)
		return
	}
	p.tail = append(p.tail, b...)
	if over := len(p.tail) - windowBytes; over > 0 {
		p.tail = append(p.tail[:0], p.tail[over:]...)
	}
}

// decompressor begins with the content of a file.
func decompressor(kind archiveKind, f io.ReaderAt) (io.Reader, func(), error) {
	src := bufio.NewReaderSize(io.NewSectionReader(f, 0, 1<<62), sourceBytes)
	if kind == gzipFile {
		dec, err := gzip.NewReader(src)
		return dec, func() {}, err
	}
	dec, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(zstdWindowMax), zstd.WithDecoderMaxMemory(zstdMemoryMax))
	if err != nil {
		return nil, func() {}, err
	}
	return dec, dec.Close, nil
}

// open begins to decompress, from the beginning up to the position p.
func (a *archive) open(f *os.File, info Info, p Position) {
	a.release()
	a.as, a.at, a.kept, a.ended, a.err, a.past = info, 0, a.kept[:0], false, nil, past{}
	a.from, a.finished = nil, false
	if p.Offset > 0 {
		a.from = &p
	}
	dec, closer, err := decompressor(a.kind, f)
	if err != nil {
		a.end(err)
		return
	}
	a.dec, a.close = dec, closer
}

// read decompresses some more. After the end it reads nothing.
func (a *archive) read(p []byte) int {
	n := 0
	for n < len(p) && a.dec != nil {
		m, err := a.dec.Read(p[n:])
		n += m
		if err != nil {
			a.end(err)
		}
	}
	a.at += int64(n)
	return n
}

func (a *archive) end(err error) {
	a.release()
	a.ended = true
	if err != io.EOF {
		a.err = err
	}
}

// release gives the decompressor's memory back.
func (a *archive) release() {
	if a.dec != nil {
		a.close()
	}
	a.dec = nil
}

// park gives all memory back. Unless it was at its end the file is decompressed
// again up to the position, when it is opened.
func (a *archive) park(p Position) {
	a.release()
	if a.ended && len(a.kept) == 0 {
		a.kept = nil
		return
	}
	a.ended, a.kept, a.from = false, nil, nil
	if p.Offset > 0 {
		a.from = &p
	}
}

// Compressed says that the file is compressed: it is read once, as it is when
// it is at rest.
func (t *File) Compressed() bool { return t.arch != nil }

// Reading says that a compressed file holds a decompressor's memory.
func (t *File) Reading() bool { return t.arch != nil && t.arch.dec != nil }

// Damage is why a compressed file could not be read to its end; nil when it
// could, or was not yet.
func (t *File) Damage() error {
	if t.arch == nil || t.arch.err == nil {
		return nil
	}
	if errors.Is(t.arch.err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends early: %w", t.arch.err)
	}
	return t.arch.err
}

// Finish says that the compressed file, as it is now, was read to its end.
func (t *File) Finish() {
	t.arch.finished, t.arch.ended, t.arch.as = true, true, t.seen
}

// Leave takes nothing of a compressed file.
func (t *File) Leave() {
	t.arch.unwanted, t.state.skip = true, true
}

// left says how much of a compressed file is not handed over, in its own bytes
// while that cannot be told otherwise.
func (a *archive) left() int64 {
	switch {
	case a.unwanted, a.ended && len(a.kept) == 0:
		return 0
	case a.ended:
		return int64(len(a.kept))
	}
	return max(a.as.Size, 1)
}

// resumeArchive goes to a stored position. That the content is what it was is
// found out on the way, by the next Reads.
func (t *File) resumeArchive(p Position) {
	if p.Offset == 0 {
		if p.Skip {
			t.Leave()
		}
		return
	}
	t.offset, t.head, t.wlen = p.Offset, p.Head, 0
	t.state = frameState{skip: p.Skip}
	t.arch.from = &p
}

func (t *File) readArchive(c *Chunk, before Info, extent Extent) (Outcome, int64, error) {
	a := t.arch
	touched := t.seen.Size != a.as.Size || t.seen.ModTime != a.as.ModTime
	switch {
	case a.unwanted:
		return Idle, 0, nil
	case a.finished && !touched:
		return Idle, 0, nil
	case touched && a.as.Size > t.seen.Size:
		return t.gone(Truncated, before)
	case touched || a.dec == nil && !a.ended:
		a.open(t.f, t.seen, t.Position())
	}
	if a.from != nil {
		return t.skipTo(*a.from, before)
	}
	return t.readOn(c, extent), 0, nil
}

// skipTo decompresses up to a position and verifies the content before it.
func (t *File) skipTo(p Position, before Info) (Outcome, int64, error) {
	a := t.arch
	block := t.cfg.Blocks.get(BlockBytes)
	defer t.cfg.Blocks.put(block)
	for done := 0; done < skipBytes && a.at < p.Offset; {
		n := a.read((*block)[:min(int64(len(*block)), p.Offset-a.at)])
		a.past.add((*block)[:n])
		done += n
		if n == 0 {
			return t.gone(Truncated, before)
		}
	}
	if a.at < p.Offset {
		return More, 0, nil
	}
	if !a.past.is(&p) {
		return t.gone(Rewritten, before)
	}
	a.from = nil
	t.wlen, t.text = copy(t.window[:], a.past.tail), a.past.text
	t.state.late = !t.state.skip && !t.afterNewline()
	return More, 0, nil
}

// readOn reads the next lines. At the end of the content there will be no more:
// an unterminated line is taken, unless the content ends early.
func (t *File) readOn(c *Chunk, extent Extent) Outcome {
	a := t.arch
	for size := BlockBytes; ; size *= 2 {
		block := t.cfg.Blocks.get(size + windowBytes)
		n := copy(*block, t.window[:t.wlen])
		n += copy((*block)[n:], a.kept)
		n += a.read((*block)[n:])
		if a.ended && a.err == nil {
			extent = All
		} else if !a.ended {
			extent = Whole
		}
		data := (*block)[:n]
		start := t.offset - int64(t.wlen)
		more := t.take(c, data, block, extent)
		// What is left is copied: the block goes back with the chunk.
		a.kept = append(a.kept[:0], data[t.offset-start:]...)
		switch {
		case c.Bytes() > 0 && (more || !a.ended || a.err == nil && len(a.kept) > 0):
			return More
		case c.Bytes() > 0:
			return Idle
		}
		c.Release()
		if a.ended {
			return Idle
		}
	}
}
