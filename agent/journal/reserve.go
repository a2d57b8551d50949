package journal

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/sluice-io/sluice/internal/quickio"
)

// A disk that the journal itself has filled would stay full for ever: what lets go of segments, acknowledgements before all, takes room too. So
// a file of zeros is kept beside the segments, and becomes the next one when a write that is no bundle finds the disk full.
const (
	reserveName  = "reserve"
	probeName    = "reserve.tmp" // written to see whether there is room, and removed
	reserveBytes = 64 << 10
)

// findReserve takes what an earlier run left. One that is not all zeros was a segment whose rename a power cut took back: its entries could
// pass for those of the segment that it becomes next.
func (j *Journal) findReserve() error {
	names, err := j.cfg.FS.List(j.dir)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	for _, name := range names {
		if name != reserveName && name != probeName {
			continue
		}
		if name == reserveName {
			data, err := j.slurp(name, -1)
			if err != nil {
				return err
			}
			if j.reserved = len(data) == reserveBytes && len(bytes.Trim(data, "\x00")) == 0; j.reserved {
				continue
			}
		}
		if err := j.cfg.FS.Remove(filepath.Join(j.dir, name)); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}

// beginWithReserve begins the first segment of a run, on a full disk too.
func (j *Journal) beginWithReserve() error {
	if err := j.findReserve(); err != nil {
		return err
	}
	err := j.roll()
	if quickio.NoRoom(err) && j.spend() {
		err = j.roll()
	}
	if err != nil {
		return err
	}
	if j.short || j.reserved {
		return nil
	}
	if err = j.probe(); quickio.NoRoom(err) {
		j.short = true
		return nil
	}
	return err
}

// probe sees whether the disk has room, by making the reserve, or where that is there by making and removing another.
func (j *Journal) probe() error {
	name := filepath.Join(j.dir, reserveName)
	if j.reserved {
		name = filepath.Join(j.dir, probeName)
	}
	f, err := j.cfg.FS.Create(name)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	_, err = f.Write(make([]byte, reserveBytes))
	if err = errors.Join(err, f.Close()); err != nil || j.reserved {
		return errors.Join(err, j.cfg.FS.Remove(name))
	}
	j.reserved = true
	return nil
}

// spend has the next segment begin in the reserve. It returns false when there is none.
func (j *Journal) spend() bool {
	j.short = true
	if !j.reserved {
		return false
	}
	j.reserved = false
	j.spares = append([]*segment{{name: reserveName, disk: reserveBytes}}, j.spares...)
	return true
}

// mayGrow refuses bundles after the disk was full: until it has room again, or files of segments to be written over, of which one stays for what settles
// batches.
func (j *Journal) mayGrow() error {
	files := len(j.spares)
	if j.reserved {
		files++
	}
	if files > 1 {
		return nil
	}
	if err := j.probe(); err != nil {
		return err
	}
	j.short = false
	return nil
}

// cut gives the disk back what was written to a segment to no end.
func (j *Journal) cut(seg *segment, size int64) error {
	if err := j.cfg.FS.Truncate(filepath.Join(j.dir, seg.name), size); err != nil {
		return fmt.Errorf("cut segment %s: %w", seg.name, err)
	}
	j.bytes -= seg.size - size
	seg.size, seg.disk = size, size
	return nil
}

// appendShort writes entries after the disk was found full, which are no bundles: as long as there is a file to be written over.
func (j *Journal) appendShort(entries []Entry) (first uint64, err error) {
	j.spend()
	for range j.spares { // each try takes one
		if first, err = j.append(entries); !quickio.NoRoom(err) {
			return first, err
		}
	}
	return j.append(entries)
}

// Yield lets go of what is kept to be written over: somebody else needs the room on a full disk.
func (j *Journal) Yield() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.spend()
	for _, s := range j.spares {
		if err := j.unlink(s); err != nil {
			j.log.Warn("room on a full disk cannot be given", "error", err)
		}
	}
	j.spares = nil
}

// growing says that entries are bundles that do not settle others.
func growing(entries []Entry) bool {
	for i := range entries {
		if b := entries[i].Bundle; b != nil && len(b.Replaces) == 0 {
			return true
		}
	}
	return false
}

// Trouble is why the last bundles could not be written; nil when they were.
func (j *Journal) Trouble() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.trouble
}
