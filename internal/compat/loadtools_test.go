package compat

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-io/sluice/internal/testenv"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Classes of Kafka's tools that make load, by the scripts that run them.
const (
	kafkaConsumerPerfTest   = "org.apache.kafka.tools.ConsumerPerformance"
	kafkaVerifiableProducer = "org.apache.kafka.tools.VerifiableProducer"
	kafkaVerifiableConsumer = "org.apache.kafka.tools.VerifiableConsumer"
)

func TestKafkaPerfTools(t *testing.T) {
	t.Parallel()
	covers(t, "perf")
	b := startBroker(t)
	makeTopic(t, b, "perf", 3)
	const records = 20_000
	used := []string{"none", "lz4"} // TestKafkaDumpLog writes with each
	for _, codec := range used {
		out := output(t, testenv.KafkaTool(t, kafkaProducerPerfTest, "--topic", "perf", "--num-records", strconv.Itoa(records), "--record-size", "100",
			"--throughput", "-1", "--command-property", "bootstrap.servers="+b.addr, "compression.type="+codec, "acks=all", "batch.size=65536"), "")
		if !strings.Contains(out, fmt.Sprintf("%d records sent", records)) {
			t.Errorf("kafka-producer-perf-test with %s:\n%s", codec, out)
		}
	}
	want := records * len(used)
	out := linesOf(output(t, tool(t, b, kafkaConsumerPerfTest, "--topic", "perf", "--num-records", strconv.Itoa(want), "--hide-header", "--timeout", "20000"), ""))
	// start, end, MB, MB/s, records, ...
	cells := strings.Split(out[len(out)-1], ", ")
	if got, _ := strconv.Atoi(cells[min(4, len(cells)-1)]); got != want {
		t.Errorf("kafka-consumer-perf-test read %d records of %d: %v", got, want, cells)
	}
}

// verifiable is a line that the verifiable producer or consumer prints.
type verifiable struct {
	Name       string
	Value      string
	Partition  int
	Offset     int64
	Count      int
	Partitions []struct {
		Topic     string
		Partition int
	}
}

func verifiables(out, name string) []verifiable {
	var all []verifiable
	for _, line := range linesOf(out) {
		var v verifiable
		if json.Unmarshal([]byte(line), &v) == nil && v.Name == name {
			all = append(all, v)
		}
	}
	return all
}

// verifiablyProduce writes PREFIX.0 to PREFIX.(n-1) and returns what was
// acknowledged.
func verifiablyProduce(t *testing.T, b *broker, topic, prefix string, n int) []string {
	t.Helper()
	out := output(t, tool(t, b, kafkaVerifiableProducer, "--topic", topic, "--max-messages", strconv.Itoa(n), "--value-prefix", prefix,
		"--repeating-keys", "16"), "")
	var values []string
	for _, v := range verifiables(out, "producer_send_success") {
		values = append(values, v.Value)
	}
	if len(values) != n {
		t.Errorf("kafka-verifiable-producer acknowledged %d of %d", len(values), n)
	}
	return values
}

func TestKafkaVerifiable(t *testing.T) {
	t.Parallel()
	covers(t, "verifiable")
	b := startBroker(t)
	makeTopic(t, b, "verified", 2)
	const n = 1000
	want := verifiablyProduce(t, b, "verified", "1", n)
	out := output(t, tool(t, b, kafkaVerifiableConsumer, "--topic", "verified", "--group-id", "verifiers", "--max-messages", strconv.Itoa(n), "--verbose"), "")
	var got []string
	for _, v := range verifiables(out, "record_data") {
		got = append(got, v.Value)
	}
	checkSame(t, "kafka-verifiable-consumer", got, want)
	if offsets := committed(t, b, "verifiers", "verified", 2); offsets[0]+offsets[1] != n {
		t.Errorf("kafka-verifiable-consumer committed %v", offsets)
	}
}

// TestKafkaGroupProtocols has two Java consumers share a topic, one leave and
// the other go on with all of it, by each protocol of groups.
func TestKafkaGroupProtocols(t *testing.T) {
	b := startBroker(t)
	const cooperative = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
	for _, p := range []struct {
		name, row string
		args      []string
		needs     []kmsg.Key
	}{
		{"consumer", "consumer-protocol", []string{"--group-protocol", "consumer"}, []kmsg.Key{kmsg.ConsumerGroupHeartbeat, kmsg.ConsumerGroupDescribe}},
		{"consumer-range", "consumer-protocol", []string{"--group-protocol", "consumer", "--group-remote-assignor", "range"}, []kmsg.Key{kmsg.ConsumerGroupHeartbeat}},
		{"classic", "classic-protocol", []string{"--session-timeout", "6000"}, nil},
		{"cooperative", "classic-protocol", []string{"--session-timeout", "6000", "--assignment-strategy", cooperative}, nil},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			coversIfOffered(t, b, p.needs, p.row)
			shareAndHandOver(t, b, p.name, p.args)
			if p.name == "consumer" {
				describeConsumerGroup(t, b, p.name)
			}
		})
	}
}

