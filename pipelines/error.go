package pipelines

import (
	"fmt"
	"strings"
)

// Error is one mistake in a pipeline file.
type Error struct {
	Pos        Pos
	Message    string
	Suggestion string // what was probably meant; "": no idea
}

// Error renders file:line:col: message (did you mean "x"?).
func (e *Error) Error() string {
	if e.Suggestion == "" {
		return fmt.Sprintf("%s: %s", e.Pos, e.Message)
	}
	return fmt.Sprintf("%s: %s (did you mean %q?)", e.Pos, e.Message, e.Suggestion)
}

// ErrorList is every mistake found, in the order of the file.
type ErrorList []*Error

// Error renders one mistake a line.
func (l ErrorList) Error() string {
	lines := make([]string, len(l))
	for i, e := range l {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.Is and errors.As each of them.
func (l ErrorList) Unwrap() []error {
	out := make([]error, len(l))
	for i, e := range l {
		out[i] = e
	}
	return out
}

// suggestedBytesMax bounds the words for which a suggestion is looked for.
const suggestedBytesMax = 64

// nearest returns the candidate that word was probably meant to be, "" if none
// is near: at most a third of its letters, but always one, may differ.
func nearest(word string, candidates []string) string {
	if len(word) > suggestedBytesMax {
		return ""
	}
	best, bestDistance := "", max(1, len(word)/3)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to make b of a (optimal string alignment).
func distance(a, b string) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
