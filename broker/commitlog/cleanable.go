package commitlog

import (
	"fmt"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// Cleanable says what of a log can be compacted now.
type Cleanable struct {
	// From is the first offset that was not compacted yet, To the end of the
	// last segment that may be. They are equal when there is nothing to do.
	From, To int64
	// CleanBytes lie in the segments before From, DirtyBytes in those from the one
	// that holds From on to To.
	CleanBytes, DirtyBytes int64
	// WaitingSince is the earliest timestamp, in ms, of the first batches of the
	// dirty segments; -1 when none is known.
	WaitingSince int64
	// Due says that the share of dirty bytes is above Config.DirtyRatioMin, or
	// that a record has waited for Config.CompactionLagMax.
	Due bool
}

// Ratio is the share of the bytes that is dirty, from 0 to 1.
func (c Cleanable) Ratio() float64 {
	if c.DirtyBytes == 0 {
		return 0
	}
	return float64(c.DirtyBytes) / float64(c.CleanBytes+c.DirtyBytes)
}

// Cleanable says what can be compacted of a log with Config.Compact: closed
// segments that lie below upTo, the high watermark, on disk, and without a record
// younger than Config.CompactionLagMin. Of any other log it is nothing.
func (l *Log) Cleanable(upTo int64, now time.Time) (Cleanable, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return Cleanable{}, err
	}
	c, _, err := l.cleanable(upTo, now)
	if err != nil {
		return c, fmt.Errorf("find what to compact of %s: %w", l.dir, err)
	}
	return c, nil
}

// CleanedTo is the offset below which the log was compacted, for the cleaner's
// checkpoint file.
func (l *Log) CleanedTo() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cleanedTo
}

// cleanable is Cleanable with mu held, and the number of segments below To.
func (l *Log) cleanable(upTo int64, now time.Time) (c Cleanable, n int, err error) {
	cfg := l.cfg.Load()
	c.From = max(l.cleanedTo, l.start, l.segments[0].base)
	c.To, c.WaitingSince = c.From, record.NoTimestamp
	if !cfg.Compact {
		return c, 0, nil
	}
	upTo = min(upTo, l.SyncedOffset())
	for i, s := range l.segments[:len(l.segments)-1] {
		end := l.segmentEnd(i)
		if end <= c.From {
			c.CleanBytes += s.size
			n = i + 1
			continue
		}
		if end > upTo {
			break
		}
		young, err := l.tooYoung(s, cfg.CompactionLagMin, now)
		if err != nil || young {
			return l.judge(c, cfg, now), n, err
		}
		if err := l.noteWaiting(&c, s, cfg); err != nil {
			return c, n, err
		}
		c.DirtyBytes += s.size
		c.To, n = end, i+1
	}
	return l.judge(c, cfg, now), n, nil
}

// tooYoung says whether a segment has a record that is not to be compacted yet.
func (l *Log) tooYoung(s *segment, lag time.Duration, now time.Time) (bool, error) {
	if lag <= 0 {
		return false, nil
	}
	if err := l.loadMaxTimestamp(s, l.refillIndexes); err != nil {
		return false, err
	}
	newest := s.maxTimestamp
	if newest < 0 {
		newest = millis(s.modified)
	}
	return newest > millis(now.Add(-lag)), nil
}

// noteWaiting keeps the earliest timestamp of the dirty segments' first batches.
func (l *Log) noteWaiting(c *Cleanable, s *segment, cfg *Config) error {
	if cfg.CompactionLagMax <= 0 || s.size == 0 {
		return nil
	}
	first, err := l.firstTimestamp(s)
	if err == nil && first >= 0 && (c.WaitingSince < 0 || first < c.WaitingSince) {
		c.WaitingSince = first
	}
	return err
}

func (l *Log) judge(c Cleanable, cfg *Config, now time.Time) Cleanable {
	lag := max(cfg.CompactionLagMax, cfg.CompactionLagMin)
	overdue := cfg.CompactionLagMax > 0 && c.WaitingSince >= 0 && c.WaitingSince < millis(now.Add(-lag))
	c.Due = c.DirtyBytes > 0 && (overdue || c.Ratio() > cfg.DirtyRatioMin)
	return c
}
