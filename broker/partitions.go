package broker

import (
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

// assignment is a partition that this broker is to hold.
type assignment struct {
	topic *cluster.Topic
	index int32
	new   bool // made since the broker started, so that it has no log yet
}

func (a assignment) state() cluster.Partition { return a.topic.Partitions[a.index] }

func (a assignment) name() commitlog.TopicPartition {
	return commitlog.TopicPartition{Topic: a.topic.Name, Partition: a.index}
}

// apply follows the cluster: it opens, leads, reconfigures and deletes this
// broker's partitions as the image has changed. It runs under the metadata's
// lock, so one at a time.
func (b *Broker) apply(old, new *cluster.Image) {
	b.groups.SetImage(new) // before a group is led here: it decides on the topics that it knows
	all := b.reconfigureNode(old, new) && old != nil
	if old == nil {
		if err := b.dropStrays(new); err != nil {
			b.log.Error("cannot put aside what does not belong here", "error", err)
		}
	}
	if t := new.Topic(cluster.OffsetsTopic); t != nil {
		b.groups.SetPartitions(int32(len(t.Partitions)))
	}
	var add []assignment
	var deleted []string
	var gone []commitlog.TopicPartition
	cluster.DiffTopics(old, new, func(was, is *cluster.Topic) {
		if was != nil && (is == nil || is.ID != was.ID) {
			b.deleteTopic(was)
			deleted = append(deleted, was.Name)
			for i := range was.Partitions {
				gone = append(gone, commitlog.TopicPartition{Topic: was.Name, Partition: int32(i)})
			}
			was = nil
		}
		if is == nil {
			return
		}
		if was != nil && !maps.Equal(was.Config, is.Config) {
			b.reconfigure(is)
		}
		if was != nil && samePartitions(was, is) {
			return
		}
		for i := range is.Partitions {
			a := assignment{is, int32(i), old != nil && (was == nil || i >= len(was.Partitions) || !b.holds(was.Partitions[i]))}
			switch {
			case !b.holds(is.Partitions[i]):
				if b.dropReplica(a) {
					gone = append(gone, a.name())
				}
			case was == nil || i >= len(was.Partitions) || !was.Partitions[i].Equal(is.Partitions[i]):
				add = append(add, a)
			}
		}
	})
	if all {
		for _, t := range new.Topics() {
			b.reconfigure(t)
		}
	}
	b.unstore(gone) // before a later topic of the name is opened
	b.openMissing(add)
	b.serve(add)
	b.fetch(old, new, add)
	b.reviewISR(old, new, add)
	for _, name := range deleted {
		b.api.ForgetTopic(name)
	}
	if len(deleted) > 0 {
		b.groups.TopicsDeleted(deleted...)
	}
	b.api.ImageChanged()
}

// openMissing opens the logs that are not open, several at a time, and makes
// their partitions findable.
func (b *Broker) openMissing(wanted []assignment) {
	var mu sync.Mutex // guards opened
	var opened []*replica.Partition
	var g errgroup.Group
	g.SetLimit(b.openingThreads(wanted))
	for _, a := range wanted {
		if b.partitions.GetByID(a.topic.ID, a.index) != nil {
			continue
		}
		d, err := b.place(a)
		if err != nil {
			b.setOffline(a, err)
			continue
		}
		g.Go(func() error {
			p, recovery, err := b.openPartition(a, d)
			if err != nil {
				b.setOffline(a, err)
				if isStorageFailure(err) {
					b.failDir(d, err)
				}
				return nil // the others go on
			}
			b.recovered.add(recovery)
			mu.Lock()
			opened = append(opened, p)
			mu.Unlock()
			return nil
		})
	}
	_ = g.Wait() // no function fails
	if len(opened) > 0 {
		b.partitions.Add(opened...)
	}
	// What was stored of a log is true until it is open, and of no later log of that name.
	for _, p := range opened {
		d := b.dirOf(p)
		d.stored.forget(name(p))
		if d.err() != nil { // since it was opened
			b.failPartition(p, d)
		}
	}
}

// makingThreads is how many logs are made at a time. Each waits for its file that says
// whose log it is to be durable, and the disk syncs as much for many as for one.
const makingThreads = 128

// openingThreads is how many logs are opened at a time: as many as is said, and more
// where there is nothing to read.
func (b *Broker) openingThreads(wanted []assignment) int {
	if slices.ContainsFunc(wanted, func(a assignment) bool { return !a.new }) {
		return b.recoveryThreads()
	}
	return max(b.recoveryThreads(), makingThreads)
}

// serve makes this broker the leader, or not, of partitions as the image says.
func (b *Broker) serve(wanted []assignment) {
	var g errgroup.Group
	g.SetLimit(b.recoveryThreads())
	for _, a := range wanted {
		p := b.partitions.GetByID(a.topic.ID, a.index)
		if p == nil {
			continue // offline
		}
		g.Go(func() error {
			b.served(p, a, b.setRole(p, a))
			return nil // the others go on
		})
	}
	_ = g.Wait() // no function fails
}

// served notes how taking up a role has gone.
func (b *Broker) served(p *replica.Partition, a assignment, err error) {
	switch {
	case errors.Is(err, replica.ErrOffline): // which its failure has told
	case err != nil:
		b.setOffline(a, err)
		if isStorageFailure(err) {
			b.failDir(b.dirOf(p), err)
		}
	default:
		if _, was := b.offline.LoadAndDelete(a.name()); was {
			b.reportDisk()
		}
	}
}

func (b *Broker) setRole(p *replica.Partition, a assignment) error {
	state := a.state()
	if state.Leader != b.cfg.NodeID {
		err := p.Follow(state, b.cfg.Now())
		b.resignGroups(a, state.LeaderEpoch)
		return err
	}
	if err := p.Lead(state, b.cfg.Now()); err != nil {
		return err
	}
	if a.topic.Name == cluster.OffsetsTopic {
		b.groups.Elect(a.index, state.LeaderEpoch, newOffsetsLog(p, state.LeaderEpoch, b.cfg.Now))
	}
	return nil
}

func (b *Broker) resignGroups(a assignment, epoch int32) {
	if a.topic.Name == cluster.OffsetsTopic {
		b.groups.Resign(a.index, epoch)
	}
}

func (b *Broker) openPartition(a assignment, d *dataDir) (*replica.Partition, commitlog.Recovery, error) {
	tp := a.name()
	dir := filepath.Join(d.path, commitlog.DirName(tp.Topic, tp.Partition))
	if err := b.claimDir(dir, a.topic.ID); err != nil {
		return nil, commitlog.Recovery{}, err
	}
	logCfg, topicCfg := b.settingsOf(a.topic)
	log := b.log.With("topic", tp.Topic, "partition", tp.Partition)
	l, recovery, err := commitlog.Open(b.cfg.FS, dir, logCfg, commitlog.OpenOptions{
		RecoveryPoint: d.stored.recoveryPoint[tp],
		LogStart:      d.stored.logStart[tp],
		CleanedTo:     d.stored.cleaned[tp],
		Holes:         d.stored.has(commitlog.CleanerFile, tp),
		Clean:         d.clean,
		Now:           b.cfg.Now(),
		Log:           log,
		Files:         b.files,
	})
	if err != nil {
		return nil, recovery, err
	}
	if hw, ok := d.stored.highWatermarks[tp]; ok && l.EndOffset() < hw {
		log.Warn("the log ends below the high watermark that was stored: records that were acknowledged are gone",
			"end", l.EndOffset(), "high_watermark", hw)
	}
	return replica.New(l, replica.Options{
		Topic: tp.Topic, TopicID: a.topic.ID, Partition: tp.Partition,
		BrokerID: b.cfg.NodeID, HighWatermark: d.stored.highWatermarks[tp],
		GroupFsync: !b.cfg.NoGroupFsync,
		LagMax:     b.cfg.ReplicaLagMax,
		Notify:     b.flusher.notify,
		ISRDue:     b.isrDue,
		Live:       b.isLive,
		Cut:        b.lowerRecoveryPoint,
		Failed:     b.storageFailed,
	}, topicCfg), recovery, nil
}

// claimDir makes a partition's directory its topic's. One that another topic of
// the same name has left is moved out of the way, not lost.
func (b *Broker) claimDir(dir string, id cluster.TopicID) error {
	if err := b.cfg.FS.MkdirAll(dir); err != nil {
		return err
	}
	have, ok, err := commitlog.ReadTopicID(b.cfg.FS, dir)
	switch {
	case err != nil:
		return err
	case ok && have == id:
		return nil
	case ok:
		if err := b.setAside(dir); err != nil {
			return err
		}
		if err := b.cfg.FS.MkdirAll(dir); err != nil {
			return err
		}
	}
	return commitlog.WriteTopicID(b.cfg.FS, dir, id)
}

// holds tells whether this broker has a replica of a partition.
func (b *Broker) holds(p cluster.Partition) bool { return slices.Contains(p.Replicas, b.cfg.NodeID) }

// fetch has the partitions that follow a leader fetched from it.
func (b *Broker) fetch(old, im *cluster.Image, wanted []assignment) {
	if b.fetchers == nil {
		return
	}
	var list []*replica.Partition
	for _, a := range wanted {
		if p := b.partitions.GetByID(a.topic.ID, a.index); p != nil {
			list = append(list, p)
		}
	}
	if !slices.EqualFunc(brokersOf(old), im.Brokers, sameLife) {
		list = b.partitions.All() // a leader may be there that was not
	}
	b.fetchers.follow(im, list)
}

func brokersOf(im *cluster.Image) []cluster.Broker {
	if im == nil {
		return nil
	}
	return im.Brokers
}

func sameLife(a, b cluster.Broker) bool { return a.ID == b.ID && a.Epoch == b.Epoch }

// dropReplica removes this broker's log of a partition that has other replicas
// by now. It returns whether there was one.
func (b *Broker) dropReplica(a assignment) bool {
	if b.located[a.name()] == nil {
		return false
	}
	b.log.Info("this broker is no longer a replica of a partition, whose log it removes", "topic", a.topic.Name, "partition", a.index)
	b.removePartition(a)
	return true
}

// deleteTopic ends the partitions of a deleted topic and removes their logs.
func (b *Broker) deleteTopic(t *cluster.Topic) {
	if t.Name == cluster.OffsetsTopic {
		b.groups.SetPartitions(0)
	}
	for i := range t.Partitions {
		b.removePartition(assignment{topic: t, index: int32(i)})
	}
}

// removePartition ends a partition and removes its log.
func (b *Broker) removePartition(a assignment) {
	b.offline.Delete(a.name())
	b.forgetPlace(a.name())
	p := b.partitions.GetByID(a.topic.ID, a.index)
	if p == nil {
		return
	}
	b.withdraw(p, a, replica.ErrDeleted)
	b.mover.nudge()
	if err := p.Log().Delete(); err != nil {
		b.log.Error("cannot remove the log of a partition", "topic", a.topic.Name, "partition", a.index, "error", err)
	}
}

// withdraw ends the service of a partition, for why, and returns when no append is
// under way. Under the metadata's lock.
func (b *Broker) withdraw(p *replica.Partition, a assignment, why error) {
	b.resignGroups(a, -1)
	b.partitions.Remove(p)
	if b.fetchers != nil {
		b.fetchers.forget(p)
	}
	p.Fail(why)
}

func (b *Broker) reconfigure(t *cluster.Topic) {
	logCfg, topicCfg := b.settingsOf(t)
	for i := range t.Partitions {
		if p := b.partitions.GetByID(t.ID, int32(i)); p != nil {
			p.SetConfig(topicCfg)
			p.Log().UpdateConfig(logCfg)
		}
	}
}

// setOffline notes why a partition is not served. A later try may mend it.
func (b *Broker) setOffline(a assignment, err error) {
	if _, known := b.offline.Swap(a.name(), offlinePartition{a, err}); known {
		return // said before
	}
	b.log.Error("partition is offline", "topic", a.topic.Name, "partition", a.index, "error", err)
}

type offlinePartition struct {
	assignment
	err error
}

// retryOffline tries again to open what could not be opened for want of room or
// files. A damaged log stays as it is.
func (b *Broker) retryOffline() {
	var again []assignment
	b.offline.Range(func(_, v any) bool {
		o := v.(offlinePartition)
		var damaged *commitlog.CorruptionError
		if !errors.As(o.err, &damaged) {
			again = append(again, o.assignment)
		}
		return true
	})
	if len(again) == 0 {
		return
	}
	b.metadata.View(func(im *cluster.Image) {
		// The topic may have been deleted since.
		again = slices.DeleteFunc(again, func(a assignment) bool { return im.TopicByID(a.topic.ID) == nil })
		b.openMissing(again)
		b.serve(again)
		b.fetch(im, im, again)
	})
}

// recoveryReport sums up what opening the logs found.
type recoveryReport struct {
	logs, unclean, cutBytes, segments, checkedBytes, indexes atomic.Int64
}

func (r *recoveryReport) add(rec commitlog.Recovery) {
	r.logs.Add(1)
	if !rec.Clean {
		r.unclean.Add(1)
	}
	r.cutBytes.Add(rec.CutBytes)
	r.segments.Add(int64(rec.SegmentsChecked))
	r.checkedBytes.Add(rec.BytesChecked)
	r.indexes.Add(int64(rec.IndexesRebuilt))
}

func (r *recoveryReport) log(log *slog.Logger, clean bool, took time.Duration) {
	if r.logs.Load() == 0 {
		return
	}
	log.Info("logs opened", "logs", r.logs.Load(), "clean_stop", clean, "recovered", r.unclean.Load(),
		"checked_segments", r.segments.Load(), "checked_bytes", r.checkedBytes.Load(), "cut_bytes", r.cutBytes.Load(),
		"indexes_rebuilt", r.indexes.Load(), "took", took.Round(time.Millisecond))
}
