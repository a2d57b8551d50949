package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var allCodecs = []Codec{None, Gzip, Snappy, LZ4, Zstd}

// sample covers nulls, empties, no headers and many, and times that go back.
func sample() []Record {
	many := make([]Header, 1000)
	for i := range many {
		many[i] = Header{Key: fmt.Sprint("h", i), Value: []byte{byte(i)}}
	}
	return []Record{
		{Timestamp: 1_700_000_000_000, Key: []byte("k"), Value: []byte("v")},
		{Timestamp: 1_700_000_000_005, Key: nil, Value: []byte{}},
		{Timestamp: 1_699_999_999_000, Key: []byte{}, Value: nil},
		{Timestamp: 1_700_000_000_001, Value: bytes.Repeat([]byte("long "), 4_000)},
		{Timestamp: 1_700_000_000_002, Value: []byte("x"), Headers: []Header{{Key: "null"}, {Key: "", Value: []byte{}}}},
		{Timestamp: 1_700_000_000_003, Headers: many},
	}
}

func build(t testing.TB, opts BuildOptions, records []Record) Batch {
	t.Helper()
	var b Builder
	for _, r := range records {
		b.Append(r.Timestamp, r.Key, r.Value, r.Headers)
	}
	batch, err := b.Build(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// clone copies a record out of its batch.
func clone(r *Record) Record {
	c := Record{Offset: r.Offset, Timestamp: r.Timestamp, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value)}
	for _, h := range r.Headers {
		c.Headers = append(c.Headers, Header{Key: strings.Clone(h.Key), Value: bytes.Clone(h.Value)})
	}
	return c
}

func collect(t testing.TB, b Batch) []Record {
	t.Helper()
	var got []Record
	if err := b.Each(NewDecompressor(0), func(r *Record) error {
		got = append(got, clone(r))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

func numbered(records []Record, base int64) []Record {
	for i := range records {
		records[i].Offset = base + int64(i)
	}
	return records
}

func TestBuildEachRoundTrip(t *testing.T) {
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			b := build(t, BuildOptions{Codec: codec, BaseOffset: 42, LeaderEpoch: 7, Idempotent: true, ProducerID: 9, ProducerEpoch: 3, BaseSequence: math.MaxInt32 - 2}, sample())
			if err := b.Validate(nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(numbered(sample(), 42), collect(t, b)); diff != "" {
				t.Error(diff)
			}
			header := []any{b.BaseOffset(), b.LastOffset(), b.LeaderEpoch(), b.Codec(), b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.LastSequence(), b.Count(), b.BaseTimestamp(), b.MaxTimestamp(), b.IsControl(), b.IsTransactional(), b.IsLogAppendTime()}
			want := []any{int64(42), int64(47), int32(7), codec, int64(9), int16(3), int32(math.MaxInt32 - 2), int32(2), int32(6), int64(1_700_000_000_000), int64(1_700_000_000_005), false, false, false}
			if diff := cmp.Diff(want, header); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestKgoReads has franz-go's consumer read what Builder wrote.
func TestKgoReads(t *testing.T) {
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			b := build(t, BuildOptions{Codec: codec, BaseOffset: 5, LeaderEpoch: 2}, sample())
			rp := &kmsg.FetchResponseTopicPartition{RecordBatches: b, HighWatermark: 100, LastStableOffset: 100}
			fp, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: 5}, rp, kgo.DefaultDecompressor(), nil)
			if fp.Err != nil || next != 11 {
				t.Fatal(next, fp.Err)
			}
			var got []Record
			for _, r := range fp.Records {
				c := Record{Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
				for _, h := range r.Headers {
					c.Headers = append(c.Headers, Header(h))
				}
				got = append(got, c)
			}
			if diff := cmp.Diff(numbered(sample(), 5), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestKmsgEncoding compares Builder's bytes with kmsg's encoding of the same fields.
func TestKmsgEncoding(t *testing.T) {
	records := sample()
	b := build(t, BuildOptions{BaseOffset: 1, LeaderEpoch: 4, Idempotent: true, ProducerID: 1000, ProducerEpoch: 1, BaseSequence: 77, Transactional: true}, records)
	want := kmsg.RecordBatch{
		FirstOffset: 1, Length: int32(len(b) - 12), PartitionLeaderEpoch: 4, Magic: 2, Attributes: 0x10,
		LastOffsetDelta: int32(len(records) - 1), FirstTimestamp: records[0].Timestamp, MaxTimestamp: 1_700_000_000_005,
		ProducerID: 1000, ProducerEpoch: 1, FirstSequence: 77, NumRecords: int32(len(records)),
	}
	for i, r := range records {
		want.Records = append(want.Records, kmsgRecord(i, r, records[0].Timestamp)...)
	}
	encoded := want.AppendTo(nil)
	want.CRC = int32(crc32.Checksum(encoded[21:], crc32.MakeTable(crc32.Castagnoli)))
	if encoded = want.AppendTo(nil); !bytes.Equal(encoded, b) {
		t.Errorf("kmsg encodes\n%x\nBuilder\n%x", encoded[:100], b[:100])
	}
}

func kmsgRecord(i int, r Record, base int64) []byte {
	k := kmsg.Record{TimestampDelta64: r.Timestamp - base, OffsetDelta: int32(i), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kmsg.Header(h))
	}
	body := k.AppendTo(nil)
	k.Length = int32(len(body) - 1) // a length of 0 takes one byte
	return k.AppendTo(nil)
}

// TestGoldenBytes pins the layout byte by byte; the checksum was computed by
// another program.
func TestGoldenBytes(t *testing.T) {
	b := build(t, BuildOptions{BaseOffset: 3, LeaderEpoch: 1}, []Record{
		{Timestamp: 1_700_000_000_000, Key: []byte("key"), Value: []byte("value"), Headers: []Header{{"h", nil}}},
		{Timestamp: 1_700_000_000_100},
	})
	const want = "0000000000000003" + "0000004b" + "00000001" + "02" + "b80582a0" + "0000" + "00000001" +
		"0000018bcfe56800" + "0000018bcfe56864" + "ffffffffffffffff" + "ffff" + "ffffffff" + "00000002" +
		"22" + "00" + "00" + "00" + "06" + "6b6579" + "0a" + "76616c7565" + "02" + "02" + "68" + "01" +
		"0e" + "00" + "c801" + "02" + "01" + "01" + "00"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSnappyForms(t *testing.T) {
	plain := bytes.Repeat([]byte("snappy block "), 10_000)
	framed, err := NewCompressor(CompressorConfig{}).Compress(Snappy, nil, plain)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(framed, []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")) {
		t.Errorf("no framing: %x", framed[:20])
	}
	raw := compressSnappyRaw(plain)
	for name, src := range map[string][]byte{"xerial": framed, "raw": raw} {
		got, err := NewDecompressor(0).Decompress(Snappy, src)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		other, err := kgo.DefaultDecompressor().Decompress(src, kgo.CodecSnappy)
		if err != nil || !bytes.Equal(other, plain) {
			t.Errorf("%s by kgo: %v", name, err)
		}
	}
}

func TestKgoCompressed(t *testing.T) {
	plain := bytes.Repeat([]byte("what franz-go compresses "), 10_000)
	for codec, option := range map[Codec]kgo.CompressionCodec{Gzip: kgo.GzipCompression(), Snappy: kgo.SnappyCompression(), LZ4: kgo.Lz4Compression(), Zstd: kgo.ZstdCompression()} {
		c, err := kgo.DefaultCompressor(option)
		if err != nil {
			t.Fatal(err)
		}
		src, used := c.Compress(new(bytes.Buffer), plain)
		if Codec(used) != codec {
			t.Fatalf("%s: kgo used %d", codec, used)
		}
		if got, err := NewDecompressor(0).Decompress(codec, src); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %v", codec, err)
		}
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	zeros := make([]byte, 1<<20)
	c, d := NewCompressor(CompressorConfig{}), NewDecompressor(1<<20-1)
	exact := NewDecompressor(1 << 20)
	for _, codec := range allCodecs[1:] {
		small, err := c.Compress(codec, nil, zeros)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Decompress(codec, small); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", codec, err)
		}
		if got, err := exact.Decompress(codec, small); err != nil || len(got) != len(zeros) {
			t.Errorf("%s at the limit: %d, %v", codec, len(got), err)
		}
		if _, err := exact.Decompress(codec, small[:len(small)/2]); err == nil {
			t.Errorf("%s: half a block passed", codec)
		}
	}
}

func TestCompressionLevels(t *testing.T) {
	plain := bytes.Repeat([]byte("levels of compression "), 1000)
	for _, cfg := range []CompressorConfig{{GzipLevel: 1, LZ4Level: 1, ZstdLevel: 3}, {GzipLevel: 9, LZ4Level: 9, ZstdLevel: 22}} {
		for _, codec := range allCodecs {
			small, err := NewCompressor(cfg).Compress(codec, []byte("kept"), plain)
			if err != nil {
				t.Fatal(codec, err)
			}
			got, err := NewDecompressor(0).Decompress(codec, bytes.TrimPrefix(small, []byte("kept")))
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s %+v: %v", codec, cfg, err)
			}
		}
	}
	if _, err := NewCompressor(CompressorConfig{GzipLevel: 77}).Compress(Gzip, nil, plain); err == nil {
		t.Error("gzip level 77 exists")
	}
}

func TestLogAppendTime(t *testing.T) {
	b := build(t, BuildOptions{}, sample())
	b.SetLogAppendTime(99)
	b.SetBaseOffset(10)
	b.SetLeaderEpoch(12)
	if err := b.CheckCRC(); err != nil {
		t.Fatal(err)
	}
	for i, r := range collect(t, b) {
		if r.Timestamp != 99 || r.Offset != int64(10+i) {
			t.Errorf("record %d: offset %d, time %d", i, r.Offset, r.Timestamp)
		}
	}
	if !b.IsLogAppendTime() || b.MaxTimestamp() != 99 || b.LeaderEpoch() != 12 {
		t.Error("header not set")
	}
}

func TestNext(t *testing.T) {
	one := build(t, BuildOptions{}, sample()[:2])
	two := append(bytes.Clone(one), one...)
	b, rest, err := Next(two)
	if err != nil || !bytes.Equal(b, one) || !bytes.Equal(rest, one) {
		t.Fatal(err)
	}
	for n := 0; n < len(one); n++ {
		if _, _, err := Next(one[:n]); !errors.Is(err, ErrShort) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	bad := func(change func(Batch)) error {
		b := Batch(bytes.Clone(one))
		change(b)
		_, _, err := Next(b)
		return err
	}
	for magic, want := range map[byte]error{0: ErrMagic, 1: ErrMagic, 3: ErrCorrupt, 255: ErrCorrupt} {
		if err := bad(func(b Batch) { b[16] = magic }); !errors.Is(err, want) {
			t.Errorf("magic %d: %v", magic, err)
		}
	}
	for _, length := range []int32{-1, 0, 48, math.MinInt32, math.MaxInt32} {
		err := bad(func(b Batch) {
			copy(b[8:], []byte{byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)})
		})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("length %d: %v", length, err)
		}
	}
}

func TestBuilderRefuses(t *testing.T) {
	var b Builder
	if _, err := b.Build(BuildOptions{}, nil); err == nil {
		t.Error("an empty batch was built")
	}
	b.Append(1, nil, nil, nil)
	for _, opts := range []BuildOptions{{ProducerID: 5}, {BaseSequence: 1}, {ProducerEpoch: 1}, {Idempotent: true, ProducerID: -1}, {Codec: 5}} {
		if _, err := b.Build(opts, nil); err == nil {
			t.Errorf("%+v was built", opts)
		}
	}
}

func TestBuilderSizes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var b Builder
	for i := 0; i < 3000; i++ {
		key, value := make([]byte, rng.IntN(200)), make([]byte, rng.IntN(20_000))
		headers := []Header{{Key: "k", Value: value[:rng.IntN(len(value)+1)]}}
		before := b.Bytes()
		b.Append(int64(rng.IntN(100)), key, value, headers)
		if diff := b.Bytes() - before - RecordBytes(key, value, headers); diff < 0 || diff > 3 {
			t.Fatalf("record %d is %d bytes larger than told", i, diff)
		}
	}
	batch, err := b.Build(BuildOptions{}, nil)
	if err != nil || len(batch) != b.Bytes() || b.Count() != 3000 {
		t.Fatal(len(batch), b.Bytes(), err)
	}
	if err := batch.Validate(nil); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if b.Count() != 0 || b.Bytes() != HeaderBytes {
		t.Error("not reset")
	}
}

func TestSequencesWrap(t *testing.T) {
	for _, tc := range []struct{ seq, n, want int32 }{
		{0, 0, 0}, {0, 5, 5}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 1, 1, math.MaxInt32}, {math.MaxInt32, math.MaxInt32, math.MaxInt32 - 1},
	} {
		if got := AddSequence(tc.seq, tc.n); got != tc.want {
			t.Errorf("%d + %d = %d, want %d", tc.seq, tc.n, got, tc.want)
		}
	}
}

func TestParseCodec(t *testing.T) {
	for _, c := range allCodecs {
		if got, err := ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("%s: %v, %v", c, got, err)
		}
	}
	if _, err := ParseCodec("brotli"); err == nil {
		t.Error("brotli is a codec")
	}
}
