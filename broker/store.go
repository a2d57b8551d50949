package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
)

// closableStore is where the cluster's state is kept: in this broker's data
// directory, or in ZooKeeper with that of others.
type closableStore interface {
	cluster.Store
	Close() error
}

// clustered tells whether the broker is one of several.
func (b *Broker) clustered() bool { return b.cfg.ZooKeeperConnect != "" }

// openStore opens the cluster's store and finds out which cluster this broker
// belongs to. A data directory that belongs elsewhere is refused, and left as it is.
func (b *Broker) openStore(ctx context.Context) error {
	if err := b.checkMembership(); err != nil {
		return err
	}
	if b.clustered() {
		return b.openZooKeeper(ctx)
	}
	if err := b.identifyDirs(func() (string, error) { return randomID(), nil }); err != nil {
		return err
	}
	store, recovered, err := cluster.OpenEmbedded(filepath.Join(b.dirs[0].path, clusterDir))
	if err != nil {
		return err
	}
	if recovered.CutBytes > 0 {
		b.log.Warn("the cluster store ended in an unfinished transaction, which was cut", "bytes", recovered.CutBytes)
	}
	b.clusterStore = store
	return nil
}

var (
	errAlone     = errors.New("data directory of a broker that runs alone")
	errClustered = errors.New("data directory of a broker of a cluster")
)

// checkMembership refuses a data directory of a broker that ran alone in a
// cluster, and one of a cluster's broker alone: the topics would not be known,
// and their logs put aside.
func (b *Broker) checkMembership() (err error) {
	dir := b.dirs[0].path
	member := false
	if b.membership, member, err = commitlog.ReadMembership(b.cfg.FS, dir); err != nil {
		return err
	}
	if member && !b.clustered() {
		return fmt.Errorf("%w: %s is that of a cluster whose state is in ZooKeeper at %s; set zookeeper.connect, or give another directory with --data (log.dirs)",
			errClustered, dir, b.membership.ZooKeeper)
	}
	_, err = os.Stat(filepath.Join(dir, clusterDir))
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && (!b.clustered() || b.cfg.ImportState):
		return nil
	case err != nil:
		return fmt.Errorf("look for a cluster store in %s: %w", dir, err)
	}
	return fmt.Errorf("%w: %s has the state of a broker that is alone, and zookeeper.connect is set; take zookeeper.connect away, "+
		"or start it once with --import-state to move its state into ZooKeeper", errAlone, dir)
}

// openZooKeeper connects to ZooKeeper, where a new data directory learns its
// cluster's identity.
func (b *Broker) openZooKeeper(ctx context.Context) error {
	servers, chroot := splitZooKeeperConnect(b.cfg.ZooKeeperConnect)
	store, err := cluster.OpenZooKeeper(ctx, b.log, cluster.ZooKeeperConfig{
		Servers: servers, Chroot: chroot,
		SessionTimeout: b.cfg.ZooKeeperSessionTimeout, ConnectTimeout: b.cfg.ZooKeeperConnectTimeout,
		Auth: b.cfg.ZooKeeperAuth, ACL: b.cfg.ZooKeeperACL,
	})
	if err != nil {
		return fmt.Errorf("zookeeper.connect is %s: %w", b.cfg.ZooKeeperConnect, err)
	}
	b.clusterStore = store
	if err := b.importState(ctx, store); err != nil {
		return err
	}
	if err := b.patiently(ctx, func() error { return b.checkClusterID(ctx, store) }); err != nil {
		return err
	}
	return b.identifyDirs(func() (id string, err error) {
		err = b.patiently(ctx, func() error {
			id, err = cluster.EnsureClusterID(ctx, store, randomID())
			return err
		})
		return id, err
	})
}

// patiently calls fn again while ZooKeeper, which was there, cannot be reached, for
// as long as a start waits for it.
func (b *Broker) patiently(ctx context.Context, fn func() error) error {
	begun := time.Now()
	for {
		err := fn()
		if !cluster.Passing(err) || ctx.Err() != nil || time.Since(begun) > b.cfg.ZooKeeperConnectTimeout {
			return err
		}
		b.log.Warn("ZooKeeper was lost during the start, trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(startRetry):
		}
	}
}

// startRetry is the pause before a start asks ZooKeeper again.
const startRetry = 500 * time.Millisecond

// importedDir is what the embedded store's directory is called once its state
// is in ZooKeeper.
const importedDir = clusterDir + ".imported"

