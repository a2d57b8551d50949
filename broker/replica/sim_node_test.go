package replica_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

const simDataDir = "/data"

// node is a broker of the simulation: real logs on a disk that can lose power, real
// partitions and fetchers, and in between what the broker package does.
type node struct {
	w    *world
	id   int32
	disk *disk
	boot int
	// clean says that the last stop was a clean one; it is a file in the real broker.
	clean bool

	up   bool
	life int // of the process
	// frozen: nothing happens in the process before.
	frozen time.Time
	// stopping: it has asked to be shut down, and hears no more.
	stopping bool

	// client has the session of a process, clientLife.
	client     *cluster.MemoryClient
	clientLife int
	epoch      int64 // of the registration, 0 if there is none
	lost       bool
	unclean    bool
	metadata   *cluster.Metadata
	image      *cluster.Image // what it goes by
	parts      map[cluster.TopicID]*replica.Partition
	sorted     []*replica.Partition // the same, by topic
	found      map[string]*foundLog
	fetchers   map[int32]*fetcherLoop
	flushes    map[*replica.Partition]bool
	marks      map[commitlog.TopicPartition]int64 // as stored
	throttle   *replica.Throttle
	ctl        *controller
	// aloneSince is when a partition's leader learned that it is the only one in
	// sync.
	aloneSince map[cluster.TopicID]time.Time
	parked     map[*parkedFetch]bool
}

// foundLog is a log that was on the disk at the start.
type foundLog struct {
	id  cluster.TopicID
	log *commitlog.Log
}

// logConfig makes segments that a few batches fill.
func (w *world) logConfig(config map[string]string) commitlog.Config {
	cfg := commitlog.Config{SegmentBytes: 700, IndexIntervalBytes: 150, DeleteDelay: -1}
	switch config["cleanup.policy"] {
	case "compact":
		cfg.Compact = true
		cfg.SegmentAge = 2 * time.Second
	case "delete":
		cfg.RetentionBytes = 1500
	}
	return cfg
}

// start is a start of the process on what is on the disk.
func (n *node) start() {
	n.life++
	n.up, n.stopping, n.epoch, n.lost = true, false, 0, false
	n.unclean = !n.clean
	n.metadata, n.image = cluster.NewMetadata(), nil
	n.parts, n.sorted, n.found = map[cluster.TopicID]*replica.Partition{}, nil, map[string]*foundLog{}
	n.fetchers, n.flushes = map[int32]*fetcherLoop{}, map[*replica.Partition]bool{}
	n.aloneSince, n.parked = map[cluster.TopicID]time.Time{}, map[*parkedFetch]bool{}
	n.throttle, n.ctl = &replica.Throttle{}, nil
	n.metadata.Subscribe(n.apply)
	n.openLogs()
	n.w.tracef("start %d, clean %v, lost %v", n.id, n.clean, n.lost)
	n.clean = false
	n.register()
	n.every(simISRTick, n.isrStep)
	n.every(700*time.Millisecond, n.storeMarks)
	n.every(1100*time.Millisecond, n.checkpoint)
	n.every(1500*time.Millisecond, n.upkeep)
	if n.w.mood.syncs {
		n.every(150*time.Millisecond, n.syncAll)
	}
}

func (n *node) every(d time.Duration, fn func()) {
	n.w.after(n.w.between(d/2, d*3/2), n, func() {
		fn()
		n.every(d, fn)
	})
}

