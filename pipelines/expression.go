package pipelines

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/vm"
)

// Source is an expression as written, with its place.
type Source struct {
	Text string
	Pos  Pos

	// locate finds the place of a character of the expression in the file;
	// lines count from 1, columns from 0.
	locate func(line, col int) Pos
}

// Expression is a compiled expression. Not safe for concurrent use.
type Expression struct {
	// The fast forms, see fastpath.go; at most one is set.
	ref   *reference // a name
	fixed *Value     // a constant
	term  term       // another simple value
	cond  predicate  // a simple condition

	program *vm.Program
	machine vm.VM
	env     map[string]any
	refs    []reference
	whole   bool // $env is used: every field is put into env
}

// expressionNodesMax bounds an expression's size.
const expressionNodesMax = 2000

// compile compiles the expression; the error has its place in the file.
func (s *Source) compile() (*Expression, *Error) {
	names := newNameVisitor()
	program, err := expr.Compile(s.Text, language(names)...)
	if err == nil && names.err == nil {
		return newExpression(program, names), nil
	}
	return nil, s.compileError(err, names.err)
}

// compileError prefers our own word on a mistake to the library's.
func (s *Source) compileError(err error, own *nameError) *Error {
	if own != nil {
		line, col := lineAndColumn(s.Text, own.at)
		return &Error{Pos: s.place(line, col), Message: own.message, Suggestion: own.suggestion}
	}
	var at *file.Error
	if errors.As(err, &at) {
		return &Error{Pos: s.place(at.Line, at.Column), Message: "expression: " + at.Message}
	}
	message, _, _ := strings.Cut(err.Error(), "\n")
	return &Error{Pos: s.Pos, Message: "expression: " + message}
}

func (s *Source) place(line, col int) Pos {
	if s.locate == nil {
		return s.Pos
	}
	return s.locate(line, col)
}

// lineAndColumn turns an offset in characters into a line from 1 and a column from 0.
func lineAndColumn(text string, at int) (line, col int) {
	line = 1
	for _, r := range text {
		if at == 0 {
			break
		}
		at--
		col++
		if r == '\n' {
			line, col = line+1, 0
		}
	}
	return line, col
}

func newExpression(program *vm.Program, names *nameVisitor) *Expression {
	node := program.Node()
	x := &Expression{program: program, env: make(map[string]any)}
	for name, n := range names.used {
		if n <= 0 {
			continue
		}
		if name == "$env" {
			x.whole = true
			x.addReserved()
			continue
		}
		x.refs = append(x.refs, newReference(name))
	}
	if id, ok := node.(*ast.IdentifierNode); ok && id.Value != "$env" {
		ref := newReference(id.Value)
		x.ref = &ref
		return x
	}
	if v, ok := constant(node); ok {
		x.fixed = &v
		return x
	}
	x.term = newTerm(node)
	if x.term == nil {
		x.cond = newPredicate(node)
	}
	return x
}

func (x *Expression) addReserved() {
	for name := range reserved {
		x.refs = append(x.refs, newReference(name))
	}
}

// constant is the value of a node that depends on nothing.
func constant(node ast.Node) (Value, bool) {
	switch n := node.(type) {
	case *ast.NilNode:
		return Null(), true
	case *ast.BoolNode:
		return Bool(n.Value), true
	case *ast.IntegerNode:
		return Int(int64(n.Value)), true
	case *ast.FloatNode:
		return Float(n.Value), true
	case *ast.StringNode:
		return StringOf(n.Value), true
	}
	return Value{}, false
}

// Eval evaluates the expression on an event. The value is valid until the
// event's next Reset. A name that is no field is null; an operation on a wrong
// type is an error.
func (x *Expression) Eval(e *Event, v *Value) error {
	if x.ref != nil {
		*v = x.ref.value(e)
		return nil
	}
	if x.fixed != nil {
		*v = *x.fixed
		return nil
	}
	if x.term != nil {
		if fast, ok := x.term(e); ok {
			*v = fast
			return nil
		}
	}
	if x.cond != nil {
		if b, ok := x.cond(e); ok {
			*v = Bool(b)
			return nil
		}
	}
	out, err := x.run(e)
	if err != nil {
		return err
	}
	*v, err = valueOf(out)
	return err
}

