package pipelines

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// aliasesMax bounds how many aliases (*name) a file may use, so that aliases of
// aliases cannot multiply without end.
const aliasesMax = 1000

// yamlReader reads the nodes of a file strictly and collects what is wrong
// with them. Its readers return the zero value for what is wrong.
type yamlReader struct {
	file    string
	lines   []string
	anchors map[string]ast.Node
	aliases int
	errs    ErrorList
}

// parseYAML returns the body of each document that has one.
func (r *yamlReader) parseYAML(src []byte) (docs []ast.Node) {
	// The YAML library panics on some malformed inputs; a mistake in a file must
	// not take down the process that checks it.
	defer func() {
		if p := recover(); p != nil {
			docs = nil
			r.errorAt(Pos{r.file, 1, 1}, "not YAML: %v", p)
		}
	}()
	parsed, err := parser.ParseBytes(src, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntaxError(err)
		return nil
	}
	for _, d := range parsed.Docs {
		if d.Body != nil && d.Body.Type() != ast.CommentType && d.Body.Type() != ast.NullType {
			docs = append(docs, d.Body)
		}
	}
	return docs
}

func (r *yamlReader) syntaxError(err error) {
	pos, message := Pos{r.file, 1, 1}, err.Error()
	var y yaml.Error
	if errors.As(err, &y) {
		message = y.GetMessage()
		if t := y.GetToken(); t != nil && t.Position != nil {
			pos.Line, pos.Col = t.Position.Line, t.Position.Column
		}
	}
	message, _, _ = strings.Cut(message, "\n")
	if strings.HasSuffix(message, "must be specified") {
		message += "; inside { } and [ ] quote a text that holds one of , [ ] { }"
	}
	r.errorAt(pos, "not YAML: %s", message)
}

func (r *yamlReader) errorAt(pos Pos, format string, args ...any) {
	r.errs = append(r.errs, &Error{Pos: pos, Message: fmt.Sprintf(format, args...)})
}

func (r *yamlReader) errorOn(n ast.Node, format string, args ...any) {
	r.errorAt(r.pos(n), format, args...)
}

// pos is where a node begins. A block mapping begins at its first key.
func (r *yamlReader) pos(n ast.Node) Pos {
	for {
		switch m := n.(type) {
		case *ast.MappingNode:
			if !m.IsFlowStyle && len(m.Values) > 0 {
				n = m.Values[0].Key
				continue
			}
		case *ast.MappingValueNode:
			n = m.Key
			continue
		}
		break
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return Pos{r.file, t.Position.Line, t.Position.Column}
	}
	return Pos{r.file, 1, 1}
}

// collectAnchors finds what the aliases of one document stand for.
func (r *yamlReader) collectAnchors(doc ast.Node) {
	r.anchors = make(map[string]ast.Node)
	ast.Walk(anchorVisitor(r.anchors), doc)
}

type anchorVisitor map[string]ast.Node

// Visit notes an anchor.
func (v anchorVisitor) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil && a.Name.GetToken() != nil {
		v[a.Name.GetToken().Value] = a.Value
	}
	return v
}

// resolve goes through anchors, aliases and tags to the node that counts; nil
// (with an error noted) when there is none.
func (r *yamlReader) resolve(n ast.Node) ast.Node {
	for range aliasesMax {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			r.errorOn(n, "tags are not supported: %s", x.GetToken().Value)
			return nil
		case *ast.AliasNode:
			r.aliases++
			name := ""
			if x.Value != nil && x.Value.GetToken() != nil {
				name = x.Value.GetToken().Value
			}
			target, ok := r.anchors[name]
			if !ok || r.aliases > aliasesMax {
				r.errorOn(n, "*%s: no such anchor, or more than %d aliases", name, aliasesMax)
				return nil
			}
			n = target
		default:
			return n
		}
		if n == nil {
			return nil
		}
	}
	r.errorOn(n, "an alias that stands for itself")
	return nil
}

// entry is one key of a mapping.
type entry struct {
	key   string
	pos   Pos // of the key
	value ast.Node
}

// mapping reads the keys of a mapping, in order; a key that comes twice is an
// error. ok is false when n is none.
func (r *yamlReader) mapping(n ast.Node, what string) (entries []entry, ok bool) {
	n = r.resolve(n)
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case nil:
		return nil, false
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		r.wrongType(n, place(what), "a mapping of keys to values")
		return nil, false
	}
	seen := make(map[string]Pos)
	for _, v := range values {
		key, ok := r.key(v.Key)
		if !ok {
			continue
		}
		e := entry{key: key, pos: r.pos(v.Key), value: v.Value}
		if first, twice := seen[key]; twice {
			r.errorAt(e.pos, "key %q is in %s twice, first at %d:%d", key, place(what), first.Line, first.Col)
			continue
		}
		seen[key] = e.pos
		entries = append(entries, e)
	}
	return entries, true
}

