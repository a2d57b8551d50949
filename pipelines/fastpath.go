package pipelines

import (
	"bytes"
	"math"

	"github.com/expr-lang/expr/ast"
)

// The forms of expressions that pipelines are full of are evaluated without
// the expression's machine, which boxes every value and decodes lists and
// objects: names, constants, members of objects (user.name), A ?? B, int(A),
// and conditions that compare those with constants. A fast form answers
// ok = false when it meets what it does not know; the machine then decides, or
// says what is wrong.

// predicate decides a condition.
type predicate func(e *Event) (result, ok bool)

// term evaluates a value.
type term func(e *Event) (v Value, ok bool)

// newTerm makes a term of an expression that is a name, a constant, a member,
// A ?? B or int(A); nil for every other.
func newTerm(node ast.Node) term {
	switch n := node.(type) {
	case *ast.BinaryNode:
		left, right := newTerm(n.Left), newTerm(n.Right)
		if n.Operator != "??" || left == nil || right == nil {
			return nil
		}
		return func(e *Event) (Value, bool) {
			if v, ok := left(e); !ok || v.kind != KindNull {
				return v, ok
			}
			return right(e)
		}
	case *ast.BuiltinNode:
		if n.Name != "int" || len(n.Arguments) != 1 {
			return nil
		}
		if arg := newTerm(n.Arguments[0]); arg != nil {
			return func(e *Event) (Value, bool) { return quickInteger(arg(e)) }
		}
		return nil
	}
	return newLeaf(node)
}

func newLeaf(node ast.Node) term {
	if v, ok := constant(node); ok {
		return func(*Event) (Value, bool) { return v, true }
	}
	switch n := node.(type) {
	case *ast.IdentifierNode:
		if n.Value == "$env" {
			return nil
		}
		ref := newReference(n.Value)
		return func(e *Event) (Value, bool) { return ref.value(e), true }
	case *ast.ChainNode:
		if m, ok := n.Node.(*ast.MemberNode); ok {
			return newPath(m)
		}
	case *ast.MemberNode:
		return newPath(n)
	}
	return nil
}

// quickInteger is int(v) for an integer and for a string of digits.
func quickInteger(v Value, ok bool) (Value, bool) {
	switch {
	case ok && v.kind == KindInt:
		return v, true
	case ok && v.kind == KindString:
		n, ok := parseDigits(v.text)
		return Uint(n), ok && n <= math.MaxInt64
	}
	return Value{}, false
}

// pathStep is one .NAME or ?.NAME of a path.
type pathStep struct {
	name     string
	optional bool // null instead of an error when there is no object
}

// newPath makes a term of NAME.MEMBER.MEMBER.
func newPath(n *ast.MemberNode) term {
	var steps []pathStep
	var base ast.Node = n
	for {
		m, ok := base.(*ast.MemberNode)
		if !ok {
			break
		}
		property, ok := m.Property.(*ast.StringNode)
		if !ok || m.Method {
			return nil
		}
		steps = append([]pathStep{{property.Value, m.Optional}}, steps...)
		base = m.Node
	}
	id, ok := base.(*ast.IdentifierNode)
	if !ok || id.Value == "$env" || id.Value == "headers" {
		return nil
	}
	ref := newReference(id.Value)
	return func(e *Event) (Value, bool) {
		v := ref.value(e)
		for _, s := range steps {
			switch {
			case v.kind == KindMap:
				v = e.member(v, s.name)
			case v.kind == KindNull && s.optional:
				return Null(), true
			default:
				return Value{}, false
			}
		}
		return v, true
	}
}

// member is the value of a key of an object, the last one when it is there
// twice, null when it is not there. Only what is asked for is decoded.
func (e *Event) member(object Value, name string) Value {
	d := decoder{src: object.text, pos: 1, event: e}
	var found Value
	for d.src[d.pos] != '}' {
		key, err := d.string()
		d.pos++ // the colon: the text of an object has no blanks
		if err == nil && alias(key) == name {
			found, err = d.value()
		} else if err == nil {
			err = d.skipValue(1)
		}
		if err != nil {
			return Null() // not reachable: the text was checked when the value was made
		}
		if d.src[d.pos] == ',' {
			d.pos++
		}
	}
	return found
}

// newPredicate makes a predicate of TERM == CONSTANT and the like, joined by
// and, or and not; nil for every other expression.
func newPredicate(node ast.Node) predicate {
	switch n := node.(type) {
	case *ast.UnaryNode:
		if inner := newPredicate(n.Node); inner != nil && (n.Operator == "not" || n.Operator == "!") {
			return func(e *Event) (bool, bool) {
				b, ok := inner(e)
				return !b, ok
			}
		}
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&", "or", "||":
			return newJunction(n)
		}
		return newComparison(n)
	}
	return nil
}

func newJunction(n *ast.BinaryNode) predicate {
	left, right := newPredicate(n.Left), newPredicate(n.Right)
	if left == nil || right == nil {
		return nil
	}
	decides := n.Operator == "or" || n.Operator == "||" // the left value that decides alone
	return func(e *Event) (bool, bool) {
		b, ok := left(e)
		if !ok || b == decides {
			return b, ok
		}
		return right(e)
	}
}

func newComparison(n *ast.BinaryNode) predicate {
	left := newTerm(n.Left)
	if left == nil {
		return nil
	}
	switch right := n.Right.(type) {
	case *ast.StringNode:
		return compareText(left, n.Operator, []byte(right.Value))
	case *ast.IntegerNode:
		return compareInt(left, n.Operator, int64(right.Value))
	}
	return nil
}

func compareText(left term, operator string, want []byte) predicate {
	var test func(have, want []byte) bool
	switch operator {
	case "==":
		test = bytes.Equal
	case "!=":
		test = func(have, want []byte) bool { return !bytes.Equal(have, want) }
	case "startsWith":
		test = bytes.HasPrefix
	case "endsWith":
		test = bytes.HasSuffix
	case "contains":
		test = bytes.Contains
	default:
		return nil
	}
	return func(e *Event) (bool, bool) {
		v, ok := left(e)
		if !ok || v.kind != KindString {
			return false, false
		}
		return test(v.text, want), true
	}
}

func compareInt(left term, operator string, want int64) predicate {
	var test func(have, want int64) bool
	switch operator {
	case "==":
		test = func(have, want int64) bool { return have == want }
	case "!=":
		test = func(have, want int64) bool { return have != want }
	case "<":
		test = func(have, want int64) bool { return have < want }
	case "<=":
		test = func(have, want int64) bool { return have <= want }
	case ">":
		test = func(have, want int64) bool { return have > want }
	case ">=":
		test = func(have, want int64) bool { return have >= want }
	default:
		return nil
	}
	return func(e *Event) (bool, bool) {
		v, ok := left(e)
		if !ok || v.kind != KindInt {
			return false, false
		}
		return test(int64(v.num), want), true
	}
}
