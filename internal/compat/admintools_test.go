package compat

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// More classes of Kafka's tools, by the scripts that run them.
const (
	kafkaDeleteRecords     = "org.apache.kafka.tools.DeleteRecordsCommand"
	kafkaBrokerAPIVersions = "org.apache.kafka.tools.BrokerApiVersionsCommand"
	kafkaGroups            = "org.apache.kafka.tools.GroupsCommand"
)

func TestKafkaGetOffsets(t *testing.T) {
	t.Parallel()
	covers(t, "get-offsets")
	b := startBroker(t)
	start := time.Now().Add(-time.Hour).Truncate(time.Second)
	makeTopic(t, b, "offsets", 2)
	fill(t, b, "offsets", 2, 10, start)
	at5 := fmt.Sprint(start.Add(5*time.Minute - 1*time.Second).UnixMilli())
	for at, want := range map[string]string{"earliest": "0", "latest": "10", "max-timestamp": "9", at5: "5"} {
		got := strings.Fields(output(t, tool(t, b, kafkaGetOffsets, "--topic", "offsets", "--time", at), ""))
		if strings.Join(got, " ") != "offsets:0:"+want+" offsets:1:"+want {
			t.Errorf("kafka-get-offsets --time %s: %v, want %s", at, got, want)
		}
	}
}

func TestKafkaDeleteRecords(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	coversIfOffered(t, b, []kmsg.Key{kmsg.DeleteRecords}, "delete-records")
	makeTopic(t, b, "trimmed", 2)
	fill(t, b, "trimmed", 2, 10, time.Now().Add(-time.Hour))
	file := filepath.Join(t.TempDir(), "offsets.json")
	offsets := `{"version":1,"partitions":[{"topic":"trimmed","partition":0,"offset":4},{"topic":"trimmed","partition":1,"offset":-1}]}`
	if err := os.WriteFile(file, []byte(offsets), 0o644); err != nil {
		t.Fatal(err)
	}
	out := output(t, tool(t, b, kafkaDeleteRecords, "--offset-json-file", file), "")
	for _, want := range []string{"trimmed-0\tlow_watermark: 4", "trimmed-1\tlow_watermark: 10"} {
		if !strings.Contains(out, want) {
			t.Errorf("kafka-delete-records lacks %q:\n%s", want, out)
		}
	}
	got := strings.Fields(output(t, tool(t, b, kafkaGetOffsets, "--topic", "trimmed", "--time", "earliest"), ""))
	if strings.Join(got, " ") != "trimmed:0:4 trimmed:1:10" {
		t.Errorf("earliest offsets after the deletion: %v", got)
	}
	left := linesOf(output(t, kcat(t, b, "-C", "-t", "trimmed", "-e", "-q", "-o", "beginning"), ""))
	if len(left) != 6 || left[0] != "0/4" {
		t.Errorf("records left: %v", left)
	}
}

// TestKafkaConfigsTakeEffect finds a topic's new setting to be in force at once.
func TestKafkaConfigsTakeEffect(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	coversIfOffered(t, b, []kmsg.Key{kmsg.IncrementalAlterConfigs}, "configs-alter")
	makeTopic(t, b, "altered", 1)
	large := func() error {
		c := newClient(t, b, kgo.ProducerBatchCompression(kgo.NoCompression()))
		return c.ProduceSync(limited(t), &kgo.Record{Topic: "altered", Value: make([]byte, 10_000)}).FirstErr()
	}
	if err := large(); err != nil {
		t.Fatal(err)
	}
	output(t, tool(t, b, kafkaConfigs, "--alter", "--topic", "altered", "--add-config", "max.message.bytes=2000"), "")
	if err := large(); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("a record above the new max.message.bytes: %v", err)
	}
	output(t, tool(t, b, kafkaConfigs, "--alter", "--topic", "altered", "--delete-config", "max.message.bytes"), "")
	if err := large(); err != nil {
		t.Errorf("after --delete-config: %v", err)
	}
}

// TestKafkaBrokerAPIVersions finds a range that the tool can use for each
// request that the broker offers: each within what Kafka 4.4 knows.
func TestKafkaBrokerAPIVersions(t *testing.T) {
	t.Parallel()
	covers(t, "api-versions")
	b := startBroker(t)
	out := output(t, tool(t, b, kafkaBrokerAPIVersions), "")
	ranges := regexp.MustCompile(`(?m)^\t(\w+)\((\d+)\): (.*?),?$`).FindAllStringSubmatch(out, -1)
	usable := 0
	for _, r := range ranges {
		switch {
		case r[3] == "UNSUPPORTED":
		case !strings.Contains(r[3], "[usable: ") || strings.HasPrefix(r[1], "UNKNOWN"):
			t.Errorf("kafka-broker-api-versions: %s is %s", r[1], r[3])
		default:
			usable++
		}
	}
	if usable < 20 {
		t.Errorf("kafka-broker-api-versions can use %d requests:\n%s", usable, out)
	}
}

// TestKafkaDumpOffsets reads what groups left in __consumer_offsets.
func TestKafkaDumpOffsets(t *testing.T) {
	t.Parallel()
	covers(t, "dump-offsets")
	b := startBroker(t)
	makeTopic(t, b, "kept", 1)
	fill(t, b, "kept", 1, 5, time.Now().Add(-time.Hour))
	m := startMember(t, b, "dumped-group", "kept")
	eventually(t, "all records", func() bool { return len(m.records()) == 5 })
	m.leave(t)
	b.Stop()

	var logs []string
	for _, log := range glob(t, b.logs, "__consumer_offsets-*/*.log") {
		if st, err := os.Stat(log); err == nil && st.Size() > 0 {
			logs = append(logs, log)
		}
	}
	dump := output(t, testenv.KafkaTool(t, kafkaDumpLog, "--offsets-decoder", "--files", strings.Join(logs, ",")), "")
	checkDump(t, dump)
	for _, want := range []string{`"group":"dumped-group","topic":"kept","partition":0`, `"offset":5`, `"protocolType":"consumer"`} {
		if !strings.Contains(dump, want) {
			t.Errorf("kafka-dump-log --offsets-decoder lacks %s:\n%s", want, dump)
		}
	}
}
