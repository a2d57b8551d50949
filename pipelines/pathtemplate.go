package pipelines

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// PathTemplate is a relative path with times (%Y %m %d %H %M) and expressions in braces, such as site={host}/dt=%Y-%m-%d. Not changed after Parse.
type PathTemplate struct {
	Text  string
	Pos   Pos
	Parts []PathPart
	Unit  TimeUnit // how long a time partition is; 0 without times
}

// PathPart is one of: text, a time, an expression.
type PathPart struct {
	Text string
	Time byte // the letter after %
	Expr *Source
}

// TimeUnit is the span of a time partition.
type TimeUnit byte

// The spans, by the letter of the smallest time in the path.
const (
	UnitYear   TimeUnit = 'Y'
	UnitMonth  TimeUnit = 'm'
	UnitDay    TimeUnit = 'd'
	UnitHour   TimeUnit = 'H'
	UnitMinute TimeUnit = 'M'
)

// timeLetters are what may stand after %, from the largest unit to the smallest.
const timeLetters = "YmdHM"

// Span is the time partition in which t lies, by the calendar and clock of zone. An hour that a zone's clock shows twice is one partition.
func (u TimeUnit) Span(t time.Time, zone *time.Location) (from, to time.Time) {
	t = t.In(zone)
	y, m, d, h, min := t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute()
	switch u {
	case UnitYear:
		return time.Date(y, 1, 1, 0, 0, 0, 0, zone), time.Date(y+1, 1, 1, 0, 0, 0, 0, zone)
	case UnitMonth:
		return time.Date(y, m, 1, 0, 0, 0, 0, zone), time.Date(y, m+1, 1, 0, 0, 0, 0, zone)
	case UnitDay:
		return time.Date(y, m, d, 0, 0, 0, 0, zone), time.Date(y, m, d+1, 0, 0, 0, 0, zone)
	case UnitHour:
		return clockSpan(t, time.Date(y, m, d, h, 0, 0, 0, zone), time.Hour)
	default:
		return clockSpan(t, time.Date(y, m, d, h, min, 0, 0, zone), time.Minute)
	}
}

// clockSpan is the hour or minute from `from` on. Where the clock is put back it shows the same one twice: then it reaches from the first to the last.
func clockSpan(t, from time.Time, length time.Duration) (time.Time, time.Time) {
	shows := func(other time.Time) bool {
		return t.Hour() == other.Hour() && (length == time.Hour || t.Minute() == other.Minute()) && t.YearDay() == other.YearDay()
	}
	to := from.Add(length)
	for _, shift := range clockShifts {
		if shows(from.Add(-shift)) {
			from = from.Add(-shift)
			break
		}
		if shows(to.Add(shift - 1)) {
			to = to.Add(shift)
			break
		}
	}
	return from, to
}

// clockShifts are by how much zones put their clocks back, the largest first: half of one would end in the middle.
var clockShifts = [...]time.Duration{2 * time.Hour, time.Hour, 30 * time.Minute}

// parsePath reads a template; the error is at a character of the text, from 0.
func parsePath(text string) (parts []PathPart, at int, err error) {
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			parts = append(parts, PathPart{Text: literal.String()})
			literal.Reset()
		}
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '%':
			if i+1 == len(text) || !strings.ContainsRune(timeLetters+"%", rune(text[i+1])) {
				return nil, i, fmt.Errorf("%% is followed by one of Y, m, d, H, M or %%")
			}
			i++
			if text[i] == '%' {
				literal.WriteByte('%')
				continue
			}
			flush()
			parts = append(parts, PathPart{Time: text[i]})
		case '{':
			end := closingBrace(text, i)
			if end < 0 {
				return nil, i, fmt.Errorf("{ begins an expression that no } ends")
			}
			flush()
			parts = append(parts, PathPart{Expr: &Source{Text: text[i+1 : end]}})
			i = end
		case '}':
			return nil, i, fmt.Errorf("} ends no expression")
		default:
			literal.WriteByte(text[i])
		}
	}
	flush()
	return parts, 0, nil
}

