package commitlog

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// MetadataFile, in each log's directory, ties it to its topic's id.
	MetadataFile = "partition.metadata"
	// PropertiesFile, in a data directory, says whose it is.
	PropertiesFile = "meta.properties"
	// CleanShutdownFile, in a data directory, says that all its logs were closed.
	CleanShutdownFile = ".kafka_cleanshutdown"
)

// ReadTopicID reads a log directory's partition.metadata; ok is false when there
// is none.
func ReadTopicID(fsys FS, dir string) (id [16]byte, ok bool, err error) {
	path := filepath.Join(dir, MetadataFile)
	pairs, err := readPairs(fsys, path, ": ")
	if errors.Is(err, fs.ErrNotExist) {
		return id, false, nil
	}
	if err != nil {
		return id, false, err
	}
	raw, err := base64.RawURLEncoding.DecodeString(pairs["topic_id"])
	if err != nil || len(raw) != len(id) || pairs["version"] != "0" {
		return id, false, badCheckpoint(path, "topic_id: "+pairs["topic_id"])
	}
	return [16]byte(raw), true, nil
}

// WriteTopicID writes a log directory's partition.metadata, in Kafka's format:
// the lines "version: 0" and "topic_id: ID", the id in URL-safe base 64. The
// directory is made when it is not there.
func WriteTopicID(fsys FS, dir string, id [16]byte) error {
	if err := fsys.MkdirAll(dir); err != nil {
		return fmt.Errorf("write topic id: %w", err)
	}
	text := "version: 0\ntopic_id: " + base64.RawURLEncoding.EncodeToString(id[:])
	if err := writeFile(fsys, filepath.Join(dir, MetadataFile), []byte(text)); err != nil {
		return fmt.Errorf("write topic id: %w", err)
	}
	return nil
}

// Properties say whose a data directory is.
type Properties struct {
	ClusterID   string
	DirectoryID string
	NodeID      int32
}

// ReadProperties reads a data directory's meta.properties; ok is false when
// there is none.
func ReadProperties(fsys FS, dataDir string) (p Properties, ok bool, err error) {
	path := filepath.Join(dataDir, PropertiesFile)
	pairs, err := readPairs(fsys, path, "=")
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	node, err := strconv.ParseInt(pairs["node.id"], 10, 32)
	if err != nil || pairs["version"] != "1" {
		return p, false, badCheckpoint(path, "node.id="+pairs["node.id"]+" version="+pairs["version"])
	}
	return Properties{ClusterID: pairs["cluster.id"], DirectoryID: pairs["directory.id"], NodeID: int32(node)}, true, nil
}

// WriteProperties replaces a data directory's meta.properties, in Kafka's
// format, version 1, and in Kafka's order, which is that of a hash table. The
// time of the writing, which Kafka has in a second comment, is left out.
func WriteProperties(fsys FS, dataDir string, p Properties) error {
	text := fmt.Sprintf("#\nnode.id=%d\ndirectory.id=%s\nversion=1\ncluster.id=%s\n", p.NodeID, p.DirectoryID, p.ClusterID)
	if err := writeFile(fsys, filepath.Join(dataDir, PropertiesFile), []byte(text)); err != nil {
		return fmt.Errorf("write %s: %w", PropertiesFile, err)
	}
	return nil
}

// readPairs reads lines of NAME SEPARATOR VALUE; lines that start with # are comments.
func readPairs(fsys FS, path, separator string) (map[string]string, error) {
	data, err := readFile(fsys, path)
	if err != nil {
		return nil, err
	}
	pairs := make(map[string]string)
	for _, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, separator)
		if !ok {
			return nil, badCheckpoint(path, line)
		}
		pairs[name] = value
	}
	return pairs, nil
}

// cleanShutdown is the content of the clean-shutdown file, as Kafka writes it (KIP-966).
type cleanShutdown struct {
	Version     int   `json:"version"`
	BrokerEpoch int64 `json:"brokerEpoch"`
}

// WriteCleanShutdown notes that every log in a data directory was closed.
// brokerEpoch is -1 when there is none.
func WriteCleanShutdown(fsys FS, dataDir string, brokerEpoch int64) error {
	text, err := json.Marshal(cleanShutdown{BrokerEpoch: brokerEpoch})
	if err == nil {
		err = writeFile(fsys, filepath.Join(dataDir, CleanShutdownFile), text)
	}
	if err != nil {
		return fmt.Errorf("note the clean shutdown: %w", err)
	}
	return nil
}

// TakeCleanShutdown says whether WriteCleanShutdown was the last thing that
// happened in a data directory, and removes the note, durably, so that a crash
// from now on is seen. The broker epoch is -1 when it is not known.
func TakeCleanShutdown(fsys FS, dataDir string) (clean bool, brokerEpoch int64, err error) {
	path := filepath.Join(dataDir, CleanShutdownFile)
	data, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, -1, nil
	}
	if err != nil {
		return false, -1, fmt.Errorf("take the clean shutdown note: %w", err)
	}
	note := cleanShutdown{BrokerEpoch: -1}
	if json.Unmarshal(data, &note) != nil {
		note.BrokerEpoch = -1 // its presence is what counts, as for Kafka
	}
	if err := fsys.Remove(path); err != nil {
		return false, -1, fmt.Errorf("take the clean shutdown note: %w", err)
	}
	if err := SyncDir(fsys, dataDir); err != nil {
		return false, -1, err
	}
	return true, note.BrokerEpoch, nil
}
