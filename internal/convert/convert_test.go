package convert

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
)

// converted converts a sample and checks that the pipelines are valid and that the notes are those that are wanted, each by its line and a
// word of it.
func converted(t *testing.T, sample string, convert func([]byte) (*Result, error)) (*Result, map[string]*pipelines.Pipeline) {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("testdata", sample))
	if err != nil {
		t.Fatal(err)
	}
	r, err := convert(src)
	if err != nil {
		t.Fatal(err)
	}
	pipes, err := pipelines.Parse("converted.yaml", []byte(r.YAML))
	if err != nil {
		t.Fatalf("%v\n%s", err, r.YAML)
	}
	byName := map[string]*pipelines.Pipeline{}
	for _, p := range pipes {
		byName[p.Name] = p
	}
	checkNotes(t, strings.TrimSuffix(sample, filepath.Ext(sample))+".want", r.Notes)
	if t.Failed() {
		t.Logf("%s", r.YAML)
	}
	return r, byName
}

func checkNotes(t *testing.T, file string, notes []Note) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, n := range notes {
		got := fmt.Sprintf("%d: %s", n.Line, n.What)
		if i >= len(want) {
			t.Errorf("a note too many: %s", got)
			continue
		}
		line, word, _ := strings.Cut(want[i], ": ")
		if !strings.HasPrefix(got, line+": ") || !strings.Contains(got, word) {
			t.Errorf("note %d: %s, want %s", i, got, want[i])
		}
	}
	if len(notes) < len(want) {
		t.Errorf("%d notes, want %d", len(notes), len(want))
	}
}

// say is values with a space between any two.
func say(values ...any) string { return strings.TrimSuffix(fmt.Sprintln(values...), "\n") }

func labelsOf(p *pipelines.Pipeline) string { return say(p.Collect.Labels) }

func TestPromtail(t *testing.T) {
	_, p := converted(t, "promtail.yaml", Promtail)
	nginx, app, journal, pods := p["nginx"], p["app"], p["journal"], p["kubernetes-pods"]
	if len(p) != 4 || nginx == nil || app == nil || journal == nil || pods == nil {
		t.Fatalf("%d pipelines", len(p))
	}
	if f := nginx.Collect.File; say(f.Include, f.Exclude) != "[/var/log/nginx/*access.log] [/var/log/nginx/old-*.log]" || labelsOf(nginx) != "[{job nginx} {env production}]" {
		t.Errorf("%+v %s", f, labelsOf(nginx))
	}
	chain, err := nginx.NewProcess()
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]pipelines.Outcome{`1.2.3.4 "GET /healthz HTTP/1.1"`: pipelines.Drop, `1.2.3.4 "GET / HTTP/1.1"`: pipelines.Keep} {
		var e pipelines.Event
		e.Reset([]byte(line))
		if got := chain.Apply(&e).Outcome; got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
	if m := app.Collect.File.Multiline; m == nil || m.Start == nil || m.LinesMax != 200 || m.Idle.String() != "3s" || labelsOf(app) != "[{job app} {team checkout}]" {
		t.Errorf("%+v %s", m, labelsOf(app))
	}
	if journal.Collect.Journald == nil || pods.Collect.File == nil || pods.Collect.File.Container == nil {
		t.Error("the inputs are others")
	}
}

func TestFilebeat(t *testing.T) {
	r, p := converted(t, "filebeat.yml", Filebeat)
	shop, nginx, containers := p["filebeat-log"], p["nginx-access"], p["containers"]
	if len(p) != 3 || shop == nil || nginx == nil || containers == nil {
		t.Fatalf("%d pipelines\n%s", len(p), r.YAML)
	}
	f := shop.Collect.File
	if say(f.Include, f.Exclude) != "[/var/log/shop/*.log] [/**/*.gz]" || f.Multiline == nil || f.Multiline.Start == nil || f.Multiline.Idle.String() != "5s" || labelsOf(shop) != "[{app shop}]" {
		t.Errorf("%+v %s", f, labelsOf(shop))
	}
	chain, err := shop.NewProcess()
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]pipelines.Outcome{"DBG x": pipelines.Drop, "TRACE": pipelines.Drop, "INF DBG": pipelines.Keep} {
		var e pipelines.Event
		e.Reset([]byte(line))
		if got := chain.Apply(&e).Outcome; got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
	if say(nginx.Brokers.Addr, nginx.Topic.Name, nginx.Topic.Compression, nginx.Collect.File.ScanInterval) != "[kafka-1:9092 kafka-2:9092] nginx-access gzip 5s" {
		t.Errorf("%+v %+v", nginx.Brokers, nginx.Topic)
	}
	if nginx.Topic.Value != pipelines.ValueEvent || containers.Collect.File.Container == nil {
		t.Error("parsers are others")
	}
}

