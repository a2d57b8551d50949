package convert

import (
	"strings"
	"testing"

	"github.com/sluice-io/sluice/pipelines"
)

// Configurations as they are found: many kinds of inputs and stages in one file. What comes out is valid, and each line that is not carried over is named with its reason.

func TestPromtailInTheWild(t *testing.T) {
	_, p := converted(t, "promtail-wild.yaml", Promtail)
	j := p["journal"].Collect.Journald
	if say(j.Matches, j.IgnoreOlder, j.Directory) != "[_TRANSPORT=kernel] 12h0m0s /var/log/journal" {
		t.Errorf("%+v", j)
	}
	if s := p["syslog"].Collect.Syslog; say(s.Listen, s.IdleTimeout) != "[udp://0.0.0.0:1514] 1m0s" {
		t.Errorf("%+v", s)
	}
	if p["kubernetes-pods"].Collect.File.Container.Kubernetes == nil || p["containers"].Collect.File.Container == nil {
		t.Error("containers are read as plain files, or without labels")
	}
	r, err := Promtail([]byte("scrape_configs: [{job_name: j, journal: {}}]"))
	if err != nil || !strings.Contains(r.YAML, "ignore_older: 7h") {
		t.Errorf("without max_age Promtail takes what is younger than 7 hours; %v\n%s", err, r.YAML)
	}
}

func TestFilebeatInTheWild(t *testing.T) {
	_, p := converted(t, "filebeat-wild.yml", Filebeat)
	f := p["filebeat-log"].Collect.File
	if say(f.IgnoreOlder, f.Encoding, f.LineBytesMax) != "24h0m0s utf-16le 10485760" {
		t.Errorf("%+v", f)
	}
	if j := p["everything"].Collect.Journald; say(j.Matches) != "[_SYSTEMD_UNIT=nginx.service]" {
		t.Errorf("%+v", j)
	}
	if s := p["filebeat-syslog"].Collect.Syslog; say(s.Listen) != "[udp://localhost:9000]" {
		t.Errorf("%+v", s)
	}
	if len(p["filebeat-container"].Process) != 1 {
		t.Error("the stream is not chosen")
	}
}

func TestFluentBitInTheWild(t *testing.T) {
	_, p := converted(t, "fluent-bit-wild.conf", FluentBit)
	kube, app, journal := p["kube.all"], p["app"], p["host.all"]
	if kube.Collect.File.Container.Kubernetes == nil || kube.Topic.Compression != "zstd" || kube.Topic.Name != "test" {
		t.Errorf("%+v %+v", kube.Collect.File.Container, kube.Topic)
	}
	if app.Topic.Name != "test-app" || app.Topic.Value != pipelines.ValueEvent {
		t.Errorf("events share a topic with raw lines: %+v", app.Topic)
	}
	if journal.Collect.Journald.StartAt != pipelines.StartAtEnd {
		t.Error("Read_From_Tail is not carried over")
	}
}
