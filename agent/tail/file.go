package tail

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// Limits of reading.
const (
	// LineBytesMaxDefault cuts lines where the caller sets no limit.
	LineBytesMaxDefault = 1 << 20
	// linesMax bounds the lines of a chunk, so that short lines do not make
	// its bookkeeping larger than its data.
	linesMax = 8192
)

// Chunk is a run of whole lines of one file, in one block. It is filled by
// File.Read, may be read from any goroutine after that, and gives its block
// back on Release. The zero value is ready.
type Chunk struct {
	// Data holds the block's bytes; Lines are places in it.
	Data  []byte
	Lines []Line
	// Base is the offset in the file of Data[0].
	Base int64
	// From is the offset that the chunk begins at, End the position after it.
	From int64
	End  Position
	// Skipped counts what lies in the chunk's range and in no line.
	Skipped Skipped
	// LinesMax and BytesMax bound what the next Read takes, for a rate; 0 means
	// no bound of their own. A single line may be longer, and records of a form
	// are not counted.
	LinesMax, BytesMax int

	block  *[]byte
	blocks *Blocks
	texts  [][]byte // of Lines, when they are not places in Data
	wide   [][]byte // memory for texts of decoded lines
	arena  []byte   // holds texts
	shaped shaped
}

// Bytes is how much of the file the chunk covers.
func (c *Chunk) Bytes() int64 { return c.End.Offset - c.From }

// Memory is how many bytes of memory the chunk's block holds.
func (c *Chunk) Memory() int {
	if c.block == nil {
		return 0
	}
	return len(*c.block)
}

// Value returns the bytes of a line; they are good until Release.
func (c *Chunk) Value(l *Line) []byte {
	if c.texts != nil {
		return c.texts[l.End]
	}
	return c.Data[l.Start:l.End:l.End]
}

// Release gives the block back. No slice of it may be used after that.
func (c *Chunk) Release() {
	if c.block != nil {
		c.blocks.put(c.block)
	}
	c.block, c.Data = nil, nil
	c.Lines = c.Lines[:0]
	c.Skipped = Skipped{}
	c.Base, c.From, c.End = 0, 0, Position{}
	if c.texts != nil {
		c.releaseTexts()
	}
}

func (c *Chunk) releaseTexts() {
	c.texts = nil
	clear(c.wide)
	clear(c.shaped.texts)
	c.wide, c.shaped.texts, c.shaped.lines = c.wide[:0], c.shaped.texts[:0], c.shaped.lines[:0]
	c.arena = c.arena[:0]
	if cap(c.arena) > arenaBytesKept {
		c.arena = nil
	}
}

// arenaBytesKept bounds the memory for texts that a chunk keeps from one Read
// to the next.
const arenaBytesKept = 1 << 20

// Outcome says what a Read found.
type Outcome int

// The outcomes.
const (
	// Idle: everything that is there is read, but perhaps an unterminated line.
	Idle Outcome = iota
	// More: there is more to read at once.
	More
	// Truncated: the file holds less than was read.
	Truncated
	// Rewritten: the file is as long as before, or longer, and holds other bytes.
	Rewritten
)

// FileConfig configures the reading of files, which share it: what is changed
// in it holds from the next Read on.
type FileConfig struct {
	// LineBytesMax cuts longer lines; 0 means LineBytesMaxDefault.
	LineBytesMax int
	// Blocks is the pool of blocks. Required.
	Blocks *Blocks
	// Encoding is what the file's bytes are; lines are UTF-8 whatever it is.
	Encoding Encoding
	// Form makes records of lines; nil means that each line is one. It may be
	// shared by files that are read one after the other.
	Form Form
	// HoldBytesMax bounds what a file holds back because its record may go on;
	// 0 means twice the line limit and a block.
	HoldBytesMax int
	// Looks are how files are looked at; nil asks the operating system.
	Looks *Looks
}

// framer is what the configuration says of framing.
func (c *FileConfig) framer() framer {
	f := framer{lineBytesMax: c.LineBytesMax, linesMax: linesMax, encoding: c.Encoding}
	if f.lineBytesMax == 0 {
		f.lineBytesMax = LineBytesMaxDefault
	}
	return f
}

// hold is how many bytes may be held back.
func (c *FileConfig) hold() int {
	if c.HoldBytesMax > 0 {
		return c.HoldBytesMax
	}
	return 2*c.framer().lineBytesMax + BlockBytes
}

