package convert

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Filebeat makes pipelines of Filebeat's configuration.
func Filebeat(src []byte) (*Result, error) {
	root, err := readYAML(src, true)
	if err != nil {
		return nil, fmt.Errorf("read Filebeat's configuration: %w", err)
	}
	c := &converter{}
	kafka := root.find("output", "kafka")
	for _, other := range root.find("output").entries() {
		if other.key != "kafka" {
			c.refuse(other, "lines go to a topic of the Kafka protocol, and from there to a `sink`")
		}
	}
	c.refuse(root.find("processors"), "stages (`parse`, `set`, `drop`) are a pipeline's own")
	c.refuse(root.find("filebeat", "modules"), "a module's files and parsers are to be named in a pipeline")
	for _, in := range root.find("filebeat", "inputs").entries() {
		c.filebeatInput(in)
	}
	for _, p := range c.out {
		c.filebeatKafka(p, kafka)
	}
	return c.result(root), nil
}

func (c *converter) filebeatInput(in *node) {
	kind := in.get("type").string()
	if e := in.find("enabled"); e != nil && !e.yes() {
		c.refuse(in, "it is not enabled")
		return
	}
	name := in.get("id").string()
	if name == "" {
		name = "filebeat-" + kind
	}
	p := &pipeline{comment: fmt.Sprintf("input %s of line %d", kind, in.line), name: name}
	switch kind {
	case "log", "filestream", "container":
		p.input = "file"
		c.filebeatFiles(p, in, kind)
	case "stdin":
		p.input = "stdin"
	case "journald":
		p.input = "journald"
		if units := in.get("units").texts(); len(units) > 0 {
			p.option("units", list(units))
		}
		matches := append(in.get("include_matches").texts(), in.get("include_matches", "match").texts()...)
		if len(matches) > 0 {
			p.option("matches", list(matches))
		}
	case "syslog":
		p.input = "syslog"
		c.filebeatSyslog(p, in)
	default:
		c.refuse(in, "no input "+kind)
		return
	}
	c.filebeatLines(p, in)
	c.labels(p, in.find("fields"))
	if in.find("fields") != nil {
		in.get("fields_under_root")
	}
	c.add(p)
}

// filebeatSyslog carries over where messages are taken.
func (c *converter) filebeatSyslog(p *pipeline, in *node) {
	var listen []string
	for _, network := range []string{"tcp", "udp"} {
		if host := in.get("protocol", network, "host").string(); host != "" {
			listen = append(listen, network+"://"+host)
		}
	}
	if path := in.get("protocol", "unix", "path").string(); path != "" {
		listen = append(listen, "unix://"+path)
	}
	p.option("listen", list(listen))
}

// filebeatFiles carries over which files are followed and how.
func (c *converter) filebeatFiles(p *pipeline, in *node, kind string) {
	paths := in.get("paths")
	p.option("include", list(c.globs(paths, paths.texts())))
	for _, key := range [][]string{{"exclude_files"}, {"prospector", "scanner", "exclude_files"}} {
		if x := in.find(key...); x != nil {
			p.option("exclude", list(c.excluded(x)))
		}
	}
	if in.get("tail_files").yes() {
		p.option("start_at", "end")
	}
	if kind == "container" {
		p.option("container", "{}")
		c.filebeatStream(p, in.get("stream"))
	}
	if x := in.find("ignore_older"); x != nil {
		c.age(p, x, x.string())
	}
	for _, key := range [][]string{{"max_bytes"}, {"message_max_bytes"}} {
		if x := in.get(key...); x != nil {
			p.option("line_bytes_max", x.string())
		}
	}
	for _, key := range [][]string{{"scan_frequency"}, {"prospector", "scanner", "check_interval"}} {
		if x := in.get(key...); x != nil {
			p.option("scan_interval", x.string())
		}
	}
	switch enc := strings.TrimSuffix(strings.ToLower(in.get("encoding").string()), "-bom"); enc {
	case "", "plain", "utf-8":
	case "utf-16le", "utf-16be":
		p.option("encoding", enc)
	default:
		c.note(in.find("encoding"), "encoding: not carried over: %s", enc)
	}
}

// filebeatStream keeps lines of one stream of a container.
func (c *converter) filebeatStream(p *pipeline, n *node) {
	if s := n.string(); s == "stdout" || s == "stderr" {
		p.process = append(p.process, drop("headers.stream != "+quote(s)))
	}
}

