package convert

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// FluentBit makes pipelines of Fluent Bit's configuration, in its classic form or in YAML.
func FluentBit(src []byte) (*Result, error) {
	root := readSections(src)
	if !regexp.MustCompile(`(?m)^\s*\[`).Match(src) {
		doc, err := readYAML(src, false)
		if err != nil {
			return nil, fmt.Errorf("read Fluent Bit's configuration: %w", err)
		}
		root = sectionsOf(doc)
	}
	c := &converter{}
	for _, s := range root.items {
		switch s.key {
		case "service":
			c.refuse(s, "`sluice agent` has flags for what there is of it")
		case "parser", "multiline_parser":
			c.refuse(s, "parsers are json, nginx and syslog; others can be said with `set`")
		case "input":
			c.fluentInput(s)
		}
		if strings.HasPrefix(s.key, "@") {
			c.refuse(s, "included files and variables are not followed: put their text in its place and convert again")
		}
	}
	c.fluentOutputs(root)
	c.fluentFilters(root)
	return c.result(root), nil
}

// readSections reads the classic form: [SECTION] and KEY VALUE below it.
func readSections(src []byte) *node {
	root := &node{line: 1, list: true}
	var at *node
	for i, line := range strings.Split(string(src), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			at = &node{line: i + 1, key: strings.ToLower(strings.Trim(line, "[]"))}
			root.items = append(root.items, at)
		case at == nil || strings.HasPrefix(line, "@"):
			root.items = append(root.items, &node{line: i + 1, key: line, scalar: true})
		default:
			key, value, _ := strings.Cut(line, " ")
			at.items = append(at.items, &node{line: i + 1, key: strings.ToLower(key), scalar: true, text: strings.TrimSpace(value)})
		}
	}
	return root
}

// sectionsOf makes the same of the YAML form.
func sectionsOf(doc *node) *node {
	root := &node{line: 1, list: true}
	for _, s := range doc.items {
		switch s.key {
		case "pipeline":
			for _, kind := range s.items {
				for _, x := range kind.items {
					x.key = strings.TrimSuffix(kind.key, "s")
					root.items = append(root.items, x)
				}
			}
		case "parsers", "multiline_parsers":
			for _, x := range s.items {
				x.key = strings.TrimSuffix(s.key, "s")
				root.items = append(root.items, x)
			}
		default:
			root.items = append(root.items, s)
		}
	}
	return root
}

func (c *converter) fluentInput(in *node) {
	kind := strings.ToLower(in.get("name").string())
	tag := in.get("tag").string()
	name := tag
	if name == "" {
		name = "fluent-bit-" + kind
	}
	p := &pipeline{comment: fmt.Sprintf("input %s of line %d, tag %s", kind, in.line, tag), name: strings.ReplaceAll(name, "*", "all")}
	switch kind {
	case "tail":
		p.input = "file"
		c.fluentTail(p, in)
	case "systemd":
		p.input = "journald"
		c.fluentSystemd(p, in)
	case "stdin":
		p.input = "stdin"
	case "syslog":
		p.input = "syslog"
		c.fluentSyslog(p, in)
	default:
		c.refuse(in, "no input "+kind)
		return
	}
	c.add(p)
	in.text = tag // for what goes by it
}

func (c *converter) fluentTail(p *pipeline, in *node) {
	split := func(n *node) []string { return strings.FieldsFunc(n.string(), func(r rune) bool { return r == ',' }) }
	p.option("include", list(c.globs(in.find("path"), split(in.get("path")))))
	if x := in.get("exclude_path"); x != nil {
		p.option("exclude", list(c.globs(x, split(x))))
	}
	if !in.get("read_from_head").yes() {
		p.option("start_at", "end")
	}
	if x := in.get("refresh_interval").string(); x != "" {
		p.option("scan_interval", withUnit(x, "s"))
	}
	if x := in.get("rotate_wait").string(); x != "" {
		p.option("rotate_grace", withUnit(x, "s"))
	}
	c.refuse(in.find("db"), "`sluice agent positions import --from fluent-bit` takes the positions over")
	if x := in.get("ignore_older"); x != nil {
		c.age(p, x, withUnit(x.string(), "s"))
	}
	c.refuse(in.find("parser_firstline"), "its pattern stands in the parsers' file: write it as collect.file.multiline.start")
	c.refuse(in.find("skip_long_lines"), "lines beyond collect.file.line_bytes_max are cut, and the file goes on")
	in.get("multiline")
	c.refuse(in.find("mem_buf_limit"), "`sluice agent --memory-max` bounds all pipelines together")
	if x := in.get("path_key"); x != nil {
		c.note(x, "path_key: the path is the header `path` of each record")
	}
	for _, key := range []string{"parser", "multiline.parser"} {
		for _, name := range split(in.find(key)) {
			c.fluentParser(p, in.get(key), strings.ToLower(strings.TrimSpace(name)))
		}
	}
}

func (c *converter) fluentParser(p *pipeline, n *node, name string) {
	switch name {
	case "json":
		p.process = append(p.process, "parse: json")
	case "nginx", "apache", "apache2":
		p.process = append(p.process, "parse: nginx")
	case "cri", "docker":
		if !hasOption(p, "container") {
			p.option("container", "{}")
		}
	case "java", "python", "go":
		p.option("multiline", fmt.Sprintf("{preset: %s}", name))
	default:
		c.note(n, "%s: not carried over: parsers are json, nginx and those of containers; %q may be said with `set`", n.key, name)
	}
}

