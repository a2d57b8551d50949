package broker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/sluice-io/sluice/broker/api"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/dirlock"
)

// dataDir is one of the broker's data directories [log.dirs]. The first one
// holds the cluster store too, and without it the broker does not start. Any
// that fails takes the partitions in it offline, and no others, until the broker
// starts again: its disk may hold, or have lost, anything.
type dataDir struct {
	path     string // absolute
	lock     *dirlock.Lock
	identity commitlog.Properties
	clean    bool // the broker had stopped cleanly

	// stored is what was known of the logs here at the last stop; partitions is
	// how many there are. Both belong to whoever holds the metadata's lock.
	stored     checkpoints
	partitions int
	// written is the checkpoint files' content. Guarded by Broker.storing.
	written map[string]offsets

	failed atomic.Pointer[error]
}

// err is why the directory is offline, nil if it is not.
func (d *dataDir) err() error {
	if err := d.failed.Load(); err != nil {
		return *err
	}
	return nil
}

var (
	errDirOffline   = errors.New("data directory is offline")
	errNoDir        = errors.New("all data directories are offline")
	errDirUndecided = errors.New("the partition's log is in none of the data directories that are online, so it is taken to be in one that is not")
)

// isStorageFailure tells whether an error is the disk's: one that concerns all
// that is on it, unlike a damaged log or a full disk.
func isStorageFailure(err error) bool {
	return errors.Is(err, commitlog.ErrOffline) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EROFS) ||
		errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ESTALE)
}

// prepareDataDirs makes, tries and locks the data directories.
func (b *Broker) prepareDataDirs(ctx context.Context) error {
	for i, given := range b.cfg.dataDirs() {
		path, err := filepath.Abs(given)
		if err != nil {
			return fmt.Errorf("find the data directory %s: %w", given, err)
		}
		if slices.ContainsFunc(b.dirs, func(d *dataDir) bool { return d.path == path }) {
			return fmt.Errorf("log.dirs names the data directory %s twice", path)
		}
		d := &dataDir{path: path}
		d.lock, err = prepareDataDir(ctx, path)
		if err != nil && (i == 0 || errors.Is(err, errInUse)) {
			return err
		}
		b.dirs = append(b.dirs, d)
		if err != nil {
			b.failDir(d, err)
		}
	}
	return nil
}

func (b *Broker) releaseDirs() {
	for _, d := range b.dirs {
		if d.lock != nil {
			_ = d.lock.Release() // the process ends
		}
	}
}

// identifyDirs reads or makes the identities of the data directories. newID
// gives that of the cluster to the first directory if it has none yet.
func (b *Broker) identifyDirs(newID func() (string, error)) error {
	for i, d := range b.dirs {
		if d.err() != nil {
			continue
		}
		var err error
		d.identity, err = identify(b.cfg.FS, d.path, b.cfg.NodeID, b.identity.ClusterID, newID)
		switch {
		case err == nil && i == 0:
			b.identity = d.identity
		case err == nil:
		case i == 0 || errors.Is(err, errForeign):
			return err
		default:
			b.failDir(d, err)
		}
	}
	return nil
}

// beginDirs takes away the marks of a clean stop, and reads what was stored of
// the logs. clean is whether all directories had the mark.
func (b *Broker) beginDirs() (clean bool, err error) {
	clean = true
	for i, d := range b.dirs {
		if d.err() == nil {
			err = b.beginDir(d)
		}
		switch {
		case err != nil && i == 0:
			return false, err
		case err != nil:
			b.failDir(d, err)
			err = nil
		}
		clean = clean && d.clean && d.err() == nil
	}
	return clean, nil
}

func (b *Broker) beginDir(d *dataDir) (err error) {
	if d.clean, _, err = commitlog.TakeCleanShutdown(b.cfg.FS, d.path); err != nil {
		return fmt.Errorf("read the mark of a clean stop in %s: %w", d.path, err)
	}
	if _, err := commitlog.RemoveDeletedDirs(b.cfg.FS, d.path); err != nil {
		return fmt.Errorf("remove the logs of deleted topics in %s: %w", d.path, err)
	}
	d.stored = b.readCheckpoints(d)
	return nil
}

