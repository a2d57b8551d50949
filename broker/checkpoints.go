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

// checkpoints are what was stored of the logs of a directory at the last stop,
// or since.
type checkpoints struct {
	recoveryPoint, logStart, highWatermarks, cleaned offsets
}

// of is the content of one of the files.
func (c *checkpoints) of(file string) offsets { return *c.at(file) }

func (c *checkpoints) at(file string) *offsets {
	switch file {
	case commitlog.RecoveryPointFile:
		return &c.recoveryPoint
	case commitlog.LogStartFile:
		return &c.logStart
	case commitlog.HighWatermarkFile:
		return &c.highWatermarks
	}
	return &c.cleaned
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

// note sets what is stored of a log in one of the files.
func (c *checkpoints) note(file string, tp commitlog.TopicPartition, offset int64) {
	m := c.at(file)
	if *m == nil {
		*m = offsets{}
	}
	(*m)[tp] = offset
}

func checkpointFiles() []string {
	return []string{commitlog.RecoveryPointFile, commitlog.LogStartFile, commitlog.HighWatermarkFile, commitlog.CleanerFile}
}

// readCheckpoints reads what was stored of the logs of a directory. A file that
// cannot be read costs time, not records: without it, more is checked.
func (b *Broker) readCheckpoints(d *dataDir) checkpoints {
	read := func(file string) offsets {
		path := filepath.Join(d.path, file)
		stored, err := commitlog.ReadOffsetCheckpoint(b.cfg.FS, path)
		if err != nil {
			b.log.Warn("a checkpoint file cannot be read; the logs are checked from their start", "file", path, "error", err)
			return nil
		}
		d.written[file] = maps.Clone(stored)
		return stored
	}
	b.storing.Lock()
	defer b.storing.Unlock()
	d.written = map[string]offsets{}
	return checkpoints{
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
	for _, d := range b.dirs {
		for _, file := range checkpointFiles() {
			for tp := range d.stored.of(file) {
				if _, known := im.Partition(tp.Topic, tp.Partition); !known {
					strays = append(strays, tp)
				}
			}
		}
	}
	for _, tp := range strays {
		b.forgetStored(tp)
	}
	b.unstore(strays)
}

func (b *Broker) forgetStored(tp commitlog.TopicPartition) {
	for _, d := range b.dirs {
		d.stored.forget(tp)
	}
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

// lowerRecoveryPoint stores the recovery point of a log that was cut off below the
// stored one. An error takes the partition offline.
func (b *Broker) lowerRecoveryPoint(p *replica.Partition) error {
	d, point := b.dirOf(p), p.Log().RecoveryPoint()
	b.storing.Lock()
	defer b.storing.Unlock()
	points := maps.Clone(d.written[commitlog.RecoveryPointFile])
	if points[name(p)] <= point {
		return nil
	}
	points[name(p)] = point
	if err := commitlog.WriteOffsetCheckpoint(b.cfg.FS, filepath.Join(d.path, commitlog.RecoveryPointFile), points); err != nil {
		return err
	}
	d.written[commitlog.RecoveryPointFile] = points
	return nil
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

// store writes a checkpoint file of each directory if it differs from what was
// written last. What is known of partitions that are not open is kept, and what
// was collected of those that were deleted meanwhile is not written.
func (b *Broker) store(file string, now offsets) {
	unopened := map[*dataDir]offsets{}
	b.metadata.View(func(*cluster.Image) { // it changes with the image
		for _, d := range b.dirs {
			unopened[d] = maps.Clone(d.stored.of(file))
		}
	})
	b.storing.Lock()
	defer b.storing.Unlock()
	byDir := map[*dataDir]offsets{}
	for _, d := range b.dirs {
		byDir[d] = offsets{}
	}
	for tp, offset := range now {
		p := b.partitions.Get(tp.Topic, tp.Partition)
		if p == nil {
			continue
		}
		if file == commitlog.RecoveryPointFile {
			offset = min(offset, p.Log().RecoveryPoint()) // the log may have been cut since
		}
		byDir[b.dirOf(p)][tp] = offset
	}
	for d, known := range byDir {
		for tp, offset := range unopened[d] {
			if _, open := now[tp]; !open {
				known[tp] = offset
			}
		}
		b.write(d, file, known)
	}
}

// unstore removes partitions from all checkpoint files.
func (b *Broker) unstore(gone []commitlog.TopicPartition) {
	b.storing.Lock()
	defer b.storing.Unlock()
	for _, d := range b.dirs {
		for _, file := range checkpointFiles() {
			rest := maps.Clone(d.written[file])
			for _, tp := range gone {
				delete(rest, tp)
			}
			if len(rest) < len(d.written[file]) {
				b.write(d, file, rest)
			}
		}
	}
}

// remember stores what a partition is to go on from that is opened again, in d. Under
// the metadata's lock.
func (b *Broker) remember(d *dataDir, p *replica.Partition, recoveryPoint int64) {
	tp := name(p)
	b.forgetStored(tp)
	b.unstore([]commitlog.TopicPartition{tp})
	b.storing.Lock()
	defer b.storing.Unlock()
	for file, offset := range map[string]int64{commitlog.RecoveryPointFile: recoveryPoint, commitlog.LogStartFile: p.Log().StartOffset(),
		commitlog.HighWatermarkFile: p.HighWatermark()} {
		d.stored.note(file, tp, offset)
		now := maps.Clone(d.written[file])
		if now == nil {
			now = offsets{}
		}
		now[tp] = offset
		b.write(d, file, now)
	}
}

// write replaces a file unless it has the content already. Called with storing held.
func (b *Broker) write(d *dataDir, file string, now offsets) {
	if was, known := d.written[file]; d.err() != nil || known && maps.Equal(was, now) {
		return
	}
	path := filepath.Join(d.path, file)
	if err := commitlog.WriteOffsetCheckpoint(b.cfg.FS, path, now); err != nil {
		b.log.Error("cannot store a checkpoint; the next start checks more", "file", path, "error", err)
		if isStorageFailure(err) {
			b.failDir(d, err)
		}
		return
	}
	d.written[file] = now
}