// importState moves the state of a broker that was alone into ZooKeeper, where
// there must be no cluster yet. The directory has its new name only when all is
// there, so that an import that was cut short is gone on with.
func (b *Broker) importState(ctx context.Context, to cluster.Store) error {
	dir := b.dirs[0].path
	embedded := filepath.Join(dir, clusterDir)
	if _, err := os.Stat(embedded); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	from, _, err := cluster.OpenEmbedded(embedded)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := cluster.CopyTree(ctx, from, to); err != nil {
		return fmt.Errorf("move the state in %s to ZooKeeper at %s: %w", embedded, b.cfg.ZooKeeperConnect, err)
	}
	// From here on it is not to be started alone.
	if err := b.noteMembership(); err != nil {
		return err
	}
	if err := os.Rename(embedded, filepath.Join(dir, importedDir)); err != nil {
		return fmt.Errorf("give the state that was moved to ZooKeeper another name: %w", err)
	}
	b.log.Info("the state of the broker that was alone is in ZooKeeper now", "kept_copy", filepath.Join(dir, importedDir))
	return nil
}

// checkClusterID refuses a data directory of another cluster. Only one that
// belongs to none yet may begin one.
func (b *Broker) checkClusterID(ctx context.Context, store cluster.Store) error {
	dir := b.dirs[0].path
	own, identified, err := commitlog.ReadProperties(b.cfg.FS, dir)
	if err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(dir, commitlog.PropertiesFile), err)
	}
	if !identified {
		return nil
	}
	id, err := cluster.ReadClusterID(ctx, store)
	switch {
	case errors.Is(err, cluster.ErrNoNode):
		return fmt.Errorf("%w: %s belongs to cluster %s, and ZooKeeper at %s has no cluster: set zookeeper.connect to where that one is",
			errForeign, dir, own.ClusterID, b.cfg.ZooKeeperConnect)
	case err == nil && id != own.ClusterID:
		return fmt.Errorf("%w: %s belongs to cluster %s, and ZooKeeper at %s has cluster %s: set zookeeper.connect to where the former is, "+
			"or give another directory with --data (log.dirs)", errForeign, dir, own.ClusterID, b.cfg.ZooKeeperConnect, id)
	}
	return err
}

// checkCluster checks what the configuration says of the cluster, and settles
// the listener between brokers.
func (b *Broker) checkCluster() error {
	if b.cfg.InterBrokerListener == "" {
		b.cfg.InterBrokerListener = b.listen[0].name
	}
	named := func(l listener) bool { return l.name == b.cfg.InterBrokerListener }
	switch {
	case !slices.ContainsFunc(b.listen, named):
		return fmt.Errorf("inter.broker.listener.name %s: there is no listener of that name among listeners", b.cfg.InterBrokerListener)
	case !b.clustered() && b.cfg.ReplacedDisk:
		return errors.New("a replaced disk is a matter of a cluster: the records of a broker that is alone are nowhere else")
	}
	return nil
}

// splitZooKeeperConnect parts the servers from the path after the last one.
func splitZooKeeperConnect(connect string) (servers []string, chroot string) {
	list, path, _ := strings.Cut(connect, "/")
	if path = strings.Trim(path, "/"); path != "" {
		chroot = "/" + path
	}
	return cluster.SplitList(list), chroot
}

// closeStore closes the store if it was opened.
func (b *Broker) closeStore() error {
	if b.clusterStore == nil {
		return nil
	}
	return b.clusterStore.Close()
}

// rebooted tells whether the logs may lack records that this broker had
// acknowledged: after a reboot without a clean stop, since the page cache is
// gone then.
func (b *Broker) rebooted(clean bool) bool {
	boot := bootID()
	return !clean && b.membership.ZooKeeper != "" && (boot == "" || b.membership.BootID != boot)
}

// explainJoin names the mend of what the cluster refuses.
func explainJoin(err error) error {
	var other *cluster.OtherDirectoryError
	if errors.As(err, &other) {
		return fmt.Errorf("%w: give it that directory back; if that is lost, start it once with --replaced-disk, "+
			"and it copies everything from the other replicas", err)
	}
	return err
}

// noteMembership stores that the data directory is one of a cluster's, and in
// which boot its broker was a member last.
func (b *Broker) noteMembership() error {
	if !b.clustered() {
		return nil
	}
	return commitlog.WriteMembership(b.cfg.FS, b.dirs[0].path, commitlog.Membership{ZooKeeper: b.cfg.ZooKeeperConnect, BootID: bootID()})
}
