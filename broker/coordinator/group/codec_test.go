package group

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-io/sluice/broker/coordinator"
)

// The golden bytes are what the classes of Apache Kafka 4.4.0 write for the same values.
const (
	goldenOffsetKey   = "000100026731000661636365737300000003"
	goldenOffsetV4    = "00040000011f71fb04cb00000007086d65746120c3a90000019ad4654d7b0100100102030405060708090a0b0c0d0e0f10"
	goldenOffsetV4min = "0004000000000000002affffffff010000019ad4654d7b00"
	goldenOffsetV1    = "0001000000000000002a00000000019ad4654d7b0000019ad46637db"
	goldenOffsetV3    = "0003000000000000002a0000000500016d0000019ad4654d7b"
	goldenOffsetV0    = "0000000000000000002a00016d0000019ad4654d7b"
	goldenGroupKey    = "000200026731"
	goldenGroup       = "00030008636f6e73756d657200000005000572616e67650003632d310000019ad4654d7b000000020003632d31ffff0001" +
		"63000a2f3132372e302e302e31000493e00000afc8000000020001000000030908070003692d32000169000163000a2f3132372e302e302e31" +
		"000493e00000afc800000002000200000000"
	goldenEmptyGroup = "00030008636f6e73756d657200000006ffffffff0000019ad4654d7b00000000"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantRecord(t *testing.T, r coordinator.Record, key, value string) {
	t.Helper()
	if got := hex.EncodeToString(r.Key); got != key {
		t.Errorf("key %s, want %s", got, key)
	}
	if got := hex.EncodeToString(r.Value); got != value {
		t.Errorf("value %s, want %s", got, value)
	}
}

func TestOffsetRecordBytes(t *testing.T) {
	id := [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	for name, tc := range map[string]struct {
		value  offsetValue
		golden string
	}{
		"full":     {offsetValue{1234567890123, 7, "meta é", 1764500000123, -1, id}, goldenOffsetV4},
		"smallest": {offsetValue{42, -1, "", 1764500000123, -1, [16]byte{}}, goldenOffsetV4min},
		"expiry":   {offsetValue{42, -1, "", 1764500000123, 1764500060123, [16]byte{}}, goldenOffsetV1},
	} {
		t.Run(name, func(t *testing.T) {
			r := encodeOffset("g1", "access", 3, &tc.value)
			wantRecord(t, r, goldenOffsetKey, tc.golden)
			got, err := decode(r.Key, r.Value)
			want := offsetEntry{"g1", "access", 3, &tc.value}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(offsetEntry{}, offsetValue{})); err != nil || diff != "" {
				t.Errorf("decoded: %v\n%s", err, diff)
			}
		})
	}
	wantRecord(t, offsetTombstone("g1", "access", 3), goldenOffsetKey, "")
}

func TestOldOffsetValuesAreRead(t *testing.T) {
	for golden, want := range map[string]offsetValue{
		goldenOffsetV0: {42, -1, "m", 1764500000123, -1, [16]byte{}},
		goldenOffsetV3: {42, 5, "m", 1764500000123, -1, [16]byte{}},
	} {
		got, err := decode(unhex(t, goldenOffsetKey), unhex(t, golden))
		if err != nil {
			t.Fatal(err)
		}
		if v := *got.(offsetEntry).value; v != want {
			t.Errorf("%s: %+v, want %+v", golden, v, want)
		}
	}
}

func TestGroupRecordBytes(t *testing.T) {
	g := newGroup("g1", time.UnixMilli(1764500000123))
	for _, mem := range []*member{
		{id: "c-1", protocols: []Protocol{{"range", []byte{0, 1}}, {"sticky", nil}}},
		{id: "i-2", instanceID: "i", protocols: []Protocol{{"range", []byte{0, 2}}}},
	} {
		mem.clientID, mem.clientHost = "c", "/127.0.0.1"
		mem.rebalanceTimeout, mem.sessionTimeout = 5*time.Minute, 45*time.Second
		g.add(mem, "consumer")
	}
	g.generation, g.protocol = 5, "range"
	r := encodeGroup(g, map[string][]byte{"c-1": {9, 8, 7}})
	wantRecord(t, r, goldenGroupKey, goldenGroup)

	got, err := decode(r.Key, r.Value)
	if err != nil {
		t.Fatal(err)
	}
	back := groupFromValue("g1", got.(groupEntry).value)
	if again := encodeGroup(back, back.assignments()); hex.EncodeToString(again.Value) != goldenGroup {
		t.Errorf("a group that is read and written again: %x", again.Value)
	}
	if back.state != stable || back.instances["i"] == nil || back.leader != "c-1" {
		t.Errorf("read group: state %s, leader %q, instances %v", back.state, back.leader, back.instances)
	}

	e := newGroup("g1", time.UnixMilli(1764500000123))
	e.generation, e.protocolType = 6, "consumer"
	wantRecord(t, encodeGroup(e, nil), goldenGroupKey, goldenEmptyGroup)
	wantRecord(t, groupTombstone("g1"), goldenGroupKey, "")
}

func TestDecodeRefusals(t *testing.T) {
	for name, tc := range map[string]struct{ key, value string }{
		"no key":                {"", ""},
		"short key":             {"00", ""},
		"short offset key":      {"00010002", ""},
		"short offset value":    {goldenOffsetKey, "0003000000"},
		"value without version": {goldenOffsetKey, "00"},
		"offset value too new":  {goldenOffsetKey, "0005000000000000002affffffff010000019ad4654d7b00"},
		"group value too new":   {goldenGroupKey, "0005"},
		"members missing":       {goldenGroupKey, goldenGroup[:80]},
	} {
		value := unhex(t, tc.value)
		var corrupt *CorruptRecordError
		if e, err := decode(unhex(t, tc.key), value); !errors.As(err, &corrupt) {
			t.Errorf("%s: %+v, %v, want a *CorruptRecordError", name, e, err)
		}
	}
	if e, err := decode([]byte{0, 10, 0, 0}, nil); e != nil || err != nil {
		t.Errorf("key of another protocol: %v, %v, want it skipped", e, err)
	}
}

// FuzzDecode reads records of the offsets topic. What members say about
// themselves in the consumer protocol stands in the records of classic groups.
func FuzzDecode(f *testing.F) {
	for _, value := range []string{goldenOffsetV4, goldenOffsetV1, goldenOffsetV3, goldenOffsetV0} {
		f.Add(unhex(f, goldenOffsetKey), unhex(f, value))
	}
	f.Add(unhex(f, goldenGroupKey), unhex(f, goldenGroup))
	f.Add(unhex(f, goldenGroupKey), unhex(f, goldenEmptyGroup))
	for _, g := range goldenConsumerRecords(f) {
		f.Add(g.key, g.value)
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		e, err := decode(key, value)
		if err != nil {
			return
		}
		switch e := e.(type) {
		case offsetEntry:
			if e.value != nil {
				encodeOffset(e.group, e.topic, e.partition, e.value)
			}
		case consumerEntry:
			c := newConsumerGroup()
			e.apply(c)
			r := e.record()
			again, err := decode(r.Key, r.Value)
			if err != nil {
				t.Errorf("%+v is not read again: %v", e, err)
			} else if r2 := again.(consumerEntry).record(); !bytes.Equal(r.Value, r2.Value) || !bytes.Equal(r.Key, r2.Key) {
				t.Errorf("%x written again is %x", r.Value, r2.Value)
			}
		case groupEntry:
			if e.value != nil {
				g := groupFromValue(e.group, e.value)
				encodeGroup(g, g.assignments())
				g.protocolType = consumerProtocol
				g.subscriptions()
				if (len(g.members) > 0) != (g.state == stable) || len(g.members) != len(g.byID) {
					t.Errorf("state %s with %d members, %d ids", g.state, len(g.members), len(g.byID))
				}
			}
		}
	})
}

func TestPartitionFor(t *testing.T) {
	// From Java: Utils.abs(group.hashCode()) % partitions. The hash of the fourth is the smallest
	// integer.
	for _, tc := range []struct {
		group    string
		of50, of int32
	}{
		{"", 0, 0},
		{"group", 47, 3},
		{"my-group", 12, 1},
		{"polygenelubricants", 0, 0},
		{"grüppe", 12, 3},
		{"a😀b", 44, 0},
		{"console-consumer-12345", 6, 6},
		{"access.clickhouse", 14, 2},
	} {
		if a, b := PartitionFor(tc.group, 50), PartitionFor(tc.group, 7); a != tc.of50 || b != tc.of {
			t.Errorf("%q: %d of 50, %d of 7, want %d, %d", tc.group, a, b, tc.of50, tc.of)
		}
	}
}
