package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"
)

func compressSnappyRaw(src []byte) []byte { return s2.EncodeSnappy(nil, src) }

// withRecords is a batch of the given record bytes with a right header and CRC.
func withRecords(t testing.TB, codec Codec, count int32, payload []byte) Batch {
	t.Helper()
	b := build(t, BuildOptions{}, []Record{{Timestamp: 100}})
	b = b[:HeaderBytes:HeaderBytes]
	compressed, err := NewCompressor(CompressorConfig{}).Compress(codec, nil, payload)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, compressed...)
	binary.BigEndian.PutUint32(b[lengthAt:], uint32(len(b)-overheadBytes))
	binary.BigEndian.PutUint32(b[countAt:], uint32(count))
	binary.BigEndian.PutUint32(b[lastOffsetDeltaAt:], uint32(count-1))
	binary.BigEndian.PutUint16(b[attributesAt:], uint16(codec))
	return fixCRC(b)
}

func fixCRC(b Batch) Batch {
	binary.BigEndian.PutUint32(b[crcAt:], b.computeCRC())
	return b
}

func TestValidateRecords(t *testing.T) {
	const good0, good1 = "\x0c\x00\x00\x00\x01\x01\x00", "\x0c\x00\x00\x02\x01\x01\x00"
	for _, tc := range []struct {
		name    string
		count   int32
		payload string
		index   int
		reason  string // empty: passes
	}{
		{"two good ones", 2, good0 + good1, 0, ""},
		{"trailing bytes", 1, good0 + "\x00", -1, "1 bytes left over after 1 records"},
		{"fewer than declared", 3, good0 + good1, 2, "malformed varint"},
		{"more than declared", 1, good0 + good1, -1, "left over"},
		{"offset repeated", 2, good0 + good0, 1, "offset delta 0 where 1 is due"},
		{"offset skipped", 2, good0 + "\x0c\x00\x00\x04\x01\x01\x00", 1, "offset delta 2 where 1 is due"},
		{"negative offset delta", 1, "\x0c\x00\x00\x01\x01\x01\x00", 0, "offset delta -1"},
		{"negative record size", 1, "\x01\x00\x00\x00\x01\x01\x00", 0, "negative record size -1"},
		{"record cut short", 1, "\x0e\x00\x00\x00\x01\x01\x00", 0, "ends early"},
		{"empty record", 1, "\x00", 0, "ends early"},
		{"bytes left in the record", 1, "\x0e\x00\x00\x00\x01\x01\x00\x00", 0, "left over in the record"},
		{"key longer than the record", 1, "\x0c\x00\x00\x00\x20\x01\x00", 0, "ends early"},
		{"endless varint", 1, "\x20\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 0, "malformed varint"},
		{"varint of more than 32 bits", 1, "\x14\x00\x00\xff\xff\xff\xff\xff\x01\x01\x00", 0, "malformed varint"},
		{"negative header count", 1, "\x0c\x00\x00\x00\x01\x01\x01", 0, "negative header count -1"},
		{"header count beyond the record", 1, "\x0c\x00\x00\x00\x01\x01\x02", 0, "malformed varint"},
		{"null header key", 1, "\x10\x00\x00\x00\x01\x01\x02\x01\x00", 0, "null header key"},
		{"null header value", 1, "\x10\x00\x00\x00\x01\x01\x02\x00\x01", 0, ""},
	} {
		for _, codec := range allCodecs {
			err := withRecords(t, codec, tc.count, []byte(tc.payload)).Validate(nil)
			if tc.reason == "" {
				if err != nil {
					t.Errorf("%s, %s: %v", tc.name, codec, err)
				}
				continue
			}
			var invalid *InvalidRecordError
			if !errors.As(err, &invalid) || invalid.Index != tc.index || !strings.Contains(invalid.Reason, tc.reason) {
				t.Errorf("%s, %s: got %v, want index %d: %s", tc.name, codec, err, tc.index, tc.reason)
			}
		}
	}
}

func TestValidateHeader(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(Batch)
		reason string
	}{
		{"unknown codec", func(b Batch) { b[attributesAt+1] = 7 }, "unknown compression codec"},
		{"count of 0", func(b Batch) { put32(b, countAt, 0) }, "record count 0"},
		{"negative count", func(b Batch) { put32(b, countAt, -1) }, "record count -1"},
		{"count disagrees", func(b Batch) { put32(b, countAt, 3) }, "but 3 records"},
		{"negative last offset delta", func(b Batch) { put32(b, lastOffsetDeltaAt, -2) }, "last offset delta -2"},
		{"control batch", func(b Batch) { b[attributesAt+1] = 0x20 }, "control records"},
		{"producer without sequence", func(b Batch) { copy(b[producerIDAt:], make([]byte, 8)) }, "producer 0"},
		{"log append time", func(b Batch) { b[attributesAt+1] = 0x08 }, "log append time"},
		{"garbage for gzip", func(b Batch) { b[attributesAt+1] = 1 }, "decompress gzip"},
	} {
		b := build(t, BuildOptions{}, sample()[:2])
		tc.change(b)
		var invalid *InvalidRecordError
		if err := fixCRC(b).Validate(nil); !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, tc.reason) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	b := build(t, BuildOptions{}, sample()[:2])
	b[len(b)-1] ^= 1
	if err := b.Validate(nil); !errors.Is(err, ErrCRC) || !errors.Is(err, ErrCorrupt) {
		t.Errorf("flipped bit: %v", err)
	}
}

func put32(b Batch, at int, v int32) { binary.BigEndian.PutUint32(b[at:], uint32(v)) }

func TestValidateRules(t *testing.T) {
	records := []Record{{Timestamp: 100, Key: []byte("k")}, {Timestamp: 50}, {Timestamp: NoTimestamp}, {Timestamp: 300}}
	early, late := int64(60), int64(200)
	for _, tc := range []struct {
		v     *Validator
		fault Fault
		bad   []int
	}{
		{&Validator{RequireKey: true}, FaultRecord, []int{1, 2, 3}},
		{&Validator{TimestampMin: &early}, FaultTimestamp, []int{1}},
		{&Validator{TimestampMax: &late}, FaultTimestamp, []int{3}},
		{&Validator{TimestampMin: &early, TimestampMax: &late}, FaultTimestamp, []int{1, 3}},
	} {
		for range 2 { // reuse keeps nothing of the last batch
			var invalid *InvalidRecordError
			if err := build(t, BuildOptions{}, records).Validate(tc.v); !errors.As(err, &invalid) {
				t.Fatalf("%+v: %v", tc.v, err)
			}
			var bad []int
			for _, r := range invalid.Records {
				bad = append(bad, r.Index)
			}
			if invalid.Fault != tc.fault || len(bad) != len(tc.bad) || bad[0] != tc.bad[0] || invalid.Index != bad[0] {
				t.Errorf("%+v: %+v", tc.v, invalid)
			}
		}
	}
}

func TestValidateMendsMaxTimestamp(t *testing.T) {
	b := build(t, BuildOptions{}, sample()[:3])
	want := bytes.Clone(b)
	b.setMaxTimestamp(1)
	if err := b.Validate(nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Error("max timestamp or CRC not set right")
	}
}
