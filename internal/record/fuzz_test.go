package record

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzBatch feeds bytes that claim to be batches, or the compressed records of
// one, to everything that reads them.
func FuzzBatch(f *testing.F) {
	const wholeBatch = None // any other codec: its compressed form alone
	plain := bytes.Repeat([]byte("seed "), 100)
	for _, codec := range allCodecs {
		f.Add(int8(wholeBatch), []byte(build(f, BuildOptions{Codec: codec}, append(sample()[:3], sample()[4]))))
	}
	f.Add(int8(wholeBatch), []byte(build(f, BuildOptions{Idempotent: true, ProducerID: 1, BaseSequence: 5}, sample()[:1])))
	for _, codec := range allCodecs[1:] {
		src, err := NewCompressor(CompressorConfig{}).Compress(codec, nil, plain)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int8(codec), src)
	}
	f.Add(int8(Snappy), compressSnappyRaw(plain))
	batches, small := NewDecompressor(1<<20), NewDecompressor(fuzzDecompressedMax)
	f.Fuzz(func(t *testing.T, codec int8, data []byte) {
		if Codec(codec) == wholeBatch {
			fuzzBatch(t, batches, data)
		} else {
			fuzzDecompress(t, small, Codec(codec), data)
		}
	})
}

// fuzzBatch reads a batch. What passes validation must iterate, and build again
// to the same records.
func fuzzBatch(t *testing.T, d *Decompressor, data []byte) {
	b, rest, err := Next(data)
	if err != nil {
		return
	}
	if len(b)+len(rest) != len(data) {
		t.Fatal("Next lost bytes")
	}
	fixCRC(b)
	valid := b.Validate(&Validator{Decompressor: d}) == nil
	var builder Builder
	err = b.Each(d, func(r *Record) error {
		if valid {
			builder.Append(r.Timestamp, r.Key, r.Value, r.Headers)
		}
		return nil
	})
	if !valid {
		return
	}
	if err != nil {
		t.Fatalf("a valid batch does not iterate: %v", err)
	}
	again, err := builder.Build(BuildOptions{BaseOffset: b.BaseOffset()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(collect(t, b), collect(t, again)); diff != "" {
		t.Fatal(diff)
	}
}

const fuzzDecompressedMax = 1 << 16

// fuzzDecompress looks for more output than the limit.
func fuzzDecompress(t *testing.T, d *Decompressor, codec Codec, src []byte) {
	out, err := d.Decompress(codec, src)
	if err == nil && len(out) > fuzzDecompressedMax {
		t.Fatalf("%d bytes", len(out))
	}
}
