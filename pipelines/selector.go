package pipelines

import (
	"fmt"
	"slices"
	"strings"
)

// LabelSelector chooses objects by their labels, as Kubernetes does: conditions of which all must hold. It is written
// KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY notin (A, B), KEY or !KEY, joined by commas.
type LabelSelector struct {
	Text       string
	conditions []labelCondition
}

// labelCondition is one of them. As in Kubernetes, one that refuses values holds where there is no such label.
type labelCondition struct {
	key    string
	values []string // nil: it is about the key alone
	negate bool
}

// Matches says whether the labels that get tells are chosen.
func (s *LabelSelector) Matches(get func(key string) (value string, ok bool)) bool {
	for _, c := range s.conditions {
		value, ok := get(c.key)
		if holds := ok && (c.values == nil || slices.Contains(c.values, value)); holds == c.negate {
			return false
		}
	}
	return true
}

// parseLabelSelector reads a selector.
func parseLabelSelector(text string) (*LabelSelector, error) {
	s := &LabelSelector{Text: text}
	for rest := strings.TrimSpace(text); ; {
		c, more, err := labelConditionOf(rest)
		if err != nil {
			return nil, err
		}
		s.conditions = append(s.conditions, c)
		if more == "" {
			return s, nil
		}
		rest = strings.TrimSpace(more[1:]) // behind the comma
	}
}

// labelConditionOf reads the first condition of a text. more begins with the comma behind it.
func labelConditionOf(text string) (c labelCondition, more string, err error) {
	rest, negate := strings.CutPrefix(text, "!")
	end := strings.IndexAny(rest, "=!, (")
	if end < 0 {
		end = len(rest)
	}
	c.key, rest = strings.TrimSpace(rest[:end]), strings.TrimSpace(rest[end:])
	if !isLabelKey(c.key) {
		return c, "", fmt.Errorf("%q is no label's key", c.key)
	}
	if negate || rest == "" || rest[0] == ',' {
		c.negate = negate
		return c, rest, onlyComma(rest)
	}
	for _, word := range []string{"in", "notin"} {
		if values, ok := strings.CutPrefix(rest, word); ok && strings.HasPrefix(strings.TrimSpace(values), "(") {
			c.negate = word == "notin"
			return c.oneOf(values)
		}
	}
	for _, operator := range []string{"!=", "==", "="} {
		if value, ok := strings.CutPrefix(rest, operator); ok {
			c.negate = operator == "!="
			value, more := cutAt(value, ",")
			if value = strings.TrimSpace(value); !isLabelValue(value) {
				return c, "", fmt.Errorf("%q is no label's value", value)
			}
			c.values = []string{value}
			return c, more, nil
		}
	}
	return c, "", fmt.Errorf("after %s comes %q: want =, !=, in (...), notin (...) or a comma", c.key, rest)
}

// oneOf reads (A, B).
func (c labelCondition) oneOf(text string) (labelCondition, string, error) {
	list, ok := strings.CutPrefix(strings.TrimSpace(text), "(")
	list, more, closed := strings.Cut(list, ")")
	if !ok || !closed {
		return c, "", fmt.Errorf("the values of %s: want them in brackets, as in %s in (a, b)", c.key, c.key)
	}
	for v := range strings.SplitSeq(list, ",") {
		if v = strings.TrimSpace(v); !isLabelValue(v) {
			return c, "", fmt.Errorf("%q is no label's value", v)
		}
		c.values = append(c.values, v)
	}
	more = strings.TrimSpace(more)
	return c, more, onlyComma(more)
}

// onlyComma refuses what follows a condition and is no comma.
func onlyComma(rest string) error {
	if rest != "" && rest[0] != ',' {
		return fmt.Errorf("a comma is missing before %q", rest)
	}
	return nil
}

// cutAt splits a text before a separator, which begins the second part.
func cutAt(text, separator string) (before, from string) {
	if i := strings.Index(text, separator); i >= 0 {
		return text[:i], text[i:]
	}
	return text, ""
}

// Limits of Kubernetes.
const (
	labelNameBytesMax   = 63
	labelPrefixBytesMax = 253
)

// isLabelKey says whether a text is NAME or PREFIX/NAME.
func isLabelKey(s string) bool {
	prefix, name, found := strings.Cut(s, "/")
	if !found {
		prefix, name = "", s
	}
	return name != "" && isLabelValue(name) && (!found || prefix != "" && len(prefix) <= labelPrefixBytesMax && isLabelText(prefix))
}

func isLabelValue(s string) bool { return len(s) <= labelNameBytesMax && isLabelText(s) }

// isLabelText says whether a text is of letters, digits and, within, of -, _ and dots.
func isLabelText(s string) bool {
	const within = "-_."
	return strings.Trim(s, within) == s && strings.Trim(s, within+"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// KeyGlob matches names in which * stands for any text, slashes too.
type KeyGlob string

// Matches says whether it matches a name.
func (g KeyGlob) Matches(name string) bool {
	first, rest, star := strings.Cut(string(g), "*")
	if !star {
		return name == first
	}
	name, ok := strings.CutPrefix(name, first)
	for ok {
		var part string
		part, rest, star = strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(name, part)
		}
		_, name, ok = strings.Cut(name, part)
	}
	return false
}

// MatchesAny says whether one of some globs matches a name.
func MatchesAny(globs []KeyGlob, name string) bool {
	return slices.ContainsFunc(globs, func(g KeyGlob) bool { return g.Matches(name) })
}
