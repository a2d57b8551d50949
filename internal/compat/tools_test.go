package compat

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

// Classes of Kafka's tools, by the scripts that run them.
const (
	kafkaTopics           = "org.apache.kafka.tools.TopicCommand"
	kafkaConsoleProducer  = "org.apache.kafka.tools.ConsoleProducer"
	kafkaConsoleConsumer  = "org.apache.kafka.tools.consumer.ConsoleConsumer"
	kafkaConsumerGroups   = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
	kafkaGetOffsets       = "org.apache.kafka.tools.GetOffsetShell"
	kafkaConfigs          = "org.apache.kafka.tools.ConfigCommand"
	kafkaProducerPerfTest = "org.apache.kafka.tools.ProducerPerformance"
	kafkaDumpLog          = "org.apache.kafka.tools.DumpLogSegments"
)

// tool runs a tool that talks to the broker.
func tool(t *testing.T, b *broker, class string, args ...string) *exec.Cmd {
	t.Helper()
	return testenv.KafkaTool(t, class, append([]string{"--bootstrap-server", b.addr}, args...)...)
}

func createTopic(t *testing.T, b *broker, name string, partitions int, config ...string) {
	t.Helper()
	args := []string{"--create", "--topic", name, "--partitions", strconv.Itoa(partitions), "--replication-factor", "1"}
	for _, c := range config {
		args = append(args, "--config", c)
	}
	output(t, tool(t, b, kafkaTopics, args...), "")
}

func TestKafkaTopics(t *testing.T) {
	t.Parallel()
	covers(t, "topics", "configs")
	b := startBroker(t)
	createTopic(t, b, "orders", 2, "retention.ms=3600000", "segment.bytes=1048576")
	output(t, tool(t, b, kafkaTopics, "--alter", "--topic", "orders", "--partitions", "3"), "")
	described := output(t, tool(t, b, kafkaTopics, "--describe", "--topic", "orders"), "")
	for _, want := range []string{"PartitionCount: 3", "ReplicationFactor: 1", "retention.ms=3600000", "segment.bytes=1048576", "Partition: 2\tLeader: "} {
		if !strings.Contains(described, want) {
			t.Errorf("kafka-topics --describe lacks %q:\n%s", want, described)
		}
	}
	configs := output(t, tool(t, b, kafkaConfigs, "--describe", "--topic", "orders", "--all"), "")
	for _, want := range []string{"retention.ms=3600000", "cleanup.policy=delete", "max.message.bytes="} {
		if !strings.Contains(configs, want) {
			t.Errorf("kafka-configs --describe --all lacks %q:\n%s", want, configs)
		}
	}
	output(t, tool(t, b, kafkaTopics, "--delete", "--topic", "orders"), "")
	eventually(t, "the topic's deletion", func() bool {
		return !strings.Contains(output(t, tool(t, b, kafkaTopics, "--list"), ""), "orders")
	})
}

func TestKafkaConsole(t *testing.T) {
	t.Parallel()
	covers(t, "console", "groups")
	b := startBroker(t)
	want := numbered("console", 500)
	output(t, tool(t, b, kafkaConsoleProducer, "--topic", "console", "--producer-property", "compression.type=zstd"), text(want))
	got := linesOf(output(t, tool(t, b, kafkaConsoleConsumer, "--topic", "console", "--from-beginning", "--max-messages", "500",
		"--group", "console-readers", "--timeout-ms", "30000"), ""))
	checkSame(t, "console consumer", got, want)

	output(t, tool(t, b, kafkaConsoleProducer, "--topic", "console"), text(numbered("later", 7)))
	lag := groupLag(t, b, "console-readers", "console", 0)
	if want := [3]int{500, 507, 7}; lag != want {
		t.Errorf("kafka-consumer-groups: current, end, lag %v, want %v", lag, want)
	}
	if list := output(t, tool(t, b, kafkaConsumerGroups, "--list"), ""); !strings.Contains(list, "console-readers") {
		t.Errorf("kafka-consumer-groups --list: %s", list)
	}
	offsets := strings.TrimSpace(output(t, tool(t, b, kafkaGetOffsets, "--topic", "console"), ""))
	if offsets != "console:0:507" {
		t.Errorf("kafka-get-offsets: %q", offsets)
	}
}

