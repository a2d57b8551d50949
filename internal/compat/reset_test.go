package compat

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestConsumerGroupsReset moves a group's offsets in every way that
// kafka-consumer-groups knows. Each group committed offset 40 of 100 records, a
// minute apart, in each of two partitions.
func TestConsumerGroupsReset(t *testing.T) {
	covers(t, "reset")
	b := startBroker(t)
	const topic, records, at = "reset", 100, 40
	start := time.Now().Add(-records * time.Minute).Truncate(time.Second)
	makeTopic(t, b, topic, 2)
	fill(t, b, topic, 2, records, start)

	file := filepath.Join(t.TempDir(), "offsets.csv")
	if err := os.WriteFile(file, []byte(topic+",0,11\n"+topic+",1,22\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Half a minute before record 30, by the clock and by how long ago it was.
	before30 := start.Add(30*time.Minute - 30*time.Second)
	clock := func() string { return before30.UTC().Format("2006-01-02T15:04:05.000Z") }
	ago := func() string { return fmt.Sprintf("PT%dS", int(time.Since(before30).Seconds())) }
	is := func(arg string) func() string { return func() string { return arg } }
	for _, form := range []struct {
		name  string
		arg   func() string // as late as can be; nil: none
		scope string
		want  []int64
	}{
		{"to-earliest", nil, topic, []int64{0, 0}},
		{"to-latest", nil, topic, []int64{records, records}},
		{"to-offset", is("7"), topic + ":1", []int64{at, 7}},
		{"to-offset", is("100000"), topic, []int64{records, records}}, // Kafka takes the end
		{"shift-by", is("-15"), topic, []int64{at - 15, at - 15}},
		{"shift-by", is("5"), topic, []int64{at + 5, at + 5}},
		{"to-datetime", clock, topic, []int64{30, 30}},
		{"by-duration", ago, topic, []int64{30, 30}},
		{"to-current", nil, topic, []int64{at, at}},
		{"from-file", is(file), "", []int64{11, 22}},
	} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			group := strings.NewReplacer("/", "-", "#", "-").Replace(t.Name())
			commit(t, b, group, topic, 2, at)
			args := []string{"--reset-offsets", "--group", group, "--execute", "--" + form.name}
			if form.arg != nil {
				args = append(args, form.arg())
			}
			if form.scope != "" {
				args = append(args, "--topic", form.scope)
			}
			output(t, tool(t, b, kafkaConsumerGroups, args...), "")
			if got := committed(t, b, group, topic, 2); !slices.Equal(got, form.want) {
				t.Errorf("committed after %s: %v, want %v", strings.Join(args[3:], " "), got, form.want)
			}
		})
	}
	t.Run("dry-run", func(t *testing.T) {
		t.Parallel()
		commit(t, b, "reset-dry", topic, 2, at)
		out := output(t, tool(t, b, kafkaConsumerGroups, "--reset-offsets", "--group", "reset-dry", "--all-topics", "--to-earliest", "--dry-run", "--export"), "")
		if got := slices.Sorted(slices.Values(linesOf(out))); !slices.Equal(got, []string{`"reset",0,0`, `"reset",1,0`}) &&
			!slices.Equal(got, []string{"reset,0,0", "reset,1,0"}) {
			t.Errorf("exported:\n%s", out)
		}
		if got := committed(t, b, "reset-dry", topic, 2); !slices.Equal(got, []int64{at, at}) {
			t.Errorf("a dry run committed %v", got)
		}
	})
	t.Run("group with members", func(t *testing.T) {
		t.Parallel()
		m := startMember(t, b, "reset-active", topic)
		eventually(t, "the member's assignment", func() bool { return m.assigned() == 2 })
		cmd := tool(t, b, kafkaConsumerGroups, "--reset-offsets", "--group", "reset-active", "--topic", topic, "--to-earliest", "--execute")
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), "is inactive, but the current state is") {
			t.Errorf("kafka-consumer-groups on a group with members:\n%s", out)
		}
	})
}

// TestConsumerGroups describes a group of the classic protocol and takes it away.
func TestConsumerGroups(t *testing.T) {
	t.Parallel()
	covers(t, "groups")
	b := startBroker(t)
	const topic, group = "described", "describers"
	makeTopic(t, b, topic, 2)
	fill(t, b, topic, 2, 10, time.Now().Add(-time.Hour))
	m := startMember(t, b, group, topic)
	eventually(t, "all records", func() bool { return len(m.records()) == 20 })

	described := output(t, tool(t, b, kafkaConsumerGroups, "--describe", "--group", group, "--members", "--verbose"), "")
	if !strings.Contains(described, topic+"(0,1)") && !strings.Contains(described, topic+":0,1") {
		t.Errorf("kafka-consumer-groups --members:\n%s", described)
	}
	for _, want := range []string{"range", "Stable", b.addr} {
		if described := output(t, tool(t, b, kafkaConsumerGroups, "--describe", "--group", group, "--state"), ""); !strings.Contains(described, want) {
			t.Errorf("kafka-consumer-groups --state lacks %q:\n%s", want, described)
		}
	}
	m.leave(t)

	if list := output(t, tool(t, b, kafkaConsumerGroups, "--list", "--state", "empty"), ""); !strings.Contains(list, group) {
		t.Errorf("kafka-consumer-groups --list --state empty:\n%s", list)
	}
	if got := committed(t, b, group, topic, 2); !slices.Equal(got, []int64{10, 10}) {
		t.Errorf("committed: %v", got)
	}
	if offers(t, b, kmsg.OffsetDelete) {
		output(t, tool(t, b, kafkaConsumerGroups, "--delete-offsets", "--group", group, "--topic", topic+":1"), "")
		if got := committed(t, b, group, topic, 2); !slices.Equal(got, []int64{10, -1}) {
			t.Errorf("committed after --delete-offsets of partition 1: %v", got)
		}
	}
	output(t, tool(t, b, kafkaConsumerGroups, "--delete", "--group", group), "")
	if list := output(t, tool(t, b, kafkaConsumerGroups, "--list"), ""); strings.Contains(list, group) {
		t.Errorf("a deleted group is listed:\n%s", list)
	}
}