// place returns the directory of a partition's log. A new partition goes where
// the fewest are. One that existed before and is nowhere is made new only if
// there is no directory offline that may have it. Under the metadata's lock.
func (b *Broker) place(a assignment) (*dataDir, error) {
	if d := b.located[a.name()]; d != nil {
		if err := d.err(); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errDirOffline, d.path, err)
		}
		return d, nil
	}
	var best *dataDir
	for _, d := range b.dirs {
		switch {
		case d.err() != nil && !a.new:
			return nil, errDirUndecided
		case d.err() == nil && (best == nil || d.partitions < best.partitions):
			best = d
		}
	}
	if best == nil {
		return nil, errNoDir
	}
	b.located[a.name()] = best
	best.partitions++
	return best, nil
}

// relocate notes that a partition's log is in another directory. Under the metadata's lock.
func (b *Broker) relocate(tp commitlog.TopicPartition, to *dataDir) {
	if d := b.located[tp]; d != nil {
		d.partitions--
	}
	b.located[tp] = to
	to.partitions++
}

// forgetPlace notes that a partition is gone. Under the metadata's lock.
func (b *Broker) forgetPlace(tp commitlog.TopicPartition) {
	b.forgetStored(tp)
	if d := b.located[tp]; d != nil {
		d.partitions--
		delete(b.located, tp)
	}
}

// dirAt is the data directory of a path.
func (b *Broker) dirAt(path string) (*dataDir, error) {
	for _, d := range b.dirs {
		if d.path == path {
			return d, d.err()
		}
	}
	return nil, fmt.Errorf("%s is none of log.dirs", path)
}

// dirOf is the directory that a partition's log is in.
func (b *Broker) dirOf(p *replica.Partition) *dataDir {
	path := filepath.Dir(p.Log().Dir())
	for _, d := range b.dirs {
		if d.path == path {
			return d
		}
	}
	return b.dirs[0] // never: logs are opened in these only
}

// failDir takes a data directory offline, with all partitions in it. It may be
// called from any goroutine, with the metadata's lock or without.
func (b *Broker) failDir(d *dataDir, why error) {
	if !d.failed.CompareAndSwap(nil, &why) {
		return
	}
	b.log.Error("a data directory is offline until the broker is started again; its partitions are not served, all others are",
		"dir", d.path, "error", why)
	for _, p := range b.partitions.All() {
		if b.dirOf(p) == d {
			b.failPartition(p, d)
		}
	}
	if !slices.ContainsFunc(b.dirs, func(d *dataDir) bool { return d.err() == nil }) {
		b.notReady(errNoDir.Error())
	}
	b.reportDisk()
}

func (b *Broker) failPartition(p *replica.Partition, d *dataDir) {
	p.Fail(fmt.Errorf("%w: %w: %s: %w", replica.ErrOffline, errDirOffline, d.path, d.err()))
}

// storageFailed is told of every partition whose storage failed.
func (b *Broker) storageFailed(p *replica.Partition, err error) { b.failDir(b.dirOf(p), err) }

// logDirs describes the data directories.
func (b *Broker) logDirs() []api.LogDir {
	var out []api.LogDir
	for _, d := range b.dirs {
		dir := api.LogDir{Path: d.path, Err: d.err(), TotalBytes: -1, UsableBytes: -1}
		var s syscall.Statfs_t
		if err := syscall.Statfs(d.path, &s); err == nil && dir.Err == nil {
			dir.TotalBytes, dir.UsableBytes = int64(s.Blocks)*int64(s.Bsize), int64(s.Bavail)*int64(s.Bsize)
		}
		out = append(out, dir)
	}
	return out
}

// isOffline tells whether this broker has a partition whose storage failed.
func (b *Broker) isOffline(topic string, partition int32) bool {
	if _, unopened := b.offline.Load(commitlog.TopicPartition{Topic: topic, Partition: partition}); unopened {
		return true
	}
	p := b.partitions.Get(topic, partition)
	return p != nil && errors.Is(p.Err(), replica.ErrOffline)
}

// markClean leaves the mark of a clean stop.
func (b *Broker) markClean(d *dataDir, epoch int64) error {
	if err := d.err(); err != nil {
		return fmt.Errorf("%w: %s: %w", errDirOffline, d.path, err)
	}
	if err := commitlog.WriteCleanShutdown(b.cfg.FS, d.path, epoch); err != nil {
		return fmt.Errorf("leave the mark of a clean stop in %s: %w", d.path, err)
	}
	return nil
}
