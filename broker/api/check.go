package api

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

// zstdProduceVersion is the first version of Produce that may carry zstd.
const zstdProduceVersion = 7

// codedError is an error that has a code of its own.
type codedError struct {
	code    int16
	message string
}

func (e *codedError) Error() string { return e.message }

func refused(code int16, format string, args ...any) error {
	return &codedError{code: code, message: fmt.Sprintf(format, args...)}
}

// checker checks what a producer sends and, where the topic asks for it,
// compresses it anew. Its buffers are reused; not safe for concurrent use.
type checker struct {
	validator    record.Validator
	decompressor *record.Decompressor
	builder      record.Builder
	compressors  map[record.CompressorConfig]*record.Compressor
	converted    []byte
	min, max     int64 // what the validator's bounds point to
}

func newChecker() *checker {
	c := &checker{decompressor: record.NewDecompressor(0), compressors: map[record.CompressorConfig]*record.Compressor{}}
	c.validator.Decompressor = c.decompressor
	return c
}

// check returns the one batch of a partition as it is to be appended. It
// aliases records, or the checker's buffer until the next call. pieces are what is
// known of the checksum of records.
func (c *checker) check(records []byte, pieces record.Pieces, version int16, cfg *replica.TopicConfig, now time.Time) (record.Batch, error) {
	if len(records) == 0 {
		return nil, refused(kerr.InvalidRecord.Code, "a partition without a record batch")
	}
	batch, rest, err := record.Next(records)
	if err != nil {
		return nil, fmt.Errorf("the partition's record batch: %w", err)
	}
	if err := checkEnvelope(batch, rest, version, cfg); err != nil {
		return nil, err
	}
	rules := c.rules(cfg, now)
	rules.Pieces = pieces
	if err := batch.Validate(rules); err != nil {
		return nil, err
	}
	if batch.IsTransactional() {
		return nil, refused(kerr.InvalidTxnState.Code, "transactions are not supported")
	}
	if cfg.Compress && batch.Codec() != cfg.Codec {
		return c.convert(batch, cfg)
	}
	return batch, nil
}

// checkEnvelope checks what does not need the records.
func checkEnvelope(batch record.Batch, rest []byte, version int16, cfg *replica.TopicConfig) error {
	switch {
	case len(rest) > 0:
		return refused(kerr.InvalidRecord.Code, "%d bytes after the record batch; a partition takes exactly one", len(rest))
	case batch.Codec() == record.Zstd && version < zstdProduceVersion:
		return refused(kerr.UnsupportedCompressionType.Code, "zstd needs Produce version %d or later", zstdProduceVersion)
	case batch.BaseOffset() != 0:
		return refused(kerr.InvalidRecord.Code, "base offset %d of a batch from a producer, 0 is due", batch.BaseOffset())
	}
	return checkSize(batch, cfg)
}

func checkSize(batch record.Batch, cfg *replica.TopicConfig) error {
	if len(batch) > cfg.MaxMessageBytes {
		return refused(kerr.MessageTooLarge.Code, "record batch of %d bytes, max.message.bytes is %d", len(batch), cfg.MaxMessageBytes)
	}
	return nil
}

// rules are the topic's for records that come now.
func (c *checker) rules(cfg *replica.TopicConfig, now time.Time) *record.Validator {
	v := &c.validator
	c.decompressor.SetLimit(cfg.DecompressedBytesMax)
	v.RequireKey = cfg.Compacted
	v.TimestampMin, v.TimestampMax = nil, nil
	if cfg.LogAppendTime {
		return v // the producer's times will not be kept
	}
	if cfg.TimestampBeforeMax > 0 {
		c.min = now.Add(-cfg.TimestampBeforeMax).UnixMilli()
		v.TimestampMin = &c.min
	}
	if cfg.TimestampAfterMax > 0 {
		c.max = now.Add(cfg.TimestampAfterMax).UnixMilli()
		v.TimestampMax = &c.max
	}
	return v
}

// compressorsMax limits the compressors of different levels that a checker keeps.
const compressorsMax = 8

func (c *checker) compressor(levels record.CompressorConfig) *record.Compressor {
	z := c.compressors[levels]
	if z == nil {
		if len(c.compressors) == compressorsMax {
			clear(c.compressors)
		}
		z = record.NewCompressor(levels)
		c.compressors[levels] = z
	}
	return z
}

// convert builds the batch again with the topic's codec.
func (c *checker) convert(batch record.Batch, cfg *replica.TopicConfig) (record.Batch, error) {
	c.builder.Reset()
	c.builder.Compressor = c.compressor(cfg.Levels)
	err := batch.Each(c.decompressor, func(r *record.Record) error {
		c.builder.Append(r.Timestamp, r.Key, r.Value, r.Headers)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("convert to compression.type %s: %w", cfg.Codec, err)
	}
	opts := record.BuildOptions{Codec: cfg.Codec}
	if batch.ProducerID() >= 0 {
		opts.Idempotent, opts.ProducerID = true, batch.ProducerID()
		opts.ProducerEpoch, opts.BaseSequence = batch.ProducerEpoch(), batch.BaseSequence()
	}
	out, err := c.builder.Build(opts, c.converted[:0])
	if err != nil {
		return nil, fmt.Errorf("convert to compression.type %s: %w", cfg.Codec, err)
	}
	c.converted = out
	return out, checkSize(out, cfg)
}
