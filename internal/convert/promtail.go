package convert

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Promtail makes pipelines of Promtail's configuration.
func Promtail(src []byte) (*Result, error) {
	root, err := readYAML(src, false)
	if err != nil {
		return nil, fmt.Errorf("read Promtail's configuration: %w", err)
	}
	c := &converter{}
	c.refuse(root.find("clients"), "lines go to a topic of the Kafka protocol; name its brokers with `brokers`, or --brokers")
	c.refuse(root.find("client"), "lines go to a topic of the Kafka protocol; name its brokers with `brokers`, or --brokers")
	c.refuse(root.find("server"), "`sluice agent --metrics` is where metrics and readiness are served")
	c.refuse(root.find("positions"), "`sluice agent positions import --from promtail` takes the positions over")
	for _, job := range root.find("scrape_configs").entries() {
		c.promtailJob(job)
	}
	return c.result(root), nil
}

// promtailJob makes the pipelines of one scrape_config.
func (c *converter) promtailJob(job *node) {
	name := job.get("job_name").string()
	if name == "" {
		name = "promtail"
	}
	before := len(c.out)
	for _, static := range job.find("static_configs").entries() {
		static.get("targets") // always this host
		c.promtailStatic(name, static.find("labels"))
	}
	if j := job.find("journal"); j != nil {
		p := &pipeline{comment: "journal of job " + name, name: name, input: "journald"}
		if dir := j.get("path").string(); dir != "" {
			p.option("directory", quote(dir))
		}
		if m := strings.Fields(j.get("matches").string()); len(m) > 0 {
			p.option("matches", list(m))
		}
		c.labels(p, j.find("labels"))
		if age := j.get("max_age"); age != nil {
			c.age(p, age, age.string())
		} else {
			p.option("ignore_older", "7h") // Promtail's own
		}
		c.add(p)
	}
	if s := job.find("syslog"); s != nil {
		p := &pipeline{comment: "syslog of job " + name, name: name, input: "syslog"}
		network := s.get("listen_protocol").string()
		if network == "" {
			network = "tcp"
		}
		p.option("listen", list([]string{network + "://" + s.get("listen_address").string()}))
		if idle := s.get("idle_timeout").string(); idle != "" {
			p.option("idle_timeout", idle)
		}
		if x := s.get("label_structured_data"); x.yes() {
			c.note(x, "label_structured_data: structured data is the field `data` of each event, and no label")
		}
		c.labels(p, s.find("labels"))
		c.add(p)
	}
	if k := job.find("kubernetes_sd_configs"); k != nil {
		p := &pipeline{comment: "containers of job " + name, name: name, input: "file"}
		p.option("include", list([]string{"/var/log/pods/*/*/*.log"}))
		p.option("container", "{kubernetes: {}}")
		k.all()
		c.note(k, "kubernetes_sd_configs: the containers' files of this node are followed; namespaces are chosen by collect.file.container.namespaces")
		c.refuse(job.find("relabel_configs"), "what is known of a pod are headers: `pod`, `namespace`, `label.KEY` and so on, of which collect.file.container.kubernetes chooses")
		c.add(p)
	}
	for _, p := range c.out[before:] {
		c.promtailStages(p, job.find("pipeline_stages"))
	}
	if len(c.out) > before {
		return
	}
	for _, x := range job.entries() {
		if x.key != "job_name" && x.key != "pipeline_stages" && x.key != "relabel_configs" {
			c.refuse(x, "there is no such input; job "+name+" is left out")
		}
	}
	job.all()
}

func (c *converter) promtailStatic(job string, labels *node) {
	include := labels.get("__path__").string()
	if include == "" {
		return
	}
	p := &pipeline{comment: "files of job " + job, name: job, input: "file"}
	p.option("include", list(c.globs(labels.find("__path__"), []string{include})))
	if x := labels.get("__path_exclude__").string(); x != "" {
		p.option("exclude", list([]string{x}))
	}
	c.labels(p, labels)
	c.add(p)
}

// labels carries an object of texts over. Names with __ are Promtail's own.
func (c *converter) labels(p *pipeline, n *node) {
	for _, l := range n.entries() {
		if l.scalar && !l.used && len(l.key) > 0 && !regexp.MustCompile(`^__`).MatchString(l.key) {
			if strings.Contains(l.text, "${") {
				c.note(l, "%s: %q stands as it is: variables of the environment are not put in; write the value", l.key, l.text)
			}
			p.label(l.key, l.string())
		}
	}
}

// promtailStages carries the stages over that there are here, up to the first that there is not: later ones may rely on it.
func (c *converter) promtailStages(p *pipeline, stages *node) {
	for _, s := range stages.entries() {
		if len(s.items) != 1 {
			continue
		}
		kind, x := s.items[0].key, s.items[0]
		x.used = true
		switch kind {
		case "cri", "docker":
			if p.input == "file" && !hasOption(p, "container") {
				p.option("container", fmt.Sprintf("{format: %s}", kind))
			}
			x.all()
		case "json":
			p.process = append(p.process, "parse: json")
			c.note(x, "json: all fields of the object are kept, under their own names, and are not labels")
			x.all()
		case "multiline":
			c.multiline(p, x)
		case "static_labels":
			c.labels(p, x)
		case "drop":
			c.promtailDrop(p, x)
		default:
			c.refuse(x, "no such stage; `set` and `drop` with expressions may do the same")
		}
	}
}

func hasOption(p *pipeline, key string) bool {
	for _, o := range p.options {
		if len(o) > len(key) && o[:len(key)+1] == key+":" {
			return true
		}
	}
	return false
}

func (c *converter) multiline(p *pipeline, x *node) {
	start := x.get("firstline").string()
	if _, err := regexp.Compile(start); err != nil || start == "" || p.input != "file" {
		c.refuse(x, "its firstline is no regular expression here, or the input has no records of several lines")
		return
	}
	text := "{start: " + quote(start)
	if n := x.get("max_lines").string(); n != "" {
		text += ", lines_max: " + n
	}
	if d := x.get("max_wait_time").string(); d != "" {
		if _, err := time.ParseDuration(d); err == nil {
			text += ", idle: " + d
		}
	}
	p.option("multiline", text+"}")
}

func (c *converter) promtailDrop(p *pipeline, x *node) {
	if x.find("source") != nil || x.find("expression") == nil || len(x.items) > 1 && x.find("drop_counter_reason") == nil {
		c.refuse(x, "only an `expression` on the whole line is; `drop` with an expression may do the same")
		return
	}
	x.get("drop_counter_reason")
	condition, err := matches(x.get("expression").string(), false)
	if err != nil {
		c.refuse(x, err.Error())
		return
	}
	p.process = append(p.process, drop(condition))
}
