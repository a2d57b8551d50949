package agent

import (
	"time"

	"github.com/sluice-io/sluice/agent/assemble"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

const (
	// containerLineBytes is what a line of a container's file may take beside its text: Docker's are 16 KiB of text at most, each byte of
	// which may be written as six.
	containerLineBytes = 128 << 10
	// containerHoldBytes is what may be held back beside a line's text, written as up to four bytes a byte.
	containerHoldBytes = 1 << 20
)

// containerForm makes records of the lines of containers' files: the parts of a line are joined with nothing between them, for each stream
// by itself, and then lines by patterns. Records that lie across each other in the file are taken together, so that the position
// never stands within one.
type containerForm struct {
	format  pipelines.ContainerFormat
	limit   int           // bytes of a joined line
	idle    time.Duration // after which another stream's lines end a record; 0 without patterns
	streams []*streamLines
	origins []lineOrigin // of the records made

	taken   int // lines that the records made so far take up, when nothing lies across
	records int // how many these are
	last    int // the last line of any record made so far
}

// streamLines is what is under way of one stream.
type streamLines struct {
	name      string
	assembler *assemble.Assembler // nil: each line is a record
	line      pending             // parts of a line
	record    pending             // lines of a record
	latest    []byte              // time of the record's last line
}

// pending are texts that wait for more.
type pending struct {
	texts [][]byte
	first int // line of the chunk that the first is of
	bytes uint32
	size  int
	time  []byte
	cut   bool
}

func (p *pending) empty() bool { return len(p.texts) == 0 }

func (p *pending) reset() { *p = pending{texts: p.texts[:0]} }

// add takes a text of a line of the chunk, cut at a limit.
func (p *pending) add(text []byte, limit, line int, bytes uint32, time []byte) {
	if p.empty() {
		p.first, p.time = line, time
	}
	if room := limit - p.size; len(text) > room {
		text, p.cut = tail.CutText(text, room), true
	}
	p.texts = append(p.texts, text)
	p.size += len(text)
	p.bytes += bytes
}

func newContainerForm(in *pipelines.FileInput, limit int) (*containerForm, error) {
	f := &containerForm{format: in.Container.Format, limit: limit}
	for _, name := range []string{"stdout", "stderr"} {
		s := &streamLines{name: name}
		if in.Multiline != nil {
			cfg, err := assembleConfig(in.Multiline, limit)
			if err != nil {
				return nil, err
			}
			s.assembler, f.idle = assemble.New(cfg), in.Multiline.Idle
		}
		f.streams = append(f.streams, s)
	}
	return f, nil
}

// Shape implements tail.Form.
func (f *containerForm) Shape(c *tail.Chunk, end tail.End) (taken int) {
	f.begin()
	for i := range c.Lines {
		l := &c.Lines[i]
		f.take(c, i)
		if l.Cut || l.Partial {
			f.flush(c, i, false)
		}
		if first := f.first(i + 1); first > f.last {
			f.taken, f.records = first, c.Records()
		}
	}
	if end != tail.MayGoOn {
		f.flush(c, len(c.Lines)-1, end == tail.Full)
		f.taken, f.records = len(c.Lines), c.Records()
	}
	c.Truncate(f.records)
	f.origins = f.origins[:f.records]
	return f.taken
}

func (f *containerForm) begin() {
	for _, s := range f.streams {
		s.line.reset()
		s.record.reset()
		if s.assembler != nil {
			s.assembler.Reset()
		}
	}
	f.origins, f.taken, f.records, f.last = f.origins[:0], 0, 0, -1
}

// first is the first line that is under way, or next when none is.
func (f *containerForm) first(next int) int {
	for _, s := range f.streams {
		for _, p := range []*pending{&s.line, &s.record} {
			if !p.empty() {
				next = min(next, p.first)
			}
		}
	}
	return next
}

// take deals with one line of the file.
func (f *containerForm) take(c *tail.Chunk, i int) {
	l := &c.Lines[i]
	part, ok := f.parse(c, l)
	if !ok {
		f.last = i
		f.origins = append(f.origins, lineOrigin{malformed: true})
		c.Record(tail.Line{Start: l.Start, Next: l.Next, Cut: l.Cut, Partial: l.Partial}, c.Value(l))
		return
	}
	s := f.streams[0]
	if string(part.Stream) == f.streams[1].name {
		s = f.streams[1]
	}
	if f.idle > 0 {
		f.endIdle(c, s, part.Time, i)
	}
	s.line.add(part.Text, f.limit, i, l.Next-l.Start, part.Time)
	if l.Cut {
		s.line.cut = true
	}
	if !part.Partial {
		f.endLine(c, s, i)
	}
}

func (f *containerForm) parse(c *tail.Chunk, l *tail.Line) (p assemble.Part, ok bool) {
	line := c.Value(l)
	docker := f.format == pipelines.ContainerDocker || f.format == pipelines.ContainerAuto && len(line) > 0 && line[0] == '{'
	if !docker {
		return assemble.ParseCRI(line)
	}
	p, arena, ok := assemble.ParseDocker(line, c.Arena())
	c.SetArena(arena)
	return p, ok
}

// endLine takes a line whose parts are there.
func (f *containerForm) endLine(c *tail.Chunk, s *streamLines, i int) {
	p := &s.line
	text := p.texts[0]
	if len(p.texts) > 1 {
		text = c.Text(p.texts...)
	}
	if s.assembler == nil {
		f.add(c, s, p, text, false, i)
		p.reset()
		return
	}
	verdict := s.assembler.Line(text)
	if verdict&assemble.Opens != 0 {
		f.endRecord(c, s, verdict&assemble.Split != 0, i)
	}
	r := &s.record
	r.add(text, len(text)+r.size, p.first, p.bytes, p.time)
	r.cut = r.cut || p.cut
	s.latest = p.time
	p.reset()
	if verdict&assemble.Closes != 0 || r.cut {
		f.endRecord(c, s, false, i)
		s.assembler.Reset()
	}
}

// endRecord takes the lines under way as a record.
func (f *containerForm) endRecord(c *tail.Chunk, s *streamLines, split bool, i int) {
	r := &s.record
	if r.empty() {
		return
	}
	text := r.texts[0]
	if len(r.texts) > 1 {
		joined := make([][]byte, 0, 2*len(r.texts))
		for k, t := range r.texts {
			if k > 0 {
				joined = append(joined, newline)
			}
			joined = append(joined, t)
		}
		text = c.Text(joined...)
	}
	f.add(c, s, r, text, split, i)
	r.reset()
}

var newline = []byte("\n")

// add makes a record, whose last line is at most i.
func (f *containerForm) add(c *tail.Chunk, s *streamLines, p *pending, text []byte, split bool, i int) {
	f.last = max(f.last, i)
	start := c.Lines[p.first].Start
	f.origins = append(f.origins, lineOrigin{stream: []byte(s.name), time: p.time})
	c.Record(tail.Line{Start: start, Next: start + p.bytes, Cut: p.cut, Split: split}, text)
}

// endIdle ends records of other streams to which nothing was added for long, by the times in the file.
func (f *containerForm) endIdle(c *tail.Chunk, but *streamLines, now []byte, i int) {
	for _, s := range f.streams {
		if s == but || s.record.empty() || !s.line.empty() {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, string(now))
		was, err2 := time.Parse(time.RFC3339Nano, string(s.latest))
		if err == nil && err2 == nil && at.Sub(was) > f.idle {
			f.endRecord(c, s, false, i-1)
			s.assembler.Reset()
		}
	}
}

// flush takes all that is under way.
func (f *containerForm) flush(c *tail.Chunk, i int, split bool) {
	for _, s := range f.streams {
		if !s.line.empty() {
			f.endPart(c, s, i, split)
		}
		if s.assembler != nil {
			f.endRecord(c, s, split, i)
			s.assembler.Reset()
		}
	}
}

// endPart takes the parts of a line whose end is not there.
func (f *containerForm) endPart(c *tail.Chunk, s *streamLines, i int, split bool) {
	if s.assembler != nil {
		f.endLine(c, s, i)
		return
	}
	f.add(c, s, &s.line, c.Text(s.line.texts...), split, i)
	s.line.reset()
}
