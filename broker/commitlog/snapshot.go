package commitlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"sort"
)

// A producer snapshot, OFFSET.snapshot, is the producer state after the records
// below OFFSET, in Kafka's ProducerSnapshot format version 1, big endian:
//
//	int16   version, 1
//	uint32  CRC-32C of everything after it
//	int32   number of entries
//	        per entry:
//	int64   producer id
//	int16   producer epoch
//	int32   last sequence
//	int64   last offset
//	int32   offset delta: last offset less first offset of the last batch
//	int64   timestamp, ms
//	int32   coordinator epoch, -1
//	int64   first offset of the open transaction, -1
//
// Kafka keeps a producer's last batch only. We write one entry for each of its
// last five, the oldest first: Kafka's reader keeps the last entry of an id, so
// it reads what it would have written, and we still know a repeated batch after
// a restart. A snapshot that is short or fails its CRC is ignored for an older
// one, from which more of the log is replayed.
const (
	snapshotVersion     = 1
	snapshotHeaderBytes = 10
	snapshotEntryBytes  = 46
	snapshotCRCAt       = 2
	snapshotEntriesAt   = 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeSnapshot writes the table in the format above.
func encodeSnapshot(t producerTable) []byte {
	be := binary.BigEndian
	buf := be.AppendUint16(nil, snapshotVersion)
	buf = be.AppendUint32(buf, 0)
	count := 0
	for _, p := range t {
		count += p.count
	}
	buf = be.AppendUint32(buf, uint32(count))
	for _, id := range t.ids() {
		p := t[id]
		for _, b := range p.batches[:p.count] {
			buf = appendSnapshotEntry(buf, p, b)
		}
	}
	be.PutUint32(buf[snapshotCRCAt:], crc32.Checksum(buf[snapshotEntriesAt:], castagnoli))
	return buf
}

func appendSnapshotEntry(buf []byte, p *producer, b producerBatch) []byte {
	be := binary.BigEndian
	buf = be.AppendUint64(buf, uint64(p.id))
	buf = be.AppendUint16(buf, uint16(p.epoch))
	buf = be.AppendUint32(buf, uint32(b.lastSequence))
	buf = be.AppendUint64(buf, uint64(b.lastOffset))
	buf = be.AppendUint32(buf, uint32(b.lastOffset-b.firstOffset))
	buf = be.AppendUint64(buf, uint64(b.timestamp))
	buf = be.AppendUint32(buf, ^uint32(0))
	return be.AppendUint64(buf, ^uint64(0))
}

// decodeSnapshot reads what encodeSnapshot or Kafka wrote.
func decodeSnapshot(data []byte, now int64) (producerTable, error) {
	if len(data) < snapshotHeaderBytes {
		return nil, fmt.Errorf("producer snapshot of %d bytes", len(data))
	}
	be := binary.BigEndian
	if v := be.Uint16(data); v != snapshotVersion {
		return nil, fmt.Errorf("producer snapshot version %d", v)
	}
	if crc32.Checksum(data[snapshotEntriesAt:], castagnoli) != be.Uint32(data[snapshotCRCAt:]) {
		return nil, fmt.Errorf("producer snapshot fails its checksum")
	}
	count := int(int32(be.Uint32(data[snapshotEntriesAt:])))
	data = data[snapshotHeaderBytes:]
	if count < 0 || len(data) != count*snapshotEntryBytes {
		return nil, fmt.Errorf("producer snapshot of %d entries in %d bytes", count, len(data))
	}
	t := make(producerTable)
	for ; len(data) > 0; data = data[snapshotEntryBytes:] {
		t.load(data, now)
	}
	return t, nil
}

// load takes one entry of a snapshot.
func (t producerTable) load(entry []byte, now int64) {
	be := binary.BigEndian
	id := int64(be.Uint64(entry))
	p := t[id]
	if p == nil {
		p = &producer{id: id, epoch: -1}
		t[id] = p
	}
	last := int32(be.Uint32(entry[10:]))
	lastOffset := int64(be.Uint64(entry[14:]))
	delta := int32(be.Uint32(entry[22:]))
	p.active = now
	p.add(int16(be.Uint16(entry[8:])), producerBatch{
		firstSequence: firstOfBatch(last, delta), lastSequence: last,
		firstOffset: lastOffset - int64(delta), lastOffset: lastOffset,
		timestamp: int64(be.Uint64(entry[26:])),
	})
}

func (l *Log) snapshotPath(offset int64) string {
	return filepath.Join(l.dir, fileName(offset, snapshotSuffix))
}

// writeSnapshot writes, without syncing it, the producer state after the
// records below an offset and returns the file's path. Called with mu held.
func (l *Log) writeSnapshot(offset int64) (path string, err error) {
	path = l.snapshotPath(offset)
	if err := writeUnsynced(l.fs, path, encodeSnapshot(l.producers)); err != nil {
		return "", fmt.Errorf("write producer snapshot: %w", err)
	}
	return path, nil
}

// snapshots are the offsets of the snapshot files there are, descending.
func (l *Log) snapshots() ([]int64, error) {
	entries, err := l.fs.List(l.dir)
	if err != nil {
		return nil, err
	}
	return snapshotsIn(entries), nil
}

func snapshotsIn(entries []Entry) (offsets []int64) {
	for _, e := range entries {
		if offset, ok := parseFileName(e.Name, snapshotSuffix); ok {
			offsets = append(offsets, offset)
		}
	}
	sort.Slice(offsets, func(i, j int) bool { return offsets[i] > offsets[j] })
	return offsets
}

// loadProducers sets the producer state at the log's end: from the newest good
// snapshot, and the batches since. Snapshots that are bad, or of a log that is no
// more, are removed. Called by Open and with mu held.
func (l *Log) loadProducers(now int64) error {
	offsets, err := l.snapshots()
	if err != nil {
		return fmt.Errorf("load producer state: %w", err)
	}
	return l.loadProducersOf(offsets, now)
}

// loadProducersOf is loadProducers with the offsets of the snapshots, descending.
func (l *Log) loadProducersOf(offsets []int64, now int64) error {
	from, table := l.segments[0].base, make(producerTable)
	for _, offset := range offsets {
		if offset <= l.end && offset >= l.segments[0].base {
			loaded, err := l.readSnapshot(offset, now)
			if err == nil {
				from, table = offset, loaded
				break
			}
			l.log.Warn("producer snapshot ignored", "path", l.snapshotPath(offset), "error", err)
		}
		if err := l.fs.Remove(l.snapshotPath(offset)); err != nil && !isNotExist(err) {
			return fmt.Errorf("remove producer snapshot: %w", err)
		}
	}
	l.producers, l.snapshotAt = table, from
	return l.replayProducers(from, now)
}

// secureSnapshot makes the producer snapshot at a segment's base durable before
// what is older goes. A power cut can have lost it and kept a younger one, so
// it is read, and made anew when it is not good. Called with mu held.
func (l *Log) secureSnapshot(base, now int64) error {
	path := l.snapshotPath(base)
	_, err := l.readSnapshot(base, now)
	if err == nil {
		if err := syncFile(l.fs, path); err != nil {
			return l.fail(fmt.Errorf("sync %s: %w", path, err))
		}
		return nil
	}
	l.log.Warn("producer snapshot made anew", "path", path, "error", err)
	table, err := l.producersAt(base, now)
	if err != nil {
		return err
	}
	return writeFile(l.fs, path, encodeSnapshot(table))
}

// producersAt is the producer state after the records below an offset. Called
// with mu held.
func (l *Log) producersAt(offset, now int64) (producerTable, error) {
	offsets, err := l.snapshots()
	if err != nil {
		return nil, err
	}
	from, table := l.segments[0].base, make(producerTable)
	for _, at := range offsets {
		if at > offset || at < from {
			continue
		}
		if loaded, err := l.readSnapshot(at, now); err == nil {
			from, table = at, loaded
			break
		}
	}
	for i := max(l.segmentOf(from), 0); i < len(l.segments) && l.segments[i].base < offset; i++ {
		if err := l.replaySegment(l.segments[i], table, from, offset, now); err != nil {
			return nil, fmt.Errorf("replay producers of segment %d: %w", l.segments[i].base, err)
		}
	}
	return table, nil
}

func (l *Log) readSnapshot(offset, now int64) (producerTable, error) {
	data, err := readFile(l.fs, l.snapshotPath(offset))
	if err != nil {
		return nil, err
	}
	return decodeSnapshot(data, now)
}

// replayProducers takes the batches from an offset to the end into the table.
func (l *Log) replayProducers(from, now int64) error {
	for i := max(l.segmentOf(from), 0); i < len(l.segments); i++ {
		s := l.segments[i]
		if s.base > from {
			// A segment that goes takes its snapshot along: each needs its own.
			path, err := l.writeSnapshot(s.base)
			if err != nil {
				return err
			}
			l.snapshotAt = s.base
			l.state.Lock()
			l.unsyncedFiles, l.dirDirty = append(l.unsyncedFiles, path), true
			l.state.Unlock()
		}
		if err := l.replaySegment(s, l.producers, from, l.end, now); err != nil {
			return fmt.Errorf("replay producers of segment %d: %w", s.base, err)
		}
	}
	return nil
}

// replaySegment takes a segment's batches of [from, upTo) into a table.
func (l *Log) replaySegment(s *segment, t producerTable, from, upTo, now int64) error {
	s.file.reserve()
	defer s.file.release()
	pos, err := l.positionHeld(s, from, s.size)
	if err != nil {
		return err
	}
	return l.walkFrom(s, pos, s.size, func(w *walker) (bool, error) {
		if w.header.BaseOffset() >= upTo {
			return false, nil
		}
		t.replay(w.header, now)
		return true, nil
	})
}
