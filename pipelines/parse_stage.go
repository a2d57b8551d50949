package pipelines

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// stages reads a list of stages, each a mapping with one key.
func (r *yamlReader) stages(n ast.Node, what string) []Stage {
	items, _ := r.list(n, what)
	var out []Stage
	for i, item := range items {
		if s := r.stage(item, fmt.Sprintf("%s[%d]", what, i)); s != nil {
			out = append(out, s)
		}
	}
	return out
}

func (r *yamlReader) stage(n ast.Node, what string) Stage {
	var stage Stage
	count, mistakes := 0, len(r.errs)
	found := r.object(n, what,
		known{"parse", func(e entry) {
			count++
			stage = r.parseStage(e, what+".parse")
		}},
		known{"drop", func(e entry) {
			count++
			stage = &DropStage{Pos: e.pos, Cond: r.condition(e.value, what+".drop")}
		}},
		known{"set", func(e entry) {
			count++
			stage = &SetStage{Pos: e.pos, Fields: r.assignments(e.value, what+".set")}
		}},
	)
	if found != nil && count > 1 {
		r.errorOn(n, "%s: a stage has one key; begin the next with a - of its own", what)
	}
	if found != nil && len(found) == 0 && len(r.errs) == mistakes {
		r.errorOn(n, "%s: the stage is empty", what)
	}
	return stage
}

// parsers are the built-in ones, by name.
var parsers = []string{string(ParserNginx), string(ParserJSON), string(ParserSyslog), string(ParserJournald)}

// parseStage reads the name of a parser, or a mapping of it to its settings.
func (r *yamlReader) parseStage(e entry, what string) *ParseStage {
	s := &ParseStage{Pos: e.pos}
	switch r.resolve(e.value).(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		r.object(e.value, what, known{string(ParserSyslog), func(e entry) {
			s.Parser = ParserSyslog
			r.object(e.value, what+".syslog", known{"zone", func(e entry) { s.Zone = r.zone(e.value, what+".syslog.zone") }})
		}})
	default:
		s.Parser = Parser(r.oneOf(e.value, what, parsers...))
	}
	return s
}

// zoneLocal is the time zone of the machine that parses.
const zoneLocal = "local"

// zone reads the name of a time zone.
func (r *yamlReader) zone(n ast.Node, what string) string {
	s := r.text(n, what)
	if s == "" || s == zoneLocal {
		return s
	}
	if _, err := time.LoadLocation(s); err != nil {
		r.errorOn(n, "%s: %q is not a time zone: want local, UTC or a name such as Europe/Berlin", what, s)
	}
	return s
}

// assignments reads a mapping of names to expressions, in order.
func (r *yamlReader) assignments(n ast.Node, what string) []Column {
	entries, ok := r.mapping(n, what)
	out := []Column{}
	for _, e := range entries {
		if e.key == "" {
			r.errorAt(e.pos, "%s: a name must not be empty", what)
			continue
		}
		if _, null := e.value.(*ast.NullNode); null {
			r.errorAt(e.pos, "%s.%s: the value is missing; write nil for null", what, e.key)
			continue
		}
		if src := r.source(e.value, what+"."+e.key); src != nil {
			out = append(out, Column{Name: e.key, Expr: src})
		}
	}
	if ok && len(entries) == 0 {
		r.errorOn(n, "%s: is empty", what)
	}
	return out
}

// source reads an expression and compiles it once, for its mistakes; nil when
// there is one.
func (r *yamlReader) source(n ast.Node, what string) *Source {
	n = r.resolve(n)
	if n == nil {
		return nil
	}
	text, ok := scalarText(n)
	if !ok {
		r.wrongType(n, what, "an expression")
		return nil
	}
	s := &Source{Text: strings.TrimRight(text, "\n"), Pos: r.pos(n), locate: r.locator(n)}
	if strings.TrimSpace(text) == "" {
		r.errorOn(n, "%s: the expression is empty", what)
		return nil
	}
	if _, err := s.compile(); err != nil {
		err.Message = what + ": " + err.Message
		r.errs = append(r.errs, err)
		return nil
	}
	return s
}

// locator returns a function that finds a character of a scalar in the file.
// Where a scalar is folded over lines it is the scalar's beginning.
func (r *yamlReader) locator(n ast.Node) func(line, col int) Pos {
	start := r.pos(n)
	if _, block := n.(*ast.LiteralNode); block {
		return r.blockLocator(n, start)
	}
	quote := n.GetToken().Type
	return func(line, col int) Pos {
		if line != 1 {
			return start
		}
		p := start
		switch quote {
		case token.SingleQuoteType:
			p.Col += 1 + r.escapedLen(start, col, '\'')
		case token.DoubleQuoteType:
			p.Col += 1 + r.escapedLen(start, col, '\\')
		default:
			p.Col += col
		}
		return p
	}
}

// escapedLen is how many characters of the file make the first col characters
// of a quoted scalar, when each escape is two characters long.
func (r *yamlReader) escapedLen(start Pos, col int, escape rune) int {
	if start.Line > len(r.lines) {
		return col
	}
	line := []rune(r.lines[start.Line-1])
	i := start.Col // behind the quote
	for ; col > 0 && i < len(line); col-- {
		if line[i] == escape {
			i++
		}
		i++
	}
	return i - start.Col
}

// blockLocator is for | and >: line 1 of the text is the line after the
// indicator, indented as its first line that is not empty.
func (r *yamlReader) blockLocator(n ast.Node, start Pos) func(line, col int) Pos {
	indent := 0
	for _, l := range r.lines[min(start.Line, len(r.lines)):] {
		if trimmed := strings.TrimLeft(l, " "); trimmed != "" {
			indent = len(l) - len(trimmed)
			break
		}
	}
	folded := n.GetToken().Type == token.FoldedType
	return func(line, col int) Pos {
		if folded && line > 1 {
			return start
		}
		p := Pos{start.File, start.Line + line, indent + col + 1}
		if folded && p.Line <= len(r.lines) && p.Col > utf8.RuneCountInString(r.lines[p.Line-1])+1 {
			return start
		}
		return p
	}
}

// condition reads an expression that must give true or false, as far as its form tells.
func (r *yamlReader) condition(n ast.Node, what string) *Source {
	s := r.source(n, what)
	if s == nil {
		return nil
	}
	events := knownFields{parsed: true} // of which nothing is known
	if kind := events.kindOf(s); kind != KindNull && kind != KindBool {
		r.errorOn(n, "%s: want a condition, such as status >= 500, not %q (%s)", what, s.Text, kind)
	}
	return s
}
