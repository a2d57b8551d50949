package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/broker"
	"github.com/sluice-io/sluice/pipelines"
)

// The embedded broker keeps what the sinks on it have not committed, and minds no others.
func TestRetentionWaitsForSinksOfTheEmbeddedBroker(t *testing.T) {
	pipes := []*pipelines.Pipeline{
		{Name: "one", Topic: pipelines.Topic{Name: "a"}, Sinks: []*pipelines.SinkSpec{{Pipeline: "one"}}},
		{Name: "two", Topic: pipelines.Topic{Name: "a"}, Sinks: []*pipelines.SinkSpec{{Pipeline: "two", Name: "x"}, {Pipeline: "two", Name: "y"}}},
		{Name: "elsewhere", Brokers: &pipelines.Brokers{}, Topic: pipelines.Topic{Name: "b"}, Sinks: []*pipelines.SinkSpec{{Pipeline: "elsewhere"}}},
	}
	if got := fmt.Sprint(sinkGroups(pipes)); got != "map[a:[one two.x two.y]]" {
		t.Errorf("%s", got)
	}
}

// --print-config starts nothing, and says which values the command line gives.
func TestPrintConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(file, []byte("num.partitions: 6\nlog.dirs: /from/file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs([]string{"broker", "--config", file, "--data", "/a,/b", "--listen", "127.0.0.1:19092 127.0.0.1:19093", "--print-config"})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"num.partitions: 6 # configuration file\n", "log.dirs: /a,/b # command line\n",
		"listeners: 127.0.0.1:19092,127.0.0.1:19093 # command line\n", "default.replication.factor: 1 # default\n",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no line %q in\n%s", line, &out)
		}
	}
	if _, err := broker.ParseConfig("printed", out.Bytes()); err != nil {
		t.Errorf("what is printed is no configuration: %v", err)
	}
}
