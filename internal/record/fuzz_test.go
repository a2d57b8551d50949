package record

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzBatch feeds bytes that claim to be batches to everything that reads them.
// What passes validation must iterate, and build again to the same records.
func FuzzBatch(f *testing.F) {
	for _, codec := range allCodecs {
		f.Add([]byte(build(f, BuildOptions{Codec: codec}, append(sample()[:3], sample()[4]))))
	}
	f.Add([]byte(build(f, BuildOptions{Idempotent: true, ProducerID: 1, BaseSequence: 5}, sample()[:1])))
	d := NewDecompressor(1 << 20)
	f.Fuzz(func(t *testing.T, data []byte) {
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
	})
}

// FuzzDecompress looks for crashes and for more output than the limit.
func FuzzDecompress(f *testing.F) {
	plain := bytes.Repeat([]byte("seed "), 100)
	for _, codec := range allCodecs[1:] {
		src, err := NewCompressor(CompressorConfig{}).Compress(codec, nil, plain)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(int8(codec), src)
	}
	f.Add(int8(Snappy), compressSnappyRaw(plain))
	const limitBytes = 1 << 16
	d := NewDecompressor(limitBytes)
	f.Fuzz(func(t *testing.T, codec int8, src []byte) {
		if Codec(codec) == None {
			return
		}
		out, err := d.Decompress(Codec(codec), src)
		if err == nil && len(out) > limitBytes {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
