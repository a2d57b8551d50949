package pipelines

import (
	"slices"

	"github.com/expr-lang/expr/ast"
)

// knownFields are the fields that events have at one point of a pipeline, as
// far as the file says.
type knownFields struct {
	parsed   bool   // events, not raw lines
	complete bool   // no other fields than these
	parsedBy string // for messages: what did it, where it was no stage
	names    []string
	kinds    []Kind // KindNull: not known
}

func (k *knownFields) set(name string, kind Kind) {
	if i := slices.Index(k.names, name); i >= 0 {
		k.kinds[i] = kind
		return
	}
	k.names = append(k.names, name)
	k.kinds = append(k.kinds, kind)
}

func (k *knownFields) clone() knownFields {
	c := *k
	c.names, c.kinds = slices.Clone(k.names), slices.Clone(k.kinds)
	return c
}

// kindOf is the kind of what an expression gives (when not null), as far as
// its form says it: KindNull when it does not.
func (k *knownFields) kindOf(s *Source) Kind {
	x, err := s.compile()
	if err != nil {
		return KindNull
	}
	return k.kindOfNode(x.program.Node())
}

func (k *knownFields) kindOfNode(node ast.Node) Kind {
	if v, ok := constant(node); ok {
		return v.kind
	}
	switch n := node.(type) {
	case *ast.IdentifierNode:
		r := newReference(n.Value)
		return k.kindOfName(&r)
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			return KindBool
		}
		return k.kindOfNode(n.Node)
	case *ast.BinaryNode:
		return k.kindOfBinary(n)
	case *ast.ConditionalNode:
		return k.kindOfEither(n.Exp1, n.Exp2)
	case *ast.BuiltinNode:
		return kindOfBuiltin(n.Name)
	}
	return KindNull
}

func (k *knownFields) kindOfName(r *reference) Kind {
	if kind, ok := reserved[r.key]; ok {
		return kind
	}
	if i := slices.Index(k.names, r.name); i >= 0 && !r.header {
		return k.kinds[i]
	}
	optional := k.complete && (r.name == "host" || slices.Contains(nginxOptional[:], r.name))
	if r.header || !k.parsed || optional {
		return KindString
	}
	return KindNull
}

func (k *knownFields) kindOfBinary(n *ast.BinaryNode) Kind {
	left, right := k.kindOfNode(n.Left), k.kindOfNode(n.Right)
	switch n.Operator {
	case "==", "!=", "<", "<=", ">", ">=", "in", "contains", "startsWith", "endsWith", "matches", "and", "&&", "or", "||":
		return KindBool
	case "??":
		return k.kindOfEither(n.Left, n.Right)
	case "/", "**", "^":
		return KindFloat
	case "%":
		return KindInt
	case "+":
		if left == KindString && right == KindString {
			return KindString
		}
	case "-", "*":
	default:
		return KindNull
	}
	return arithmetic(left, right)
}

// kindOfEither is the kind of a value that is one or the other; null counts for nothing.
func (k *knownFields) kindOfEither(a, b ast.Node) Kind {
	left, right := k.kindOfNode(a), k.kindOfNode(b)
	switch {
	case left == right || isNil(b):
		return left
	case isNil(a):
		return right
	}
	return KindNull
}

func isNil(n ast.Node) bool {
	_, ok := n.(*ast.NilNode)
	return ok
}

func arithmetic(a, b Kind) Kind {
	switch {
	case a == KindInt && b == KindInt:
		return KindInt
	case a == KindFloat && (b == KindFloat || b == KindInt), a == KindInt && b == KindFloat:
		return KindFloat
	}
	return KindNull
}

func kindOfBuiltin(name string) Kind {
	switch name {
	case "int", "len", "count", "indexOf", "lastIndexOf":
		return KindInt
	case "float", "ceil", "floor", "round":
		return KindFloat
	case "string", "trim", "trimPrefix", "trimSuffix", "upper", "lower", "replace", "repeat", "join", "toJSON", "toBase64", "fromBase64", "type":
		return KindString
	case "date":
		return KindTime
	case "all", "any", "none", "one", "hasPrefix", "hasSuffix":
		return KindBool
	}
	return KindNull
}