// openLogs opens every log there is, so that it is known what was lost.
func (n *node) openLogs() {
	read := func(file string) map[commitlog.TopicPartition]int64 {
		m, err := commitlog.ReadOffsetCheckpoint(n.disk, filepath.Join(simDataDir, file))
		if err != nil {
			n.w.fail("node %d: %v", n.id, err)
		}
		return m
	}
	if err := n.disk.MkdirAll(simDataDir); err != nil {
		n.w.fail("node %d: %v", n.id, err)
	}
	if _, err := commitlog.RemoveDeletedDirs(n.disk, simDataDir); err != nil {
		n.w.fail("node %d: %v", n.id, err)
	}
	points, starts := read(commitlog.RecoveryPointFile), read(commitlog.LogStartFile)
	n.marks = read(commitlog.HighWatermarkFile)
	entries, err := n.disk.List(simDataDir)
	if err != nil {
		n.w.fail("node %d: %v", n.id, err)
	}
	// After a reboot without a clean stop anything may be gone.
	n.lost = n.unclean && n.w.store.told[n.id].boot != n.boot && n.life > 1
	for _, e := range entries {
		topic, _, ok := commitlog.ParseDirName(e.Name)
		if !e.Dir || !ok {
			continue
		}
		dir := filepath.Join(simDataDir, e.Name)
		id, ok, err := commitlog.ReadTopicID(n.disk, dir)
		if err != nil {
			n.w.fail("node %d: %v", n.id, err)
		}
		if !ok {
			continue // a power cut took the file that says whose log it is
		}
		tp := commitlog.TopicPartition{Topic: topic}
		log := n.openLog(dir, n.w.topicConfig(id), commitlog.OpenOptions{RecoveryPoint: points[tp], LogStart: starts[tp], Clean: !n.unclean})
		n.found[topic] = &foundLog{id, log}
		n.lost = n.lost || log.EndOffset() < n.marks[tp]
	}
}

func (n *node) openLog(dir string, config map[string]string, opt commitlog.OpenOptions) *commitlog.Log {
	opt.Now, opt.Log = n.w.now, n.w.log
	log, _, err := commitlog.Open(n.disk, dir, n.w.logConfig(config), opt)
	if err != nil {
		n.w.fail("node %d: %v", n.id, err)
	}
	return log
}

// register makes this broker a member, in a session of its own.
func (n *node) register() {
	s, w := n.w.store, n.w
	if n.epoch != 0 && s.registered[n.id].epoch == n.epoch {
		return
	}
	told := s.told[n.id]
	told.unclean, told.lost = told.unclean || n.unclean, told.lost || n.lost
	told.boot = n.boot
	if n.client != nil && n.clientLife != n.life {
		// An earlier process of this boot has certainly ended; of an earlier boot
		// the store knows nothing and waits for its session to end.
		if s.told[n.id].boot != n.boot {
			w.after(200*time.Millisecond, n, n.register)
			return
		}
		s.expire(n, n.client)
	}
	if n.client == nil {
		n.client, n.clientLife = s.memory.Open(), n.life
	}
	s.reach(n, func(c *cluster.MemoryClient) error {
		ctx := context.Background()
		session, err := c.Session(ctx)
		if err != nil {
			return err
		}
		path := fmt.Sprintf("/brokers/ids/%d", n.id)
		if err := c.Txn(ctx, cluster.CreateEphemeral(path, nil).In(session)); err != nil {
			return err
		}
		_, stat, err := c.Get(ctx, path)
		told.epoch = stat.Created
		s.registered[n.id], s.told[n.id] = told, told
		w.tracef("node %d registers in epoch %d, unclean %v, lost %v", n.id, told.epoch, told.unclean, told.lost)
		s.changed()
		return err
	}, func(err error) {
		switch {
		case err == nil || errors.Is(err, cluster.ErrNodeExists) && s.registered[n.id].epoch != 0: // or an answer was lost
			n.epoch = s.told[n.id].epoch
			n.storeMarks() // what was cut has been told, and is not to be told again
			n.forgetTold()
			n.watch()
			n.pumpAll()
		default:
			w.after(200*time.Millisecond, n, n.register)
		}
	})
}

// watch has the node look at what changed at the store.
func (n *node) watch() {
	n.w.after(n.w.between(time.Millisecond, 50*time.Millisecond), n, func() {
		switch {
		case n.stopping || n.w.faults.noStore[n.id]:
		case n.client == nil && n.epoch != 0:
			n.sessionEnded()
		case n.client == nil:
		default:
			if c := n.ctl; c != nil && c.image != nil {
				c.membersChanged()
			}
			if n.w.store.controller == nil {
				n.stand()
			}
		}
	})
}

