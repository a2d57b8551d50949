package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-io/sluice/agent/tail"
)

// ownerName is the file that says whose a state directory is: this machine's, and this very directory. A copy that runs beside the
// original, or a restored backup, would send what the original has sent.
const ownerName = "owner"

// stateOwner tells a state directory from its copies as far as that can be: by the machine's ID, and by the directory's inode and the
// time it was made. What is not known, here or there, is not compared. A disk image on a clone of the machine cannot be told, nor can files
// put back into the same directory.
type stateOwner struct {
	Machine string `json:"machine,omitempty"`
	Ino     uint64 `json:"ino,omitempty"`
	Born    int64  `json:"born,omitempty"`
}

// ownerOf looks at a state directory.
func ownerOf(dir string) (stateOwner, error) {
	var o stateOwner
	if id, err := os.ReadFile("/etc/machine-id"); err == nil {
		o.Machine = strings.TrimSpace(string(id))
	}
	d, err := os.Open(dir)
	if err != nil {
		return o, fmt.Errorf("look at the state directory: %w", err)
	}
	defer d.Close() // only looked at
	info, err := tail.InfoOf(d)
	if err != nil {
		return o, fmt.Errorf("look at the state directory: %w", err)
	}
	o.Ino, o.Born = info.Ino, tail.Born(d)
	return o, nil
}

// differs says by what two owners differ; "" when they do not.
func (o stateOwner) differs(now stateOwner) string {
	switch {
	case o.Machine != "" && now.Machine != "" && o.Machine != now.Machine:
		return "it was made on another machine"
	case o.Ino != now.Ino, o.Born != 0 && now.Born != 0 && o.Born != now.Born:
		return "its files were made in another directory"
	}
	return ""
}

// checkOwner refuses a state directory that is a copy, unless it is to be adopted.
func checkOwner(dir string, adopt bool) error {
	now, err := ownerOf(dir)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, ownerName)
	data, err := os.ReadFile(path)
	var was stateOwner
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("read whose the state directory is: %w", err)
	case json.Unmarshal(data, &was) != nil: // a power cut; it says nothing
	case was == now:
		return nil
	default:
		if why := was.differs(now); why != "" && !adopt {
			return fmt.Errorf("state directory %s looks like a copy (%s): an agent that goes on from a copy sends again what the original has sent; "+
				"if the original is gone for good, start once with --adopt-state", dir, why)
		}
	}
	text, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("say whose the state directory is: %w", err)
	}
	if err := writeSynced(path, append(text, '\n')); err != nil {
		return fmt.Errorf("say whose the state directory is: %w", err)
	}
	return nil
}
