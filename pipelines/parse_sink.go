package pipelines

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Defaults and limits of a sink's batch.
const (
	batchRowsDefault      = 100_000
	batchRowsMax          = 10_000_000
	batchBytesDefault     = 32 << 20
	batchBytesLow         = 1 << 10
	batchBytesHigh        = 1 << 30
	batchAgeClickHouse    = time.Second
	batchAgeDirectory     = 10 * time.Second
	batchAgeLow           = 10 * time.Millisecond
	batchAgeHigh          = time.Hour
	clickHouseDefaultName = "default" // database and user of a fresh server

	partsPerSecondDefault = 50
	partsPerSecondMax     = 10_000
	quorumMax             = 100

	deadLetterShareDefault = 0.5
)

// sinks reads a mapping of names to sinks.
func (r *yamlReader) sinks(e entry) []*SinkSpec {
	entries, ok := r.mapping(e.value, "sinks")
	if ok && len(entries) == 0 {
		r.errorAt(e.pos, "sinks: is empty")
	}
	var out []*SinkSpec
	for _, e := range entries {
		if !nameShape.MatchString(e.key) || len(e.key) > nameBytesMax {
			r.errorAt(e.pos, "sinks: %q is not a name: letters, digits, dots, _ and -, at most %d", e.key, nameBytesMax)
		}
		out = append(out, r.sink(e, "sinks."+e.key, e.key))
	}
	return out
}

func (r *yamlReader) sink(e entry, what, name string) *SinkSpec {
	s := &SinkSpec{Name: name, Pos: e.pos, OnLost: OnLostStop, Batch: Batch{Rows: batchRowsDefault, Bytes: batchBytesDefault}}
	found := r.object(e.value, what,
		known{"process", func(e entry) { s.Process = r.stages(e.value, what+".process") }},
		known{"clickhouse", func(e entry) { s.ClickHouse = r.clickHouse(e, s, what+".clickhouse") }},
		known{"directory", func(e entry) { s.Directory = r.directory(e, s, what+".directory") }},
		known{"hdfs", func(e entry) { s.HDFS = r.hdfs(e, s, what+".hdfs") }},
		known{"batch", func(e entry) { r.batch(e, &s.Batch, what+".batch") }},
		known{"on_lost", func(e entry) {
			s.OnLost = OnLost(r.oneOf(e.value, what+".on_lost", string(OnLostStop), string(OnLostContinue)))
		}},
	)
	destinations := 0
	for _, key := range []string{"clickhouse", "directory", "hdfs"} {
		if _, ok := found[key]; ok {
			destinations++
		}
	}
	if found != nil && destinations == 0 {
		r.errorAt(e.pos, "%s: where to? clickhouse, directory or hdfs is missing", what)
	}
	if destinations > 1 {
		r.errorAt(e.pos, "%s: clickhouse, directory and hdfs are sinks of their own: give them names under sinks", what)
	}
	if s.Batch.Age == 0 && s.ClickHouse != nil {
		s.Batch.Age = batchAgeClickHouse
	} else if s.Batch.Age == 0 {
		s.Batch.Age = batchAgeDirectory
	}
	return s
}

func (r *yamlReader) clickHouse(e entry, s *SinkSpec, what string) *ClickHouse {
	c := &ClickHouse{Database: clickHouseDefaultName, Username: clickHouseDefaultName,
		Protocol: ProtocolNative, Compression: CompressionAuto, PartsPerSecond: partsPerSecondDefault}
	found := r.object(e.value, what,
		known{"addr", func(e entry) { c.Addr = r.addresses(e.value, what+".addr") }},
		known{"database", func(e entry) { c.Database = r.text(e.value, what+".database") }},
		known{"table", func(e entry) { c.Table = r.text(e.value, what+".table") }},
		known{"username", func(e entry) { c.Username = r.text(e.value, what+".username") }},
		known{"password", func(e entry) { c.Password = r.secret(e.value, what+".password") }},
		known{"tls", func(e entry) { c.TLS = r.tls(e.value, what+".tls") }},
		known{"columns", func(e entry) { s.Columns = r.assignments(e.value, what+".columns") }},
		known{"protocol", func(e entry) {
			c.Protocol = Protocol(r.oneOf(e.value, what+".protocol", string(ProtocolNative), string(ProtocolHTTP)))
		}},
		known{"compression", func(e entry) {
			c.Compression = Compression(r.oneOf(e.value, what+".compression", string(CompressionAuto), string(CompressionLZ4), string(CompressionZstd), string(CompressionNone)))
		}},
		known{"parts_per_second", func(e entry) {
			c.PartsPerSecond = float64(r.integer(e.value, what+".parts_per_second", 0, partsPerSecondMax))
		}},
		known{"quorum", func(e entry) { c.Quorum = int(r.integer(e.value, what+".quorum", 0, quorumMax)) }},
		known{"misfit", func(e entry) { r.misfit(e, &c.Misfit, what+".misfit") }},
	)
	r.require(found, e.pos, what, "addr", "table")
	return c
}