// sessionEnded is what a broker does that hears of the end of its session: it
// leaves the office and registers again, as one that went on running.
func (n *node) sessionEnded() {
	if n.ctl != nil {
		n.ctl.leave()
	}
	n.unclean, n.lost = false, false
	n.epoch = 0
	n.register()
}

// forgetTold forgets what was told of the last stop once it has been decided on.
func (n *node) forgetTold() {
	im, s := n.image, n.w.store
	if im == nil || n.epoch == 0 {
		return
	}
	b, ok := im.Broker(n.id)
	if told := s.told[n.id]; ok && b.Epoch == n.epoch && told.epoch == n.epoch && told.undecided() {
		s.reach(n, func(*cluster.MemoryClient) error {
			if s.told[n.id].epoch == told.epoch {
				told.unclean, told.lost = false, false
				s.told[n.id] = told
			}
			return nil
		}, func(err error) {
			if err != nil {
				n.w.after(200*time.Millisecond, n, n.forgetTold)
			}
			n.pumpAll()
		})
	}
}

func (n *node) pumpAll() {
	for _, to := range n.w.nodes {
		if l := n.fetchers[to.id]; l != nil {
			l.pump()
		}
	}
}

// receive takes an update of a controller that means this registration.
func (n *node) receive(epoch int64, u *cluster.Update) error {
	if n.epoch != epoch {
		return cluster.ErrStaleBrokerEpoch
	}
	if n.w.broken.anyController {
		old := n.image
		if old == nil && !u.Full {
			return cluster.ErrStaleUpdate
		}
		n.apply(old, u.Apply(old))
		return nil
	}
	return n.metadata.Receive(u)
}

