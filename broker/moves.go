package broker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/sluice-io/sluice/broker/api"
	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
)

const (
	// futureSuffix ends the name of the directory that a log is being copied to (KIP-113).
	futureSuffix = "-future"
	// movedSuffix ends the name of a copy that is whole and on disk, while the log that it
	// replaces goes.
	movedSuffix = "-moved"
	// moveReadBytes is how much is copied at a time.
	moveReadBytes = 4 << 20
	// moveRetry is how long a move rests that could not go on, for want of room for example.
	moveRetry = 30 * time.Second
)

// mover copies logs from one data directory to another while they are served, and
// has the copy take the log's place when it has everything. It works on one log at
// a time, in turns.
//
// What a crash leaves is unambiguous. A directory ...-future is a copy on its way:
// it is gone on with. A directory ...-moved has all that the log had when its
// partition was last served: it takes the log's place where that is gone, and is
// removed where it is not.
type mover struct {
	b    *Broker
	wake chan struct{}

	mu    sync.Mutex // taken after the metadata's lock
	moves []*move    // guarded by mu
}

// move is one log on its way. Its log belongs to the mover's goroutine.
type move struct {
	topicID   cluster.TopicID
	tp        commitlog.TopicPartition
	to        *dataDir
	log       *commitlog.Log
	notBefore time.Time
	cancelled bool // guarded by mover.mu
}

func newMover(b *Broker) *mover {
	return &mover{b: b, wake: make(chan struct{}, 1)}
}

var (
	errMoveCancelled = errors.New("the move is cancelled")
	errMoveGap       = errors.New("the log ends behind a gap that has no batch")
)

// request asks for a partition's log to be moved to a data directory. To where it is
// means to leave it there.
func (m *mover) request(p *replica.Partition, path string) error {
	to, err := m.b.dirAt(path)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.moves {
		if v.tp == name(p) && v.topicID == p.TopicID() {
			if v.to == to && !v.cancelled {
				return nil
			}
			v.cancelled = true
		}
	}
	defer m.nudge()
	if m.b.dirOf(p) == to {
		return nil
	}
	dir := filepath.Join(to.path, fmt.Sprintf("%s.%s%s", commitlog.DirName(p.Topic(), p.Index()), strings.ReplaceAll(randomID(), "-", "_"), futureSuffix))
	return m.begin(p, to, dir)
}

// begin opens the copy in dir, which may hold a part of it. Called with mu held.
func (m *mover) begin(p *replica.Partition, to *dataDir, dir string) error {
	if err := commitlog.WriteTopicID(m.b.cfg.FS, dir, p.TopicID()); err != nil {
		return fmt.Errorf("move a log: %w", err)
	}
	l, _, err := commitlog.Open(m.b.cfg.FS, dir, p.Log().Config(), commitlog.OpenOptions{Now: m.b.cfg.Now(), Log: m.b.log, Files: m.b.files})
	if err != nil {
		return fmt.Errorf("move a log: %w", err)
	}
	m.b.log.Info("a log is being moved to another data directory", "topic", p.Topic(), "partition", p.Index(), "from", p.Log().Dir(), "to", to.path)
	m.moves = append(m.moves, &move{topicID: p.TopicID(), tp: name(p), to: to, log: l})
	return nil
}

func (m *mover) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// list tells of the moves under way.
func (m *mover) list() []api.FutureLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []api.FutureLog
	for _, v := range m.moves {
		if p := m.b.partitions.GetByID(v.topicID, v.tp.Partition); p != nil && !v.cancelled {
			lag := max(p.Log().EndOffset()-v.log.EndOffset(), 0)
			out = append(out, api.FutureLog{Dir: v.to.path, Topic: v.tp.Topic, Partition: v.tp.Partition, Bytes: v.log.Size(), Lag: lag})
		}
	}
	return out
}

// start has the moves gone on with until ctx ends; wait returns when that has stopped.
func (m *mover) start(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	running.Go(func() { m.run(ctx) })
	return running.Wait
}

