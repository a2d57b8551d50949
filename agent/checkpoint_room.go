package agent

import (
	"errors"
	"fmt"
	"os"

	"github.com/sluice-io/sluice/internal/quickio"
)

// reserveLow is the least room that is kept for checkpoints: twice the last one, in steps of it.
const reserveLow = 32 << 10

// put writes the next checkpoint to its temporary file. On a full disk, which has room again only after a checkpoint where it is the journal that fills it,
// the room is taken that was kept for that, and that of the checkpoint before the last: the last one is whole.
func (c *checkpointFile) put(data []byte) error {
	err := writeSynced(c.path(".tmp"), data)
	if !quickio.NoRoom(err) {
		return err
	}
	c.reserved = 0
	removed := errors.Join(os.Remove(c.path(".reserve")), os.Remove(c.path(".prev")))
	if again := writeSynced(c.path(".tmp"), data); again == nil {
		return nil
	}
	return errors.Join(err, os.Remove(c.path(".tmp")), ignoreMissing(removed))
}

// reserve keeps room for the next checkpoints, where there is some. What it has not is tried again with the next.
func (c *checkpointFile) reserve(size int) {
	want := int64(2*size/reserveLow+1) * reserveLow
	if c.reserved >= want {
		return
	}
	if info, err := os.Stat(c.path(".reserve")); err == nil && info.Size() >= want {
		c.reserved = info.Size()
		return
	}
	if err := os.WriteFile(c.path(".reserve"), make([]byte, want), 0o600); err != nil {
		if err := ignoreMissing(os.Remove(c.path(".reserve"))); err != nil {
			c.log.Warn("the room that is kept for checkpoints cannot be let go", "error", err)
		}
		return
	}
	c.reserved = want
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	return nil
}
