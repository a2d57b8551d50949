package agent

import (
	"strings"

	"github.com/sluice-io/sluice/agent/assemble"
)

// The cursor of an input that joins entries is a text of several lines: the cursor of the last entry that was read, and those of the first
// entries of the records that were open then, in order. After a restart the input is asked for what follows the first of these. Of what
// comes up to the last entry only the entries of open records are taken, the others were: so each is in a record once.

// cursorState is where such an input is.
type cursorState struct {
	last string // of the last entry that was read; "": none
	// until is the last entry that was read before a restart; "": what comes is new.
	until  string
	firsts map[string]bool       // entries before it with which open records begin
	open   map[joinedSource]bool // sources whose record is open by now
}

// resumeAt takes a stored cursor apart: where to go on, at it or behind it.
func resumeAt(stored string) (state cursorState, cursor string, itself bool) {
	last, rest, held := strings.Cut(stored, "\n")
	if !held {
		return cursorState{last: last}, last, false
	}
	state = cursorState{last: last, until: last, firsts: map[string]bool{}, open: map[joinedSource]bool{}}
	firsts := strings.Split(rest, "\n")
	for _, c := range firsts {
		state.firsts[c] = true
	}
	return state, firsts[0], true
}

// used says that the input has cursors.
func (c *cursorState) used() bool { return c.last != "" }

// resuming says that what comes now was read before.
func (c *cursorState) resuming() bool { return c.until != "" }

// passes says that an entry is in a record already.
func (c *cursorState) passes(cursor string, source joinedSource) bool {
	if c.until == "" {
		return false
	}
	if cursor != c.until && beyond(cursor, c.until) { // it is not there any more
		c.until = ""
		return false
	}
	if c.firsts[cursor] {
		c.open[source] = true
	}
	if cursor == c.until {
		c.until = ""
	}
	return !c.open[source]
}

// beyond says that an entry comes after another, as far as their cursors tell: within one file's numbers by these, else by time.
func beyond(a, b string) bool {
	if x := cursorPart(a, "s"); x != "" && x == cursorPart(b, "s") {
		return hexAfter(cursorPart(a, "i"), cursorPart(b, "i"))
	}
	return hexAfter(cursorPart(a, "t"), cursorPart(b, "t"))
}

// hexAfter compares numbers in hexadecimal.
func hexAfter(a, b string) bool {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return len(a) > len(b) || len(a) == len(b) && a > b
}

// cursorPart is the value of NAME in NAME=VALUE;NAME=VALUE.
func cursorPart(cursor, name string) string {
	for part := range strings.SplitSeq(cursor, ";") {
		if value, ok := strings.CutPrefix(part, name+"="); ok {
			return value
		}
	}
	return ""
}

// text is the cursor that is stored.
func (c *cursorState) text(sources *assemble.Sources[joinedSource, joinedFirst]) string {
	if c.last == "" {
		return ""
	}
	var out strings.Builder
	out.WriteString(c.last)
	sources.Each(func(f joinedFirst) {
		out.WriteByte('\n')
		out.WriteString(f.cursor)
	})
	return out.String()
}
