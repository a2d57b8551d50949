package pipelines

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func parseOne(t testing.TB, src string) *Pipeline {
	t.Helper()
	pipes, err := Parse("p.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return pipes[0]
}

const accessPipeline = `
pipeline: access
collect: {file: {include: [a]}, labels: {site: shop}}
process:
  - parse: nginx
  - drop: path startsWith "/healthz"
sink:
  clickhouse:
    addr: [ch:9000]
    table: t
    columns: {ts: time, status: status, path: path, host: host, site: site, size: bytes, agent: user_agent ?? "", slow: bytes > 1000, o: _offset}
`

// TestFromLineToRow takes a line through the agent's stages, the topic and the columns.
func TestFromLineToRow(t *testing.T) {
	p := parseOne(t, accessPipeline)
	chain, err := p.NewProcess()
	if err != nil {
		t.Fatal(err)
	}
	e := new(Event)
	e.Reset([]byte(`203.0.113.7 - - [30/Nov/2026:10:00:00 +0100] "GET /a HTTP/1.1" 200 5123 "-" "-"`))
	if r := chain.Apply(e); r.Outcome != Keep {
		t.Fatal(r)
	}
	record := e.AppendJSON(nil)

	row := new(Event)
	meta := Meta{Topic: "access", Offset: 7, Headers: []Header{{"host", []byte("web-1")}}}
	if err := p.ReadRecord(row, meta, record); err != nil {
		t.Fatal(err)
	}
	columns, err := p.Sinks[0].NewColumns()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, name := range columns.Names() {
		var v Value
		if err := columns.Eval(row, i, &v); err != nil {
			t.Fatal(err)
		}
		if v.Kind() != columns.Kind(i) {
			t.Errorf("%s: kind %s was promised, %s came", name, columns.Kind(i), v.Kind())
		}
		got = append(got, name+"="+string(v.AppendJSON(nil)))
	}
	want := []string{
		`ts="2026-11-30T10:00:00+01:00"`, `status=200`, `path="/a"`, `host="web-1"`, `site="shop"`,
		`size=5123`, `agent=""`, `slow=true`, `o=7`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestReadRecord(t *testing.T) {
	p := parseOne(t, accessPipeline)
	e := new(Event)
	if err := p.ReadRecord(e, Meta{Headers: []Header{{HeaderRaw, []byte("1")}}}, []byte("not json")); err != nil || e.Parsed() {
		t.Errorf("a marked record: parsed %t, %v", e.Parsed(), err)
	}
	var syntax *SyntaxError
	if err := p.ReadRecord(e, Meta{}, []byte("not json")); !errors.As(err, &syntax) {
		t.Errorf("a record that is no JSON: %v", err)
	}
	if err := p.ReadRecord(e, Meta{}, []byte(`{"time":"yesterday"}`)); err != nil {
		t.Error(err)
	}
	if v, _ := e.Get("time"); v.Kind() != KindString {
		t.Errorf("a time that is none became a %s", v.Kind())
	}
}

func TestColumnsHash(t *testing.T) {
	hash := func(old, new string) string {
		c, err := parseOne(t, strings.Replace(accessPipeline, old, new, 1)).Sinks[0].NewColumns()
		if err != nil {
			t.Fatal(err)
		}
		return c.Hash()
	}
	same := hash("", "")
	if len(same) != 16 {
		t.Errorf("%q has not 16 digits", same)
	}
	if h := hash("addr: [ch:9000]", "addr: [other:9000]"); h != same {
		t.Error("the hash depends on the address")
	}
	seen := map[string]string{same: "the original"}
	for _, change := range [][2]string{
		{"ts: time", "t: time"}, {"ts: time", "ts: _time"}, {"ts: time, status: status", "status: status, ts: time"},
		{"  clickhouse:", "  process: [{drop: status == 1}]\n  clickhouse:"},
	} {
		h := hash(change[0], change[1])
		if other, ok := seen[h]; ok {
			t.Errorf("%v has the hash of %s", change, other)
		}
		seen[h] = change[1]
	}
}

func TestColumnsNamed(t *testing.T) {
	p := parseOne(t, accessPipeline)
	c, err := p.Sinks[0].NewColumnsNamed([]string{"status", "_offset", "odd name", "user-agent", "in", "nothing", `q"`, "headers.host"})
	if err != nil {
		t.Fatal(err)
	}
	e := decode(t, `{"status":1,"odd name":2,"user-agent":3,"in":4,"q\"":5,"headers.host":6}`)
	e.Meta.Offset = 9
	var got []string
	for i := range c.Names() {
		var v Value
		if err := c.Eval(e, i, &v); err != nil {
			t.Fatal(err)
		}
		got = append(got, string(v.AppendJSON(nil)))
	}
	if d := cmp.Diff([]string{"1", "9", "2", "3", "4", "null", "5", "6"}, got); d != "" {
		t.Error(d)
	}
}

func TestSecret(t *testing.T) {
	env := func(name string) (string, bool) { return "<" + name + ">", name != "NONE" }
	for source, want := range map[string]string{
		"plain": "plain", "${A}": "<A>", "x${A}y${B}z": "x<A>y<B>z", "$${A}": "${A}", "a$b": "a$b",
		"${NONE}": "environment variable NONE is not set", "${A": "a ${ without a name and }", "${}": "a ${ without a name and }",
	} {
		got, err := NewSecret(source).expand(env)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, src string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := "pipeline: NAME\ncollect: {file: {include: [a]}}\n"
	write("b.yaml", strings.Replace(one, "NAME", "b", 1))
	write("a.yml", strings.Replace(one, "NAME", "a", 1))
	write("c.txt", "no pipeline")
	pipes, err := Load(dir)
	if err != nil || len(pipes) != 2 || pipes[0].Name != "a" || pipes[1].Name != "b" {
		t.Fatalf("%v, %v", pipes, err)
	}
	bad := write("d.yaml", strings.Replace(one, "NAME", "a", 1))
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), `pipeline "a" is there twice`) || !strings.HasPrefix(err.Error(), bad) {
		t.Errorf("a name used twice: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("an empty directory is accepted")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(accessPipeline))
	for _, dir := range []string{"testdata/parse", "../examples/quickstart", "../examples/clickhouse"} {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			if strings.HasPrefix(dir, "../") && filepath.Ext(file) != ".yaml" {
				continue
			}
			src, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			for part := range bytes.SplitSeq(src, []byte("\n----\n")) {
				_, yaml, _ := bytes.Cut(part, []byte("parse\n"))
				f.Add(yaml)
			}
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		pipes, err := Parse("p.yaml", src)
		if err != nil {
			var list ErrorList
			if !errors.As(err, &list) || len(list) == 0 {
				t.Fatalf("not a list of errors: %T", err)
			}
			for _, e := range list {
				if e.Pos.Line < 1 || e.Pos.Col < 1 || e.Message == "" {
					t.Fatalf("an error without a place: %v", e)
				}
			}
			return
		}
		for _, p := range pipes {
			if p.Name == "" || p.Collect == nil && len(p.Sinks) == 0 {
				t.Fatalf("accepted: %+v", p)
			}
			RunTests(p)
			for _, s := range p.Sinks {
				if _, err := s.NewColumns(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestLabelsOfRawAndParsedLines(t *testing.T) {
	p := parseOne(t, accessPipeline)
	chain, err := p.NewProcess()
	if err != nil {
		t.Fatal(err)
	}
	e := new(Event)
	e.Meta.Time = time.Now()
	e.Reset([]byte("nonsense"))
	if r := chain.Apply(e); r.Outcome != Fail || r.Reason != "parse" || e.Parsed() || e.Len() != 0 {
		t.Errorf("%+v, parsed %t, %d fields", r, e.Parsed(), e.Len())
	}
}
