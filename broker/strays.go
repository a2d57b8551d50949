package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-io/sluice/broker/commitlog"
)

const (
	// straySuffix marks the directory of a partition that the cluster does not
	// have here.
	straySuffix = "-stray"
	// straySinceFile is the file in such a directory that says since when it is one.
	straySinceFile = "set-aside-since"
	// straySinceBytesMax is more than a time takes.
	straySinceBytesMax = 64
	// strayCheck is how often the directories are looked at.
	strayCheck = time.Hour
)

// setAside gives a partition's directory a name that is not served, and notes when.
func (b *Broker) setAside(dir string) error {
	to := fmt.Sprintf("%s.%s%s", dir, strings.ReplaceAll(randomID(), "-", "_"), straySuffix)
	b.log.Warn("a directory belongs to no partition of the cluster and is set aside; move it away if its records are needed",
		"dir", dir, "now", to, "kept_for", b.keptFor())
	if err := b.noteStray(dir); err != nil {
		b.log.Warn("cannot note when a directory was set aside; the time runs from the next look at it", "dir", to, "error", err)
	}
	return b.cfg.FS.Rename(dir, to)
}

func (b *Broker) keptFor() string {
	if b.cfg.StrayRetention < 0 {
		return "ever"
	}
	return b.cfg.StrayRetention.String()
}

func (b *Broker) noteStray(dir string) error {
	f, err := b.cfg.FS.OpenFile(filepath.Join(dir, straySinceFile), os.O_CREATE|os.O_TRUNC|os.O_RDWR)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(b.cfg.Now().UTC().Format(time.RFC3339)), 0)
	return errors.Join(err, f.Close())
}

// straySince reads the note; the zero time is none that can be read.
func (b *Broker) straySince(dir string) (time.Time, error) {
	f, err := b.cfg.FS.OpenFile(filepath.Join(dir, straySinceFile), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	text := make([]byte, straySinceBytesMax)
	n, _ := f.ReadAt(text, 0) // a short read is the rule, and what is read is checked
	since, err := time.Parse(time.RFC3339, string(text[:n]))
	if err != nil {
		return time.Time{}, nil // a crash cut it off, or someone else wrote it
	}
	return since, nil
}

// strayStep removes the directories that were set aside long enough ago.
func (b *Broker) strayStep() {
	if b.cfg.StrayRetention < 0 {
		return
	}
	for _, d := range b.dirs {
		if d.err() != nil {
			continue
		}
		if err := b.removeStrays(d); err != nil {
			b.log.Error("cannot remove what was set aside", "dir", d.path, "error", err)
		}
	}
}

func (b *Broker) removeStrays(d *dataDir) error {
	entries, err := b.cfg.FS.List(d.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !e.Dir || !strings.HasSuffix(e.Name, straySuffix) || !strings.Contains(e.Name, ".") {
			continue
		}
		if err := b.removeStray(filepath.Join(d.path, e.Name)); err != nil {
			errs = append(errs, err)
		}
	}
	_, err = commitlog.RemoveDeletedDirs(b.cfg.FS, d.path)
	return errors.Join(append(errs, err)...)
}

// removeStray has a directory removed if it is due. A crash on the way leaves one that
// the next start removes.
func (b *Broker) removeStray(dir string) error {
	since, err := b.straySince(dir)
	switch {
	case err != nil:
		return err
	case since.IsZero():
		return b.noteStray(dir)
	case b.cfg.Now().Sub(since) < b.cfg.StrayRetention:
		return nil
	}
	b.log.Info("a directory that was set aside is removed", "dir", dir, "since", since)
	return b.cfg.FS.Rename(dir, strings.TrimSuffix(dir, straySuffix)+commitlog.DeletedDirSuffix)
}
