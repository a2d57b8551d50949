package broker

import (
	"maps"
	"path/filepath"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

// offsets are an offset of each log.
type offsets = map[commitlog.TopicPartition]int64

// checkpoints are what was stored of the logs at the last stop, or since.
type checkpoints struct {
	clean                                            bool
	recoveryPoint, logStart, highWatermarks, cleaned offsets
}

// of is the content of one of the files.
func (c *checkpoints) of(file string) offsets {
	switch file {
	case commitlog.RecoveryPointFile:
		return c.recoveryPoint
	case commitlog.LogStartFile:
		return c.logStart
	case commitlog.HighWatermarkFile:
		return c.highWatermarks
	}
	return c.cleaned
}

func (c *checkpoints) has(file string, tp commitlog.TopicPartition) bool {
	_, ok := c.of(file)[tp]
	return ok
}

func (c *checkpoints) forget(tp commitlog.TopicPartition) {
	for _, file := range checkpointFiles() {
		delete(c.of(file), tp)
	}
}

func checkpointFiles() []string {
	return []string{commitlog.RecoveryPointFile, commitlog.LogStartFile, commitlog.HighWatermarkFile, commitlog.CleanerFile}
}

// readCheckpoints reads what was stored of the logs. A file that cannot be read
// costs time, not records: without it, more is checked.
func (b *Broker) readCheckpoints(clean bool) checkpoints {
	read := func(file string) offsets {
		path := filepath.Join(b.cfg.DataDir, file)
		stored, err := commitlog.ReadOffsetCheckpoint(b.cfg.FS, path)
		if err != nil {
			b.log.Warn("a checkpoint file cannot be read; the logs are checked from their start", "file", path, "err", err)
			return nil
		}
		b.written[file] = maps.Clone(stored)
		return stored
	}
	b.storing.Lock()
	defer b.storing.Unlock()
	b.written = map[string]offsets{}
	return checkpoints{
		clean:          clean,
		recoveryPoint:  read(commitlog.RecoveryPointFile),
		logStart:       read(commitlog.LogStartFile),
		highWatermarks: read(commitlog.HighWatermarkFile),
		cleaned:        read(commitlog.CleanerFile),
	}
}

// forgetStrays drops what was stored of partitions that the cluster does not
// have: a later topic of the same name must not take it for its own.
func (b *Broker) forgetStrays(im *cluster.Image) {
	var strays []commitlog.TopicPartition
	for _, file := range checkpointFiles() {
		for tp := range b.stored.of(file) {
			if _, known := im.Partition(tp.Topic, tp.Partition); !known {
				strays = append(strays, tp)
			}
		}
	}
	for _, tp := range strays {
		b.stored.forget(tp)
	}
	b.unstore(strays)
}

func (b *Broker) checkpointStep() {
	points, starts := offsets{}, offsets{}
	b.forAll("checkpoint", func(p *replica.Partition) error {
		point, err := p.Log().Checkpoint()
		if err != nil {
			return err
		}
		points[name(p)] = point
		if start := p.Log().StartOffset(); start > 0 {
			starts[name(p)] = start
		}
		return nil
	})
	b.store(commitlog.RecoveryPointFile, points)
	b.store(commitlog.LogStartFile, starts)
}

// storeFinal stores the recovery point and start of closed logs.
func (b *Broker) storeFinal(all []*replica.Partition) {
	points, starts := offsets{}, offsets{}
	for _, p := range all {
		points[name(p)] = p.Log().SyncedOffset()
		if start := p.Log().StartOffset(); start > 0 {
			starts[name(p)] = start
		}
	}
	b.store(commitlog.RecoveryPointFile, points)
	b.store(commitlog.LogStartFile, starts)
	b.storeCleaned()
}

func (b *Broker) highWatermarkStep() {
	marks := offsets{}
	for _, p := range b.partitions.All() {
		marks[name(p)] = p.HighWatermark()
	}
	b.store(commitlog.HighWatermarkFile, marks)
}

// storeCleaned stores up to where logs are compacted.
func (b *Broker) storeCleaned() {
	cleaned := offsets{}
	for _, p := range b.partitions.All() {
		if to := p.Log().CleanedTo(); to > 0 {
			cleaned[name(p)] = to
		}
	}
	b.store(commitlog.CleanerFile, cleaned)
}

func name(p *replica.Partition) commitlog.TopicPartition {
	return commitlog.TopicPartition{Topic: p.Topic(), Partition: p.Index()}
}

// store writes a checkpoint file if it differs from what was written last. What
// is known of partitions that are not open is kept, and what was collected of
// those that were deleted meanwhile is not written.
func (b *Broker) store(file string, now offsets) {
	var unopened offsets
	b.controller.View(func(*cluster.Image) { // it changes with the image
		unopened = maps.Clone(b.stored.of(file))
	})
	b.storing.Lock()
	defer b.storing.Unlock()
	for tp := range now {
		if b.partitions.Get(tp.Topic, tp.Partition) == nil {
			delete(now, tp)
		}
	}
	for tp, offset := range unopened {
		if _, open := now[tp]; !open {
			now[tp] = offset
		}
	}
	b.write(file, now)
}

// unstore removes partitions from all checkpoint files.
func (b *Broker) unstore(gone []commitlog.TopicPartition) {
	b.storing.Lock()
	defer b.storing.Unlock()
	for _, file := range checkpointFiles() {
		rest := maps.Clone(b.written[file])
		for _, tp := range gone {
			delete(rest, tp)
		}
		if len(rest) < len(b.written[file]) {
			b.write(file, rest)
		}
	}
}

// write replaces a file unless it has the content already. Called with storing held.
func (b *Broker) write(file string, now offsets) {
	if was, known := b.written[file]; known && maps.Equal(was, now) {
		return
	}
	path := filepath.Join(b.cfg.DataDir, file)
	if err := commitlog.WriteOffsetCheckpoint(b.cfg.FS, path, now); err != nil {
		b.log.Error("cannot store a checkpoint; the next start checks more", "file", path, "err", err)
		return
	}
	b.written[file] = now
}