func TestFluentBit(t *testing.T) {
	r, p := converted(t, "fluent-bit.conf", FluentBit)
	nginx, kube, journal := p["nginx.access"], p["kube.all"], p["host.journal"]
	if len(p) != 3 || nginx == nil || kube == nil || journal == nil {
		t.Fatalf("%d pipelines\n%s", len(p), r.YAML)
	}
	f := nginx.Collect.File
	if say(f.Include, f.StartAt, f.ScanInterval, f.RotateGrace) != "[/var/log/nginx/access.log /var/log/nginx/other.log] beginning 10s 15s" {
		t.Errorf("%+v", f)
	}
	if say(nginx.Brokers.Addr, nginx.Topic.Name, labelsOf(nginx)) != "[kafka-1:9092 kafka-2:9092] access [{site shop}]" || len(nginx.Process) != 2 {
		t.Errorf("%+v %+v %d stages", nginx.Brokers, nginx.Topic, len(nginx.Process))
	}
	if kube.Brokers != nil || kube.Collect.File.Container == nil || kube.Collect.File.StartAt != pipelines.StartAtEnd {
		t.Errorf("%+v %+v", kube.Brokers, kube.Collect.File)
	}
	if say(journal.Collect.Journald.Units) != "[sshd.service cron.service]" {
		t.Errorf("%+v", journal.Collect.Journald)
	}
}

// The YAML form says the same as the classic one.
func TestFluentBitInYAML(t *testing.T) {
	r, err := FluentBit([]byte(`
service: {flush: 1}
pipeline:
  inputs:
    - name: tail
      tag: app
      path: /srv/app/*.log
      parser: json
      read_from_head: true
  outputs:
    - name: kafka
      match: '*'
      brokers: kafka:9092
      topics: app-logs
`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipelines.Parse("converted.yaml", []byte(r.YAML))
	if err != nil {
		t.Fatalf("%v\n%s", err, r.YAML)
	}
	if say(p[0].Name, p[0].Collect.File.Include, p[0].Brokers.Addr, p[0].Topic.Name) != "app [/srv/app/*.log] [kafka:9092] app-logs" || len(r.Notes) != 1 {
		t.Errorf("%s %v", r.YAML, r.Notes)
	}
}

// What is no configuration gives an error or nothing, and never a crash.
func TestConvertOddFiles(t *testing.T) {
	for _, convert := range []func([]byte) (*Result, error){Promtail, Filebeat, FluentBit} {
		for _, src := range []string{"", "a", "[", "- a\n- b", "scrape_configs: 1", "filebeat.inputs: {a: b}", "a: &x [*x]", "a: *none", "[INPUT]\nName", "[INPUT]\nName tail\n[OUTPUT]\nName kafka\nMatch [",
			"pipeline: {inputs: [a, {name: tail}]}", "scrape_configs: [{static_configs: [{labels: 1}]}]", "filebeat.inputs: [{type: log, paths: {a: b}, exclude_files: x}]"} {
			r, err := convert([]byte(src))
			if err == nil && r.Count > 0 {
				if _, err := pipelines.Parse("converted.yaml", []byte(r.YAML)); err != nil {
					t.Logf("%q gives what is not valid: %v", src, err)
				}
			}
		}
	}
}

func FuzzConvert(f *testing.F) {
	for _, sample := range []string{"promtail.yaml", "filebeat.yml", "fluent-bit.conf"} {
		src, err := os.ReadFile(filepath.Join("testdata", sample))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Fuzz(func(_ *testing.T, src []byte) {
		for _, convert := range []func([]byte) (*Result, error){Promtail, Filebeat, FluentBit} {
			_, _ = convert(src) // must not crash
		}
	})
}
