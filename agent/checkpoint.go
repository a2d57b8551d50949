package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sluice-io/sluice/agent/tail"
)

// The checkpoint is one text file, positions, of two parts:
//
//	sluice-positions VERSION CRC32C\n
//	{"pipelines":{NAME:{"files":[{...}, ...],"gone":[...]}}}\n
//
// The checksum (eight hex digits, Castagnoli) covers everything after the
// first line. A new one is written to positions.tmp and synced; then positions
// becomes positions.prev, positions.tmp becomes positions, and the directory is
// synced. So at any moment at least one of the two is whole. One that is not
// whole is set aside as positions.corrupt and the previous one is used; the
// journal holds what was read since.
//
// Positions cover what is acknowledged. What was read beyond that lies in the
// journal, from the entry on that the pipeline's "journal" names: its ranges
// are applied to the positions at the next start. Version 1 had no journal.
const (
	checkpointVersion = 2
	checkpointMagic   = "sluice-positions"
	checkpointName    = "positions"
)

// VersionError says that a checkpoint was written by a newer version. It is
// left as it is.
type VersionError struct {
	Path   string
	Detail string
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("checkpoint %s was written by a newer version (%s): run that version, or move the file away to follow all files as if for the first time", e.Path, e.Detail)
}

// saved is the content of a checkpoint.
type saved struct {
	Pipelines map[string]savedPipeline `json:"pipelines"`
}

type savedPipeline struct {
	Files []savedFile `json:"files,omitempty"`
	// Gone are contents that a file held and holds no more: a copy of them may
	// turn up. Path, position and time are all that is kept of them.
	Gone []savedFile `json:"gone,omitempty"`
	// Journal is the sequence of the first entry of the pipeline's journal that may hold ranges which Files do not cover.
	Journal uint64 `json:"journal,omitempty"`
	// Input is what the pipeline collects from, where that is not files.
	Input string `json:"input,omitempty"`
	// Cursor is where an input without files is.
	Cursor *savedCursor `json:"cursor,omitempty"`
}

// savedCursor is where an input is that can be asked for what follows a cursor, which is its own text.
type savedCursor struct {
	Input  string `json:"input"`
	Cursor string `json:"cursor"`
	Count  int64  `json:"count"` // of lines up to the cursor
}

