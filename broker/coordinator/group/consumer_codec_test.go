package group

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"
)

// goldenRecord is a record as Apache Kafka writes it; a nil value is a tombstone.
type goldenRecord struct{ key, value []byte }

func goldenConsumerRecords(t testing.TB) map[string]goldenRecord {
	t.Helper()
	text, err := os.ReadFile("testdata/consumer_records.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]goldenRecord)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		g := goldenRecord{key: unhex(t, words[1])}
		if words[2] != "-" {
			g.value = unhex(t, words[2])
		}
		all[words[0]] = g
	}
	return all
}

var (
	goldenTopic1 = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	goldenTopic2 = [16]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 7}
)

// Every kind of record is written byte for byte as Kafka writes it, and read back as the same.
func TestConsumerRecordBytes(t *testing.T) {
	member := consumerMember{
		instanceID: "i", rackID: "r", clientID: "c", clientHost: "/127.0.0.1", topics: []string{"a", "b"}, regex: "x.*",
		rebalanceTimeout: 5 * time.Minute, assignor: "uniform",
	}
	plain := consumerMember{clientID: "c", clientHost: "/127.0.0.1", topics: []string{"t"}, rebalanceTimeout: -1}
	current := consumerMember{
		epoch: 7, previousEpoch: 6, state: revoking,
		assigned: heldPartitions{goldenTopic1: {0: 3, 1: 7}}, revoking: heldPartitions{goldenTopic2: {2: 4}},
	}
	left := consumerMember{epoch: leaveStaticEpoch, previousEpoch: 6}
	target := partitionSet{goldenTopic1: {0, 1, 300}, goldenTopic2: {5}}
	golden := goldenConsumerRecords(t)
	tested := map[string]bool{"partitions": true, "current-old": true} // below
	for name, e := range map[string]consumerEntry{
		"group":             epochEntry{entryOf[epochValue]{"g", "", &epochValue{7, 0x1122334455667788}}},
		"group-nohash":      epochEntry{entryOf[epochValue]{"g", "", &epochValue{7, 0}}},
		"group-gone":        epochEntry{entryOf[epochValue]{group: "g"}},
		"member":            memberEntry{entryOf[consumerMember]{"g", "m", &member}},
		"member-plain":      memberEntry{entryOf[consumerMember]{"g", "m", &plain}},
		"member-gone":       memberEntry{entryOf[consumerMember]{group: "g", name: "m"}},
		"target-epoch":      targetEpochEntry{entryOf[targetEpochValue]{"g", "", &targetEpochValue{7, 1764500000000}}},
		"target-epoch-gone": targetEpochEntry{entryOf[targetEpochValue]{group: "g"}},
		"target":            targetEntry{entryOf[partitionSet]{"g", "m", &target}},
		"target-none":       targetEntry{entryOf[partitionSet]{"g", "m", &partitionSet{}}},
		"target-gone":       targetEntry{entryOf[partitionSet]{group: "g", name: "m"}},
		"current":           currentEntry{entryOf[consumerMember]{"g", "m", &current}},
		"current-left":      currentEntry{entryOf[consumerMember]{"g", "m", &left}},
		"current-gone":      currentEntry{entryOf[consumerMember]{group: "g", name: "m"}},
		"regex":             regexEntry{entryOf[resolvedRegex]{"g", "x.*", &resolvedRegex{[]string{"xa", "xb"}, 12, 1764500000000}}},
		"regex-gone":        regexEntry{entryOf[resolvedRegex]{group: "g", name: "x.*"}},
	} {
		want := golden[name]
		wantRecord(t, e.record(), hex.EncodeToString(want.key), hex.EncodeToString(want.value))
		back, err := decode(want.key, want.value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again := back.(consumerEntry).record()
		if !bytes.Equal(again.Value, want.value) || (again.Value == nil) != (want.value == nil) {
			t.Errorf("%s: read and written again it is %x, want %x", name, again.Value, want.value)
		}
		tested[name] = true
	}
	for name := range golden {
		if !tested[name] {
			t.Errorf("record %s is not tested", name)
		}
	}
}

// Records that only an older Kafka writes are understood.
func TestOlderConsumerRecords(t *testing.T) {
	golden := goldenConsumerRecords(t)
	c := newConsumerGroup()
	for _, name := range []string{"partitions", "current-old"} {
		e, err := decode(golden[name].key, golden[name].value)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		e.(consumerEntry).apply(c)
	}
	if !c.partitionMetadata {
		t.Error("the record of partition metadata was not noted")
	}
	mem := c.members["m"]
	if mem == nil || mem.epoch != 7 || mem.assigned[goldenTopic1][1] != 7 || c.owners[topicPartition{goldenTopic1, 0}] != "m" {
		t.Errorf("member %+v", mem)
	}
	gone := c.groupGone("g")
	if r := gone[len(gone)-2].record(); !bytes.Equal(r.Key, golden["partitions"].key) || r.Value != nil {
		t.Errorf("tombstone %x", r.Key)
	}
}

func TestCorruptConsumerRecords(t *testing.T) {
	for name, g := range goldenConsumerRecords(t) {
		for n := 2; n < len(g.key); n++ {
			if _, err := decode(g.key[:n], g.value); err == nil {
				t.Errorf("%s: a key of %d bytes is taken", name, n)
			}
		}
		if name == "partitions" {
			continue // its value is not read
		}
		for n := range g.value {
			if _, err := decode(g.key, g.value[:n:n]); err == nil {
				t.Errorf("%s: a value of %d bytes is taken", name, n)
			}
		}
	}
}