// apply follows the cluster.
func (n *node) apply(old, im *cluster.Image) {
	n.image = im
	if old == nil {
		for _, topic := range slices.Sorted(maps.Keys(n.found)) {
			f := n.found[topic]
			if im.TopicByID(f.id) == nil {
				n.w.tracef("node %d has a stray log of %s", n.id, topic)
				delete(n.found, topic)
				n.deleteLog(topic, f.log)
			}
		}
	}
	var assigned []*cluster.Topic
	cluster.DiffTopics(old, im, func(was, is *cluster.Topic) {
		if was != nil && (is == nil || is.ID != was.ID) {
			n.remove(was.ID)
			was = nil
		}
		if is != nil && (was == nil || !is.Partitions[0].Equal(was.Partitions[0])) {
			assigned = append(assigned, is)
		}
	})
	// The order of a difference is another in each process.
	slices.SortFunc(assigned, func(a, b *cluster.Topic) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range assigned {
		n.assign(t)
	}
	n.forgetTold()
	n.w.after(0, n, n.isrStep)
}

func (n *node) isLive(id int32) bool {
	b, ok := n.image.Broker(id)
	return ok && !b.ShuttingDown
}

func (n *node) must(err error) {
	if err != nil {
		n.w.fail("node %d: %v", n.id, err)
	}
}

// assign takes a partition's new state.
func (n *node) assign(t *cluster.Topic) {
	st := t.Partitions[0]
	if !slices.Contains(st.Replicas, n.id) {
		n.remove(t.ID)
		if f := n.found[t.Name]; f != nil {
			delete(n.found, t.Name)
			n.deleteLog(t.Name, f.log)
		}
		return
	}
	p := n.parts[t.ID]
	if p == nil {
		p = n.open(t)
	}
	if from, ok := p.Following(); ok && from != st.Leader {
		n.fetchers[from].f.Remove(p)
	}
	if st.Leader == n.id {
		n.w.check.leads(n, p, st)
		err := p.Lead(st, n.w.now)
		if err != nil {
			n.w.fail("node %d: %v", n.id, err)
		}
		n.noteAlone(p)
		n.w.check.led(n, p, st)
		return
	}
	n.must(p.Follow(st, n.w.now))
	if st.Leader == cluster.NoLeader {
		return
	}
	if n.w.broken.truncateToMark {
		n.must(p.Log().TruncateTo(p.HighWatermark(), n.w.now))
	}
	l := n.fetchers[st.Leader]
	if l == nil {
		l = &fetcherLoop{n: n, leader: n.w.nodes[st.Leader-1]}
		l.f = replica.NewFetcher(replica.FetcherConfig{
			Leader: st.Leader, Backoff: 100 * time.Millisecond, ResponseBytes: 2000, PartitionBytes: 600,
			Throttle: n.throttle, Throttled: func(*replica.Partition) bool { return true },
			Failed: func(p *replica.Partition, err error) { n.w.fail("node %d: %v", n.id, err) },
		})
		n.fetchers[st.Leader] = l
	}
	l.f.Add(p)
	l.pump()
}

// settled says that the store no longer has of this broker that it lost records.
// Before, it must not come to be in sync, or have others in sync with it: what is told
// of it would take it out again at its next start, when it has everything.
func (n *node) settled() bool { return n.epoch != 0 && !n.w.store.told[n.id].lost }

func (n *node) open(t *cluster.Topic) *replica.Partition {
	dir := filepath.Join(simDataDir, commitlog.DirName(t.Name, 0))
	tp := commitlog.TopicPartition{Topic: t.Name}
	f := n.found[t.Name]
	if f == nil || f.id != t.ID {
		n.must(n.disk.MkdirAll(dir))
		n.must(commitlog.WriteTopicID(n.disk, dir, t.ID))
		f = &foundLog{t.ID, n.openLog(dir, t.Config, commitlog.OpenOptions{})}
		delete(n.marks, tp)
	}
	delete(n.found, t.Name)
	cfg := replica.DefaultTopicConfig()
	cfg.MinInSync = minInSync(t)
	p := replica.New(f.log, replica.Options{
		Topic: t.Name, TopicID: t.ID, BrokerID: n.id,
		HighWatermark: n.marks[tp],
		LagMax:        simLagMax,
		Live:          n.isLive,
		GroupFsync:    !n.w.broken.noSyncAlone,
		Notify:        n.flushSoon,
		Cut:           n.storePoint,
		ISRDue:        func(p *replica.Partition) { n.w.after(0, n, func() { n.propose(p) }) },
		Failed:        func(_ *replica.Partition, err error) { n.w.fail("node %d: %v", n.id, err) },
	}, cfg)
	n.setPart(t.ID, p)
	return p
}

func minInSync(t *cluster.Topic) int {
	if t.Config["min.insync.replicas"] == "2" {
		return 2
	}
	return 1
}

// remove is for a partition that this node no longer has.
func (n *node) remove(id cluster.TopicID) {
	p := n.parts[id]
	if p == nil {
		return
	}
	if from, ok := p.Following(); ok {
		n.fetchers[from].f.Remove(p)
	}
	n.setPart(id, nil)
	p.Fail(replica.ErrDeleted)
	n.w.check.removed(n, p)
	n.deleteLog(p.Topic(), p.Log())
}

// deleteLog removes a log, and what was stored of it, which is not to be taken for
// that of a later topic of the name.
func (n *node) deleteLog(topic string, log *commitlog.Log) {
	tp := commitlog.TopicPartition{Topic: topic}
	n.must(log.Delete())
	delete(n.marks, tp)
	for _, file := range []string{commitlog.RecoveryPointFile, commitlog.LogStartFile, commitlog.HighWatermarkFile} {
		path := filepath.Join(simDataDir, file)
		stored, err := commitlog.ReadOffsetCheckpoint(n.disk, path)
		n.must(err)
		if _, ok := stored[tp]; ok {
			delete(stored, tp)
			n.must(commitlog.WriteOffsetCheckpoint(n.disk, path, stored))
		}
	}
}

// flushSoon syncs a partition after a while; what is appended meanwhile joins.
func (n *node) flushSoon(p *replica.Partition) {
	if n.flushes[p] {
		return
	}
	n.flushes[p] = true
	n.w.after(n.w.between(time.Millisecond, simFlushMax), n, func() {
		delete(n.flushes, p)
		if err := p.Flush(); err != nil && !errors.Is(err, replica.ErrDeleted) && !errors.Is(err, commitlog.ErrClosed) {
			n.w.fail("node %d: %v", n.id, err)
		}
	})
}

// each calls fn for all partitions, always in the same order.
func (n *node) each(fn func(*replica.Partition)) {
	for _, p := range n.sorted {
		fn(p)
	}
}

// setPart takes up a partition, or gives one up if p is nil.
func (n *node) setPart(id cluster.TopicID, p *replica.Partition) {
	delete(n.parts, id)
	n.sorted = slices.DeleteFunc(slices.Clone(n.sorted), func(p *replica.Partition) bool { return p.TopicID() == id })
	if p != nil {
		n.parts[id] = p
		n.sorted = append(n.sorted, p)
		slices.SortFunc(n.sorted, func(a, b *replica.Partition) int { return strings.Compare(a.Topic(), b.Topic()) })
	}
}

func (n *node) isrStep() { n.each(n.propose) }

// propose asks whom it takes for the controller to change who is in sync.
func (n *node) propose(p *replica.Partition) {
	if !n.settled() {
		return
	}
	ask, ok := p.ISRProposal(n.w.now)
	if !ok || n.image == nil {
		return
	}
	t := n.w.check.topics[ask.TopicID]
	t.asks = append(t.asks, ask)
	if n.w.broken.currentISR {
		// It does not wait for those who may be in sync by the answer.
		p.ISRAnswered(ask, cluster.Partition{}, cluster.ErrIneligibleReplica, n.w.now)
	}
	to, from, epoch := n.image.ControllerID, n.id, n.epoch
	if to < 1 {
		p.ISRAnswered(ask, cluster.Partition{}, cluster.ErrNotController, n.w.now)
		return
	}
	controller := n.w.nodes[to-1]
	n.w.call(n, controller, time.Second+n.w.mood.slowISR, func(answer func(func())) {
		n.w.after(n.w.between(0, n.w.mood.slowISR), controller, func() {
			controller.alterPartition(from, epoch, ask, func(st cluster.Partition, err error) {
				answer(func() {
					p.ISRAnswered(ask, st, err, n.w.now)
					n.noteAlone(p)
				})
			})
		})
	}, func() { p.ISRAnswered(ask, cluster.Partition{}, context.DeadlineExceeded, n.w.now) })
}

func (n *node) noteAlone(p *replica.Partition) {
	switch _, known := n.aloneSince[p.TopicID()]; {
	case !p.Alone():
		delete(n.aloneSince, p.TopicID())
	case !known:
		n.aloneSince[p.TopicID()] = n.w.now
	}
}

// storeMarks checkpoints the high watermarks.
func (n *node) storeMarks() {
	n.each(func(p *replica.Partition) {
		n.marks[commitlog.TopicPartition{Topic: p.Topic()}] = p.HighWatermark()
	})
	for topic, f := range n.found {
		tp := commitlog.TopicPartition{Topic: topic}
		n.marks[tp] = min(n.marks[tp], f.log.EndOffset())
	}
	n.must(commitlog.WriteOffsetCheckpoint(n.disk, filepath.Join(simDataDir, commitlog.HighWatermarkFile), n.marks))
}

// storePoint stores the recovery point of a log that was cut.
func (n *node) storePoint(p *replica.Partition) error {
	if n.w.broken.keepPoint {
		return nil
	}
	path := filepath.Join(simDataDir, commitlog.RecoveryPointFile)
	points, err := commitlog.ReadOffsetCheckpoint(n.disk, path)
	n.must(err)
	points[commitlog.TopicPartition{Topic: p.Topic()}] = p.Log().RecoveryPoint()
	return commitlog.WriteOffsetCheckpoint(n.disk, path, points)
}

func (n *node) checkpoint() {
	points, starts := map[commitlog.TopicPartition]int64{}, map[commitlog.TopicPartition]int64{}
	n.each(func(p *replica.Partition) {
		point, err := p.Log().Checkpoint()
		n.must(err)
		tp := commitlog.TopicPartition{Topic: p.Topic()}
		points[tp], starts[tp] = point, p.Log().StartOffset()
	})
	for topic, f := range n.found {
		point, err := f.log.Checkpoint()
		n.must(err)
		tp := commitlog.TopicPartition{Topic: topic}
		points[tp], starts[tp] = point, f.log.StartOffset()
	}
	n.must(commitlog.WriteOffsetCheckpoint(n.disk, filepath.Join(simDataDir, commitlog.RecoveryPointFile), points))
	n.must(commitlog.WriteOffsetCheckpoint(n.disk, filepath.Join(simDataDir, commitlog.LogStartFile), starts))
}

// syncAll makes everything durable at once.
func (n *node) syncAll() {
	n.each(func(p *replica.Partition) { n.must(p.Flush()) })
	n.checkpoint()
}

// upkeep is rolling, retention and compaction.
func (n *node) upkeep() {
	n.each(func(p *replica.Partition) {
		log := p.Log()
		_, err := log.RollIfDue(n.w.now)
		n.must(err)
		if log.ClosedUnsynced() && n.w.chance(50) {
			n.flushSoon(p)
		}
		_, err = log.Retain(n.w.now, p.HighWatermark())
		n.must(err)
		_, err = log.RemoveDeleted(n.w.now)
		n.must(err)
		if log.Config().Compact && n.w.chance(50) {
			_, err := commitlog.NewCleaner(commitlog.CleanerConfig{DedupeBytes: 1 << 12}).Clean(log, p.HighWatermark(), n.w.now)
			n.must(err)
		}
	})
}

// stop ends the process: at once, or cleanly.
func (n *node) stop(clean bool) {
	n.w.tracef("stop %d, clean %v", n.id, clean)
	n.each(func(p *replica.Partition) { n.closeLog(p.Log(), clean) })
	for _, f := range n.found {
		n.closeLog(f.log, clean)
	}
	if clean {
		n.storeMarks()
		points := map[commitlog.TopicPartition]int64{}
		starts := map[commitlog.TopicPartition]int64{}
		n.each(func(p *replica.Partition) {
			tp := commitlog.TopicPartition{Topic: p.Topic()}
			points[tp], starts[tp] = p.Log().SyncedOffset(), p.Log().StartOffset()
		})
		for topic, f := range n.found {
			tp := commitlog.TopicPartition{Topic: topic}
			points[tp], starts[tp] = f.log.SyncedOffset(), f.log.StartOffset()
		}
		n.must(commitlog.WriteOffsetCheckpoint(n.disk, filepath.Join(simDataDir, commitlog.RecoveryPointFile), points))
		n.must(commitlog.WriteOffsetCheckpoint(n.disk, filepath.Join(simDataDir, commitlog.LogStartFile), starts))
		n.clean = true
	}
	n.up, n.ctl = false, nil
	n.frozen = time.Time{}
	client := n.client
	if clean && client != nil {
		n.w.store.expire(n, client)
		return
	}
	n.w.after(simSession, nil, func() { n.w.store.expire(n, client) })
}

func (n *node) closeLog(log *commitlog.Log, clean bool) {
	if clean {
		n.must(log.Close())
		return
	}
	log.Abort()
}

// losePower is a stop of the machine.
func (n *node) losePower() {
	n.w.tracef("power cut of %d", n.id)
	if n.up {
		n.stop(false)
	}
	n.disk = n.disk.powerCut(n.w.rng)
	n.boot++
}
