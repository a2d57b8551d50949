package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Files that Kafka keeps in a data directory and in a log's directory, in its
// own text formats. Each is replaced as a whole: a temporary file is written and
// synced, renamed over the old one, and the directory synced.
const (
	// RecoveryPointFile holds the offset up to which each log is durable.
	RecoveryPointFile = "recovery-point-offset-checkpoint"
	// LogStartFile holds the first offset of the logs whose first segment starts earlier.
	LogStartFile = "log-start-offset-checkpoint"
	// HighWatermarkFile holds each partition's high watermark.
	HighWatermarkFile = "replication-offset-checkpoint"
	// CleanerFile holds the offset up to which each log was compacted.
	CleanerFile = "cleaner-offset-checkpoint"
	// LeaderEpochFile is in each log's directory.
	LeaderEpochFile = "leader-epoch-checkpoint"
)

// checkpointBytesMax bounds a checkpoint file that is read: 64 MiB, about a
// million partitions.
const checkpointBytesMax = 64 << 20

// TopicPartition names a log in a checkpoint file.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// ReadOffsetCheckpoint reads one of a data directory's checkpoint files. A
// missing file is an empty one; a malformed one is an error that names the line.
func ReadOffsetCheckpoint(fsys FS, path string) (map[TopicPartition]int64, error) {
	lines, err := readCheckpoint(fsys, path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	offsets := make(map[TopicPartition]int64, len(lines))
	for _, line := range lines {
		var tp TopicPartition
		var offset int64
		if _, err := fmt.Sscanf(line, "%s %d %d", &tp.Topic, &tp.Partition, &offset); err != nil {
			return nil, badCheckpoint(path, line)
		}
		offsets[tp] = offset
	}
	return offsets, nil
}

// WriteOffsetCheckpoint replaces one of a data directory's checkpoint files: a
// version line, 0, a line with the number of entries, and a line
// "TOPIC PARTITION OFFSET" for each, sorted.
func WriteOffsetCheckpoint(fsys FS, path string, offsets map[TopicPartition]int64) error {
	tps := make([]TopicPartition, 0, len(offsets))
	for tp := range offsets {
		tps = append(tps, tp)
	}
	sort.Slice(tps, func(i, j int) bool {
		if tps[i].Topic != tps[j].Topic {
			return tps[i].Topic < tps[j].Topic
		}
		return tps[i].Partition < tps[j].Partition
	})
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "0\n%d\n", len(tps))
	for _, tp := range tps {
		fmt.Fprintf(&buf, "%s %d %d\n", tp.Topic, tp.Partition, offsets[tp])
	}
	return writeFile(fsys, path, buf.Bytes())
}

// readCheckpoint returns the entry lines of a checkpoint file.
func readCheckpoint(fsys FS, path string) ([]string, error) {
	data, err := readFile(fsys, path)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if len(lines) < 2 || lines[0] != "0" {
		return nil, badCheckpoint(path, lines[0])
	}
	if n, err := strconv.Atoi(lines[1]); err != nil || n != len(lines)-2 {
		return nil, badCheckpoint(path, lines[1])
	}
	return lines[2:], nil
}

func badCheckpoint(path, line string) error {
	return &CorruptionError{Path: path, Offset: noOffset, Reason: fmt.Sprintf("malformed checkpoint line %.100q", line)}
}

// writeFile replaces a file, durably: after a crash the old or the new content is there.
func writeFile(fsys FS, path string, data []byte) error {
	temp := path + tempSuffix
	if err := writeSynced(fsys, temp, data); err != nil {
		return err
	}
	if err := fsys.Rename(temp, path); err != nil {
		return err
	}
	return SyncDir(fsys, filepath.Dir(path))
}

func writeSynced(fsys FS, path string, data []byte) error {
	f, err := fsys.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// readFile reads a small file whole.
func readFile(fsys FS, path string) ([]byte, error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := readAll(f, checkpointBytesMax)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}
