package assemble

import (
	"fmt"
	"regexp"
)

// Pattern matches lines.
type Pattern struct {
	re     *regexp.Regexp
	negate bool
}

// NewPattern compiles a regular expression of RE2's syntax. With negate it
// matches the lines that the expression does not.
func NewPattern(expr string, negate bool) (*Pattern, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("compile pattern: %w", err)
	}
	return &Pattern{re: re, negate: negate}, nil
}

func (p *Pattern) matches(line []byte) bool { return p != nil && p.re.Match(line) != p.negate }

// Limits of a record where the caller sets none.
const (
	LinesMaxDefault = 500
	BytesMaxDefault = 1 << 20
)

// Config says which lines make a record. At least one pattern is set:
//
//	Start             a record begins with a line that matches; others go on with it
//	Continue          a line that matches goes on with the record before it; others begin one
//	End               a record ends with a line that matches
//	Start, Continue   a record begins with Start and goes on with Continue; other lines are records by themselves
//	Start, End        a record goes from Start to End; lines outside are records by themselves
//
// A line that matches Continue goes on with an open record even if it matches
// Start.
type Config struct {
	Start, Continue, End *Pattern
	LinesMax             int // of a record; 0 means LinesMaxDefault
	BytesMax             int // of a record, lines joined by newlines; 0 means BytesMaxDefault
}

// Verdict says what a line does to the records.
type Verdict uint8

// The parts of a verdict.
const (
	// Opens: the open record, if there is one, ended before this line, which
	// begins another. Without it the line goes on with the open record.
	Opens Verdict = 1 << iota
	// Closes: the record ends with this line.
	Closes
	// Split: with Opens: the line would go on with the open record, but for a
	// limit. It is judged like a first line.
	Split
)

// Assembler judges the lines of one stream, in order. Not safe for concurrent
// use.
type Assembler struct {
	cfg   Config
	open  bool
	lines int // of the open record
	bytes int
}

// New returns an assembler without open record.
func New(cfg Config) *Assembler {
	if cfg.LinesMax == 0 {
		cfg.LinesMax = LinesMaxDefault
	}
	if cfg.BytesMax == 0 {
		cfg.BytesMax = BytesMaxDefault
	}
	return &Assembler{cfg: cfg}
}

// Open says that a record is open: the next line may go on with it.
func (a *Assembler) Open() bool { return a.open }

// Reset forgets the open record: its lines were taken as they are.
func (a *Assembler) Reset() { a.open, a.lines, a.bytes = false, 0, 0 }

// Line judges the next line.
func (a *Assembler) Line(line []byte) Verdict {
	start := a.cfg.Start.matches(line)
	end := a.cfg.End.matches(line)
	verdict := Opens
	switch {
	case !a.open || !a.goesOn(start, line):
	case a.lines < a.cfg.LinesMax && a.bytes+1+len(line) <= a.cfg.BytesMax:
		verdict = 0
	default:
		verdict |= Split
	}
	if verdict&Opens != 0 {
		a.lines, a.bytes = 1, len(line)
	} else {
		a.lines++
		a.bytes += 1 + len(line)
	}
	a.open = !end && (verdict&Opens == 0 || a.staysOpen(start))
	if !a.open {
		verdict |= Closes
	}
	return verdict
}

// goesOn says whether a line belongs to the open record.
func (a *Assembler) goesOn(start bool, line []byte) bool {
	if a.cfg.Continue != nil {
		return a.cfg.Continue.matches(line)
	}
	return !start
}

// staysOpen says whether a line that begins a record may be followed by more
// of it.
func (a *Assembler) staysOpen(start bool) bool {
	alone := a.cfg.Start == nil || a.cfg.Continue == nil && a.cfg.End == nil
	return alone || start
}