// percent reads 1% to 100% as a part of 1.
func (r *yamlReader) percent(n ast.Node, what string) float64 {
	s, _ := scalarText(r.resolve(n))
	number, ok := strings.CutSuffix(s, "%")
	x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	switch {
	case !ok || err != nil:
		r.wrongType(n, what, "a part in percent, such as 5%")
	case x <= 0 || x > 100:
		r.errorOn(n, "%s: %s is not above 0%% and up to 100%%", what, s)
	}
	return x / 100
}

func (r *yamlReader) misfit(e entry, m *Misfit, what string) {
	policy := func(to *MisfitPolicy, name string, others ...MisfitPolicy) known {
		words := []string{string(MisfitDeadLetter)}
		for _, other := range others {
			words = append(words, string(other))
		}
		return known{name, func(e entry) { *to = MisfitPolicy(r.oneOf(e.value, what+"."+name, words...)) }}
	}
	r.object(e.value, what,
		policy(&m.Range, "range", MisfitNull, MisfitClamp),
		policy(&m.Null, "null", MisfitZero),
		policy(&m.Time, "time", MisfitRecordTime))
}

func (r *yamlReader) batch(e entry, b *Batch, what string) {
	r.object(e.value, what,
		known{"rows", func(e entry) { b.Rows = int(r.integer(e.value, what+".rows", 1, batchRowsMax)) }},
		known{"bytes", func(e entry) { b.Bytes = int(r.size(e.value, what+".bytes", batchBytesLow, batchBytesHigh)) }},
		known{"age", func(e entry) { b.Age = r.duration(e.value, what+".age", batchAgeLow, batchAgeHigh) }},
		known{"idle", func(e entry) { b.Idle = r.duration(e.value, what+".idle", batchAgeLow, batchAgeHigh) }},
	)
}

func (r *yamlReader) tests(n ast.Node) []Test {
	items, _ := r.list(n, "tests")
	var out []Test
	for i, item := range items {
		out = append(out, r.test(item, fmt.Sprintf("tests[%d]", i)))
	}
	return out
}

func (r *yamlReader) test(n ast.Node, what string) Test {
	t := Test{Pos: r.pos(n)}
	found := r.object(n, what,
		known{"in", func(e entry) { t.In = strings.TrimSuffix(r.text(e.value, what+".in"), "\n") }},
		known{"out", func(e entry) { t.Out = r.expectations(e.value, what+".out") }},
		known{"error", func(e entry) { t.Error = r.text(e.value, what+".error") }},
	)
	r.require(found, t.Pos, what, "in")
	_, out := found["out"]
	_, fails := found["error"]
	if found != nil && out == fails {
		r.errorAt(t.Pos, "%s: want out (the events, [] when the line is dropped) or error (part of a stage's message)", what)
	}
	return t
}

func (r *yamlReader) expectations(n ast.Node, what string) []Expectation {
	items, _ := r.list(n, what)
	if len(items) > 1 {
		r.errorOn(items[1], "%s: one line gives one event at most", what)
	}
	var out []Expectation
	for i, item := range items {
		what := fmt.Sprintf("%s[%d]", what, i)
		x := Expectation{Pos: r.pos(item)}
		entries, _ := r.mapping(item, what)
		for _, e := range entries {
			x.Fields = append(x.Fields, ExpectedField{Pos: e.pos, Name: e.key, Want: r.anyValue(e.value, what+"."+e.key, 0)})
		}
		out = append(out, x)
	}
	return out
}

// expectedNestingMax bounds the depth of an expected value.
const expectedNestingMax = 32

// anyValue is a node as a Go value.
func (r *yamlReader) anyValue(n ast.Node, what string, depth int) any {
	n = r.resolve(n)
	if depth > expectedNestingMax {
		r.errorOn(n, "%s: nested more than %d deep", what, expectedNestingMax)
		return nil
	}
	switch n := n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		s, _ := scalarText(n)
		return s
	case *ast.BoolNode:
		return n.Value
	case *ast.IntegerNode:
		if u, ok := n.Value.(uint64); ok {
			return Uint(u).Any()
		}
		return n.Value
	case *ast.FloatNode:
		return n.Value
	case *ast.SequenceNode:
		out := []any{}
		for _, item := range n.Values {
			out = append(out, r.anyValue(item, what, depth+1))
		}
		return out
	case *ast.MappingNode, *ast.MappingValueNode:
		entries, _ := r.mapping(n, what)
		out := map[string]any{}
		for _, e := range entries {
			out[e.key] = r.anyValue(e.value, what, depth+1)
		}
		return out
	case nil, *ast.NullNode:
		return nil
	}
	r.wrongType(n, what, "a value")
	return nil
}