// closingBrace is where the expression that begins at i ends; braces in quotes and in pairs belong to it.
func closingBrace(text string, i int) int {
	depth := 0
	var quote byte
	for ; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'' || c == '`':
			quote = c
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// unitOf is the smallest time of the parts. The error names a larger one that is missing: without it times of different partitions would share a path.
func unitOf(parts []PathPart) (TimeUnit, error) {
	var unit TimeUnit
	missing := ""
	for _, letter := range timeLetters {
		used := false
		for _, p := range parts {
			used = used || p.Time == byte(letter)
		}
		switch {
		case used && missing != "":
			return TimeUnit(letter), fmt.Errorf("%%%c without %s: times that are not the same would share a path", letter, missing)
		case used:
			unit = TimeUnit(letter)
		case missing == "":
			missing = "%" + string(letter)
		}
	}
	return unit, nil
}

// checkSegments refuses literal text that cannot be a path below a directory, or that readers of such directories pass over.
func checkSegments(text string) error {
	for _, segment := range strings.Split(text, "/") {
		switch {
		case segment == "":
			return fmt.Errorf("the path is relative, without a / at its ends and without //")
		case segment == "." || segment == "..":
			return fmt.Errorf("%s is not a directory of its own", segment)
		case segment[0] == '.' || segment[0] == '_':
			return fmt.Errorf("%s would be hidden: readers pass over names that begin with %c", segment, segment[0])
		}
	}
	return nil
}

// shape is the template with a letter in place of each time and expression.
func (t *PathTemplate) shape() string {
	var b strings.Builder
	for _, p := range t.Parts {
		if b.WriteString(p.Text); p.Text == "" {
			b.WriteByte('x')
		}
	}
	return b.String()
}

// pathTemplateCharsMax bounds a template.
const pathTemplateCharsMax = 1000

func (r *yamlReader) pathTemplate(e entry, what string) *PathTemplate {
	text := r.text(e.value, what)
	n := r.resolve(e.value)
	if text == "" || n == nil {
		return nil
	}
	locate := r.locator(n)
	t := &PathTemplate{Text: text, Pos: r.pos(n)}
	var at int
	var err error
	if t.Parts, at, err = parsePath(text); err != nil {
		r.errorAt(locate(1, utf8.RuneCountInString(text[:at])), "%s: %v", what, err)
		return nil
	}
	if len(text) > pathTemplateCharsMax {
		r.errorOn(n, "%s: longer than %d characters", what, pathTemplateCharsMax)
	}
	if t.Unit, err = unitOf(t.Parts); err != nil {
		r.errorOn(n, "%s: %v", what, err)
	}
	if err := checkSegments(t.shape()); err != nil {
		r.errorOn(n, "%s: %v", what, err)
	}
	r.pathExpressions(t, what, locate)
	return t
}

// pathExpressions compiles the expressions of a template once, for their mistakes.
func (r *yamlReader) pathExpressions(t *PathTemplate, what string, locate func(line, col int) Pos) {
	from := 0
	for _, p := range t.Parts {
		if p.Expr == nil {
			continue
		}
		start := strings.Index(t.Text[from:], "{"+p.Expr.Text+"}") + from + 1
		from = start + len(p.Expr.Text)
		col := utf8.RuneCountInString(t.Text[:start])
		p.Expr.Pos = locate(1, col)
		p.Expr.locate = func(line, c int) Pos { return locate(line, col+c) }
		if strings.TrimSpace(p.Expr.Text) == "" {
			r.errorAt(p.Expr.Pos, "%s: the expression is empty", what)
			continue
		}
		if _, err := p.Expr.compile(); err != nil {
			err.Message = what + ": " + err.Message
			r.errs = append(r.errs, err)
		}
	}
}
