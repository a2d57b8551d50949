package pipelines

import (
	"regexp"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// LineOptions say how an input's bytes become lines, and lines records.
type LineOptions struct {
	Encoding    Encoding    // default utf-8
	InvalidUTF8 InvalidUTF8 // default keep
	Multiline   *Multiline  // nil: each line is a record
}

// Encoding is what the bytes of an input mean. Records are UTF-8 whatever it is.
type Encoding string

// The encodings. UTF-8 stands for all in which a newline is one byte.
const (
	EncodingUTF8    Encoding = "utf-8"
	EncodingUTF16LE Encoding = "utf-16le"
	EncodingUTF16BE Encoding = "utf-16be"
)

// InvalidUTF8 says what becomes of bytes that are not UTF-8.
type InvalidUTF8 string

// The choices.
const (
	InvalidKeep    InvalidUTF8 = "keep"
	InvalidReplace InvalidUTF8 = "replace" // each run of them by U+FFFD
)

// Multiline says which lines make one record, joined by newlines.
type Multiline struct {
	Preset               string       // java, python or go; "": by the patterns
	Start, Continue, End *LinePattern // at least one, unless there is a preset
	LinesMax             int          // default 500; 2 to 5,000
	BytesMax             int          // default 1 MiB, and no more than line_bytes_max
	Idle                 time.Duration
}

// LinePattern matches lines.
type LinePattern struct {
	Match  string // RE2
	Negate bool   // it matches the lines that Match does not
}

// Limits of multiline.
const (
	multilineLinesDefault = 500
	multilineLinesHigh    = 5000
	multilineIdleDefault  = time.Second
)

var multilinePresets = []string{"java", "python", "go"}

func defaultLineOptions() LineOptions {
	return LineOptions{Encoding: EncodingUTF8, InvalidUTF8: InvalidKeep}
}

// lineOptions are the keys of LineOptions.
func (r *yamlReader) lineOptions(what string, o *LineOptions) []known {
	return []known{
		{"encoding", func(e entry) {
			o.Encoding = Encoding(r.oneOf(e.value, what+".encoding", string(EncodingUTF8), string(EncodingUTF16LE), string(EncodingUTF16BE)))
		}},
		{"invalid_utf8", func(e entry) {
			o.InvalidUTF8 = InvalidUTF8(r.oneOf(e.value, what+".invalid_utf8", string(InvalidKeep), string(InvalidReplace)))
		}},
		{"multiline", func(e entry) { o.Multiline = r.multiline(e, what+".multiline") }},
	}
}

func (r *yamlReader) multiline(e entry, what string) *Multiline {
	m := &Multiline{LinesMax: multilineLinesDefault, BytesMax: lineBytesDefault, Idle: multilineIdleDefault}
	pattern := func(key string, p **LinePattern) known {
		return known{key, func(e entry) { *p = r.linePattern(e.value, what+"."+key) }}
	}
	found := r.object(e.value, what,
		known{"preset", func(e entry) { m.Preset = r.oneOf(e.value, what+".preset", multilinePresets...) }},
		pattern("start", &m.Start),
		pattern("continue", &m.Continue),
		pattern("end", &m.End),
		known{"lines_max", func(e entry) { m.LinesMax = int(r.integer(e.value, what+".lines_max", 2, multilineLinesHigh)) }},
		known{"bytes_max", func(e entry) { m.BytesMax = int(r.size(e.value, what+".bytes_max", lineBytesLow, lineBytesHigh)) }},
		known{"idle", func(e entry) { m.Idle = r.duration(e.value, what+".idle", intervalLow, intervalHigh) }},
	)
	if found == nil {
		return nil
	}
	preset, patterns := false, 0
	for _, key := range []string{"start", "continue", "end"} {
		if _, ok := found[key]; ok {
			patterns++
		}
	}
	_, preset = found["preset"]
	switch {
	case preset && patterns > 0:
		r.errorAt(found["preset"], "%s: a preset has its own patterns: leave start, continue and end out", what)
	case !preset && patterns == 0:
		r.errorAt(e.pos, "%s: want a preset, or at least one of start, continue and end", what)
	}
	return m
}

// linePattern reads a regular expression, or one with negate.
func (r *yamlReader) linePattern(n ast.Node, what string) *LinePattern {
	p := new(LinePattern)
	if _, ok := r.resolve(n).(*ast.StringNode); ok {
		p.Match = r.expressionText(n, what)
		return p
	}
	found := r.object(n, what,
		known{"match", func(e entry) { p.Match = r.expressionText(e.value, what+".match") }},
		known{"negate", func(e entry) { p.Negate = r.boolean(e.value, what+".negate") }},
	)
	r.require(found, r.pos(n), what, "match")
	return p
}

// expressionText reads a regular expression and checks it.
func (r *yamlReader) expressionText(n ast.Node, what string) string {
	s := r.text(n, what)
	if _, err := regexp.Compile(s); err != nil {
		r.errorOn(n, "%s: %v", what, err)
	}
	return s
}
