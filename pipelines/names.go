package pipelines

import (
	"fmt"
	"slices"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
)

// nameError is a mistake in the names of an expression.
type nameError struct {
	at         int // characters from its start
	message    string
	suggestion string
}

// nameVisitor finds the names an expression uses and turns headers.NAME and
// $env["NAME"] into one name, so that the map of all of them need not be made.
type nameVisitor struct {
	used     map[string]int // how often
	first    map[string]int // where, in characters
	declared map[string]bool
	err      *nameError
}

func newNameVisitor() *nameVisitor {
	return &nameVisitor{used: map[string]int{}, first: map[string]int{}, declared: map[string]bool{}}
}

// Visit is called on children before their parents.
func (v *nameVisitor) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		v.use(n.Value, n.Location().From)
	case *ast.VariableDeclaratorNode:
		v.declared[n.Name] = true
	case *ast.MemberNode:
		v.member(node, n)
	case *ast.CallNode:
		v.call(n)
	}
}

// usedName is a name in an expression and where it stands, in characters.
type usedName struct {
	name string
	at   int
}

// names are the fields that the expression names, in its order. Variables of
// its own, headers.NAME and $env are none.
func (s *Source) names() []usedName {
	v := newNameVisitor()
	if _, err := expr.Compile(s.Text, language(v)...); err != nil {
		return nil
	}
	var out []usedName
	for name, n := range v.used {
		if n > 0 && !v.declared[name] && name != "$env" && !strings.HasPrefix(name, headerPrefix) {
			out = append(out, usedName{name, v.first[name]})
		}
	}
	slices.SortFunc(out, func(a, b usedName) int { return a.at - b.at })
	return out
}

// member turns headers.NAME and $env["NAME"] into one name.
func (v *nameVisitor) member(node *ast.Node, n *ast.MemberNode) {
	base, ok := n.Node.(*ast.IdentifierNode)
	property, constant := n.Property.(*ast.StringNode)
	if !ok || !constant || property.Value == "" {
		return
	}
	key := property.Value
	switch base.Value {
	case "headers":
		key = headerPrefix + key
	case "$env":
		if strings.HasPrefix(key, headerPrefix) {
			return
		}
	default:
		return
	}
	v.used[base.Value]--
	v.use(key, base.Location().From)
	ast.Patch(node, &ast.IdentifierNode{Value: key})
}

func (v *nameVisitor) use(name string, at int) {
	if v.used[name]++; v.used[name] == 1 {
		v.first[name] = at
	}
}

func (v *nameVisitor) call(n *ast.CallNode) {
	callee, ok := n.Callee.(*ast.IdentifierNode)
	if !ok || v.err != nil {
		return
	}
	if slices.Contains(orderedFunctions[:], callee.Value) {
		v.used[callee.Value]--
		return
	}
	v.err = &nameError{at: callee.Location().From, message: fmt.Sprintf("expression: unknown function %s", callee.Value)}
	if callee.Value == "now" {
		v.err.message = "expression: now() is not available: what a stage does depends on the record alone; _time is the record's timestamp"
		return
	}
	v.err.suggestion = nearest(callee.Value, functionNames())
}
