package producer

import (
	"bytes"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// compressorOf makes the compressor of a configuration.
func compressorOf(cfg KafkaConfig) (kgo.Compressor, error) {
	switch cfg.Compression {
	case "", "auto":
		return newAuto(cfg.CatchingUp)
	case "none":
		return kgo.DefaultCompressor(kgo.NoCompression())
	case "gzip":
		return kgo.DefaultCompressor(kgo.GzipCompression(), kgo.NoCompression())
	case "snappy":
		return kgo.DefaultCompressor(kgo.SnappyCompression(), kgo.NoCompression())
	case "lz4":
		return kgo.DefaultCompressor(kgo.Lz4Compression(), kgo.NoCompression())
	case "zstd":
		return kgo.DefaultCompressor(kgo.ZstdCompression(), kgo.SnappyCompression(), kgo.NoCompression())
	}
	return nil, fmt.Errorf("unknown compression %q", cfg.Compression)
}

// auto compresses with zstd, and with snappy while catching up. Each batch
// names its codec, so they may alternate in a partition. A batch that is sent
// again may come in another codec than before: the broker knows it by producer
// and sequence, not by its bytes. Safe for concurrent use.
type auto struct {
	small, fast kgo.Compressor
	catchingUp  func() bool
}

func newAuto(catchingUp func() bool) (kgo.Compressor, error) {
	small, err := kgo.DefaultCompressor(kgo.ZstdCompression(), kgo.SnappyCompression())
	if err != nil {
		return nil, fmt.Errorf("make zstd compressor: %w", err)
	}
	fast, err := kgo.DefaultCompressor(kgo.SnappyCompression())
	if err != nil {
		return nil, fmt.Errorf("make snappy compressor: %w", err)
	}
	if catchingUp == nil {
		catchingUp = func() bool { return false }
	}
	return &auto{small: small, fast: fast, catchingUp: catchingUp}, nil
}

// Compress implements kgo.Compressor.
func (a *auto) Compress(dst *bytes.Buffer, src []byte, flags ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	if a.catchingUp() {
		return a.fast.Compress(dst, src, flags...)
	}
	return a.small.Compress(dst, src, flags...)
}
