package commitlog

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
)

// epochStart says from which offset on a leader epoch wrote.
type epochStart struct {
	epoch int32
	start int64
}

// epochHistory are the leader epochs of a log, both fields ascending. An epoch
// is in its file before its first batch is appended, so that a batch of an
// epoch that is not there is no batch of ours. Guarded by the log's state lock.
type epochHistory []epochStart

// latest is the last epoch; -1 when there is none.
func (h epochHistory) latest() int32 {
	if len(h) == 0 {
		return -1
	}
	return h[len(h)-1].epoch
}

// at is the epoch of an offset; -1 when it is before all.
func (h epochHistory) at(offset int64) int32 {
	i := sort.Search(len(h), func(i int) bool { return h[i].start > offset })
	if i == 0 {
		return -1
	}
	return h[i-1].epoch
}

// endOffset answers OffsetForLeaderEpoch as Kafka's LeaderEpochFileCache does
// (KIP-101, KIP-279).
func (h epochHistory) endOffset(epoch int32, logEnd int64) (found int32, end int64) {
	if len(h) == 0 || epoch < 0 || epoch > h.latest() {
		return -1, -1
	}
	if epoch == h.latest() {
		return epoch, logEnd
	}
	i := sort.Search(len(h), func(i int) bool { return h[i].epoch > epoch })
	if i == 0 {
		return epoch, h[0].start
	}
	return h[i-1].epoch, h[i].start
}

// assign returns the history with an epoch that starts at an offset. Epochs
// that would start there or later never wrote anything and go.
func (h epochHistory) assign(epoch int32, start int64) epochHistory {
	n := sort.Search(len(h), func(i int) bool { return h[i].epoch >= epoch || h[i].start >= start })
	return append(slices.Clone(h[:n]), epochStart{epoch, start})
}

// truncateEnd returns the history of a log that ends at an offset.
func (h epochHistory) truncateEnd(end int64) epochHistory {
	n := sort.Search(len(h), func(i int) bool { return h[i].start >= end })
	return slices.Clone(h[:n])
}

// truncateStart returns the history of a log that starts at an offset.
func (h epochHistory) truncateStart(start int64) epochHistory {
	i := sort.Search(len(h), func(i int) bool { return h[i].start > start })
	if i == 0 {
		return h
	}
	kept := slices.Clone(h[i-1:])
	kept[0].start = max(kept[0].start, start)
	return kept
}

// LatestEpoch is the leader epoch of the last append or AssignEpoch; -1 when
// there was none.
func (l *Log) LatestEpoch() int32 {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.epochs.latest()
}

// EpochForOffset is the leader epoch that wrote an offset, or would; -1 when
// the log does not know one.
func (l *Log) EpochForOffset(offset int64) int32 {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.epochs.at(offset)
}

// EndOffsetForEpoch returns the largest epoch that is not above the given one
// and the offset where it ended: the next epoch's start, or the log's end. -1, -1
// when the epoch is above all known ones or none is known (KIP-101, KIP-279).
func (l *Log) EndOffsetForEpoch(epoch int32) (found int32, end int64) {
	l.state.RLock()
	defer l.state.RUnlock()
	return l.epochs.endOffset(epoch, l.end)
}

// AssignEpoch notes that a leader epoch starts at an offset. A leader calls it
// with its log's end before its first append, which makes the note durable: of an
// epoch that wrote nothing, nothing needs to be known after a crash, and a broker
// that starts with thousands of logs writes no file for each. An epoch that is
// known already is no error and changes nothing.
func (l *Log) AssignEpoch(epoch int32, startOffset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	if epoch <= l.epochs.latest() {
		return nil
	}
	l.useEpochs(l.epochs.assign(epoch, startOffset))
	l.epochUnsaved = true
	return nil
}

// admitEpoch checks an append's epoch and notes a new one. Called with mu held.
func (l *Log) admitEpoch(epoch int32, first int64) error {
	switch latest := l.epochs.latest(); {
	case epoch == latest && epoch >= 0:
		if !l.epochUnsaved {
			return nil
		}
		if err := l.saveEpochs(l.epochs); err != nil {
			return l.appendError(err)
		}
		return nil
	case epoch < latest || epoch < 0:
		return fmt.Errorf("append to %s with leader epoch %d after %d", l.dir, epoch, latest)
	}
	if err := l.setEpochs(l.epochs.assign(epoch, first)); err != nil {
		return l.appendError(err)
	}
	return nil
}

// setEpochs writes the history and then uses it. Called with mu held.
func (l *Log) setEpochs(h epochHistory) error {
	if slices.Equal(h, l.epochs) {
		return nil
	}
	if err := l.saveEpochs(h); err != nil {
		return err
	}
	l.useEpochs(h)
	return nil
}

func (l *Log) saveEpochs(h epochHistory) error {
	if err := writeEpochs(l.fs, filepath.Join(l.dir, LeaderEpochFile), h); err != nil {
		return err
	}
	l.epochUnsaved = false
	return nil
}

func (l *Log) useEpochs(h epochHistory) {
	l.state.Lock()
	defer l.state.Unlock()
	l.epochs = h
}

// writeEpochs writes Kafka's leader-epoch-checkpoint: a version line, 0, a
// line with the number of entries, and a line "EPOCH START" for each.
func writeEpochs(fs FS, path string, h epochHistory) error {
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "0\n%d\n", len(h))
	for _, e := range h {
		fmt.Fprintf(&buf, "%d %d\n", e.epoch, e.start)
	}
	return writeFile(fs, path, buf.Bytes())
}

// readEpochs reads what writeEpochs wrote; a missing file gives fs.ErrNotExist.
func readEpochs(fs FS, path string) (epochHistory, error) {
	lines, err := readCheckpoint(fs, path)
	if err != nil {
		return nil, err
	}
	h := make(epochHistory, 0, len(lines))
	for _, line := range lines {
		var e epochStart
		if _, err := fmt.Sscanf(line, "%d %d", &e.epoch, &e.start); err != nil {
			return nil, badCheckpoint(path, line)
		}
		if n := len(h); n > 0 && (h[n-1].epoch >= e.epoch || h[n-1].start > e.start) {
			return nil, badCheckpoint(path, line)
		}
		h = append(h, e)
	}
	return h, nil
}