// run goes on with the moves in turn until ctx ends. What is not done then is gone on
// with at the next start.
func (m *mover) run(ctx context.Context) {
	m.resume()
	for ctx.Err() == nil {
		pause := m.round(ctx, m.b.cfg.Now())
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.wake:
		}
		timer.Stop()
	}
	for _, v := range m.all() {
		v.log.Abort()
	}
}

func (m *mover) all() []*move {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*move(nil), m.moves...)
}

// round takes one step of each move, and returns how long nothing is to be done then.
func (m *mover) round(ctx context.Context, now time.Time) (pause time.Duration) {
	pause = time.Hour // or until another move is asked for
	for _, v := range m.all() {
		if ctx.Err() != nil {
			return 0
		}
		p, err := m.partition(v)
		wait := max(v.notBefore.Sub(now), m.b.throttles.moves.Until(now).Sub(now))
		if err == nil && wait > 0 {
			pause = min(pause, wait)
			continue
		}
		done := false
		if err == nil {
			done, err = m.step(v, p, now)
		}
		switch {
		case err != nil && !m.goesOn(v, err):
			m.drop(v)
		case err != nil:
			v.notBefore = now.Add(moveRetry)
			pause = min(pause, moveRetry)
		case done:
			m.forget(v)
		default:
			pause = 0
		}
	}
	return pause
}

// goesOn says what stands in a move's way, and whether it is to be tried again.
func (m *mover) goesOn(v *move, err error) bool {
	switch {
	case errors.Is(err, errMoveCancelled):
		return false
	case errors.Is(err, commitlog.ErrNoSpace):
		m.b.log.Warn("a move of a log waits for room", "topic", v.tp.Topic, "partition", v.tp.Partition, "to", v.to.path, "error", err)
		return true
	}
	m.b.log.Error("a move of a log is given up; ask for it again", "topic", v.tp.Topic, "partition", v.tp.Partition, "to", v.to.path, "error", err)
	return false
}

func (m *mover) forget(v *move) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.moves {
		if m.moves[i] == v {
			m.moves = append(m.moves[:i], m.moves[i+1:]...)
			return
		}
	}
}

// drop ends a move and removes its copy.
func (m *mover) drop(v *move) {
	m.forget(v)
	if err := v.log.Delete(); err != nil && v.to.err() == nil {
		m.b.log.Warn("cannot remove the copy of a log that is not moved; the next start goes on with it", "dir", v.log.Dir(), "error", err)
	}
}

// step copies a piece, or has a copy that has everything take the log's place.
func (m *mover) step(v *move, p *replica.Partition, now time.Time) (done bool, err error) {
	n, err := copyPiece(p.Log(), v.log, now)
	if err != nil || n > 0 {
		m.b.throttles.moves.Take(n, now)
		return false, err
	}
	if _, err := v.log.Flush(); err != nil { // so that little is left to sync while nobody is served
		return false, m.failed(v, err)
	}
	return true, m.replace(v, now)
}

// partition is that of a move that is still to be made.
func (m *mover) partition(v *move) (*replica.Partition, error) {
	m.mu.Lock()
	cancelled := v.cancelled
	m.mu.Unlock()
	p := m.b.partitions.GetByID(v.topicID, v.tp.Partition)
	switch {
	case cancelled || p == nil: // the topic, or the replica here, is gone
		return nil, errMoveCancelled
	case errors.Is(p.Err(), replica.ErrOffline):
		return nil, p.Err()
	case v.to.err() != nil:
		return nil, v.to.err()
	}
	return p, nil
}

// failed takes the directory offline when its disk is why a move did not go on.
func (m *mover) failed(v *move, err error) error {
	if isStorageFailure(err) {
		m.b.failDir(v.to, err)
	}
	return err
}