// TestKafkaGroupChangesItsProtocol has Java consumers of both protocols in one
// group, which changes with those who come and go.
func TestKafkaGroupChangesItsProtocol(t *testing.T) {
	b := startBroker(t)
	coversIfOffered(t, b, []kmsg.Key{kmsg.ConsumerGroupHeartbeat, kmsg.ConsumerGroupDescribe}, "changing-protocol")
	const topic, group = "changing", "changers"
	makeTopic(t, b, topic, 4)
	old := startVerifiable(t, b, topic, group, []string{"--session-timeout", "6000"})
	eventually(t, "all partitions at the first", func() bool { return old.assigned() == 4 })
	young := startVerifiable(t, b, topic, group, []string{"--group-protocol", "consumer"})
	eventually(t, "two partitions each", func() bool { return old.assigned() == 2 && young.assigned() == 2 })
	want := numbered("both", 200)
	produceSpread(t, b, topic, want)
	eventually(t, "all records at the two", func() bool { return len(old.values())+len(young.values()) >= len(want) })
	checkSame(t, "consumers of both protocols", append(old.values(), young.values()...), want)
	young.leave(t)
	eventually(t, "all partitions at the first again", func() bool { return old.assigned() == 4 })
	had := len(old.values())
	more := numbered("one", 100)
	produceSpread(t, b, topic, more)
	eventually(t, "all records at the first", func() bool { return len(old.values()) >= had+len(more) })
	checkSame(t, "the consumer that stayed", old.values()[had:], more)
	old.leave(t)
}

func shareAndHandOver(t *testing.T, b *broker, name string, args []string) {
	topic, group := "shared-"+name, "sharers-"+name
	makeTopic(t, b, topic, 4)
	first, second := startVerifiable(t, b, topic, group, args), startVerifiable(t, b, topic, group, args)
	eventually(t, "two partitions each", func() bool { return first.assigned() == 2 && second.assigned() == 2 })
	want := numbered("both", 200)
	produceSpread(t, b, topic, want)
	eventually(t, "all records at the two", func() bool { return len(first.values())+len(second.values()) >= len(want) })
	checkSame(t, "two consumers", append(first.values(), second.values()...), want)

	second.leave(t)
	eventually(t, "all partitions at the first", func() bool { return first.assigned() == 4 })
	had := len(first.values())
	more := numbered("one", 100)
	produceSpread(t, b, topic, more)
	eventually(t, "all records at the first", func() bool { return len(first.values()) >= had+len(more) })
	checkSame(t, "the consumer that stayed", first.values()[had:], more)
	if t.Failed() {
		t.Logf("first:\n%s\nsecond:\n%s", first.stdout.String(), second.stdout.String())
	}
	first.leave(t)
}

// describeConsumerGroup looks with Kafka's tools at the group that
// shareAndHandOver left, and resets it.
func describeConsumerGroup(t *testing.T, b *broker, name string) {
	topic, group := "shared-"+name, "sharers-"+name
	list := output(t, tool(t, b, kafkaGroups, "--list", "--group-type", "consumer"), "")
	if !strings.Contains(list, group) {
		t.Errorf("kafka-groups --list --group-type consumer:\n%s", list)
	}
	m := startVerifiable(t, b, topic, group, []string{"--group-protocol", "consumer"})
	eventually(t, "all partitions", func() bool { return m.assigned() == 4 })
	described := output(t, tool(t, b, kafkaConsumerGroups, "--describe", "--group", group, "--members", "--verbose"), "")
	if !strings.Contains(described, topic+":0,1,2,3") && !strings.Contains(described, topic+"(0,1,2,3)") {
		t.Errorf("kafka-consumer-groups --describe --members --verbose:\n%s", described)
	}
	m.leave(t)
	output(t, tool(t, b, kafkaConsumerGroups, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"), "")
	if got := committed(t, b, group, topic, 4); !slices.Equal(got, []int64{0, 0, 0, 0}) {
		t.Errorf("committed after --to-earliest: %v", got)
	}
	output(t, tool(t, b, kafkaConsumerGroups, "--delete", "--group", group), "")
}

// verifiableConsumer is a running kafka-verifiable-consumer.
type verifiableConsumer struct {
	cmd            *exec.Cmd
	stdout, stderr testenv.Buffer
}

func startVerifiable(t *testing.T, b *broker, topic, group string, args []string) *verifiableConsumer {
	t.Helper()
	c := &verifiableConsumer{cmd: tool(t, b, kafkaVerifiableConsumer, append([]string{"--topic", topic, "--group-id", group, "--verbose"}, args...)...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		if t.Failed() {
			t.Logf("kafka-verifiable-consumer complained:\n%s", c.stderr.String())
		}
	})
	return c
}

// assigned counts the partitions that are the consumer's, from its events:
// assignments are whole (eager) or what came (cooperative), revocations too.
func (c *verifiableConsumer) assigned() int {
	held := map[int]bool{}
	for _, line := range linesOf(c.stdout.String()) {
		var v verifiable
		if json.Unmarshal([]byte(line), &v) != nil {
			continue
		}
		for _, p := range v.Partitions {
			switch v.Name {
			case "partitions_assigned":
				held[p.Partition] = true
			case "partitions_revoked":
				delete(held, p.Partition)
			}
		}
	}
	return len(held)
}

func (c *verifiableConsumer) values() []string {
	var values []string
	for _, v := range verifiables(c.stdout.String(), "record_data") {
		values = append(values, v.Value)
	}
	return values
}

// leave ends the consumer as Ctrl-C does.
func (c *verifiableConsumer) leave(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
}
