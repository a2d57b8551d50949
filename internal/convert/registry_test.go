package convert

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// files writes files below a directory of their own.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPromtailPositions(t *testing.T) {
	dir := files(t, map[string]string{"positions.yaml": `positions:
  /var/log/syslog: "1234567"
  /var/log/nginx/access.log: "0"
  /var/log/old.log.gz: "42"
  cursor-journal: s=abc;i=1
  /var/log/odd: "half"
`})
	p, err := PromtailPositions(filepath.Join(dir, "positions.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Position{{Path: "/var/log/nginx/access.log"}, {Path: "/var/log/syslog", Offset: 1234567}}
	if diff := cmp.Diff(want, p.Files); diff != "" || len(p.Notes) != 3 {
		t.Errorf("%s, notes %q", diff, p.Notes)
	}
	bad := files(t, map[string]string{"p": "positions: [1"})
	if _, err := PromtailPositions(filepath.Join(bad, "p")); err == nil {
		t.Error("what is no YAML is taken")
	}
}

func TestFilebeatRegistry(t *testing.T) {
	dir := files(t, map[string]string{
		"registry/filebeat/meta.json":  `{"version":"1"}`,
		"registry/filebeat/active.dat": "/usr/share/filebeat/data/registry/filebeat/17.json",
		"registry/filebeat/17.json": `[{"_key":"filebeat::logs::native::11-2049","source":"/var/log/a.log","offset":10,"FileStateOS":{"inode":11,"device":2049},"ttl":-1},
			{"_key":"filebeat::logs::native::12-2049","source":"/var/log/b.log","offset":20,"FileStateOS":{"inode":12,"device":2049},"ttl":-1}]`,
		"registry/filebeat/log.json": `{"op":"set","id":18}
{"k":"filebeat::logs::native::11-2049","v":{"source":"/var/log/a.log","offset":15,"FileStateOS":{"inode":11,"device":2049}}}
{"op":"set","id":19}
{"k":"filestream::my-id::native::13-2049","v":{"cursor":{"offset":30},"meta":{"source":"/var/log/c.log","identifier_name":"native"},"ttl":0,"updated":[1,2]}}
{"op":"set","id":20}
{"k":"filestream::my-id::fingerprint::abcd","v":{"cursor":{"offset":40},"meta":{"source":"/var/log/d.log","identifier_name":"fingerprint"}}}
{"op":"remove","id":21}
{"k":"filebeat::logs::native::12-2049"}
{"op":"set","id":22}
{"k":"journald::x","v":{"cursor":"s=1"}}
{"op":"set","id":23}
{"k":"filestream::my-id::native::13-2049","v":{"cursor":{"off`,
	})
	want := []Position{
		{Path: "/var/log/a.log", Dev: 2049, Ino: 11, Offset: 15},
		{Path: "/var/log/d.log", Offset: 40},
		{Path: "/var/log/c.log", Dev: 2049, Ino: 13, Offset: 30},
	}
	for _, path := range []string{dir, filepath.Join(dir, "registry"), filepath.Join(dir, "registry/filebeat")} {
		p, err := FilebeatRegistry(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, p.Files); diff != "" || len(p.Notes) != 1 {
			t.Errorf("%s: %s, notes %q", path, diff, p.Notes)
		}
	}
	old := files(t, map[string]string{"registry": `[{"source":"/var/log/a.log","offset":7,"FileStateOS":{"inode":11,"device":2049},"timestamp":"2018-01-01T00:00:00Z","ttl":-1,"type":"log"}]`})
	p, err := FilebeatRegistry(filepath.Join(old, "registry"))
	if err != nil || len(p.Files) != 1 || p.Files[0] != (Position{Path: "/var/log/a.log", Dev: 2049, Ino: 11, Offset: 7}) {
		t.Errorf("of a version before 7: %+v, %v", p, err)
	}
}

// fluentBitDB makes a database as Fluent Bit does, in its write-ahead mode, and leaves it open.
func fluentBitDB(t *testing.T, path string, rows ...Position) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	for _, q := range []string{"PRAGMA journal_mode=WAL", "PRAGMA wal_autocheckpoint=0",
		"CREATE TABLE in_tail_files (id INTEGER PRIMARY KEY, name TEXT NOT NULL, offset INTEGER, inode INTEGER, created INTEGER, rotated INTEGER DEFAULT 0)"} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range rows {
		if _, err := db.Exec("INSERT INTO in_tail_files (name, offset, inode, created) VALUES (?, ?, ?, 1)", r.Path, r.Offset, int64(r.Ino)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFluentBitDB(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flb #1.db")
	want := []Position{{Path: "/var/log/a.log", Ino: 11, Offset: 5}, {Path: "/var/log/b.log", Ino: 12, Offset: 1 << 40}}
	fluentBitDB(t, path, append(want, Position{Path: "relative.log"})...)
	p, err := FluentBitDB(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, p.Files); diff != "" || len(p.Notes) != 1 {
		t.Errorf("%s, notes %q", diff, p.Notes)
	}
	if _, err := FluentBitDB(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a database that is not there is read")
	}
	text := files(t, map[string]string{"x": "no database at all"})
	if _, err := FluentBitDB(t.Context(), filepath.Join(text, "x")); err == nil {
		t.Error("what is no database is read")
	}
}
