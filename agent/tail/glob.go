package tail

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Pattern is a glob of paths: `*`, `?` and `[a-z]` within a name, `{a,b}` for
// alternatives, and `**` as a whole path element for any number of directories.
type Pattern struct {
	text string
	alts [][]string // elements of each alternative; an absolute path begins with ""
}

// bracesMax bounds what the alternatives of one pattern multiply to.
const bracesMax = 1024

// ParsePattern checks a pattern and makes it absolute.
func ParsePattern(text string) (*Pattern, error) {
	abs, err := filepath.Abs(text)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	alts, err := expandBraces(abs)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	p := &Pattern{text: abs}
	for _, alt := range alts {
		elements := strings.Split(alt, "/")
		for _, e := range elements {
			if _, err := filepath.Match(e, ""); err != nil {
				return nil, fmt.Errorf("pattern %q: %w in %q", text, err, e)
			}
		}
		p.alts = append(p.alts, elements)
	}
	return p, nil
}

func (p *Pattern) String() string { return p.text }

// expandBraces turns a{b,c} into ab and ac.
func expandBraces(s string) ([]string, error) {
	open := strings.IndexByte(s, '{')
	if open < 0 {
		return []string{s}, nil
	}
	parts, after, err := splitBraces(s[open:])
	if err != nil {
		return nil, err
	}
	var out []string
	for _, part := range parts {
		more, err := expandBraces(s[:open] + part + after)
		if err != nil {
			return nil, err
		}
		if out = append(out, more...); len(out) > bracesMax {
			return nil, fmt.Errorf("more than %d alternatives", bracesMax)
		}
	}
	return out, nil
}

// splitBraces splits "{a,{b,c}}rest" at the commas of the outermost braces.
func splitBraces(s string) (parts []string, after string, err error) {
	depth, from := 0, 1
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case ',':
			if depth == 1 {
				parts, from = append(parts, s[from:i]), i+1
			}
		case '}':
			if depth--; depth == 0 {
				return append(parts, s[from:i]), s[i+1:], nil
			}
		}
	}
	return nil, "", fmt.Errorf("a { without its }")
}

// Match says whether the pattern matches a cleaned absolute path.
func (p *Pattern) Match(path string) bool {
	elements := strings.Split(path, "/")
	for _, alt := range p.alts {
		if matchElements(alt, elements) {
			return true
		}
	}
	return false
}

func matchElements(pattern, path []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			return matchBelow(pattern[1:], path)
		}
		if len(path) == 0 || !matchName(pattern[0], path[0]) {
			return false
		}
		pattern, path = pattern[1:], path[1:]
	}
	return len(path) == 0
}

// matchBelow matches what follows a `**`, which stands for any number of names
// that are not hidden.
func matchBelow(pattern, path []string) bool {
	for {
		if matchElements(pattern, path) {
			return true
		}
		if len(path) == 0 || hidden(path[0]) {
			return false
		}
		path = path[1:]
	}
}

// matchName matches one name. As in a shell, a hidden one must be meant.
func matchName(pattern, name string) bool {
	if hidden(name) && !hidden(pattern) {
		return false
	}
	ok, _ := filepath.Match(pattern, name)
	return ok
}

func hidden(name string) bool { return name != "" && name[0] == '.' }

// literal says that an element has no special meaning.
func literal(element string) bool { return !strings.ContainsAny(element, `*?[\`) }
