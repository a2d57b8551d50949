package broker

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The properties that Kafka has too are of its type, with its default, and
// change while it runs if Kafka's do, but for what is named here.
func TestPropertiesAreKafkas(t *testing.T) {
	otherDefault := map[string]string{
		"listeners": "local only, until told otherwise", "log.dirs": "has one", "node.id": "has one",
		"listener.security.protocol.map": "has one protocol",
		"max.connections":                "bounds them", "max.connections.per.ip": "0 is no limit", "queued.max.request.bytes": "bounds them",
		"num.recovery.threads.per.data.dir": "waits for the disk, not the processor",
	}
	onlyAtStart := []string{"listeners", "listener.security.protocol.map"}

	kafkas := map[string][3]string{}
	text, err := os.ReadFile("testdata/kafka-properties.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 4 {
			kafkas[f[0]] = [3]string{f[1], f[2], f[3]}
		}
	}
	if len(kafkas) < 70 {
		t.Fatalf("%d properties of Kafka's", len(kafkas))
	}
	for _, p := range (Config{}).Properties() {
		want, known := kafkas[p.Name]
		delete(kafkas, p.Name)
		if !known {
			continue // ours alone
		}
		if got := fmt.Sprint(int8(p.Type)); got != want[0] {
			t.Errorf("%s is a %s, and %s in Kafka", p.Name, p.Type, want[0])
		}
		if wantDynamic := want[1] == "dynamic" && !slices.Contains(onlyAtStart, p.Name); p.Dynamic != wantDynamic {
			t.Errorf("%s: changes while running: %v", p.Name, p.Dynamic)
		}
		got := "-"
		if p.Default != nil {
			got = *p.Default
		}
		if otherDefault[p.Name] == "" && got != want[2] {
			t.Errorf("%s is %s by default, and %s in Kafka", p.Name, got, want[2])
		}
	}
	for name := range kafkas {
		t.Errorf("%s is gone", name)
	}
}

// Every default of a topic setting can be set for all topics while running.
func TestDynamicConfigsAreDescribed(t *testing.T) {
	described := map[string]bool{}
	for _, p := range (Config{}).Properties() {
		if p.Dynamic {
			described[p.Name] = true
		}
	}
	for _, d := range dynamicConfigs() {
		if !described[d.Name] || d.Doc == "" || d.Type == 0 {
			t.Errorf("%+v", d)
		}
		delete(described, d.Name)
	}
	for name := range described {
		t.Errorf("%s is described as dynamic and is not", name)
	}
}
