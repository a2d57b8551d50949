package broker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

// join opens the logs that are there, registers the broker with what it found,
// and follows the cluster from then on. The logs come first: what a crash took
// from them decides which partitions this broker may lead.
func (b *Broker) join(ctx context.Context, self cluster.Broker) error {
	clean, err := b.beginDirs()
	if err != nil {
		return err
	}
	begun := time.Now()
	cut, err := b.openFound()
	if err == nil {
		b.metadata.Subscribe(b.apply)
		err = b.member.Join(ctx, b.registration(self, clean, cut || b.rebooted(clean)))
	}
	if err != nil {
		b.unbegin(clean)
		return explainJoin(err)
	}
	b.joined = true
	b.highWatermarkStep() // what recovery cut has been told, and is not to be told again
	b.recovered.log(b.log, clean, time.Since(begun))
	if err := b.noteMembership(); err != nil {
		return err
	}
	close(b.noted)
	return nil
}

// unbegin puts back the marks of a clean stop: nothing has been written.
func (b *Broker) unbegin(clean bool) {
	for _, d := range b.dirs {
		if clean && d.err() == nil {
			if err := b.markClean(d, -1); err != nil {
				b.log.Warn("the next start checks more than it need to", "dir", d.path, "error", err)
			}
		}
	}
}

func (b *Broker) registration(self cluster.Broker, clean, lost bool) cluster.Registration {
	r := cluster.Registration{
		ClusterID: b.identity.ClusterID, Broker: self,
		BootID: bootID(), DirectoryID: b.identity.DirectoryID,
		Clean: clean, Lost: lost, Replaced: b.cfg.ReplacedDisk,
	}
	for _, d := range b.dirs[1:] {
		if d.err() != nil {
			r.DirectoriesOffline = true
			continue
		}
		r.MoreDirectoryIDs = append(r.MoreDirectoryIDs, d.identity.DirectoryID)
	}
	return r
}

// openFound opens every log in the data directories. cut tells whether recovery
// took records below a high watermark that was stored: records that were
// acknowledged, whoever had them.
func (b *Broker) openFound() (cut bool, err error) {
	found, err := b.findLogs()
	if err != nil {
		return false, fmt.Errorf("find the logs: %w", err)
	}
	marks := offsets{}
	for _, d := range b.dirs {
		for tp, offset := range d.stored.highWatermarks {
			marks[tp] = offset
		}
	}
	b.openMissing(found)
	for _, a := range found {
		p := b.partitions.GetByID(a.topic.ID, a.index)
		if p != nil && p.Log().EndOffset() < marks[a.name()] {
			cut = true
		}
	}
	return cut, nil
}

// findLogs finds the partitions' directories. Their topics are not known yet
// but by name and id.
func (b *Broker) findLogs() (found []assignment, err error) {
	b.settleMoves()
	b.located = map[commitlog.TopicPartition]*dataDir{}
	for i, d := range b.dirs {
		if d.err() != nil {
			continue
		}
		entries, err := b.cfg.FS.List(d.path)
		if err != nil && i > 0 {
			b.failDir(d, fmt.Errorf("list the data directory: %w", err))
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			topic, partition, ok := commitlog.ParseDirName(e.Name)
			if !e.Dir || !ok {
				continue
			}
			tp := commitlog.TopicPartition{Topic: topic, Partition: partition}
			if other := b.located[tp]; other != nil {
				return nil, fmt.Errorf("both %s and %s have a log of %s; move the one that is not wanted away", other.path, d.path, e.Name)
			}
			b.located[tp] = d
			d.partitions++
			id, ok, err := commitlog.ReadTopicID(b.cfg.FS, filepath.Join(d.path, e.Name))
			if err != nil || !ok {
				continue // it is opened, or put aside, when the cluster is known
			}
			found = append(found, assignment{topic: &cluster.Topic{Name: topic, ID: id, Internal: cluster.IsInternal(topic)}, index: partition})
		}
	}
	return found, nil
}

// dropStrays moves aside what the cluster does not have on this broker, so that
// it is neither served nor lost, and has the other logs as their topics want
// them. It is for the first image.
func (b *Broker) dropStrays(im *cluster.Image) error {
	var errs []error
	for tp, d := range b.located {
		p := b.partitions.Get(tp.Topic, tp.Partition)
		if b.assigned(im, tp, p) {
			continue
		}
		b.offline.Delete(tp)
		if p != nil {
			b.partitions.Remove(p)
			p.Fail(replica.ErrDeleted)
			if err := p.Log().Close(); err != nil && !errors.Is(err, commitlog.ErrOffline) {
				errs = append(errs, err)
				continue
			}
		}
		b.forgetPlace(tp)
		if d.err() == nil {
			errs = append(errs, b.setAside(filepath.Join(d.path, commitlog.DirName(tp.Topic, tp.Partition))))
		}
	}
	b.forgetStrays(im)
	for _, t := range im.Topics() {
		b.reconfigure(t)
	}
	return errors.Join(errs...)
}

// assigned tells whether the cluster has a replica of a partition here. p is the
// one that was found, nil if it could not be opened.
func (b *Broker) assigned(im *cluster.Image, tp commitlog.TopicPartition, p *replica.Partition) bool {
	t := im.Topic(tp.Topic)
	if t == nil || int(tp.Partition) >= len(t.Partitions) || p != nil && p.TopicID() != t.ID {
		return false
	}
	return slices.Contains(t.Partitions[tp.Partition].Replicas, b.cfg.NodeID)
}
