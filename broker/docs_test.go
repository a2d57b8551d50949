package broker

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/api"
	"github.com/sluice-io/sluice/broker/cluster"
)

var update = flag.Bool("update", false, "write the generated parts of docs/broker.md anew")

// The tables of the reference are made from what the broker does.
func TestReferenceIsUpToDate(t *testing.T) {
	const file = "../docs/broker.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{
		"versions":                      versionTable(t),
		"properties":                    propertyTable(),
		"properties without effect":     codeList(ineffectiveProperties()),
		"topic settings":                topicTable(),
		"topic settings without effect": codeList(cluster.WithoutEffect()),
	}
	mark := regexp.MustCompile(`(?s)(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)`)
	want := mark.ReplaceAllStringFunc(string(text), func(part string) string {
		m := mark.FindStringSubmatch(part)
		made, ok := parts[m[2]]
		if !ok {
			t.Errorf("%s asks for %q, which nothing makes", file, m[2])
		}
		delete(parts, m[2])
		return m[1] + made + m[3]
	})
	for name := range parts {
		t.Errorf("%s has no place for %q", file, name)
	}
	switch {
	case want == string(text):
	case *update:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not up to date: run `go test ./broker -run TestReferenceIsUpToDate -args -update`", file)
	}
}

func versionTable(t *testing.T) string {
	n := startNode(t, testConfig(t))
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(t.Context(), n.client(t))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, k := range resp.ApiKeys {
		versions := fmt.Sprint(k.MinVersion)
		if k.MaxVersion != k.MinVersion {
			versions += fmt.Sprintf("-%d", k.MaxVersion)
		}
		words = append(words, fmt.Sprintf("%s (%d) %s", api.Name(k.ApiKey), k.ApiKey, versions))
	}
	return strings.Join(words, ", ") + ".\n"
}

func propertyTable() string {
	var b strings.Builder
	b.WriteString("| property | type | default | while it runs | what it is |\n|---|---|---|---|---|\n")
	topics := map[string]string{}
	for _, d := range cluster.TopicConfigs() {
		for _, s := range d.Synonyms {
			topics[s.Name] = d.Name
		}
	}
	for _, p := range (Config{}).Properties() {
		if p.DynamicOnly() {
			continue
		}
		doc := cell(p.Doc)
		if topic := topics[p.Name]; topic != "" {
			doc = fmt.Sprintf("Default of the topic setting `%s`.", topic)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", p.Name, p.Type, defaultCell(p), yes(p.Dynamic), doc)
	}
	return b.String()
}

func defaultCell(p api.Property) string {
	if p.Default == nil {
		if len(p.Synonyms) > 1 {
			return "by `" + p.Synonyms[len(p.Synonyms)-1] + "`"
		}
		return "none"
	}
	return "`" + *p.Default + "`"
}

// ineffectiveProperties are the defaults of topic settings without effect, and
// those that only tools set.
func ineffectiveProperties() []string {
	var out []string
	for _, d := range cluster.TopicConfigs() {
		for _, s := range d.Synonyms {
			if !d.Effective {
				out = append(out, s.Name)
			}
		}
	}
	for _, d := range dynamicOnlyConfigs() {
		if !d.Effective {
			out = append(out, d.Name)
		}
	}
	slices.Sort(out)
	return out
}

func topicTable() string {
	var b strings.Builder
	b.WriteString("| setting | type | default | broker's property | what it is |\n|---|---|---|---|---|\n")
	for _, d := range cluster.TopicConfigs() {
		if !d.Effective {
			continue
		}
		var names []string
		for _, s := range d.Synonyms {
			names = append(names, "`"+s.Name+"`")
		}
		def := "`" + d.Default + "`"
		if d.Default == "" {
			def = "none"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", d.Name, d.Type, def, strings.Join(names, ", "), cell(d.Doc))
	}
	return b.String()
}

func codeList(names []string) string { return "`" + strings.Join(names, "`, `") + "`.\n" }

// cell is a text as a table's cell.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}
