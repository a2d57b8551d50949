package convert

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	_ "modernc.org/sqlite" // the driver of Fluent Bit's database
)

// registryBytesMax bounds what is read of a file of positions.
const registryBytesMax = 256 << 20

// Position is how far another shipper had read a file.
type Position struct {
	Path   string
	Dev    uint64 // 0: not told
	Ino    uint64 // 0: not told
	Offset int64
}

// Positions are those of a registry, and what it holds that is no position in a file.
type Positions struct {
	Files []Position
	Notes []string
}

func (p *Positions) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// PromtailPositions reads Promtail's positions.yaml.
func PromtailPositions(path string) (*Positions, error) {
	data, err := readAll(path)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Positions map[string]any `yaml:"positions"`
	}
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("read Promtail's positions %s: %w", path, err)
	}
	out := &Positions{}
	for _, key := range sortedKeys(doc.Positions) {
		text := strings.TrimSpace(fmt.Sprint(doc.Positions[key]))
		offset, err := strconv.ParseInt(text, 10, 64)
		switch {
		case !filepath.IsAbs(key):
			out.note("%s: not a file's position; it is not carried over", key)
		case err != nil:
			out.note("%s: %q is no offset", key, text)
		case compressed(key):
			out.note("%s: a compressed file, whose position counts lines; it is not carried over", key)
		default:
			out.Files = append(out.Files, Position{Path: key, Offset: offset})
		}
	}
	return out, nil
}

func compressed(path string) bool {
	return slices.Contains([]string{".gz", ".bz2", ".z", ".zst"}, strings.ToLower(filepath.Ext(path)))
}

// filebeatState is an entry of Filebeat's registry, of the log input (Source, Offset, FileStateOS) or of filestream (Cursor, Meta).
type filebeatState struct {
	Key         string `json:"_key"`
	Source      string `json:"source"`
	Offset      int64  `json:"offset"`
	FileStateOS struct {
		Inode  uint64 `json:"inode"`
		Device uint64 `json:"device"`
	} `json:"FileStateOS"`
	Cursor json.RawMessage `json:"cursor"`
	Meta   struct {
		Source string `json:"source"`
	} `json:"meta"`
}

// FilebeatRegistry reads Filebeat's registry: its data directory, the directory registry/filebeat in it, or the one file of versions before 7.
func FilebeatRegistry(path string) (*Positions, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read Filebeat's registry: %w", err)
	}
	entries := map[string]filebeatState{}
	if !info.IsDir() {
		err = readSnapshot(path, entries)
	} else {
		err = readRegistryDir(path, entries)
	}
	if err != nil {
		return nil, fmt.Errorf("read Filebeat's registry: %w", err)
	}
	out := &Positions{}
	for _, key := range sortedKeys(entries) {
		out.addFilebeat(key, entries[key])
	}
	return out, nil
}

// readRegistryDir reads the newest snapshot and the log of what changed since.
func readRegistryDir(dir string, entries map[string]filebeatState) error {
	for _, below := range []string{"registry/filebeat", "filebeat", ""} {
		if _, err := os.Stat(filepath.Join(dir, below, "log.json")); err == nil {
			dir = filepath.Join(dir, below)
			break
		}
	}
	active, err := os.ReadFile(filepath.Join(dir, "active.dat"))
	switch {
	case err == nil: // it may name the path that the directory had elsewhere
		if err := readSnapshot(filepath.Join(dir, filepath.Base(strings.TrimSpace(string(active)))), entries); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return readLog(filepath.Join(dir, "log.json"), entries)
}

// readSnapshot reads an array of entries.
func readSnapshot(path string, entries map[string]filebeatState) error {
	data, err := readAll(path)
	if err != nil {
		return err
	}
	var list []filebeatState
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, e := range list {
		if e.Key == "" {
			e.Key = fmt.Sprintf("entry %d", i+1)
		}
		entries[e.Key] = e
	}
	return nil
}

// readLog applies changes: lines in pairs, an operation and what it is done with. A last pair that is cut off was never done.
func readLog(path string, entries map[string]filebeatState) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	lines := bufio.NewScanner(io.LimitReader(f, registryBytesMax))
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n += 2 {
		var op struct{ Op string }
		var change struct {
			K string
			V filebeatState
		}
		operation := bytes.Clone(lines.Bytes())
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &change) != nil && !lines.Scan() {
			break
		}
		if err := json.Unmarshal(operation, &op); err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
		switch op.Op {
		case "set":
			entries[change.K] = change.V
		case "remove":
			delete(entries, change.K)
		default:
			return fmt.Errorf("%s:%d: the operation %q is not known", path, n, op.Op)
		}
	}
	return lines.Err()
}

// addFilebeat adds an entry. The inode and the device of filestream's stand in its key.
func (p *Positions) addFilebeat(key string, e filebeatState) {
	x := Position{Path: e.Source, Dev: e.FileStateOS.Device, Ino: e.FileStateOS.Inode, Offset: e.Offset}
	if strings.HasPrefix(key, "filestream::") {
		var cursor struct{ Offset int64 }
		if len(e.Cursor) > 0 {
			if err := json.Unmarshal(e.Cursor, &cursor); err != nil {
				p.note("%s: its cursor is not that of a file", key)
				return
			}
		}
		x.Path, x.Offset = e.Meta.Source, cursor.Offset
		if _, id, ok := strings.Cut(key, "::native::"); ok {
			ino, dev, _ := strings.Cut(id, "-")
			x.Ino, _ = strconv.ParseUint(ino, 10, 64) // 0, not told, where the key is of another form
			x.Dev, _ = strconv.ParseUint(dev, 10, 64)
		}
	}
	if !filepath.IsAbs(x.Path) {
		p.note("%s: not a file's position; it is not carried over", key)
		return
	}
	p.Files = append(p.Files, x)
}

// FluentBitDB reads the database of Fluent Bit's tail input (its setting DB).
func FluentBitDB(ctx context.Context, path string) (*Positions, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("read Fluent Bit's database: %w", err)
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: "mode=ro"}).String())
	if err != nil {
		return nil, fmt.Errorf("open Fluent Bit's database %s: %w", path, err)
	}
	defer db.Close() // only read from
	rows, err := db.QueryContext(ctx, "SELECT name, offset, inode FROM in_tail_files ORDER BY name, id")
	if err != nil {
		return nil, fmt.Errorf("read Fluent Bit's database %s: %w", path, err)
	}
	defer rows.Close()
	out := &Positions{}
	for rows.Next() {
		var x Position
		var ino int64
		if err := rows.Scan(&x.Path, &x.Offset, &ino); err != nil {
			return nil, fmt.Errorf("read Fluent Bit's database %s: %w", path, err)
		}
		x.Ino = uint64(ino)
		if !filepath.IsAbs(x.Path) {
			out.note("%s: a relative path; it is not carried over", x.Path)
			continue
		}
		out.Files = append(out.Files, x)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read Fluent Bit's database %s: %w", path, err)
	}
	return out, nil
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	data, err := io.ReadAll(io.LimitReader(f, registryBytesMax+1))
	if err == nil && len(data) > registryBytesMax {
		err = fmt.Errorf("%s has more than %d bytes", path, registryBytesMax)
	}
	return data, err
}
