// Package layout holds no code: its test checks the shape of the tree. Which
// package may import which is a decision of ARCHITECTURE.md, written here as a
// table so that a change of it is a change of this file.
package layout

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module       = "github.com/sluice-io/sluice"
	fileLinesMax = 800
)

// mayImport says for each package which others of ours it may import directly.
// "..." alone allows all that is not for tests only. Test files are free to
// import more. A package need not exist yet; one that is not listed is refused.
var mayImport = map[string][]string{
	"internal/record":  {},
	"internal/quickio": {},

	"broker/commitlog":         {"internal/record", "internal/quickio"},
	"broker/cluster":           {},
	"broker/server":            {"internal/quickio"},
	"broker/replica":           {"broker/commitlog", "broker/cluster", "internal/record"},
	"broker/coordinator":       {"broker/cluster", "internal/record"},
	"broker/coordinator/group": {"broker/coordinator", "broker/cluster", "internal/record"},
	"broker/coordinator/txn":   {"broker/coordinator", "broker/cluster", "internal/record"},
	"broker/peer":              {"broker/replica", "broker/cluster", "broker/coordinator/txn", "internal/record"},
	"broker/api": {"broker/server", "broker/replica", "broker/commitlog", "broker/cluster", "broker/coordinator",
		"broker/coordinator/group", "broker/coordinator/txn", "internal/record"},
	"broker": {"broker/server", "broker/replica", "broker/commitlog", "broker/cluster", "broker/coordinator",
		"broker/coordinator/group", "broker/coordinator/txn", "broker/peer", "broker/api", "internal/record", "internal/dirlock", "internal/quickio"},

	"agent/tail":                 {"internal/quickio"},
	"agent/assemble":             {},
	"agent/journal":              {"internal/record", "internal/quickio"},
	"agent/producer":             {"internal/record", "internal/quickio"},
	"agent/producer/brokermodel": {"internal/record"},
	"agent/stream":               {"agent/tail"},
	"agent/syslog":               {"agent/stream", "agent/tail"},
	"agent/journald":             {"agent/stream", "agent/tail"},
	"agent/kubernetes":           {},
	"agent/kubernetes/apifake":   {},
	"agent":                      {"agent/kubernetes", "agent/stream", "agent/syslog", "agent/journald", "agent/assemble", "agent/tail", "agent/journal", "agent/producer", "pipelines", "internal/connect", "internal/record", "internal/dirlock", "internal/quickio"},

	"sinks":            {"pipelines", "internal/connect", "internal/record"},
	"sinks/clickhouse": {"sinks", "pipelines", "internal/connect"},
	"sinks/directory":  {"sinks", "pipelines"},
	"sinks/hdfs":       {"sinks", "sinks/directory", "pipelines"},

	"sinks/directory/filetest": {"sinks", "sinks/directory", "pipelines"},  // tests of every file system under the sink
	"sinks/storm":              {"sinks", "pipelines", "internal/testenv"}, // faults of every destination

	"pipelines": {},

	"internal/connect": {"pipelines"},
	"internal/dirlock": {},
	"internal/convert": {},

	"cmd/sluice":                {"..."},
	"bench":                     {"..."},
	"examples/quickstart/demo":  {"..."},
	"examples/quickstart":       {}, // tests of the example
	"examples/clickhouse":       {},
	"examples/cluster":          {},
	"examples/app-logs-to-hdfs": {},
	"deploy":                    {},

	"internal/admin":            {"sinks"}, // reads what the sinks commit
	"internal/compat":           {},
	"internal/faults":           {},
	"internal/layout":           {},
	"internal/testenv":          {},
	"internal/testenv/fetch":    {"internal/testenv"},
	"internal/testenv/chserver": {},
}

// testOnly packages may be imported by test files and by each other alone.
var testOnly = []string{"internal/testenv", "internal/layout", "agent/producer/brokermodel", "agent/kubernetes/apifake", "sinks/directory/filetest", "sinks/storm"}

// never lists what a package must not reach even through others.
var never = map[string][]string{
	"agent": {"broker"},
	"sinks": {"broker"},
}

// wireCodecs are the packages of Kafka's message and error codes. Under broker
// only these may name them, so that storage and replication know no wire.
var (
	wireCodecs = []string{"github.com/twmb/franz-go/pkg/kmsg", "github.com/twmb/franz-go/pkg/kerr"}
	speaksWire = []string{"broker/api", "broker/peer", "broker/server", "broker/coordinator", "broker/coordinator/group", "broker/coordinator/txn"}
)

// topLevel are the known directories of the root, Go or not.
var topLevel = []string{".ci", ".git", "agent", "bench", "broker", "cmd", "deploy", "docs", "examples", "internal", "pipelines", "sinks",
	"bin", "build", "sluice-data" /* made by building and running */}

