package broker

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

// settingsOf returns what a topic's settings mean to its logs and partitions.
func (b *Broker) settingsOf(t *cluster.Topic) (commitlog.Config, replica.TopicConfig) {
	live := b.live.Load()
	s := cluster.ResolveTopic(t.Config, live.settings)
	return logConfig(s, live.cfg.ProducerExpiry), topicConfig(s)
}

func logConfig(s cluster.TopicSettings, producerExpiry time.Duration) commitlog.Config {
	cfg := commitlog.Config{
		SegmentBytes:       s.Int("segment.bytes"),
		SegmentAge:         milliseconds(s.Int("segment.ms")),
		SegmentJitter:      milliseconds(s.Int("segment.jitter.ms")),
		IndexBytes:         s.Int("segment.index.bytes"),
		IndexIntervalBytes: s.Int("index.interval.bytes"),
		DeleteDelay:        milliseconds(s.Int("file.delete.delay.ms")),
		LogAppendTime:      s["message.timestamp.type"] == "LogAppendTime",
		ProducerExpiry:     producerExpiry,
	}
	if cfg.DeleteDelay == 0 {
		cfg.DeleteDelay = -1
	}
	if s.Has("cleanup.policy", "compact") {
		cfg.Compact = true
		// The value was checked when it was stored.
		cfg.DirtyRatioMin, _ = strconv.ParseFloat(strings.TrimSpace(s["min.cleanable.dirty.ratio"]), 64)
		cfg.CompactionLagMin = milliseconds(s.Int("min.compaction.lag.ms"))
		cfg.CompactionLagMax = milliseconds(s.Int("max.compaction.lag.ms"))
		cfg.TombstoneRetention = milliseconds(s.Int("delete.retention.ms"))
		if cfg.TombstoneRetention == 0 && s.Int("delete.retention.ms") > 0 {
			cfg.TombstoneRetention = 1<<63 - 1 // for ever
		}
	}
	if s.Has("cleanup.policy", "delete") {
		cfg.RetentionAge = milliseconds(s.Int("retention.ms"))
		cfg.RetentionBytes = s.Int("retention.bytes")
		// Zero keeps for ever in the log's configuration; as a topic's setting
		// it keeps nothing.
		if cfg.RetentionAge == 0 {
			cfg.RetentionAge = time.Millisecond
		}
		if cfg.RetentionBytes == 0 {
			cfg.RetentionBytes = 1
		}
	}
	return cfg
}

func topicConfig(s cluster.TopicSettings) replica.TopicConfig {
	cfg := replica.TopicConfig{
		MaxMessageBytes:      int(s.Int("max.message.bytes")),
		LogAppendTime:        s["message.timestamp.type"] == "LogAppendTime",
		TimestampBeforeMax:   bound(s.Int("message.timestamp.before.max.ms")),
		TimestampAfterMax:    bound(s.Int("message.timestamp.after.max.ms")),
		Compacted:            s.Has("cleanup.policy", "compact"),
		NoDelete:             !s.Has("cleanup.policy", "delete"),
		MinInSync:            int(s.Int("min.insync.replicas")),
		FlushAge:             bound(s.Int("flush.ms")),
		Levels:               record.KafkaLevels(int(s.Int("compression.gzip.level")), int(s.Int("compression.lz4.level")), int(s.Int("compression.zstd.level"))),
		DecompressedBytesMax: int(s.Int("max.decompressed.message.bytes")),
	}
	if n := s.Int("flush.messages"); n < math.MaxInt64 {
		cfg.FlushRecords = n
	}
	// The settings were checked when they were stored.
	cfg.ThrottledLeaders, _ = replica.ParseReplicaSet(s["leader.replication.throttled.replicas"])
	cfg.ThrottledFollowers, _ = replica.ParseReplicaSet(s["follower.replication.throttled.replicas"])
	switch codec := s["compression.type"]; codec {
	case "producer":
	case "uncompressed":
		cfg.Compress, cfg.Codec = true, record.None
	default:
		cfg.Compress = true
		// The setting was checked against the codecs when it was stored.
		cfg.Codec, _ = record.ParseCodec(codec)
	}
	return cfg
}

// milliseconds turns a count into a duration; what a duration cannot hold,
// some 292 years, is no bound at all and becomes 0.
func milliseconds(n int64) time.Duration {
	if n > int64(1<<63-1)/int64(time.Millisecond) {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// bound is milliseconds for a limit of which 0 is the strictest: it becomes the
// least duration, since 0 stands for no limit.
func bound(n int64) time.Duration {
	if n == 0 {
		return 1
	}
	return milliseconds(n)
}