// groupLag reads a partition's row of kafka-consumer-groups --describe:
//
//	GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG ...
func groupLag(t *testing.T, b *broker, group, topic string, partition int) (currentEndLag [3]int) {
	t.Helper()
	described := output(t, tool(t, b, kafkaConsumerGroups, "--describe", "--group", group), "")
	row := regexp.MustCompile(fmt.Sprintf(`(?m)^%s +%s +%d +(\d+) +(\d+) +(\d+)`, group, topic, partition)).FindStringSubmatch(described)
	if row == nil {
		t.Fatalf("kafka-consumer-groups --describe has no row of %s %d:\n%s", topic, partition, described)
	}
	for i := range currentEndLag {
		currentEndLag[i], _ = strconv.Atoi(row[i+1])
	}
	return currentEndLag
}

// TestKafkaDumpLog lets Kafka's own reader of log files check ours: batches of
// every codec, over several segments, and their indexes.
func TestKafkaDumpLog(t *testing.T) {
	t.Parallel()
	covers(t, "dump-log")
	b := startBroker(t)
	createTopic(t, b, "dumped", 1, "segment.bytes=1048576", "index.interval.bytes=4096")
	records := 0
	for _, codec := range codecs {
		const n = 10_000
		output(t, testenv.KafkaTool(t, kafkaProducerPerfTest, "--topic", "dumped", "--num-records", strconv.Itoa(n), "--record-size", "200",
			"--throughput", "-1", "--producer-props", "bootstrap.servers="+b.addr, "compression.type="+codec, "acks=all"), "")
		records += n
	}
	b.Stop() // a clean stop writes the producers' snapshot and all of the indexes

	dir := filepath.Join(b.logs, "dumped-0")
	logs := glob(t, dir, "*.log")
	if len(logs) < 3 {
		t.Fatalf("%d segments, want several: %v", len(logs), logs)
	}
	dump := output(t, testenv.KafkaTool(t, kafkaDumpLog, "--deep-iteration", "--files", strings.Join(logs, ",")), "")
	checkDump(t, dump)
	if got := strings.Count(dump, "| offset: "); got != records {
		t.Errorf("kafka-dump-log counts %d records of %d", got, records)
	}
	for _, index := range []string{"*.index", "*.timeindex"} {
		files := glob(t, dir, index)
		if len(files) < len(logs)-1 {
			t.Errorf("%d files %s beside %d segments", len(files), index, len(logs))
		}
		checkDump(t, output(t, testenv.KafkaTool(t, kafkaDumpLog, "--index-sanity-check", "--files", strings.Join(files, ",")), ""))
		checkDump(t, output(t, testenv.KafkaTool(t, kafkaDumpLog, "--verify-index-only", "--files", strings.Join(files, ",")), ""))
	}
	for _, snapshot := range glob(t, dir, "*.snapshot") {
		if out := output(t, testenv.KafkaTool(t, kafkaDumpLog, "--files", snapshot), ""); !strings.Contains(out, "producerId: ") {
			t.Errorf("kafka-dump-log of %s:\n%s", filepath.Base(snapshot), out)
		}
	}
}

// checkDump fails on what kafka-dump-log reports without an exit status.
func checkDump(t *testing.T, dump string) {
	t.Helper()
	for _, line := range linesOf(dump) {
		for _, bad := range []string{"isvalid: false", "Found ", "mismatch", "Mismatch", "non-consecutive", "Non-consecutive", "is not sane", "Exception", "out of order"} {
			if strings.Contains(line, bad) {
				t.Errorf("kafka-dump-log: %s", line)
				break
			}
		}
	}
}

func glob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return files
}