// Condition evaluates the expression as a condition; null is false.
func (x *Expression) Condition(e *Event) (bool, error) {
	if x.cond != nil {
		if b, ok := x.cond(e); ok {
			return b, nil
		}
	}
	var v Value
	if err := x.Eval(e, &v); err != nil {
		return false, err
	}
	switch v.kind {
	case KindBool:
		return v.num != 0, nil
	case KindNull:
		return false, nil
	}
	return false, fmt.Errorf("a condition must be true or false, not a %s", v.kind)
}

// run gives the names that the expression uses their values and runs it.
func (x *Expression) run(e *Event) (any, error) {
	if x.whole {
		clear(x.env)
		for i := range e.fields {
			x.env[e.fields[i].name] = boxed(e.fields[i].value)
		}
	}
	for i := range x.refs {
		r := &x.refs[i]
		x.env[r.key] = r.boxed(e)
	}
	out, err := x.machine.Run(x.program, x.env)
	if err == nil {
		return out, nil
	}
	x.machine = vm.VM{} // what a panic left in it is not to be used again
	return nil, evalError(err)
}

// evalError is an error of the machine as one line.
func evalError(err error) error {
	var at *file.Error
	if !errors.As(err, &at) {
		return err
	}
	if strings.HasPrefix(at.Message, "reflect: ") { // a panic inside a function
		return errors.New("a function was given null")
	}
	return errors.New(at.Message)
}

// boxed is a value as expressions see it: integers are int, and those above
// 2^63-1 are float64, because the machine would make negative ints of them.
func boxed(v Value) any {
	switch v.kind {
	case KindInt:
		return int(v.num)
	case KindUint:
		return float64(v.num)
	case KindList, KindMap:
		return decodeNested(v.text, boxed)
	}
	return v.aliased()
}

// valueOf is what an expression returned as a Value. Strings may share memory
// with the event.
func valueOf(out any) (Value, error) {
	switch x := out.(type) {
	case nil:
		return Null(), nil
	case bool:
		return Bool(x), nil
	case int:
		return Int(int64(x)), nil
	case int64:
		return Int(x), nil
	case int32:
		return Int(int64(x)), nil
	case uint64:
		return Uint(x), nil
	case float64:
		return Float(x), nil
	case string:
		return String(unsafe.Slice(unsafe.StringData(x), len(x))), nil
	case []byte:
		return String(x), nil
	case time.Time:
		return Time(x), nil
	case time.Month:
		return Int(int64(x)), nil
	case time.Weekday:
		return Int(int64(x)), nil
	case time.Duration:
		return StringOf(x.String()), nil
	}
	return nestedValueOf(out)
}

// nestedValueOf encodes a list or a map; the keys of a map are sorted, so that
// the same record gives the same bytes again.
func nestedValueOf(out any) (Value, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return Value{}, fmt.Errorf("the result of the expression cannot be a field: %w", err)
	}
	text := bytes.TrimSpace(buf.Bytes())
	switch text[0] {
	case '{':
		return Value{kind: KindMap, text: text}, nil
	case '[':
		return Value{kind: KindList, text: text}, nil
	}
	var e Event // a Go type of its own, such as *time.Location: take it as JSON has it
	d := decoder{src: text, event: &e}
	return d.value()
}

// NewKey compiles the topic's key. It is nil when the topic has none. A key
// that evaluates to null means a record without key; otherwise the key is the
// value's AppendText.
func (p *Pipeline) NewKey() (*Expression, error) {
	if p.Topic.Key == nil {
		return nil, nil
	}
	return p.Topic.Key.expression()
}

// NewHash compiles the topic's hash, by which partitions are chosen. It is nil when the topic has none.
func (p *Pipeline) NewHash() (*Expression, error) {
	if p.Topic.Hash == nil {
		return nil, nil
	}
	return p.Topic.Hash.expression()
}

// NewPartition compiles what gives a line its partition. It is nil when the topic has none.
func (p *Pipeline) NewPartition() (*Expression, error) {
	if p.Topic.Partition == nil {
		return nil, nil
	}
	return p.Topic.Partition.expression()
}

// NewTopicName compiles what names a line's topic. It is nil when the topic has none.
func (p *Pipeline) NewTopicName() (*Expression, error) {
	if p.Topic.NameFrom == nil {
		return nil, nil
	}
	return p.Topic.NameFrom.expression()
}

// expression is compile for sources that Parse has compiled once already.
func (s *Source) expression() (*Expression, error) {
	x, err := s.compile()
	if err != nil {
		return nil, err
	}
	return x, nil
}
