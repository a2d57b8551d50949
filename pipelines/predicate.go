package pipelines

import (
	"bytes"
	"math"
	"slices"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
)

// predicate decides a simple condition without the expression's machine, which
// boxes every value. ok is false when it meets what it does not know: the
// machine then decides, or says what is wrong.
type predicate func(e *Event) (result, ok bool)

// quickPredicate makes a predicate of NAME == CONSTANT and the like, joined by
// and, or and not; nil for every other expression.
func quickPredicate(node ast.Node) predicate {
	switch n := node.(type) {
	case *ast.UnaryNode:
		if inner := quickPredicate(n.Node); inner != nil && (n.Operator == "not" || n.Operator == "!") {
			return func(e *Event) (bool, bool) {
				b, ok := inner(e)
				return !b, ok
			}
		}
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&", "or", "||":
			return quickJunction(n)
		}
		return quickComparison(n)
	}
	return nil
}

func quickJunction(n *ast.BinaryNode) predicate {
	left, right := quickPredicate(n.Left), quickPredicate(n.Right)
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

func quickComparison(n *ast.BinaryNode) predicate {
	id, ok := n.Left.(*ast.IdentifierNode)
	if !ok || id.Value == "$env" || id.Value == "headers" {
		return nil
	}
	ref := newReference(id.Value)
	switch right := n.Right.(type) {
	case *ast.StringNode:
		return quickText(ref, n.Operator, []byte(right.Value))
	case *ast.IntegerNode:
		return quickInt(ref, n.Operator, int64(right.Value))
	}
	return nil
}

func quickText(ref reference, operator string, want []byte) predicate {
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
		v := ref.value(e)
		if v.kind != KindString {
			return false, false
		}
		return test(v.text, want), true
	}
}

func quickInt(ref reference, operator string, want int64) predicate {
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
		v := ref.value(e)
		if v.kind != KindInt {
			return false, false
		}
		return test(int64(v.num), want), true
	}
}

// shortcut evaluates what mappings are full of, A ?? B and int(A) of names and
// constants, without the expression's machine; ok is false when it does not know.
type shortcut func(e *Event) (v Value, ok bool)

func newShortcut(node ast.Node) shortcut {
	switch n := node.(type) {
	case *ast.BinaryNode:
		left, right := leaf(n.Left), leaf(n.Right)
		if n.Operator != "??" || left == nil || right == nil {
			return nil
		}
		return func(e *Event) (Value, bool) {
			if v := left(e); v.kind != KindNull {
				return v, true
			}
			return right(e), true
		}
	case *ast.BuiltinNode:
		if n.Name != "int" || len(n.Arguments) != 1 {
			return nil
		}
		if arg := leaf(n.Arguments[0]); arg != nil {
			return func(e *Event) (Value, bool) { return quickInteger(arg(e)) }
		}
	}
	return nil
}

// quickInteger is int(v) for an integer and for a string of digits.
func quickInteger(v Value) (Value, bool) {
	switch v.kind {
	case KindInt:
		return v, true
	case KindString:
		n, ok := parseDigits(v.text)
		return Uint(n), ok && n <= math.MaxInt64
	}
	return Value{}, false
}

// leaf evaluates a name or a constant; nil for every other expression.
func leaf(node ast.Node) func(e *Event) Value {
	if v, ok := constant(node); ok {
		return func(*Event) Value { return v }
	}
	id, ok := node.(*ast.IdentifierNode)
	if !ok || id.Value == "$env" {
		return nil
	}
	ref := newReference(id.Value)
	return func(e *Event) Value { return ref.value(e) }
}

// builtinNames are the functions that expressions have.
func builtinNames() []string {
	names := slices.Clone(builtin.Names)
	return slices.DeleteFunc(names, func(n string) bool { return n == "now" })
}
