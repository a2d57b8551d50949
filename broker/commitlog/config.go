package commitlog

import (
	"log/slog"
	"math"
	"time"
)

// Defaults of Config and its limits.
const (
	defaultSegmentBytes       = 1 << 30
	defaultSegmentAge         = 7 * 24 * time.Hour
	defaultIndexBytes         = 10 << 20
	defaultIndexIntervalBytes = 4 << 10
	defaultDeleteDelay        = time.Minute
	defaultProducerExpiry     = 24 * time.Hour

	// segmentBytesMax keeps positions within an index entry's 31 bits.
	segmentBytesMax = math.MaxInt32
)

// Config are the settings of one log, from its topic's. UpdateConfig changes
// them while the log is in use.
type Config struct {
	// SegmentBytes (segment.bytes): a segment is closed before it would grow
	// beyond; 0 is 1 GiB, and more than 2 GiB - 1 is cut to that.
	SegmentBytes int64
	// SegmentAge (segment.ms): a segment is closed when its first record is
	// this much older; 0 is 7 days. The resolution is 1 ms.
	SegmentAge time.Duration
	// SegmentJitter (segment.jitter.ms): the most by which a segment is closed
	// earlier, each by a time of its own, so that not all logs begin one at once.
	SegmentJitter time.Duration
	// IndexBytes (segment.index.bytes): a segment is closed when one of its
	// indexes would grow beyond; 0 is 10 MiB.
	IndexBytes int64
	// IndexIntervalBytes (index.interval.bytes): about how many bytes of log lie
	// between two index entries, which bounds every scan; 0 is 4 KiB.
	IndexIntervalBytes int64
	// RetentionAge (retention.ms): Retain removes segments whose largest
	// timestamp is older; 0 or less keeps them for ever.
	RetentionAge time.Duration
	// RetentionBytes (retention.bytes): Retain removes the oldest segments
	// while the rest is at least this large; 0 or less keeps them.
	RetentionBytes int64
	// DeleteDelay (file.delete.delay.ms): how long the files of a removed
	// segment stay before RemoveDeleted removes them; 0 is 1 minute, less than 0 none.
	DeleteDelay time.Duration
	// LogAppendTime (message.timestamp.type): records get the time of the
	// append instead of their producer's.
	LogAppendTime bool
	// Compact (cleanup.policy with compact): a Cleaner keeps the newest record of
	// each key only.
	Compact bool
	// DirtyRatioMin (min.cleanable.dirty.ratio), from 0 to 1: the share of a log's
	// closed segments that must be uncompacted before a compaction is due.
	DirtyRatioMin float64
	// CompactionLagMin (min.compaction.lag.ms): records younger than this are
	// not compacted; 0 sets no limit.
	CompactionLagMin time.Duration
	// CompactionLagMax (max.compaction.lag.ms): a compaction is due, whatever the
	// ratio, when a record waits longer, and segments are closed after so long
	// to that end; 0 sets no limit.
	CompactionLagMax time.Duration
	// TombstoneRetention (delete.retention.ms): how long records without a value
	// stay after the first compaction that met them; 0 removes them with the next.
	TombstoneRetention time.Duration
	// ProducerExpiry (producer.id.expiration.ms): ExpireProducers forgets
	// producers that have appended nothing for so long; 0 is 24 hours.
	ProducerExpiry time.Duration
}

// withDefaults fills in the zero values.
func (c Config) withDefaults() Config {
	c.SegmentBytes = min(orDefault(c.SegmentBytes, defaultSegmentBytes), segmentBytesMax)
	c.SegmentAge = orDefault(c.SegmentAge, defaultSegmentAge)
	c.IndexBytes = orDefault(c.IndexBytes, defaultIndexBytes)
	c.IndexIntervalBytes = orDefault(c.IndexIntervalBytes, defaultIndexIntervalBytes)
	c.DeleteDelay = orDefault(c.DeleteDelay, defaultDeleteDelay)
	c.ProducerExpiry = orDefault(c.ProducerExpiry, defaultProducerExpiry)
	return c
}

// rollAge is the age at which a segment is closed: a compacted log's early
// enough for the longest time that a record may wait for compaction. lot, the
// segment's own, chooses its part of the jitter.
func (c *Config) rollAge(lot uint64) time.Duration {
	age := c.SegmentAge
	if c.Compact && c.CompactionLagMax > 0 {
		age = min(age, c.CompactionLagMax)
	}
	if jitter := min(c.SegmentJitter, age); jitter > 0 {
		age -= time.Duration(lot % uint64(jitter))
	}
	return age
}

func orDefault[T int64 | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// OpenOptions say what is known about a log before it is opened.
type OpenOptions struct {
	// RecoveryPoint is the checkpointed offset below which everything was
	// synced; nothing below it is checked.
	RecoveryPoint int64
	// LogStart is the checkpointed first offset; 0 when there is none.
	LogStart int64
	// CleanedTo is the checkpointed offset below which the log was compacted; 0
	// when there is none.
	CleanedTo int64
	// Holes says that the log has an entry in the cleaner's checkpoint. Without a
	// CompactionFile of ours Apache Kafka has compacted it, and gaps between
	// offsets are no damage anywhere.
	Holes bool
	// Clean says that the broker closed all logs before it stopped: then no
	// segment is scanned. When the last segment contradicts it, the log is
	// recovered all the same.
	Clean bool
	Now   time.Time
	// Log gets what recovery cut and mended; nil is silent.
	Log *slog.Logger
	// Files bounds the unused open files of all logs that share it; nil makes
	// one for this log alone, of 16 files.
	Files *FileCache
}

// Recovery says what Open found and did.
type Recovery struct {
	// Clean says that nothing was scanned.
	Clean bool
	// SegmentsChecked, BatchesChecked and BytesChecked are what lay past the
	// recovery point and was read.
	SegmentsChecked int
	BatchesChecked  int64
	BytesChecked    int64
	// CutBytes were cut off the log's end from offset CutOffset on, for
	// CutReason; SegmentsDropped whole segments are among them.
	CutBytes        int64
	CutOffset       int64
	CutReason       string
	SegmentsDropped int
	// IndexesRebuilt counts index files that were missing, short or wrong.
	IndexesRebuilt int
	// Removed names left-over files that were removed.
	Removed []string
}
