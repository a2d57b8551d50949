package compat

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
)

const (
	kafkaLogDirs            = "org.apache.kafka.tools.LogDirsCommand"
	kafkaLeaderElection     = "org.apache.kafka.tools.LeaderElectionCommand"
	kafkaReassignPartitions = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
	kafkaTransactions       = "org.apache.kafka.tools.TransactionsCommand"
	kafkaCluster            = "org.apache.kafka.tools.ClusterTool"
	kafkaClientMetrics      = "org.apache.kafka.tools.ClientMetricsCommand"
)

func wantLines(t *testing.T, what, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, line) {
			t.Errorf("%s lacks %q:\n%s", what, line, text)
		}
	}
}

func TestKafkaConfigs(t *testing.T) {
	t.Parallel()
	covers(t, "configs-alter")
	b := startBroker(t)
	createTopic(t, b, "tuned", 1)
	configs := func(args ...string) string { return output(t, tool(t, b, kafkaConfigs, args...), "") }

	configs("--alter", "--topic", "tuned", "--add-config", "retention.ms=3600000,cleanup.policy=[delete,compact]")
	wantLines(t, "a topic's settings", configs("--describe", "--topic", "tuned"),
		"retention.ms=3600000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=3600000}",
		"cleanup.policy=delete,compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=delete,compact, DEFAULT_CONFIG:log.cleanup.policy=delete}")
	configs("--alter", "--topic", "tuned", "--delete-config", "retention.ms")
	if after := configs("--describe", "--topic", "tuned"); strings.Contains(after, "retention.ms") {
		t.Errorf("a setting that was deleted is still there:\n%s", after)
	}

	configs("--alter", "--broker-defaults", "--add-config", "message.max.bytes=1500000,log.segment.bytes=5000000")
	configs("--alter", "--broker", "1", "--add-config", "message.max.bytes=2000000")
	wantLines(t, "the settings of all brokers", configs("--describe", "--broker-defaults"),
		"message.max.bytes=1500000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1500000}")
	wantLines(t, "a broker's settings", configs("--describe", "--broker", "1"),
		"message.max.bytes=2000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:message.max.bytes=2000000, "+
			"DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1500000, DEFAULT_CONFIG:message.max.bytes=1048588}")
	wantLines(t, "all of a topic's settings", configs("--describe", "--topic", "tuned", "--all"),
		"max.message.bytes=2000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:message.max.bytes=2000000, "+
			"DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1500000, DEFAULT_CONFIG:message.max.bytes=1048588}",
		"segment.bytes=5000000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=5000000, DEFAULT_CONFIG:log.segment.bytes=1073741824}")
}

func TestKafkaLogDirs(t *testing.T) {
	t.Parallel()
	covers(t, "log-dirs")
	b := startBroker(t)
	createTopic(t, b, "stored", 2)
	output(t, tool(t, b, kafkaConsoleProducer, "--topic", "stored"), text(numbered("line", 10)))
	out := output(t, tool(t, b, kafkaLogDirs, "--describe", "--topic-list", "stored"), "")
	lines := linesOf(out)
	var described struct {
		Brokers []struct {
			Broker  int
			LogDirs []struct {
				LogDir, Error string
				Partitions    []struct {
					Partition       string
					Size, OffsetLag int64
					IsFuture        bool
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &described); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	dir := described.Brokers[0].LogDirs[0]
	size := int64(0)
	for _, p := range dir.Partitions {
		size += p.Size
	}
	if dir.LogDir != b.logs || dir.Error != "" || len(dir.Partitions) != 2 || size == 0 {
		t.Errorf("%s", out)
	}
}

func TestKafkaLeaderElection(t *testing.T) {
	t.Parallel()
	covers(t, "leader-election")
	b := startBroker(t)
	createTopic(t, b, "led", 2)
	for _, kind := range []string{"preferred", "unclean"} {
		out := output(t, tool(t, b, kafkaLeaderElection, "--election-type", kind, "--topic", "led", "--partition", "0"), "")
		wantLines(t, kind, out, "Valid replica already elected for partitions led-0")
	}
	output(t, tool(t, b, kafkaLeaderElection, "--election-type", "preferred", "--all-topic-partitions"), "")
}

func TestKafkaReassignPartitions(t *testing.T) {
	t.Parallel()
	covers(t, "reassign")
	b := startBroker(t)
	createTopic(t, b, "placed", 1)
	reassign := func(args ...string) string { return output(t, tool(t, b, kafkaReassignPartitions, args...), "") }
	wantLines(t, "--list", reassign("--list"), "No partition reassignments found.")
	plan := filepath.Join(t.TempDir(), "plan.json")
	same := `{"version":1,"partitions":[{"topic":"placed","partition":0,"replicas":[1],"log_dirs":["any"]}]}`
	if err := os.WriteFile(plan, []byte(same), 0o600); err != nil {
		t.Fatal(err)
	}
	wantLines(t, "--execute", reassign("--execute", "--reassignment-json-file", plan), "Successfully started partition reassignment for placed-0")
	wantLines(t, "--verify", reassign("--verify", "--reassignment-json-file", plan), "Reassignment of partition placed-0 is completed.",
		"Clearing broker-level throttles on broker 1", "Clearing topic-level throttles on topic placed")
}

func TestKafkaDescribeProducers(t *testing.T) {
	t.Parallel()
	covers(t, "describe-producers")
	b := startBroker(t)
	createTopic(t, b, "produced", 1)
	output(t, testenv.KafkaTool(t, kafkaProducerPerfTest, "--topic", "produced", "--num-records", "100", "--record-size", "20",
		"--throughput", "-1", "--producer-props", "bootstrap.servers="+b.addr, "enable.idempotence=true"), "")
	out := output(t, tool(t, b, kafkaTransactions, "describe-producers", "--topic", "produced", "--partition", "0"), "")
	wantLines(t, "kafka-transactions describe-producers", out, "ProducerId", "LastSequence")
	if len(linesOf(out)) != 2 || !strings.Contains(linesOf(out)[1], "99") {
		t.Errorf("one producer, whose last sequence is 99:\n%s", out)
	}
}

func TestKafkaCluster(t *testing.T) {
	t.Parallel()
	covers(t, "cluster")
	b := startBroker(t)
	wantLines(t, "cluster-id", output(t, testenv.KafkaTool(t, kafkaCluster, "cluster-id", "--bootstrap-server", b.addr), ""), "Cluster ID: ")
	wantLines(t, "list-endpoints", output(t, testenv.KafkaTool(t, kafkaCluster, "list-endpoints", "--bootstrap-server", b.addr), ""), "127.0.0.1")
	cmd := testenv.KafkaTool(t, kafkaCluster, "unregister", "--bootstrap-server", b.addr, "--id", "9")
	if out, err := cmd.CombinedOutput(); err == nil && !strings.Contains(string(out), "not registered") {
		t.Errorf("unregister of a broker that is not there: %s", out)
	}
	out := output(t, tool(t, b, kafkaClientMetrics, "--list"), "")
	if fmt.Sprint(strings.TrimSpace(out)) != "" {
		t.Errorf("kafka-client-metrics --list: %s", out)
	}
}
