package record

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func TestCombineSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 7, 8, 60, 61, 255, 256, 4095, 65536, 1<<20 + 3} {
		all := make([]byte, 100+n)
		for i := range all {
			all[i] = byte(rng.Uint32())
		}
		first, second := crc32.Checksum(all[:100], castagnoli), crc32.Checksum(all[100:], castagnoli)
		if got, want := CombineSums(first, second, n), crc32.Checksum(all, castagnoli); got != want {
			t.Errorf("second of %d bytes: %#08x, want %#08x", n, got, want)
		}
	}
}

// TestSumsOfChangedHeaders compares what is worked out of a batch's checksum with a sum over its bytes, and sees to it that a batch that is
// damaged does not become whole.
func TestSumsOfChangedHeaders(t *testing.T) {
	for _, size := range []int{0, 1, 200, 100_000, 1 << 20} {
		var b Builder
		b.Append(1, nil, bytes.Repeat([]byte{'x'}, size), nil)
		batch, err := b.Build(BuildOptions{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		batch.SetProducer(1<<40+5, 7, 1<<30)
		batch.SetBaseOffset(99)
		if err := batch.CheckCRC(); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if got, want := batch.Sum(), crc32.Checksum(batch, castagnoli); got != want {
			t.Errorf("%d bytes: sum %#08x, want %#08x", size, got, want)
		}
		batch.SetLogAppendTime(12345)
		if err := batch.CheckCRC(); err != nil {
			t.Errorf("%d bytes, append time: %v", size, err)
		}
		batch[len(batch)-1] ^= 1
		batch.SetProducer(1, 1, 1)
		if err := batch.CheckCRC(); err == nil {
			t.Errorf("%d bytes: a damaged batch has a right checksum", size)
		}
	}
}