// Extent says how much of what is there a Read takes.
type Extent uint8

// The extents.
const (
	// Whole takes lines with their terminator, and whole records.
	Whole Extent = iota
	// Ripe takes records too that might go on.
	Ripe
	// All takes an unterminated line too.
	All
)

// File follows one open file. Not safe for concurrent use.
type File struct {
	f     *os.File // nil while parked
	cfg   *FileConfig
	id    ID
	state frameState

	arch    *archive // nil for plain files
	sniffed bool     // whether the file is compressed is known

	offset int64
	head   Sum
	window [windowBytes]byte
	wlen   int
	text   text

	seen  Info // as of the last look
	quick bool // the last read waited for nothing
}

// Open opens the file that is at path now and begins at 0.
func Open(path string, cfg *FileConfig) (*File, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	t, err := Take(f, cfg)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Take follows a file that is open, from 0, and owns the descriptor from then on.
func Take(f *os.File, cfg *FileConfig) (*File, error) {
	info, err := cfg.Looks.InfoOf(f)
	if err != nil {
		return nil, fmt.Errorf("look at the file: %w", err)
	}
	if !info.Regular {
		return nil, errors.New("not a regular file")
	}
	t := &File{f: f, id: info.ID, cfg: cfg}
	t.Reset()
	t.seen = info
	if _, err := t.sniff(); err != nil {
		return nil, err
	}
	return t, nil
}

// Yield gives up the descriptor without closing it, for another File to take; nil while parked.
func (t *File) Yield() *os.File {
	f := t.f
	if t.arch != nil {
		t.arch.release()
	}
	t.f = nil
	return f
}

// ID returns the device and inode of the open file.
func (t *File) ID() ID { return t.id }

// Is says that another descriptor is of the same file.
func (t *File) Is(f *os.File) bool {
	info, err := t.cfg.Looks.InfoOf(f)
	return err == nil && info.ID == t.id
}

// Handle is the open file, nil while parked.
func (t *File) Handle() *os.File { return t.f }

// Offset is the first byte not handed over.
func (t *File) Offset() int64 { return t.offset }

// Seen is the last look that was had at the file.
func (t *File) Seen() Info { return t.seen }

// Partial says that the file goes on after Offset, as of the last look.
func (t *File) Partial() bool { return t.Unread() > 0 }

// Unread is how many bytes lay after Offset at the last look. Of a compressed
// file it is an estimate until its end was seen.
func (t *File) Unread() int64 {
	if t.arch != nil {
		return t.arch.left()
	}
	return max(t.seen.Size-t.offset, 0)
}

// Length is how long the content is, as of the last look, as far as Unread
// tells.
func (t *File) Length() int64 { return t.offset + t.Unread() }

// Reset begins at 0 again.
func (t *File) Reset() {
	if t.arch != nil {
		t.arch.release()
	}
	t.arch, t.sniffed = nil, false
	t.offset, t.wlen, t.text = 0, 0, text{}
	t.head = Sum{}
	t.state = frameState{atStart: true}
}

// Resume goes to a stored position when the content before it is what it was.
// It returns false, and stays at 0, when it is not.
func (t *File) Resume(p Position) (bool, error) {
	t.Reset()
	if _, err := t.sniff(); err != nil {
		return false, err
	}
	if t.arch != nil {
		t.resumeArchive(p)
		return true, nil
	}
	if p.Offset == 0 {
		return true, nil
	}
	ok, err := p.Matches(t.f)
	if err != nil || !ok {
		return false, err
	}
	if err := t.place(p.Offset); err != nil {
		t.Reset()
		return false, err
	}
	t.head = p.Head
	t.state = frameState{skip: p.Skip, late: !p.Skip && !t.afterNewline()}
	return true, nil
}

// place sets the offset and reads the window before it.
func (t *File) place(offset int64) error {
	t.wlen = int(min(offset, windowBytes))
	n, err := t.f.ReadAt(t.window[:t.wlen], offset-int64(t.wlen))
	if n < t.wlen {
		return fmt.Errorf("read before offset %d: %w", offset, err)
	}
	t.offset = offset
	t.text.note(t.window[:t.wlen], 0, offset)
	if !t.endsInNUL() {
		return nil
	}
	if err := t.text.find(t.f, offset); err != nil {
		return fmt.Errorf("read before offset %d: %w", offset, err)
	}
	return nil
}

// SkipToEnd goes to the beginning of the last line that is not complete, or to
// the end of the file. It looks back no further than a line may be long.
// Of a compressed file nothing is taken then.
func (t *File) SkipToEnd() error {
	if t.arch != nil {
		t.Leave()
		return nil
	}
	info, err := t.cfg.Looks.InfoOf(t.f)
	if err != nil {
		return fmt.Errorf("find the end: %w", err)
	}
	end, err := t.lastLineStart(info.Size)
	if err != nil || end == 0 {
		return err
	}
	var head [headBytesMax]byte
	n, err := t.f.ReadAt(head[:min(end, headBytesMax)], 0)
	if int64(n) < min(end, headBytesMax) {
		return fmt.Errorf("read the head: %w", err)
	}
	t.Reset()
	t.sniffed = true
	if err := t.place(end); err != nil {
		t.Reset()
		return err
	}
	t.head = sumOf(head[:n])
	t.state = frameState{late: !t.afterNewline()}
	return nil
}

// afterNewline says that the window ends with one, or where a line begins all
// the same: in a hole, or after a byte-order mark.
func (t *File) afterNewline() bool {
	before, e := t.window[:t.wlen], t.cfg.Encoding
	return e.lastNewline(before) == len(before) || e.endsInNUL(before) || e.isMark(before)
}

func (t *File) lastLineStart(size int64) (int64, error) {
	step := int64(blockBytesMin)
	buf := make([]byte, step)
	size -= size % t.cfg.Encoding.unit()
	for end := size; end > 0 && size-end <= int64(t.cfg.framer().lineBytesMax); end -= step {
		from := max(end-step, 0)
		n, err := t.f.ReadAt(buf[:end-from], from)
		if err != nil && err != io.EOF {
			return 0, fmt.Errorf("find the last line: %w", err)
		}
		if i := t.cfg.Encoding.lastNewline(buf[:n]); i > 0 {
			return from + int64(i), nil
		}
		if from == 0 {
			return 0, nil
		}
	}
	return size, nil
}

// Position is the place after what was handed over.
func (t *File) Position() Position {
	if t.arch != nil && t.arch.from != nil {
		return *t.arch.from // it is not verified yet
	}
	return Position{Offset: t.offset, Skip: t.state.skip, Head: t.head, Tail: tailSum(t.window[:t.wlen], t.text.before(t.offset))}
}

// Read fills c with the next lines, as many as the extent says. After Truncated and Rewritten c is empty and the position is that
// in the content that is gone; lost estimates the bytes that had been seen after
// it. Reset then begins with the new content.
func (t *File) Read(c *Chunk, extent Extent) (o Outcome, lost int64, err error) {
	before := t.seen
	info, err := t.look()
	if err != nil {
		return Idle, 0, fmt.Errorf("look at the file: %w", err)
	}
	t.seen = info
	if !t.sniffed && t.offset == 0 {
		if undecided, err := t.sniff(); undecided || err != nil {
			return Idle, 0, err
		}
	}
	if t.arch != nil {
		return t.readArchive(c, before, extent)
	}
	if info.Size < t.offset {
		return t.gone(Truncated, before)
	}
	if info.ModTime != before.ModTime && (info.Size == t.offset || t.endsInNUL()) {
		same, err := t.headSame()
		if same && err == nil {
			same, err = t.textSame()
		}
		if err != nil {
			return Idle, 0, err
		}
		if !same {
			return t.gone(Rewritten, before)
		}
	}
	return t.read(c, before, extent)
}

// look looks at the open file.
func (t *File) look() (Info, error) {
	if t.quick {
		return t.cfg.Looks.quickInfoOf(t.f)
	}
	return t.cfg.Looks.InfoOf(t.f)
}

// endsInNUL says that the window tells little: one hole looks like another.
func (t *File) endsInNUL() bool { return endsInNUL(t.window[:t.wlen]) }

// headSame compares the file's beginning with what was read of it. It is the
// slower check, beside the window, for a file that was touched and did not grow.
func (t *File) headSame() (bool, error) {
	var buf [headBytesMax]byte
	n, err := t.f.ReadAt(buf[:t.head.Len], 0)
	if err != nil && err != io.EOF {
		return false, fmt.Errorf("read the head: %w", err)
	}
	return n == t.head.Len && (n == 0 || sumOf(buf[:n]) == t.head), nil
}

// textSame compares what stands before the NULs at the end of what was read: a hole looks like another one there.
func (t *File) textSame() (bool, error) {
	if t.text.n == 0 {
		return true, nil
	}
	var buf [windowBytes]byte
	n, err := t.f.ReadAt(buf[:t.text.n], t.text.end-int64(t.text.n))
	if err != nil && err != io.EOF {
		return false, fmt.Errorf("read before offset %d: %w", t.text.end, err)
	}
	return bytes.Equal(buf[:n], t.text.buf[:t.text.n]), nil
}

func (t *File) read(c *Chunk, before Info, extent Extent) (Outcome, int64, error) {
	want := t.wlen + int(min(t.seen.Size-t.offset, 1<<30))
	size := min(want, BlockBytes)
	if c.BytesMax > 0 {
		size = min(size, t.wlen+c.BytesMax)
	}
	for {
		block := t.cfg.Blocks.get(size)
		n, quick, err := readAt(t.f, (*block)[:min(len(*block), want)], t.offset-int64(t.wlen))
		t.quick = quick
		if err != nil && err != io.EOF {
			t.cfg.Blocks.put(block)
			return Idle, 0, fmt.Errorf("read at offset %d: %w", t.offset, err)
		}
		data := (*block)[:n]
		if !bytes.HasPrefix(data, t.window[:t.wlen]) {
			t.cfg.Blocks.put(block)
			if n < t.wlen {
				return t.gone(Truncated, before)
			}
			return t.gone(Rewritten, before)
		}
		atEnd := n == want
		upTo := extent
		if !atEnd {
			upTo = Whole // the next block may hold more, and then the end
		}
		more := t.take(c, data, block, upTo)
		switch {
		case c.Bytes() > 0:
			if more || !atEnd {
				return More, 0, nil
			}
			return Idle, 0, nil
		case atEnd || n < len(*block):
			c.Release()
			return Idle, 0, nil
		}
		// A line longer than the block. The framer cuts what is over the
		// limit, so this ends.
		size = 2 * len(*block)
		c.Release()
	}
}

// take frames the block's data and moves the position over it.
func (t *File) take(c *Chunk, data []byte, block *[]byte, extent Extent) (more bool) {
	c.block, c.blocks, c.Data = block, t.cfg.Blocks, data
	c.Base = t.offset - int64(t.wlen)
	c.From = t.offset
	frame, before := t.cfg.framer(), t.state
	if c.LinesMax > 0 && t.cfg.Form == nil {
		frame.linesMax = min(frame.linesMax, c.LinesMax)
	}
	end, more := frame.frame(c, data, t.wlen, &t.state, extent == All)
	if t.cfg.Form != nil && len(c.Lines) > 0 {
		end, more = t.shape(c, data, end, more, before, extent)
	}
	t.advance(data, end)
	c.End = t.Position()
	return more
}

// advance moves the position to data[end].
func (t *File) advance(data []byte, end int) {
	fresh := data[t.wlen:end]
	if t.head.Len < headBytesMax {
		t.head.grow(fresh[:min(len(fresh), headBytesMax-t.head.Len)])
	}
	t.offset += int64(len(fresh))
	t.text.note(data[:end], t.wlen, t.offset)
	t.wlen = copy(t.window[:], data[max(end-windowBytes, 0):end])
}

// gone says what was lost with content that the file no longer has.
func (t *File) gone(o Outcome, before Info) (Outcome, int64, error) {
	return o, max(before.Size-t.offset, 0), nil
}

// Park closes the descriptor and keeps the position. Unpark opens it again.
func (t *File) Park() error {
	if t.arch != nil && !t.arch.unwanted {
		t.arch.park(t.Position())
	}
	if t.f == nil {
		return nil
	}
	err := t.f.Close()
	t.f, t.quick = nil, false
	return err
}

// Unpark opens the file at path again. It returns false when another file is
// there. Its content is verified by the next Read.
func (t *File) Unpark(path string) (bool, error) {
	f, err := openFile(path)
	if err != nil {
		return false, err
	}
	info, err := t.cfg.Looks.InfoOf(f)
	if err != nil || info.ID != t.id {
		f.Close()
		return false, err
	}
	t.f = f
	return true, nil
}

// Close closes the file.
func (t *File) Close() error { return t.Park() }