func (r *yamlReader) key(n ast.MapKeyNode) (string, bool) {
	if n.IsMergeKey() {
		r.errorOn(n, "merge keys (<<) are not supported: write the keys out, or use an alias for a whole value")
		return "", false
	}
	node := r.resolve(n)
	if k, ok := node.(*ast.MappingKeyNode); ok {
		node = r.resolve(k.Value)
	}
	if node == nil {
		return "", false
	}
	if s, ok := scalarText(node); ok {
		return s, true
	}
	r.errorOn(n, "a key must be plain text")
	return "", false
}

// known is a key that a mapping may have.
type known struct {
	name string
	read func(e entry)
}

// object reads a mapping of known keys and returns where each one found stands.
func (r *yamlReader) object(n ast.Node, what string, keys ...known) map[string]Pos {
	entries, ok := r.mapping(n, what)
	if !ok {
		return nil
	}
	found := make(map[string]Pos, len(entries))
	for _, e := range entries {
		i := slices.IndexFunc(keys, func(k known) bool { return k.name == e.key })
		if i < 0 {
			if meant := r.unknownKey(e, what, keys); meant != "" {
				found[meant] = e.pos // it is not missing too
			}
			continue
		}
		found[e.key] = e.pos
		if _, null := e.value.(*ast.NullNode); null {
			r.errorAt(e.pos, "%s: the value is missing", join(what, e.key))
			continue
		}
		keys[i].read(e)
	}
	return found
}

// unknownKey notes a key that is none, and returns what it was meant to be.
func (r *yamlReader) unknownKey(e entry, what string, keys []known) (meant string) {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	meant = nearest(e.key, names)
	err := &Error{Pos: e.pos, Message: fmt.Sprintf("unknown key %q in %s", e.key, place(what)), Suggestion: meant}
	if meant == "" {
		err.Message += "; known are " + strings.Join(names, ", ")
	}
	r.errs = append(r.errs, err)
	return meant
}

// place names an object in a message.
func place(what string) string {
	if what == "" {
		return "the pipeline"
	}
	return what
}

func join(what, key string) string {
	if what == "" {
		return key
	}
	return what + "." + key
}

func (r *yamlReader) wrongType(n ast.Node, what, want string) {
	r.errorOn(n, "%s: want %s, not %s", what, want, describe(n))
}

// describe names a node's type for a message.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.StringNode:
		return strconv.Quote(n.Value)
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + n.GetToken().Value
	case *ast.BoolNode:
		return n.GetToken().Value
	case *ast.NullNode:
		return "nothing"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	}
	return "this"
}

// scalarText is a scalar as it was written, without quotes.
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode, *ast.NullNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// text reads a string that is not empty.
func (r *yamlReader) text(n ast.Node, what string) string {
	n = r.resolve(n)
	if n == nil {
		return ""
	}
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		s, _ := scalarText(n)
		if s == "" {
			r.errorOn(n, "%s: must not be empty", what)
		}
		return s
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		r.errorOn(n, "%s: want a string, not %s; quote it: %q", what, describe(n), n.GetToken().Value)
	default:
		r.wrongType(n, what, "a string")
	}
	return ""
}

// anyText reads a scalar of any type as it was written.
func (r *yamlReader) anyText(n ast.Node, what string) string {
	n = r.resolve(n)
	if n == nil {
		return ""
	}
	s, ok := scalarText(n)
	if !ok {
		r.wrongType(n, what, "one value")
	}
	return s
}

// texts reads a list of strings that has at least one.
func (r *yamlReader) texts(n ast.Node, what string) []string {
	var out []string
	items, ok := r.list(n, what)
	for i, item := range items {
		out = append(out, r.text(item, fmt.Sprintf("%s[%d]", what, i)))
	}
	if ok && len(items) == 0 {
		r.errorOn(n, "%s: the list is empty", what)
	}
	return out
}

func (r *yamlReader) list(n ast.Node, what string) ([]ast.Node, bool) {
	n = r.resolve(n)
	switch l := n.(type) {
	case nil:
		return nil, false
	case *ast.SequenceNode:
		items := make([]ast.Node, len(l.Values))
		for i, item := range l.Values {
			items[i] = unsplit(item)
		}
		return items, true
	case *ast.StringNode:
		items := []string{l.Value}
		if strings.HasSuffix(what, ".command") {
			items = strings.Fields(l.Value) // of a command: a word is an item
		}
		for i := range items {
			items[i] = strconv.Quote(items[i])
		}
		r.errorOn(n, "%s: want a list, not %s; write [%s]", what, describe(n), strings.Join(items, ", "))
	default:
		r.wrongType(n, what, "a list")
	}
	return nil, false
}