// copyPiece brings to what from has beyond it, a piece at a time; 0 when that is nothing.
func copyPiece(from, to *commitlog.Log, now time.Time) (int, error) {
	if err := align(from, to, now); err != nil {
		return 0, err
	}
	region, err := from.Read(to.EndOffset(), moveReadBytes, from.EndOffset(), true)
	if errors.Is(err, commitlog.ErrOffsetOutOfRange) {
		return 0, nil // cut or expired since; the next look tells
	}
	if err != nil || region.Len == 0 {
		return 0, err
	}
	defer region.Release()
	batches := make([]byte, region.Len)
	if _, err := region.File.ReadAt(batches, region.Pos); err != nil {
		return 0, fmt.Errorf("read %s: %w", from.Dir(), err)
	}
	if _, err := to.AppendAsFollower(batches, from.LatestEpoch(), now); err != nil {
		return 0, err
	}
	return len(batches), nil
}

// align cuts off a copy what its log has lost since: by truncation, as a follower, or
// at its start.
func align(from, to *commitlog.Log, now time.Time) error {
	start := from.StartOffset()
	agreed := agreement(from, to)
	switch {
	case to.EndOffset() < start || agreed <= to.StartOffset() && to.EndOffset() > to.StartOffset():
		return to.TruncateFullyAt(start, now)
	case agreed < to.EndOffset():
		return to.TruncateTo(agreed, now)
	}
	return nil
}

// agreement is the offset below which a log and its copy have the same records, by
// their leader epochs (KIP-279).
func agreement(from, to *commitlog.Log) int64 {
	epoch := min(from.LatestEpoch(), to.LatestEpoch())
	for epoch >= 0 {
		a, endA := from.EndOffsetForEpoch(epoch)
		b, endB := to.EndOffsetForEpoch(epoch)
		if a == b {
			return min(endA, endB)
		}
		epoch = min(a, b)
	}
	return min(from.StartOffset(), to.EndOffset())
}

// replace has a copy take the place of its log. The partition is not served
// meanwhile: clients are told to ask again.
func (m *mover) replace(v *move, now time.Time) (err error) {
	var old string
	m.b.metadata.View(func(im *cluster.Image) {
		var p *replica.Partition
		if p, err = m.partition(v); err != nil {
			return
		}
		t := im.TopicByID(v.topicID)
		if t == nil {
			err = errMoveCancelled
			return
		}
		a := assignment{topic: t, index: v.tp.Partition}
		m.b.withdraw(p, a, replica.ErrNotLeader) // clients ask again
		old, err = m.exchange(v, p, now)
		again := []assignment{a}
		m.b.openMissing(again)
		m.b.serve(again)
		m.b.fetch(im, im, again)
	})
	if err != nil {
		return err
	}
	m.b.log.Info("a log was moved to another data directory", "topic", v.tp.Topic, "partition", v.tp.Partition, "from", filepath.Dir(old), "to", v.to.path)
	if _, err := commitlog.RemoveDeletedDirs(m.b.cfg.FS, filepath.Dir(old)); err != nil {
		m.b.log.Warn("cannot remove a log that was moved away; the next start does", "dir", old, "error", err)
	}
	return nil
}

// exchange completes a copy, closes both logs and puts the copy in the log's place. It
// returns the directory that is to be removed. With an error the log is where it was,
// or the copy's directory is offline and the next start goes on.
func (m *mover) exchange(v *move, p *replica.Partition, now time.Time) (old string, err error) {
	from, b := p.Log(), m.b
	home := b.dirOf(p)
	defer func() {
		if err != nil {
			from.Abort()
			b.remember(home, p, from.RecoveryPoint())
		}
	}()
	if err := complete(from, v.log, now); err != nil {
		return "", err
	}
	if err := v.log.Close(); err != nil {
		return "", m.failed(v, err)
	}
	final := filepath.Join(v.to.path, commitlog.DirName(v.tp.Topic, v.tp.Partition))
	whole := strings.TrimSuffix(v.log.Dir(), futureSuffix) + movedSuffix
	if err := b.rename(v.log.Dir(), whole); err != nil {
		return "", m.failed(v, err)
	}
	if old, err = from.Bury(); err != nil {
		b.failDir(home, err) // it may be renamed: nothing else may be made in its place
		return "", err
	}
	b.relocate(v.tp, v.to)
	b.remember(v.to, p, v.log.EndOffset())
	if err := b.rename(whole, final); err != nil {
		b.failDir(v.to, err) // nothing else may be made in its place
	}
	return old, nil
}