// namesRefused say nothing about what a package holds.
var namesRefused = []string{"util", "utils", "common", "types", "helpers", "manager", "misc", "lib"}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func (l *listed) name() string {
	return strings.TrimPrefix(strings.TrimPrefix(l.ImportPath, module), "/")
}

// list asks the go command for every package of the tree, on a platform with
// the Linux fast paths and on one with their portable twins.
func list(t *testing.T, goos string) []*listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var all []*listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatalf("go list's answer: %v", err)
		}
		all = append(all, &l)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImports(t *testing.T) {
	for _, goos := range []string{"linux", "darwin"} {
		for _, l := range list(t, goos) {
			for _, complaint := range judge(l) {
				t.Errorf("%s (GOOS=%s)", complaint, goos)
			}
		}
	}
}

// judge returns a sentence for each import of l that the tables do not allow.
func judge(l *listed) []string {
	allowed, known := mayImport[l.name()]
	if !known {
		return []string{fmt.Sprintf("package %s is not in the layout: give it a line in mayImport of internal/layout, and in ARCHITECTURE.md", l.name())}
	}
	var complaints []string
	for _, imp := range l.Imports {
		ours, isOurs := strings.CutPrefix(imp, module+"/")
		switch {
		case isOurs && !allows(l.name(), allowed, ours):
			complaints = append(complaints, fmt.Sprintf("%s imports %s, but may import only %s of ours", l.name(), ours, orNothing(allowed)))
		case slices.Contains(wireCodecs, imp) && within(l.name(), "broker") && !slices.Contains(speaksWire, l.name()):
			complaints = append(complaints, fmt.Sprintf("%s imports %s: under broker only %s speak the wire's codes", l.name(), path.Base(imp), strings.Join(speaksWire, ", ")))
		}
	}
	for of, banned := range never {
		if !within(l.name(), of) {
			continue
		}
		for _, dep := range l.Deps {
			ours := strings.TrimPrefix(dep, module+"/")
			if slices.ContainsFunc(banned, func(b string) bool { return within(ours, b) }) {
				complaints = append(complaints, fmt.Sprintf("%s reaches %s: %s runs unchanged against any Kafka and knows no broker of ours", l.name(), ours, of))
			}
		}
	}
	return complaints
}

func allows(importer string, allowed []string, imported string) bool {
	if slices.Contains(allowed, "...") {
		return !isTestOnly(imported)
	}
	return slices.Contains(allowed, imported) && (!isTestOnly(imported) || isTestOnly(importer))
}

func isTestOnly(name string) bool {
	return slices.ContainsFunc(testOnly, func(p string) bool { return within(name, p) })
}

// within reports whether package name is dir or lies under it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, dir+"/")
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

func TestJudgeRefuses(t *testing.T) {
	for _, c := range []struct{ name, imports, want string }{
		{"broker/commitlog", module + "/broker/replica", "broker/commitlog imports broker/replica, but may import only internal/record, internal/quickio of ours"},
		{"broker/server", module + "/broker/api", "may import only internal/quickio of ours"},
		{"broker/replica", "github.com/twmb/franz-go/pkg/kerr", "speak the wire's codes"},
		{"cmd/sluice", module + "/internal/testenv", "cmd/sluice imports internal/testenv"},
		{"broker/helpers", "fmt", "is not in the layout"},
	} {
		got := judge(&listed{ImportPath: module + "/" + c.name, Imports: []string{c.imports}})
		if len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s importing %s: got %q, want one complaint with %q", c.name, c.imports, got, c.want)
		}
	}
	got := judge(&listed{ImportPath: module + "/agent/tail", Deps: []string{module + "/broker/server"}})
	if len(got) != 1 || !strings.Contains(got[0], "agent/tail reaches broker/server") {
		t.Errorf("agent/tail reaching broker: got %q", got)
	}
}

func TestDirectories(t *testing.T) {
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(topLevel, e.Name()) {
			t.Errorf("directory %s is not in the layout: give it a place under an existing one, or a line in topLevel of internal/layout", e.Name())
		}
	}
}

func TestFiles(t *testing.T) {
	top := root(t)
	err := filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, file)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "build", "sluice-data"}, rel) {
				return filepath.SkipDir
			}
			if slices.Contains(namesRefused, d.Name()) {
				t.Errorf("directory %s: name it after what it holds", rel)
			}
			return nil
		}
		if filepath.Ext(file) != ".go" {
			return nil
		}
		lines, err := countLines(file)
		if err != nil {
			return err
		}
		if lines > fileLinesMax {
			t.Errorf("%s has %d lines, more than %d: a concept is missing that would split it", rel, lines, fileLinesMax)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func countLines(file string) (int, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n := 0
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		n++
	}
	return n, s.Err()
}