// excluded makes globs of the regular expressions that a glob can say: a fixed end of the name.
func (c *converter) excluded(n *node) (out []string) {
	suffix := regexp.MustCompile(`^((?:\\?\.[A-Za-z0-9_]+)+)\$$`)
	n.used = true
	for _, x := range n.items {
		m := suffix.FindStringSubmatch(x.string())
		if m == nil {
			c.note(x, "exclude_files: not carried over: %q is a regular expression that no pattern of paths says", x.text)
			continue
		}
		out = append(out, "/**/*"+strings.ReplaceAll(m[1], `\`, ""))
	}
	return out
}

// filebeatLines carries over what is done with lines.
func (c *converter) filebeatLines(p *pipeline, in *node) {
	c.filebeatMultiline(p, in.find("multiline"))
	if j := in.find("json"); j != nil {
		p.process = append(p.process, "parse: json")
		c.note(j, "json: all fields are kept, at the top")
		j.all()
	}
	for _, x := range in.find("parsers").entries() {
		for _, y := range x.entries() {
			switch y.key {
			case "multiline":
				c.filebeatMultiline(p, y)
			case "ndjson":
				p.process = append(p.process, "parse: json")
				c.note(y, "ndjson: all fields are kept, at the top")
				y.all()
			case "container":
				if !hasOption(p, "container") {
					p.option("container", "{}")
				}
				c.filebeatStream(p, y.get("stream"))
				y.all()
			default:
				c.refuse(y, "no such parser")
			}
		}
	}
	c.filebeatFilter(p, in.find("include_lines"), true)
	c.filebeatFilter(p, in.find("exclude_lines"), false)
}

// filebeatFilter carries include_lines or exclude_lines over, which are looked at before JSON is parsed here too.
func (c *converter) filebeatFilter(p *pipeline, n *node, include bool) {
	if n == nil {
		return
	}
	var all []string
	n.used = true
	for _, x := range n.items {
		condition, err := matches(x.string(), false)
		if err != nil {
			c.note(x, "%s: not carried over: %v", n.key, err)
			return
		}
		all = append(all, condition)
	}
	if len(all) == 0 {
		return
	}
	condition := strings.Join(all, " or ")
	if include {
		condition = "not (" + condition + ")"
	}
	p.process = slices.Insert(p.process, 0, drop(condition))
}

// filebeatMultiline carries a pattern over. negate and match say which of our patterns it is.
func (c *converter) filebeatMultiline(p *pipeline, n *node) {
	if n == nil {
		return
	}
	pattern := n.get("pattern").string()
	if kind := n.get("type").string(); kind != "" && kind != "pattern" || pattern == "" || p.input != "file" {
		c.refuse(n, "only patterns are, for files")
		return
	}
	if _, err := regexp.Compile(pattern); err != nil {
		c.refuse(n, err.Error())
		return
	}
	negate, match := n.get("negate").yes(), n.get("match").string()
	var text string
	switch {
	case match == "after" && negate:
		text = "{start: " + quote(pattern)
	case match == "after":
		text = "{continue: " + quote(pattern)
	case match == "before" && negate:
		text = "{end: " + quote(pattern)
	case match == "before":
		text = fmt.Sprintf("{end: {match: %s, negate: true}", quote(pattern))
	default:
		c.refuse(n, "match is neither after nor before")
		return
	}
	if x := n.get("max_lines").string(); x != "" {
		text += ", lines_max: " + x
	}
	if x := n.get("timeout").string(); x != "" {
		text += ", idle: " + x
	}
	p.option("multiline", text+"}")
}

func (c *converter) filebeatKafka(p *pipeline, kafka *node) {
	if kafka == nil {
		return
	}
	p.brokers = kafka.get("hosts").texts()
	topic := kafka.get("topic").string()
	if strings.Contains(topic, "%{") {
		c.note(kafka.find("topic"), "topic: %q is worked out for each event; pipeline %s goes to the topic of its own name", topic, p.name)
		topic = ""
	}
	p.topic = topic
	for _, key := range []string{"username", "password", "sasl", "ssl"} {
		c.refuse(kafka.find(key), "write it into `brokers`, as `sasl` and `tls` (docs/pipelines.md)")
	}
	if codec := kafka.get("compression").string(); codec != "" && !p.compress(codec) {
		c.note(kafka.find("compression"), "compression: not carried over: %s", codec)
	}
	if acks := kafka.get("required_acks"); acks != nil && acks.string() != "-1" {
		c.note(acks, "required_acks: lines are always acknowledged by all replicas in sync")
	}
}