func (c *converter) fluentSystemd(p *pipeline, in *node) {
	var units []string
	for _, x := range in.items {
		if x.key != "systemd_filter" {
			continue
		}
		if unit, ok := strings.CutPrefix(x.text, "_SYSTEMD_UNIT="); ok {
			units = append(units, unit)
			x.used = true
		}
	}
	if len(units) > 0 {
		p.option("units", list(units))
	}
	if x := in.get("path").string(); x != "" {
		p.option("directory", quote(x))
	}
	if in.get("read_from_tail").yes() {
		p.option("start_at", "end")
	}
}

func (c *converter) fluentSyslog(p *pipeline, in *node) {
	mode, listen, port := in.get("mode").string(), in.get("listen").string(), in.get("port").string()
	if listen == "" {
		listen = "0.0.0.0"
	}
	if port == "" {
		port = "5140"
	}
	switch mode {
	case "tcp", "udp":
		p.option("listen", list([]string{mode + "://" + listen + ":" + port}))
	case "unix_tcp":
		p.option("listen", list([]string{"unix://" + in.get("path").string()}))
	default:
		p.option("listen", list([]string{"unixgram://" + in.get("path").string()}))
	}
}

// withUnit adds a unit to a bare number.
func withUnit(text, unit string) string {
	if regexp.MustCompile(`^\d+$`).MatchString(text) {
		return text + unit
	}
	return text
}

// concerned are the pipelines whose input has a tag that a section matches.
func (c *converter) concerned(root, s *node) (out []*pipeline) {
	i := 0
	pattern := s.get("match").string()
	for _, in := range root.items {
		if in.key != "input" || in.text == "" && in.find("tag") != nil && in.find("tag").text != "" {
			continue
		}
		if i >= len(c.out) || !strings.Contains(c.out[i].comment, fmt.Sprintf(" of line %d,", in.line)) {
			continue
		}
		tag := strings.ReplaceAll(in.text, "*", "x")
		if ok, err := path.Match(strings.ReplaceAll(pattern, "/", "."), strings.ReplaceAll(tag, "/", ".")); pattern == "*" || ok && err == nil {
			out = append(out, c.out[i])
		}
		i++
	}
	return out
}

func (c *converter) fluentOutputs(root *node) {
	for _, s := range root.items {
		if s.key != "output" {
			continue
		}
		kind := strings.ToLower(s.get("name").string())
		if kind != "kafka" {
			c.refuse(s, "output "+kind+": lines go to a topic of the Kafka protocol, and from there to a `sink`")
			continue
		}
		for _, p := range c.concerned(root, s) {
			p.brokers = strings.Split(s.get("brokers").string(), ",")
			p.compress(s.get("rdkafka.compression.codec").string())
			topics := strings.Split(s.get("topics").string(), ",")
			if p.topic = strings.TrimSpace(topics[0]); len(topics) > 1 {
				c.note(s.find("topics"), "topics: the first of several is taken")
			}
		}
	}
}

func (c *converter) fluentFilters(root *node) {
	for _, s := range root.items {
		if s.key != "filter" {
			continue
		}
		kind := strings.ToLower(s.get("name").string())
		of := c.concerned(root, s)
		if kind == "kubernetes" {
			for _, p := range of {
				if hasOption(p, "container") {
					p.options = append(slices.DeleteFunc(p.options, func(o string) bool { return o == "container: {}" }), "container: {kubernetes: {}}")
				}
			}
			c.refuse(s, "labels of pods are headers `label.KEY`, of which collect.file.container.kubernetes chooses, and JSON lines are parsed with container.json")
			continue
		}
		if kind != "grep" && kind != "record_modifier" && kind != "modify" {
			c.refuse(s, "no filter "+kind)
			continue
		}
		for _, x := range s.items {
			switch {
			case kind == "grep" && (x.key == "exclude" || x.key == "regex"):
				c.fluentGrep(of, x)
			case (kind == "record_modifier" && x.key == "record" || kind == "modify" && (x.key == "add" || x.key == "set")) && x.scalar:
				name, value, _ := strings.Cut(x.string(), " ")
				if strings.Contains(value, "${") {
					c.note(x, "%s: %q stands as it is: variables of the environment are not put in; write the value", x.key, value)
				}
				for _, p := range of {
					p.label(name, strings.TrimSpace(value))
				}
			}
		}
	}
}

// fluentGrep carries a condition on the whole line over.
func (c *converter) fluentGrep(of []*pipeline, x *node) {
	field, expression, _ := strings.Cut(x.string(), " ")
	condition, err := matches(strings.TrimSpace(expression), x.key == "regex")
	if strings.TrimPrefix(field, "$") != "log" || err != nil {
		c.note(x, "%s: not carried over: only a regular expression on `log`, the whole line, is; `drop` with an expression may do the same", x.key)
		return
	}
	for _, p := range of {
		p.process = append([]string{drop(condition)}, p.process...)
	}
}
