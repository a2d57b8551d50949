package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// MembershipFile, in the first data directory, is there once the broker has been
// a member of a cluster of several.
const MembershipFile = "membership.properties"

// Membership is what a data directory knows of its broker's place in a cluster.
type Membership struct {
	// ZooKeeper is where the cluster's store was last.
	ZooKeeper string
	// BootID is the machine's boot when the broker was last a member.
	BootID string
}

// ReadMembership reads a data directory's membership; ok is false when there is none.
func ReadMembership(fsys FS, dataDir string) (m Membership, ok bool, err error) {
	pairs, err := readPairs(fsys, filepath.Join(dataDir, MembershipFile), "=")
	if errors.Is(err, fs.ErrNotExist) {
		return m, false, nil
	}
	if err != nil {
		return m, false, fmt.Errorf("read %s: %w", MembershipFile, err)
	}
	return Membership{ZooKeeper: pairs["zookeeper.connect"], BootID: pairs["boot.id"]}, true, nil
}

// WriteMembership replaces a data directory's membership, durably.
func WriteMembership(fsys FS, dataDir string, m Membership) error {
	text := fmt.Sprintf("# The cluster that this data directory belongs to.\nzookeeper.connect=%s\nboot.id=%s\n", m.ZooKeeper, m.BootID)
	if err := writeFile(fsys, filepath.Join(dataDir, MembershipFile), []byte(text)); err != nil {
		return fmt.Errorf("write %s: %w", MembershipFile, err)
	}
	return nil
}
