package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// node is a value of a configuration with the line it stands in. What the conversion has made use of is marked: the rest is told.
type node struct {
	line   int
	key    string // the last part of its name
	text   string // of a scalar
	scalar bool
	items  []*node // of a list, or the values of an object
	list   bool
	used   bool
}

// get is a value by its path, marked as used when it is a scalar or a list of them; nil when it is not there.
func (n *node) get(path ...string) *node {
	x := n.find(path...)
	if x != nil {
		x.take()
	}
	return x
}

// subject is what a value is called in a note: by its name, or as an entry of a list by its own, or by what it is of.
func (n *node) subject() string {
	if n.key != "" {
		return n.key
	}
	for _, key := range []string{"job_name", "id", "type", "name"} {
		if x := n.find(key); x != nil && x.scalar {
			return key + " " + x.text
		}
	}
	return "an entry"
}

// find is a value by its path, not marked.
func (n *node) find(path ...string) *node {
	for _, key := range path {
		if n == nil || n.list || n.scalar {
			return nil
		}
		i := slices.IndexFunc(n.items, func(x *node) bool { return strings.EqualFold(x.key, key) })
		if i < 0 {
			return nil
		}
		n = n.items[i]
	}
	return n
}

// take marks a value, and the scalars of a list.
func (n *node) take() {
	if n.used = true; n.list {
		for _, x := range n.items {
			if x.scalar {
				x.used = true
			}
		}
	}
}

// all marks all below a value.
func (n *node) all() {
	if n == nil {
		return
	}
	n.used = true
	for _, x := range n.items {
		x.all()
	}
}

// texts are the scalars of a list, or the one scalar there is.
func (n *node) texts() (out []string) {
	if n == nil {
		return nil
	}
	n.take()
	if n.scalar {
		return []string{n.text}
	}
	for _, x := range n.items {
		if x.scalar {
			out = append(out, x.text)
		}
	}
	return out
}

// string is a scalar's text; "" when there is none.
func (n *node) string() string {
	if n == nil || !n.scalar {
		return ""
	}
	n.used = true
	return n.text
}

// yes says that a value is a true one.
func (n *node) yes() bool {
	return slices.Contains([]string{"true", "on", "yes", "1"}, strings.ToLower(n.string()))
}

// entries are the values of an object or a list.
func (n *node) entries() []*node {
	if n == nil {
		return nil
	}
	return n.items
}

// unused tells of all that was not made use of, the outermost first.
func (n *node) unused(path string, tell func(line int, what string)) {
	if n.used && n.scalar {
		return
	}
	if n.scalar || len(n.items) == 0 {
		if !n.used {
			tell(n.line, path)
		}
		return
	}
	if !n.touched() {
		tell(n.line, path)
		return
	}
	for i, x := range n.items {
		below := x.key
		if n.list {
			below = fmt.Sprintf("[%d]", i)
		}
		if path != "" && !n.list {
			below = "." + below
		}
		x.unused(path+below, tell)
	}
}

// touched says that something at or below a value was made use of.
func (n *node) touched() bool {
	return n.used || slices.ContainsFunc(n.items, (*node).touched)
}

// readYAML reads the first document of a YAML file. Dotted keys are paths where dotted is set, as Filebeat has it.
func readYAML(src []byte, dotted bool) (*node, error) {
	file, err := parser.ParseBytes(src, 0)
	if err != nil {
		return nil, err
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return &node{line: 1}, nil
	}
	r := yamlTree{dotted: dotted, anchors: map[string]ast.Node{}}
	return r.read(file.Docs[0].Body, "", 0)
}

// nestingMax bounds how deep values lie in one another.
const nestingMax = 100

type yamlTree struct {
	dotted  bool
	anchors map[string]ast.Node
}

func (r *yamlTree) read(n ast.Node, key string, depth int) (*node, error) {
	if depth > nestingMax {
		return nil, fmt.Errorf("line %d: values lie deeper than %d levels", n.GetToken().Position.Line, nestingMax)
	}
	out := &node{key: key, line: n.GetToken().Position.Line}
	var err error
	switch x := n.(type) {
	case *ast.MappingNode:
		for _, v := range x.Values {
			if err = r.put(out, v, depth); err != nil {
				return nil, err
			}
		}
		if len(x.Values) > 0 {
			out.line = x.Values[0].Key.GetToken().Position.Line
		}
	case *ast.MappingValueNode:
		out.line = x.Key.GetToken().Position.Line
		err = r.put(out, x, depth)
	case *ast.SequenceNode:
		out.list = true
		for _, v := range x.Values {
			item, err := r.read(v, "", depth+1)
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, item)
		}
	case *ast.AnchorNode:
		r.anchors[x.Name.GetToken().Value] = x.Value
		return r.read(x.Value, key, depth+1)
	case *ast.AliasNode:
		value, ok := r.anchors[x.Value.GetToken().Value]
		if !ok {
			return nil, fmt.Errorf("line %d: there is no anchor %s", out.line, x.Value.GetToken().Value)
		}
		return r.read(value, key, depth+1)
	case *ast.TagNode:
		return r.read(x.Value, key, depth+1)
	case *ast.LiteralNode:
		out.scalar, out.text = true, x.Value.Value
	case *ast.NullNode:
	default:
		out.scalar, out.text = true, n.GetToken().Value
	}
	return out, err
}

// put adds a value to an object, below the objects that a dotted key names.
func (r *yamlTree) put(to *node, v *ast.MappingValueNode, depth int) error {
	key := v.Key.GetToken().Value
	line := v.Key.GetToken().Position.Line
	path := []string{key}
	if r.dotted && !strings.Contains(key, "/") {
		path = strings.Split(key, ".")
	}
	for _, part := range path[:len(path)-1] {
		next := to.find(part)
		if next == nil || next.scalar || next.list {
			next = &node{key: part, line: line}
			to.items = append(to.items, next)
		}
		to = next
	}
	value, err := r.read(v.Value, path[len(path)-1], depth+1)
	if err != nil {
		return err
	}
	value.line = line
	if old := to.find(value.key); old != nil && !old.scalar && !old.list && !value.scalar && !value.list {
		old.items = append(old.items, value.items...)
		return nil
	}
	to.items = append(to.items, value)
	return nil
}
