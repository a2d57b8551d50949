// Package convert reads what other log shippers leave: their configuration, of which it makes pipelines, and their positions in files. It
// says of everything that it cannot carry over, with the line it stands in.
package convert

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Note says what was not carried over, or not just as it was.
type Note struct {
	Line int
	What string
}

// Result is a converted configuration.
type Result struct {
	// YAML holds the pipelines; empty when there is none.
	YAML  string
	Count int
	Notes []Note
}

// pipeline is one pipeline that is made.
type pipeline struct {
	comment string
	name    string
	brokers []string
	input   string   // file, journald, syslog, stdin
	options []string // of the input, as lines of YAML
	labels  []label
	process []string // lines of YAML
	topic   string
	extra   []string // of the topic
}

type label struct{ name, value string }

func (p *pipeline) option(key, value string) { p.options = append(p.options, key+": "+value) }

func (p *pipeline) label(name, value string) {
	p.labels = slices.DeleteFunc(p.labels, func(l label) bool { return l.name == name })
	p.labels = append(p.labels, label{name, value})
}

// converter gathers what is made and what is to be said.
type converter struct {
	notes []Note
	out   []*pipeline
}

func (c *converter) note(n *node, format string, args ...any) {
	line := 0
	if n != nil {
		line = n.line
	}
	c.notes = append(c.notes, Note{line, fmt.Sprintf(format, args...)})
}

// refuse says why a value is not carried over, so that it is not told again.
func (c *converter) refuse(n *node, why string) {
	if n == nil {
		return
	}
	n.all()
	c.note(n, "%s: not carried over: %s", n.subject(), why)
}

// age carries over how old what is passed over may be.
func (c *converter) age(p *pipeline, n *node, text string) {
	if d, err := time.ParseDuration(text); err != nil || d <= 0 {
		if n != nil && text != "" && text != "0" {
			c.note(n, "%s: not carried over: %q is no duration such as 24h", n.subject(), text)
		}
		return
	}
	p.option("ignore_older", text)
}

// add adds a pipeline under a name of its own.
func (c *converter) add(p *pipeline) {
	p.name = nameOf(p.name)
	base := p.name
	for i := 2; slices.ContainsFunc(c.out, func(x *pipeline) bool { return x.name == p.name }); i++ {
		p.name = fmt.Sprintf("%s-%d", base, i)
	}
	c.out = append(c.out, p)
}

var notOfNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// nameOf makes a name of a text.
func nameOf(text string) string {
	name := strings.Trim(notOfNames.ReplaceAllString(text, "-"), "-.")
	if name == "" {
		return "logs"
	}
	return name[:min(len(name), 100)]
}

// result ends a conversion: what was made, and what of root was of no use.
func (c *converter) result(root *node) *Result {
	root.unused("", func(line int, what string) {
		c.notes = append(c.notes, Note{line, what + ": not carried over: there is nothing like it, or it is not needed"})
	})
	slices.SortStableFunc(c.notes, func(a, b Note) int { return cmp.Compare(a.Line, b.Line) })
	c.splitTopics()
	c.notes = slices.Compact(c.notes) // what several pipelines have in common is said once
	var b strings.Builder
	for i, p := range c.out {
		if i > 0 {
			b.WriteString("---\n")
		}
		p.write(&b)
	}
	return &Result{YAML: b.String(), Count: len(c.out), Notes: c.notes}
}

// splitTopics gives a topic of its own to a pipeline whose records are of another kind than those of the first that has it: raw lines, or events.
func (c *converter) splitTopics() {
	first := map[string]*pipeline{}
	for _, p := range c.out {
		f := first[p.topic]
		if p.topic == "" || f == nil {
			first[p.topic] = p
			continue
		}
		if p.events() != f.events() {
			was := p.topic
			p.topic += "-" + p.name
			c.notes = append(c.notes, Note{0, fmt.Sprintf("topic: records of pipeline %s are of another kind than those of %s (events, or raw lines), so they go to topic %s instead of %s", p.name, f.name, p.topic, was)})
		}
	}
}

// compress takes over a codec of Kafka's, or says that it is none.
func (p *pipeline) compress(codec string) bool {
	known := slices.Contains([]string{"none", "gzip", "snappy", "lz4", "zstd"}, codec)
	if known {
		p.extra = []string{"compression: " + codec}
	}
	return known
}

// events says that a pipeline's records are events, not raw lines.
func (p *pipeline) events() bool {
	return p.input == "journald" || p.input == "syslog" || slices.ContainsFunc(p.process, func(s string) bool { return strings.HasPrefix(s, "parse: ") })
}

// write renders a pipeline.
func (p *pipeline) write(b *strings.Builder) {
	fmt.Fprintf(b, "# %s\npipeline: %s\n", p.comment, p.name)
	if len(p.brokers) > 0 {
		fmt.Fprintf(b, "brokers: {addr: %s}\n", list(p.brokers))
	}
	fmt.Fprintf(b, "collect:\n  %s:", p.input)
	if len(p.options) == 0 {
		b.WriteString(" {}")
	}
	b.WriteString("\n")
	for _, o := range p.options {
		fmt.Fprintf(b, "    %s\n", o)
	}
	if len(p.labels) > 0 {
		b.WriteString("  labels:\n")
		for _, l := range p.labels {
			fmt.Fprintf(b, "    %s: %s\n", quote(l.name), quote(l.value))
		}
	}
	if len(p.process) > 0 {
		b.WriteString("process:\n")
		for _, s := range p.process {
			fmt.Fprintf(b, "  - %s\n", s)
		}
	}
	topic := p.topic
	if topic == "" {
		topic = p.name
	}
	fmt.Fprintf(b, "topic: {%s}\n", strings.Join(append([]string{"name: " + nameOf(topic)}, p.extra...), ", "))
}

// quote renders a text; JSON's strings are YAML's too.
func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always can be
	return strings.TrimSuffix(b.String(), "\n")
}

func list(texts []string) string {
	out := make([]string, len(texts))
	for i, s := range texts {
		out[i] = quote(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// matches is a condition on the raw line, where Go's regular expressions can say it.
func matches(expression string, negate bool) (string, error) {
	if _, err := regexp.Compile(expression); err != nil {
		return "", err
	}
	condition := "_raw matches " + quote(expression)
	if negate {
		condition = "not (" + condition + ")"
	}
	return condition, nil
}

func drop(condition string) string { return "drop: " + quote(condition) }

// globs tells absolute patterns from others, which are relative to another directory here.
func (c *converter) globs(n *node, patterns []string) (out []string) {
	for _, p := range patterns {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		if !path.IsAbs(p) {
			c.note(n, "%s: the pattern %q is relative: here to the directory in which sluice is started", n.key, p)
		}
		out = append(out, p)
	}
	return out
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