// complete copies what is left.
func complete(from, to *commitlog.Log, now time.Time) error {
	for {
		n, err := copyPiece(from, to, now)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if to.EndOffset() != from.EndOffset() {
			return errMoveGap
		}
		return to.SetStartOffset(from.StartOffset())
	}
}

// movedDir takes the name of a copy's directory apart.
var movedDir = regexp.MustCompile(`^(.+-[0-9]+)\.[0-9A-Za-z_]{22}(` + futureSuffix + `|` + movedSuffix + `)$`)

// resume goes on with the moves that the last stop interrupted.
func (m *mover) resume() {
	m.b.eachCopy(futureSuffix, func(d *dataDir, plain, dir string) error {
		topic, index, _ := commitlog.ParseDirName(plain)
		id, known, err := commitlog.ReadTopicID(m.b.cfg.FS, dir)
		if err != nil {
			return err
		}
		p := m.b.partitions.Get(topic, index)
		switch {
		case p == nil && m.b.isOffline(topic, index):
			return nil // until its disk is back
		case p == nil || !known || p.TopicID() != id || m.b.dirOf(p) == d:
			return m.b.discard(d, dir)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.begin(p, d, dir)
	})
}

// settleMoves ends the exchanges that a crash cut short, before logs are looked for.
func (b *Broker) settleMoves() {
	all := true
	logs := map[string]bool{}
	for _, d := range b.dirs {
		entries, err := b.cfg.FS.List(d.path)
		all = all && d.err() == nil && err == nil
		for _, e := range entries {
			logs[e.Name] = true
		}
	}
	b.eachCopy(movedSuffix, func(d *dataDir, plain, dir string) error {
		switch {
		case logs[plain]:
			return b.discard(d, dir)
		case !all:
			return nil // the log may be in the directory that is offline
		}
		logs[plain] = true
		return b.rename(dir, filepath.Join(d.path, plain))
	})
}

// eachCopy calls fn with the copies of logs that are there, with the name that the
// log has. What fails is left for the next start.
func (b *Broker) eachCopy(suffix string, fn func(d *dataDir, plain, dir string) error) {
	for _, d := range b.dirs {
		if d.err() != nil {
			continue
		}
		entries, err := b.cfg.FS.List(d.path)
		for _, e := range entries {
			if parts := movedDir.FindStringSubmatch(e.Name); e.Dir && parts != nil && parts[2] == suffix {
				err = errors.Join(err, fn(d, parts[1], filepath.Join(d.path, e.Name)))
			}
		}
		if err != nil {
			b.log.Error("cannot go on with moves of logs; the next start tries again", "dir", d.path, "error", err)
		}
	}
}

// discard removes a directory as that of a deleted log.
func (b *Broker) discard(d *dataDir, dir string) error {
	to := strings.TrimSuffix(strings.TrimSuffix(dir, futureSuffix), movedSuffix) + commitlog.DeletedDirSuffix
	if err := b.cfg.FS.Rename(dir, to); err != nil {
		return err
	}
	_, err := commitlog.RemoveDeletedDirs(b.cfg.FS, d.path)
	return err
}

// rename gives a directory another name, for good.
func (b *Broker) rename(dir, to string) error {
	if err := b.cfg.FS.Rename(dir, to); err != nil {
		return err
	}
	return commitlog.SyncDir(b.cfg.FS, filepath.Dir(to))
}
