package clickhouse

import (
	"fmt"
	"strconv"
	"strings"
)

// chType is a column type as the server writes it, taken apart.
type chType struct {
	name string   // without arguments: "DateTime64"
	args []string // as written: "3", "'UTC'"
}

// parseType takes apart "Name" or "Name(arg, arg)"; arguments may have parentheses and quotes of their own.
func parseType(s string) (chType, error) {
	s = strings.TrimSpace(s)
	open := strings.IndexByte(s, '(')
	if open < 0 {
		return chType{name: s}, nil
	}
	if !strings.HasSuffix(s, ")") {
		return chType{}, fmt.Errorf("type %q: no closing parenthesis", s)
	}
	args, err := splitArgs(s[open+1 : len(s)-1])
	if err != nil {
		return chType{}, fmt.Errorf("type %q: %w", s, err)
	}
	return chType{name: s[:open], args: args}, nil
}

// splitArgs splits at the commas outside parentheses and quotes.
func splitArgs(s string) (args []string, err error) {
	depth, start, quoted := 0, 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			args = append(args, strings.TrimSpace(s[start:i]))
			start = i + 1
		}
	}
	if depth != 0 || quoted {
		return nil, fmt.Errorf("parentheses or quotes do not match")
	}
	return append(args, strings.TrimSpace(s[start:])), nil
}

func (t chType) String() string {
	if len(t.args) == 0 {
		return t.name
	}
	return t.name + "(" + strings.Join(t.args, ", ") + ")"
}

// only is the single argument of a type that has one.
func (t chType) only() string {
	if len(t.args) == 0 {
		return ""
	}
	return t.args[0]
}

// intArg is the i-th argument as a number.
func (t chType) intArg(i int) (int, error) {
	if i >= len(t.args) {
		return 0, fmt.Errorf("type %s: argument %d is missing", t, i+1)
	}
	n, err := strconv.Atoi(t.args[i])
	if err != nil {
		return 0, fmt.Errorf("type %s: argument %d is no number", t, i+1)
	}
	return n, nil
}

// lengthArg is intArg for a number from 0 to limit.
func (t chType) lengthArg(i, limit int) (int, error) {
	n, err := t.intArg(i)
	if err == nil && (n < 0 || n > limit) {
		return 0, fmt.Errorf("type %s: argument %d is not between 0 and %d", t, i+1, limit)
	}
	return n, err
}

// enumValues reads the arguments of an Enum: 'name' = number.
func (t chType) enumValues() (map[string]int64, error) {
	values := make(map[string]int64, len(t.args))
	for _, arg := range t.args {
		i := strings.LastIndexByte(arg, '=')
		if i < 0 {
			return nil, fmt.Errorf("type %s: %q is no enum value", t, arg)
		}
		name, err := unquote(strings.TrimSpace(arg[:i]))
		if err != nil {
			return nil, fmt.Errorf("type %s: %w", t, err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(arg[i+1:]), 10, 16)
		if err != nil {
			return nil, fmt.Errorf("type %s: %q is no enum value", t, arg)
		}
		values[name] = n
	}
	return values, nil
}

// unquote reads a quoted string of the server's: quotes and backslashes in it are escaped by a backslash, quotes also by doubling.
func unquote(s string) (string, error) {
	if len(s) < 2 || s[0] != '\'' || s[len(s)-1] != '\'' {
		return "", fmt.Errorf("%s is not quoted", s)
	}
	s = s[1 : len(s)-1]
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if (s[i] == '\\' || s[i] == '\'') && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String(), nil
}
