package commitlog

import (
	"io"
	"time"
)

type FileCache struct{}

// NewFileCache bounds the open files of the logs that share it.
func NewFileCache(maxOpen int) *FileCache { panic("being written") }

type Log struct{}

type Appended struct {
	First, Last   int64
	LogAppendTime int64 // ms; -1 with the producer's timestamps
	Bytes         int
	Rolled        bool
	Duplicate     bool
}

func Open(fs FS, dir string, cfg Config, opt OpenOptions) (*Log, Recovery, error) {
	panic("being written")
}
func (l *Log) Append(batches []byte, epoch int32, now time.Time) (Appended, error) {
	panic("being written")
}

type Region struct {
	File io.ReaderAt
	Pos  int64
	Len  int
}

func (r *Region) Release() { panic("being written") }
func (l *Log) Read(offset int64, maxBytes int, upTo int64, atLeastOne bool) (Region, error) {
	panic("being written")
}
func (l *Log) Dir() string         { panic("being written") }
func (l *Log) StartOffset() int64  { panic("being written") }
func (l *Log) EndOffset() int64    { panic("being written") }
func (l *Log) SyncedOffset() int64 { panic("being written") }
func (l *Log) Size() int64         { panic("being written") }

type SegmentInfo struct {
	BaseOffset, EndOffset, Bytes, MaxTimestamp int64
}

func (l *Log) Segments() []SegmentInfo { panic("being written") }

// OffsetForTimestamp: the first record at or after ms, below upTo.
func (l *Log) OffsetForTimestamp(ms, upTo int64) (off, ts int64, epoch int32, ok bool, err error) {
	panic("being written")
}

// MaxTimestamp: the record with the largest timestamp, below upTo.
func (l *Log) MaxTimestamp(upTo int64) (off, ts int64, epoch int32, ok bool, err error) {
	panic("being written")
}

// EndOffsetForEpoch is Kafka's: the largest epoch at or below, and where the next one starts; -1, -1 unknown.
func (l *Log) EndOffsetForEpoch(epoch int32) (foundEpoch int32, end int64) { panic("being written") }
func (l *Log) LatestEpoch() int32                                          { panic("being written") }

// EpochForOffset is the epoch of the record at an offset; -1 unknown.
func (l *Log) EpochForOffset(offset int64) int32                { panic("being written") }
func (l *Log) AssignEpoch(epoch int32, startOffset int64) error { panic("being written") }
func (l *Log) Flush() (synced int64, err error)                 { panic("being written") }
func (l *Log) RollIfDue(now time.Time) (rolled bool, err error) { panic("being written") }

// Retain removes whole segments below upTo (the high watermark) by time, size and start offset.
func (l *Log) Retain(now time.Time, upTo int64) (deleted []SegmentInfo, err error) {
	panic("being written")
}
func (l *Log) RemoveDeleted(now time.Time) (files int, err error) { panic("being written") }
func (l *Log) SetStartOffset(offset int64) error                  { panic("being written") }
func (l *Log) TruncateTo(offset int64) error                      { panic("being written") }
func (l *Log) TruncateFullyAt(offset int64) error                 { panic("being written") }
func (l *Log) Config() Config                                     { panic("being written") }
func (l *Log) UpdateConfig(cfg Config)                            { panic("being written") }

// Checkpoint makes a later unclean start short; returns the recovery point to store.
func (l *Log) Checkpoint() (recoveryPoint int64, err error) { panic("being written") }

type ProducerState struct {
	ProducerID       int64
	Epoch            int16
	LastSequence     int32
	LastTimestamp    int64 // ms
	CoordinatorEpoch int32 // -1 none
	TxnStart         int64 // -1 none
}

func (l *Log) ActiveProducers() []ProducerState  { panic("being written") }
func (l *Log) ExpireProducers(now time.Time) int { panic("being written") }
func (l *Log) Err() error                        { panic("being written") }
func (l *Log) Close() error                      { panic("being written") }
func (l *Log) Abort()                            { panic("being written") }
func (l *Log) Delete() error                     { panic("being written") }

// DirName is TOPIC-PARTITION.
func DirName(topic string, partition int32) string                      { panic("being written") }
func ParseDirName(name string) (topic string, partition int32, ok bool) { panic("being written") }

// RemoveDeletedDirs removes what is left of deleted logs (NAME.*-delete) in a data directory.
func RemoveDeletedDirs(fs FS, dataDir string) (removed []string, err error) { panic("being written") }

const (
	RecoveryPointFile = "recovery-point-offset-checkpoint"
	LogStartFile      = "log-start-offset-checkpoint"
	HighWatermarkFile = "replication-offset-checkpoint"
	LeaderEpochFile   = "leader-epoch-checkpoint"
	MetadataFile      = "partition.metadata"
	PropertiesFile    = "meta.properties"
	CleanShutdownFile = ".kafka_cleanshutdown"
)

type TopicPartition struct {
	Topic     string
	Partition int32
}

// ReadOffsetCheckpoint: a missing file is an empty map.
func ReadOffsetCheckpoint(fs FS, path string) (map[TopicPartition]int64, error) {
	panic("being written")
}
func WriteOffsetCheckpoint(fs FS, path string, offsets map[TopicPartition]int64) error {
	panic("being written")
}
func ReadTopicID(fs FS, dir string) (id [16]byte, ok bool, err error) { panic("being written") }
func WriteTopicID(fs FS, dir string, id [16]byte) error               { panic("being written") }

type Properties struct {
	ClusterID   string
	DirectoryID string
	NodeID      int32
}

func ReadProperties(fs FS, dataDir string) (p Properties, ok bool, err error) { panic("being written") }
func WriteProperties(fs FS, dataDir string, p Properties) error               { panic("being written") }

// WriteCleanShutdown marks that all logs were closed. TakeCleanShutdown says whether the mark was there and removes it, durably, so that a crash from now on is seen.
func WriteCleanShutdown(fs FS, dataDir string, brokerEpoch int64) error { panic("being written") }
func TakeCleanShutdown(fs FS, dataDir string) (clean bool, brokerEpoch int64, err error) {
	panic("being written")
}
