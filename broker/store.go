package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
)

// clusterStore is the durable truth of the cluster: in the data directory of a
// broker that is alone, in ZooKeeper for several.
type clusterStore interface {
	cluster.Store
	Close() error
}

// openStore opens the store that the configuration asks for, and makes or checks
// the identity of the data directories. It refuses a data directory that
// belongs to the other kind of store, or to another cluster, before anything is
// changed: with the wrong store, every log would be that of no topic.
func (b *Broker) openStore(ctx context.Context) error {
	var err error
	if b.membership, b.wasMember, err = commitlog.ReadMembership(b.cfg.FS, b.dirs[0].path); err != nil {
		return err
	}
	if b.cfg.ZooKeeperConnect == "" {
		return b.openEmbedded()
	}
	return b.openZooKeeper(ctx)
}

func (b *Broker) openEmbedded() error {
	if b.wasMember {
		return fmt.Errorf("the data directory %s is that of a broker of a cluster, whose state is in ZooKeeper at %s; "+
			"set zookeeper.connect, or give another directory with --data (log.dirs)", b.dirs[0].path, b.membership.ZooKeeper)
	}
	if err := b.identifyDirs(""); err != nil {
		return err
	}
	store, recovered, err := cluster.OpenEmbedded(filepath.Join(b.dirs[0].path, clusterDir))
	if err != nil {
		return err
	}
	if recovered.CutBytes > 0 {
		b.log.Warn("the cluster store ended in an unfinished transaction, which was cut", "bytes", recovered.CutBytes)
	}
	b.tree = store
	return nil
}

func (b *Broker) openZooKeeper(ctx context.Context) error {
	embedded := filepath.Join(b.dirs[0].path, clusterDir)
	_, err := os.Stat(embedded)
	if err == nil {
		return fmt.Errorf("the data directory %s has the state of a broker that is alone, in %s, and zookeeper.connect is set: "+
			"take zookeeper.connect away, or give another directory with --data (log.dirs) and copy the topics", b.dirs[0].path, embedded)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for the state of a broker that is alone: %w", err)
	}
	servers, chroot := parseZooKeeper(b.cfg.ZooKeeperConnect)
	zooKeeper, err := cluster.OpenZooKeeper(ctx, b.log, cluster.ZooKeeperConfig{
		Servers: servers, Chroot: chroot,
		SessionTimeout: b.cfg.ZooKeeperSessionTimeout, ConnectTimeout: b.cfg.ZooKeeperConnectTimeout,
		Auth: b.cfg.ZooKeeperAuth, ACL: b.cfg.ZooKeeperACL,
	})
	if err != nil {
		return fmt.Errorf("zookeeper.connect is %s: %w", b.cfg.ZooKeeperConnect, err)
	}
	id, err := b.clusterID(ctx, zooKeeper)
	if err == nil {
		err = b.identifyDirs(id)
	}
	if err != nil {
		_ = zooKeeper.Close()
		return err
	}
	b.tree, b.zooKeeper = zooKeeper, zooKeeper
	return nil
}

// parseZooKeeper splits zookeeper.connect into servers and chroot.
func parseZooKeeper(connect string) (servers []string, chroot string) {
	list, path, found := strings.Cut(connect, "/")
	if found {
		chroot = "/" + path
	}
	for server := range strings.SplitSeq(list, ",") {
		if server = strings.TrimSpace(server); server != "" {
			servers = append(servers, server)
		}
	}
	return servers, chroot
}

// clusterID is the id of the cluster in the store. Only a data directory that
// belongs to none yet may begin one.
func (b *Broker) clusterID(ctx context.Context, store cluster.Store) (string, error) {
	own, identified, err := commitlog.ReadProperties(b.cfg.FS, b.dirs[0].path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", filepath.Join(b.dirs[0].path, commitlog.PropertiesFile), err)
	}
	if !identified {
		return cluster.EnsureClusterID(ctx, store, randomID())
	}
	id, err := cluster.ReadClusterID(ctx, store)
	switch {
	case errors.Is(err, cluster.ErrNoNode):
		return "", fmt.Errorf("%w: %s belongs to cluster %s, and ZooKeeper at %s has no cluster: set zookeeper.connect to where that one is",
			errForeign, b.dirs[0].path, own.ClusterID, b.cfg.ZooKeeperConnect)
	case err == nil && id != own.ClusterID:
		return "", fmt.Errorf("%w: %s belongs to cluster %s, and ZooKeeper at %s has cluster %s: set zookeeper.connect to where the former is, "+
			"or give another directory with --data (log.dirs)", errForeign, b.dirs[0].path, own.ClusterID, b.cfg.ZooKeeperConnect, id)
	}
	return id, err
}

// registration is what this broker tells of itself. clean is whether all its
// directories had the mark of a clean stop.
func (b *Broker) registration(self cluster.Broker, clean bool) cluster.Registration {
	boot := bootID()
	r := cluster.Registration{
		ClusterID: b.identity.ClusterID, Broker: self,
		BootID: boot, DirectoryID: b.identity.DirectoryID, Clean: clean,
		// Without a clean stop, what was not synced is there only if the page
		// cache is: in the same boot of the machine.
		Lost:     b.wasMember && !clean && (boot == "" || boot != b.membership.BootID),
		Replaced: b.cfg.ReplacedDisk,
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

// noteMembership notes, once the broker has registered, where the cluster is and
// in which boot it was a member.
func (b *Broker) noteMembership() error {
	if b.zooKeeper == nil {
		return nil
	}
	m := commitlog.Membership{ZooKeeper: b.cfg.ZooKeeperConnect, BootID: bootID()}
	if b.wasMember && m == b.membership {
		return nil
	}
	return commitlog.WriteMembership(b.cfg.FS, b.dirs[0].path, m)
}

// awaitImage returns once the controller has told this broker of the cluster
// with this broker in it: before that, no log is known to be wanted.
func (b *Broker) awaitImage(ctx context.Context) error {
	told := make(chan struct{})
	var once sync.Once
	b.metadata.Subscribe(func(_, im *cluster.Image) {
		if self, ok := im.Broker(b.cfg.NodeID); ok && self.Epoch == b.member.Epoch() {
			once.Do(func() { close(told) })
		}
	})
	select {
	case <-told:
		return nil
	default:
	}
	b.log.Info("waiting for the controller", "controller", b.member.ControllerID())
	select {
	case <-told:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the controller: %w", ctx.Err())
	}
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