// unsplit mends what the YAML library does to {addr: [ch:9000]}: inside braces
// it takes ch:9000 for a key and its value, which in YAML needs a blank after
// the colon.
func unsplit(n ast.Node) ast.Node {
	m, ok := n.(*ast.MappingNode)
	if !ok || len(m.Values) != 1 || m.Start.Type != token.MappingValueType {
		return n
	}
	key, value := m.Values[0].Key.GetToken(), m.Values[0].Value.GetToken()
	colon := m.Start.Position
	plain := m.Values[0].Key.Type() == ast.StringType && key.Type == token.StringType || key.Type == token.IntegerType || key.Type == token.FloatType
	if !plain || value.Position.Line != colon.Line || value.Position.Column != colon.Column+1 || value.Indicator != token.NotIndicator {
		return n
	}
	text := key.Value + ":" + value.Value
	return ast.String(token.New(text, text, key.Position))
}

func (r *yamlReader) boolean(n ast.Node, what string) bool {
	n = r.resolve(n)
	if n == nil {
		return false
	}
	b, ok := n.(*ast.BoolNode)
	if !ok {
		r.wrongType(n, what, "true or false")
		return false
	}
	return b.Value
}

// oneOf reads one of a few words.
func (r *yamlReader) oneOf(n ast.Node, what string, words ...string) string {
	n = r.resolve(n)
	if n == nil {
		return ""
	}
	s, ok := scalarText(n)
	if !ok {
		r.wrongType(n, what, "one of "+strings.Join(words, ", "))
		return ""
	}
	if slices.Contains(words, s) {
		return s
	}
	r.errs = append(r.errs, &Error{
		Pos:        r.pos(n),
		Message:    fmt.Sprintf("%s: want one of %s, not %q", what, strings.Join(words, ", "), s),
		Suggestion: nearest(s, words),
	})
	return ""
}

// integer reads a whole number between low and high.
func (r *yamlReader) integer(n ast.Node, what string, low, high int64) int64 {
	n = r.resolve(n)
	if n == nil {
		return 0
	}
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		r.wrongType(n, what, "a whole number")
		return 0
	}
	value := int64(math.MaxInt64)
	switch v := i.Value.(type) {
	case int64:
		value = v
	case uint64:
		if v <= math.MaxInt64 {
			value = int64(v)
		}
	}
	if value < low || value > high {
		r.errorOn(n, "%s: %s is not between %d and %d", what, i.GetToken().Value, low, high)
		return 0
	}
	return value
}

// duration reads 1s, 500ms, 1h30m and the like.
func (r *yamlReader) duration(n ast.Node, what string, low, high time.Duration) time.Duration {
	n = r.resolve(n)
	if n == nil {
		return 0
	}
	s, _ := scalarText(n)
	d, err := time.ParseDuration(s)
	if err != nil {
		r.wrongType(n, what, "a duration with its unit, such as 1s, 500ms or 1h30m")
		return 0
	}
	if d < low || d > high {
		r.errorOn(n, "%s: %s is not between %s and %s", what, s, low, high)
		return 0
	}
	return d
}

// sizeUnits are the units of a size in bytes.
var sizeUnits = map[string]int64{
	"B": 1, "": 1,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

// size reads 64MiB, 10MB, 512B or a number of bytes.
func (r *yamlReader) size(n ast.Node, what string, low, high int64) int64 {
	n = r.resolve(n)
	if n == nil {
		return 0
	}
	s, _ := scalarText(n)
	value, ok := parseSize(s)
	if !ok {
		r.wrongType(n, what, "a size with its unit, such as 512KiB, 64MiB or 1GB")
		return 0
	}
	if value < low || value > high {
		r.errorOn(n, "%s: %s is not between %s and %s", what, s, formatSize(low), formatSize(high))
		return 0
	}
	return value
}

func parseSize(s string) (int64, bool) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		i++
	}
	unit, ok := sizeUnits[strings.TrimSpace(s[i:])]
	number, err := strconv.ParseFloat(s[:i], 64)
	if !ok || err != nil || number*float64(unit) > 1<<60 {
		return 0, false
	}
	return int64(number * float64(unit)), true
}

func formatSize(n int64) string {
	for _, unit := range [...]string{"TiB", "GiB", "MiB", "KiB"} {
		if size := sizeUnits[unit]; n >= size && n%size == 0 {
			return strconv.FormatInt(n/size, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
