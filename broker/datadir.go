package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/internal/dirlock"
)

// lockFile holds the lock of a data directory, under Kafka's name.
const lockFile = ".lock"

// clusterDir holds the embedded cluster store. It is no partition's directory:
// those end with a number.
const clusterDir = "cluster"

var errInUse = errors.New("in use by another broker")

// prepareDataDir makes the directory, checks that it can be written, and locks it.
func prepareDataDir(ctx context.Context, dir string) (*dirlock.Lock, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot make the data directory %s: %w; give another with --data (log.dirs), or make it writable for this user", dir, cause(err))
	}
	lock, err := dirlock.Take(ctx, filepath.Join(dir, lockFile), 0o640)
	var inUse *dirlock.InUseError
	var write *dirlock.WriteError
	switch {
	case err == nil:
		return lock, nil
	case errors.As(err, &inUse):
		return nil, fmt.Errorf("the data directory %s is %w (process %s); stop it, or give this one another directory with --data (log.dirs)", dir, errInUse, inUse.Holder)
	case errors.As(err, &write):
		return nil, fmt.Errorf("cannot write to the data directory %s: %w; make room, make it writable for this user, or give another with --data (log.dirs)", dir, err)
	}
	return nil, fmt.Errorf("cannot lock the data directory %s: %w", dir, err)
}

// cause is an error without the path, which the message has already.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// errForeign says that a data directory is not this broker's.
var errForeign = errors.New("data directory of another broker or cluster")

// identify returns the identity of a data directory, which is made at its first
// start and never changes. clusterID is that of the broker's first directory,
// empty for the first itself, which takes that of newID if it is a new one.
func identify(fsys commitlog.FS, dir string, nodeID int32, clusterID string, newID func() (string, error)) (commitlog.Properties, error) {
	p, ok, err := commitlog.ReadProperties(fsys, dir)
	if err != nil {
		return p, fmt.Errorf("read %s: %w", filepath.Join(dir, commitlog.PropertiesFile), err)
	}
	if ok && p.NodeID != nodeID {
		return p, fmt.Errorf("%w: %s belongs to broker %d, and this one is configured as %d; set node.id to %d, or give another directory",
			errForeign, dir, p.NodeID, nodeID, p.NodeID)
	}
	if ok && clusterID != "" && p.ClusterID != clusterID {
		return p, fmt.Errorf("%w: %s belongs to cluster %s, and the first of log.dirs to %s; give directories of one cluster",
			errForeign, dir, p.ClusterID, clusterID)
	}
	if ok {
		return p, nil
	}
	if clusterID == "" {
		if clusterID, err = newID(); err != nil {
			return p, err
		}
	}
	p = commitlog.Properties{ClusterID: clusterID, DirectoryID: randomID(), NodeID: nodeID}
	if err := commitlog.WriteProperties(fsys, dir, p); err != nil {
		return p, fmt.Errorf("write %s: %w", filepath.Join(dir, commitlog.PropertiesFile), err)
	}
	return p, nil
}

// randomID is an identity in Kafka's form: 16 random bytes in URL base64, with
// no leading dash, which tools take for an option.
func randomID() string {
	for {
		var id cluster.TopicID
		_, _ = rand.Read(id[:]) // never fails
		if s := cluster.FormatTopicID(id); s[0] != '-' {
			return s
		}
	}
}

// bootID is the machine's boot: as long as it stays the same, what was written
// to the page cache is still there. Empty where the system does not tell.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
