package agent

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/sluice-io/sluice/agent/assemble"
	"github.com/sluice-io/sluice/agent/tail"
	"github.com/sluice-io/sluice/pipelines"
)

// newForm returns what makes records of an input's lines; nil when each line is one as it stands.
func newForm(o *pipelines.LineOptions, bytesMax int) (tail.Form, error) {
	f := &lineForm{replace: o.InvalidUTF8 == pipelines.InvalidReplace && o.Encoding == pipelines.EncodingUTF8}
	if o.Multiline != nil {
		cfg, err := assembleConfig(o.Multiline, bytesMax)
		if err != nil {
			return nil, err
		}
		f.assembler = assemble.New(cfg)
	}
	if f.assembler == nil && !f.replace {
		return nil, nil
	}
	return f, nil
}

// encodingOf is the setting as the files know it.
func encodingOf(e pipelines.Encoding) tail.Encoding {
	switch e {
	case pipelines.EncodingUTF16LE:
		return tail.UTF16LE
	case pipelines.EncodingUTF16BE:
		return tail.UTF16BE
	}
	return tail.UTF8
}

// assembleConfig compiles patterns. A record is no longer than a line may be.
func assembleConfig(m *pipelines.Multiline, bytesMax int) (assemble.Config, error) {
	cfg, preset := assemble.PresetConfig(assemble.Preset(m.Preset))
	if !preset && m.Preset != "" {
		return cfg, fmt.Errorf("multiline: no preset %q", m.Preset)
	}
	cfg.LinesMax, cfg.BytesMax = m.LinesMax, m.BytesMax
	if bytesMax > 0 {
		cfg.BytesMax = min(cfg.BytesMax, bytesMax)
	}
	for _, p := range []struct {
		from *pipelines.LinePattern
		to   **assemble.Pattern
	}{{m.Start, &cfg.Start}, {m.Continue, &cfg.Continue}, {m.End, &cfg.End}} {
		if p.from == nil {
			continue
		}
		var err error
		if *p.to, err = assemble.NewPattern(p.from.Match, p.from.Negate); err != nil {
			return cfg, fmt.Errorf("multiline: %w", err)
		}
	}
	return cfg, nil
}

// lineForm joins lines by patterns, and mends bytes that are not UTF-8.
type lineForm struct {
	assembler *assemble.Assembler // nil: each line is a record
	replace   bool
}

// Shape implements tail.Form.
func (f *lineForm) Shape(c *tail.Chunk, end tail.End) (taken int) {
	if f.assembler == nil {
		for i := range c.Lines {
			f.add(c, i, i+1, false)
		}
		return len(c.Lines)
	}
	f.assembler.Reset()
	for i := range c.Lines {
		l := &c.Lines[i]
		verdict := f.assembler.Line(c.Value(l))
		if verdict&assemble.Opens != 0 && i > taken {
			f.add(c, taken, i, verdict&assemble.Split != 0)
			taken = i
		}
		if verdict&assemble.Closes != 0 || l.Cut || l.Partial {
			f.add(c, taken, i+1, false)
			f.assembler.Reset()
			taken = i + 1
		}
	}
	if taken < len(c.Lines) && end != tail.MayGoOn {
		f.add(c, taken, len(c.Lines), end == tail.Full)
		taken = len(c.Lines)
	}
	return taken
}

// add makes a record of lines.
func (f *lineForm) add(c *tail.Chunk, from, to int, split bool) {
	text := c.Joined(from, to)
	if f.replace && !utf8.Valid(text) {
		text = c.Text(bytes.ToValidUTF8(text, replacement))
	}
	l := c.Lines[from]
	for i := from + 1; i < to; i++ {
		l.Next += c.Lines[i].Next - c.Lines[i].Start
	}
	last := &c.Lines[to-1]
	l.Cut, l.Partial, l.Split = last.Cut, last.Partial, split
	c.Record(l, text)
}

// replacement stands for bytes that are not UTF-8.
var replacement = []byte("\uFFFD")
