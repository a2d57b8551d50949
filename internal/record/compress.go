package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// snappyBlockBytes is the block of the Java client's snappy framing.
const snappyBlockBytes = 32 << 10

// CompressorConfig chooses the compression levels, in the numbering of Kafka's
// compression.*.level settings.
type CompressorConfig struct {
	// GzipLevel from 1 (fast) to 9; 0 is the library's default, 6.
	GzipLevel int
	// LZ4Level from 1 to 9 searches harder; 0 is the fast mode.
	LZ4Level int
	// ZstdLevel from 1 to 22, mapped to the library's four; 0 is 1, the fastest.
	ZstdLevel int
}

// KafkaLevels are the levels that Kafka's settings mean: gzip's -1 is the codec's
// own, lz4's 9, the default, the fast mode, and zstd's go down below zero.
func KafkaLevels(gzip, lz4, zstd int) CompressorConfig {
	c := CompressorConfig{GzipLevel: max(gzip, 0), LZ4Level: min(lz4, 9), ZstdLevel: max(zstd, 1)}
	if lz4 == 9 {
		c.LZ4Level = 0
	}
	return c
}

// Compressor compresses the records of batches. It keeps its codecs' state, so
// that reuse costs no allocation. Not safe for concurrent use.
type Compressor struct {
	cfg  CompressorConfig
	sink bytes.Buffer
	gzip *gzip.Writer
	lz4  *lz4.Writer
	zstd *zstd.Encoder
}

// NewCompressor returns a compressor; its codecs are made on first use.
func NewCompressor(cfg CompressorConfig) *Compressor { return &Compressor{cfg: cfg} }

// Compress appends src, compressed, to dst and returns it. Its errors are those
// of a level that does not exist and of an unknown codec.
func (c *Compressor) Compress(codec Codec, dst, src []byte) ([]byte, error) {
	var err error
	switch codec {
	case None:
		return append(dst, src...), nil
	case Gzip:
		dst, err = c.compressGzip(dst, src)
	case Snappy:
		return compressSnappy(dst, src), nil
	case LZ4:
		dst, err = c.compressLZ4(dst, src)
	case Zstd:
		dst, err = c.compressZstd(dst, src)
	default:
		err = errors.New("unknown codec")
	}
	if err != nil {
		return nil, fmt.Errorf("compress %s: %w", codec, err)
	}
	return dst, nil
}

func (c *Compressor) compressGzip(dst, src []byte) ([]byte, error) {
	if c.gzip == nil {
		level := c.cfg.GzipLevel
		if level == 0 {
			level = gzip.DefaultCompression
		}
		z, err := gzip.NewWriterLevel(&c.sink, level)
		if err != nil {
			return nil, err
		}
		c.gzip = z
	}
	return c.stream(c.gzip, func(w io.Writer) { c.gzip.Reset(w) }, dst, src)
}

func (c *Compressor) compressLZ4(dst, src []byte) ([]byte, error) {
	if c.lz4 == nil {
		z := lz4.NewWriter(&c.sink)
		if err := z.Apply(c.lz4Options()...); err != nil {
			return nil, err
		}
		c.lz4 = z
	}
	return c.stream(c.lz4, func(w io.Writer) { c.lz4.Reset(w) }, dst, src)
}

// lz4Options make the frames that Kafka's Java client makes: independent
// blocks of 64 KiB without checksums.
func (c *Compressor) lz4Options() []lz4.Option {
	level := lz4.Fast
	if c.cfg.LZ4Level > 0 {
		level = lz4.CompressionLevel(1 << (8 + min(c.cfg.LZ4Level, 9)))
	}
	return []lz4.Option{
		lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false),
		lz4.ConcurrencyOption(1), lz4.CompressionLevelOption(level),
	}
}

// stream runs src through a codec that writes to an io.Writer.
func (c *Compressor) stream(w io.WriteCloser, reset func(io.Writer), dst, src []byte) ([]byte, error) {
	c.sink = *bytes.NewBuffer(dst)
	reset(&c.sink)
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	out := c.sink.Bytes()
	c.sink = bytes.Buffer{} // the caller owns the bytes now
	return out, nil
}

func (c *Compressor) compressZstd(dst, src []byte) ([]byte, error) {
	if c.zstd == nil {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(max(c.cfg.ZstdLevel, 1))), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, err
		}
		c.zstd = z
	}
	return c.zstd.EncodeAll(src, dst), nil
}

// compressSnappy writes the framing that Kafka's Java client writes.
func compressSnappy(dst, src []byte) []byte {
	dst = append(dst, xerialMagic[:]...)
	dst = append(dst, 0, 0, 0, 1, 0, 0, 0, 1)
	for len(src) > 0 {
		n := min(len(src), snappyBlockBytes)
		dst = growBytes(dst, 4+s2.MaxEncodedLen(n))
		room := dst[len(dst)+4 : cap(dst)]
		block := s2.EncodeSnappy(room, src[:n])
		binary.BigEndian.PutUint32(dst[len(dst):len(dst)+4], uint32(len(block)))
		dst = dst[:len(dst)+4+len(block)]
		src = src[n:]
	}
	return dst
}
