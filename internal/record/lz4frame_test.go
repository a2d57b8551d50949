package record

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lz4Frames are frames of plain in the forms that writers make.
func lz4Frames(t testing.TB, plain []byte) map[string][]byte {
	frames := map[string][]byte{}
	for name, options := range map[string][]lz4.Option{
		"as it comes":      nil,
		"no checksum":      {lz4.ChecksumOption(false)},
		"block checksums":  {lz4.BlockChecksumOption(true)},
		"content size":     {lz4.SizeOption(uint64(len(plain)))},
		"blocks of 64 KiB": {lz4.BlockSizeOption(lz4.Block64Kb), lz4.BlockChecksumOption(true)},
		"blocks of 1 MiB":  {lz4.BlockSizeOption(lz4.Block1Mb)},
	} {
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		if err := w.Apply(options...); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		frames[name] = out.Bytes()
	}
	return frames
}

func TestLZ4Frames(t *testing.T) {
	random := make([]byte, 300_000) // stored as it is
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	d := NewDecompressor(0)
	for content, plain := range map[string][]byte{
		"nothing": {}, "one byte": {7}, "text": bytes.Repeat([]byte("a line of a log "), 100_000), "random": random, "both": append(make([]byte, 70_000), random...),
	} {
		for form, frame := range lz4Frames(t, plain) {
			if got, err := d.Decompress(LZ4, frame); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s, %s: %d of %d bytes, %v", content, form, len(got), len(plain), err)
			}
		}
	}
}

// TestLZ4FramesDamaged: what is refused must not pass for a shorter content, and no prefix of a frame is a whole one.
func TestLZ4FramesDamaged(t *testing.T) {
	plain := bytes.Repeat([]byte("a line of a log "), 10_000)
	frame := lz4Frames(t, plain)["block checksums"]
	d := NewDecompressor(0)
	for at := range len(frame) - 8 { // up to the end mark
		if _, err := d.Decompress(LZ4, frame[:at]); err == nil {
			t.Fatalf("the first %d bytes pass", at)
		}
	}
	for at := range len(frame) - 8 {
		damaged := bytes.Clone(frame)
		damaged[at] ^= 0x10
		if got, err := d.Decompress(LZ4, damaged); err == nil {
			t.Fatalf("a flipped bit in byte %d passes as %d bytes", at, len(got))
		}
	}
}

// TestLZ4DependentBlocks: Kafka's Java client cannot read such a frame, so it must not get into a log.
func TestLZ4DependentBlocks(t *testing.T) {
	frame := bytes.Clone(lz4Frames(t, []byte("some content"))["no checksum"])
	frame[4] &^= lz4Independent
	frame[6] = byte(xxh32(frame[4:6]) >> 8)
	if _, err := NewDecompressor(0).Decompress(LZ4, frame); err == nil {
		t.Error("accepted")
	}
}

// BenchmarkLZ4 expands what franz-go makes of 120 KB of text, with its checksum.
func BenchmarkLZ4(b *testing.B) {
	c, err := kgo.DefaultCompressor(kgo.Lz4Compression())
	if err != nil {
		b.Fatal(err)
	}
	var plain []byte
	for i := range 1200 {
		plain = append(plain, benchValue()...)
		plain = append(plain, byte(i), byte(i>>8))
	}
	src, _ := c.Compress(new(bytes.Buffer), plain)
	d := NewDecompressor(0)
	b.ReportAllocs()
	b.SetBytes(int64(len(plain)))
	for b.Loop() {
		if _, err := d.Decompress(LZ4, src); err != nil {
			b.Fatal(err)
		}
	}
}