// savedFile is what is known of one file.
type savedFile struct {
	Path       string `json:"path"`
	Dev        uint64 `json:"dev"`
	Ino        uint64 `json:"ino"`
	Born       int64  `json:"born,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Offset     int64  `json:"offset"`
	Skip       bool   `json:"skip,omitempty"`
	HeadLen    int    `json:"head_len,omitempty"`
	Head       uint64 `json:"head,omitempty"`
	TailLen    int    `json:"tail_len,omitempty"`
	Tail       uint64 `json:"tail,omitempty"`
	Home       uint64 `json:"home,omitempty"`   // inode of the directory that it was first found in
	Packed     int64  `json:"packed,omitempty"` // size of a compressed file that was read to its end
	// Marks are places before Offset that it was read to, of contents that may have copies which are shorter.
	Marks []savedMark `json:"marks,omitempty"`
	// Ends are where copies of it ended that waited.
	Ends []savedMark `json:"ends,omitempty"`
	Seen int64       `json:"seen"` // seconds since 1970 when the file was last found
}

// savedMark is a place in a content.
type savedMark struct {
	Offset  int64  `json:"offset"`
	HeadLen int    `json:"head_len"`
	Head    uint64 `json:"head"`
	TailLen int    `json:"tail_len"`
	Tail    uint64 `json:"tail"`
}

func saveMarks(marks []tail.Position) (out []savedMark) {
	for _, m := range marks {
		out = append(out, savedMark{Offset: m.Offset, HeadLen: m.Head.Len, Head: m.Head.Hash, TailLen: m.Tail.Len, Tail: m.Tail.Hash})
	}
	return out
}

func loadMarks(marks []savedMark) (out []tail.Position) {
	for _, m := range marks {
		out = append(out, tail.Position{Offset: m.Offset, Head: tail.Sum{Len: m.HeadLen, Hash: m.Head}, Tail: tail.Sum{Len: m.TailLen, Hash: m.Tail}})
	}
	return out
}

func (f savedFile) position() tail.Position {
	return tail.Position{
		Offset: f.Offset, Skip: f.Skip,
		Head: tail.Sum{Len: f.HeadLen, Hash: f.Head},
		Tail: tail.Sum{Len: f.TailLen, Hash: f.Tail},
	}
}

// errNotWhole says that a checkpoint is torn or damaged.
var errNotWhole = errors.New("not a whole checkpoint")

func encodeCheckpoint(s saved) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode checkpoint: %w", err)
	}
	body = append(body, '\n')
	head := fmt.Sprintf("%s %d %08x\n", checkpointMagic, checkpointVersion, checksum(body))
	return append([]byte(head), body...), nil
}

func decodeCheckpoint(path string, data []byte) (saved, error) {
	var s saved
	head, body, ok := bytes.Cut(data, []byte("\n"))
	var version int
	var sum uint32
	if n, _ := fmt.Sscanf(string(head), checkpointMagic+" %d %x", &version, &sum); !ok || n != 2 {
		return s, errNotWhole
	}
	// The sum comes first: a damaged version number must not look like a newer one.
	if sum != checksum(body) {
		return s, errNotWhole
	}
	if version > checkpointVersion {
		return s, &VersionError{Path: path, Detail: fmt.Sprintf("format %d, this one knows %d", version, checkpointVersion)}
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, &VersionError{Path: path, Detail: err.Error()}
	}
	return s, nil
}

// checkpointFile reads and writes the checkpoint of a state directory.
// Not safe for concurrent use.
type checkpointFile struct {
	dir      string
	log      *slog.Logger
	reserved int64 // bytes of the file that keeps room for the next ones, as far as known
}

func (c *checkpointFile) path(suffix string) string {
	return filepath.Join(c.dir, checkpointName+suffix)
}

// load returns the newest whole checkpoint, or an empty one.
func (c *checkpointFile) load() (saved, error) {
	damaged := false
	for _, suffix := range []string{"", ".prev"} {
		s, err := c.loadOne(c.path(suffix))
		switch {
		case err == nil:
			if damaged {
				c.log.Warn("using the previous checkpoint; what was read since is taken from the journal", "path", c.path(suffix))
			}
			return s, nil
		case errors.Is(err, errNotWhole):
			damaged = true
			c.setAside(suffix)
		case !errors.Is(err, fs.ErrNotExist):
			return saved{}, err
		}
	}
	if damaged {
		c.log.Error("no whole checkpoint is left: all files are followed as if for the first time", "dir", c.dir)
	}
	return saved{}, nil
}

func (c *checkpointFile) loadOne(path string) (saved, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return saved{}, fmt.Errorf("read checkpoint: %w", err)
	}
	return decodeCheckpoint(path, data)
}

// setAside keeps a damaged checkpoint for a look, and keeps it from becoming
// the previous one.
func (c *checkpointFile) setAside(suffix string) {
	path, aside := c.path(suffix), c.path(".corrupt")
	if err := os.Rename(path, aside); err != nil {
		c.log.Error("damaged checkpoint cannot be set aside", "path", path, "error", err)
		return
	}
	c.log.Error("damaged checkpoint set aside", "path", path, "as", aside)
}

// save writes the next checkpoint.
func (c *checkpointFile) save(s saved) error {
	data, err := encodeCheckpoint(s)
	if err != nil {
		return err
	}
	if err := c.put(data); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	if err := os.Rename(c.path(""), c.path(".prev")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep the previous checkpoint: %w", err)
	}
	if err := os.Rename(c.path(".tmp"), c.path("")); err != nil {
		return fmt.Errorf("put the checkpoint in place: %w", err)
	}
	c.reserve(len(data))
	return syncDir(c.dir)
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

func checksum(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }
