package broker

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// What is printed says where each value is from, and reads back as the same.
func TestPrintedConfigReadsBack(t *testing.T) {
	cfg, err := ParseConfig("f", []byte("num.partitions: 3\nlog.retention.hours: 24\nbroker.rack: 'a: b # c'\nlog.dirs: [/a, /b]\nlog.cleanup.policy: compact,delete\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.SetFlag("listeners", "PLAINTEXT://127.0.0.1:9092,127.0.0.1:9093"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := cfg.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"num.partitions: 3 # configuration file",
		"log.retention.hours: 24 # configuration file",
		"# log.retention.ms: # not set, log.retention.hours counts",
		`broker.rack: "a: b # c" # configuration file`,
		"log.dirs: /a,/b # configuration file",
		"listeners: PLAINTEXT://127.0.0.1:9092,127.0.0.1:9093 # command line",
		"fetch.max.bytes: 57671680 # default",
		"# advertised.listeners: # not set",
	} {
		if !strings.Contains("\n"+out.String(), "\n"+line+"\n") {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
	again, err := ParseConfig("printed", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	plain := func(c Config) Config {
		c = c.withDefaults()
		c.set, c.flags, c.FS, c.Now = nil, nil, nil, nil
		// The defaults of topic settings are written out.
		for name, value := range c.TopicDefaults {
			if value == defaultOf(t, name) {
				delete(c.TopicDefaults, name)
			}
		}
		return c
	}
	if got, want := plain(again), plain(cfg); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if err := cfg.SetFlag("listener", "x"); err == nil || !strings.Contains(err.Error(), "did you mean") {
		t.Error(err)
	}
}

func defaultOf(t *testing.T, name string) string {
	t.Helper()
	for _, p := range (Config{}).Properties() {
		if p.Name == name && p.Default != nil {
			return *p.Default
		}
	}
	return "(none)"
}
