package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
)

// CompactionFile, in a log's directory, tells the offset up to which compaction
// may have left gaps between offsets. It is written before the first gap is
// made. Anywhere else a gap is damage: what a power cut took from the middle,
// since the end of one segment can be lost and the next one be there. A version
// line, 0, a line with 1, and a line with the offset. Apache Kafka, which accepts
// gaps everywhere, ignores it.
const CompactionFile = "compaction-checkpoint"

// loadHoles reads up to where gaps are accepted.
func (o *opening) loadHoles() error {
	l := o.log
	lines, err := readCheckpoint(l.fs, filepath.Join(l.dir, CompactionFile))
	var corrupt *CorruptionError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if o.opt.Holes {
			l.holesBelow = math.MaxInt64
		}
		return nil
	case err == nil && len(lines) == 1:
		if _, err = fmt.Sscanf(lines[0], "%d", &l.holesBelow); err == nil {
			return nil
		}
	case err != nil && !errors.As(err, &corrupt):
		return err
	}
	l.log.Warn("gaps between offsets are accepted everywhere", "dir", l.dir, "cause", "malformed "+CompactionFile)
	l.holesBelow = math.MaxInt64
	return nil
}

// expectHoles notes durably that there may be gaps up to an offset. Called with mu held.
func (l *Log) expectHoles(below int64) error {
	if below <= l.holesBelow {
		return nil
	}
	return l.saveHoles(below)
}

// limitHoles is for a log that was cut off: what comes after its end is not
// compacted. Called with mu held.
func (l *Log) limitHoles() error {
	if l.holesBelow <= l.end {
		return nil
	}
	return l.saveHoles(l.end)
}

func (l *Log) saveHoles(below int64) error {
	if err := writeFile(l.fs, filepath.Join(l.dir, CompactionFile), fmt.Appendf(nil, "0\n1\n%d\n", below)); err != nil {
		return err
	}
	l.holesBelow = below
	return nil
}

// forgetHoles is for a log that was emptied.
func (l *Log) forgetHoles() error {
	l.holesBelow = 0
	if err := l.fs.Remove(filepath.Join(l.dir, CompactionFile)); err != nil && !isNotExist(err) {
		return err
	}
	return nil
}
