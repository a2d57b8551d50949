package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func openStore(t *testing.T, dir string) *Embedded {
	t.Helper()
	s, _, err := OpenEmbedded(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// dump is the whole tree as text.
func dump(s *Embedded) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, path := range sortedKeys(s.tree.nodes) {
		n := s.tree.nodes[path]
		if n.stat.Owner == 0 {
			fmt.Fprintf(&out, "%s %q v%d c%d\n", path, n.data, n.stat.Version, n.stat.Created)
		}
	}
	return out.String()
}

func TestEphemeralNodesEndWithTheirSession(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	txn(t, s, CreateEphemeral("/e", nil), Create("/stays", nil))
	_, first, _ := s.Get(t.Context(), "/e")
	_ = s.Close()
	s = openStore(t, dir)
	if _, _, err := s.Get(t.Context(), "/e"); !errors.Is(err, ErrNoNode) {
		t.Errorf("%v", err)
	}
	txn(t, s, CreateEphemeral("/e", nil))
	if _, again, _ := s.Get(t.Context(), "/e"); again.Created <= first.Created {
		t.Errorf("created at %d, and before at %d", again.Created, first.Created)
	}
}

// history makes a store of many transactions and returns its log's bytes, and
// the tree after each of the log's lengths.
func history(t *testing.T) (log []byte, states map[int]string) {
	t.Helper()
	dir := t.TempDir()
	s := openStore(t, dir)
	states = map[int]string{int(s.logBytes): dump(s)}
	step := func(ops ...Op) {
		txn(t, s, ops...)
		states[int(s.logBytes)] = dump(s)
	}
	step(Create("/a", []byte("some data")))
	for i := range 5 {
		step(Create(fmt.Sprintf("/a/%d", i), bytes.Repeat([]byte{byte(i)}, i*7)), Set("/a", nil, AnyVersion))
	}
	step(CreateEphemeral("/e", []byte("x")))
	step(Delete("/a/3", 0), Delete("/a/1", 0))
	_ = s.Close()
	log, err := os.ReadFile(logName(dir, 0))
	if err != nil {
		t.Fatal(err)
	}
	return log, states
}

func storeOf(t *testing.T, log []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(logName(dir, 0), log, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Killed at any byte of a write, the store has every transaction before it and
// nothing of that one; and it goes on from there.
func TestStoreSurvivesATornWriteAtAnyByte(t *testing.T) {
	log, states := history(t)
	for cut := range len(log) + 1 {
		for _, tail := range [][]byte{nil, make([]byte, 100)} { // cut short; filled with zeros by a power loss
			dir := storeOf(t, append(bytes.Clone(log[:cut]), tail...))
			s, rec, err := OpenEmbedded(dir)
			if err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			there := cut
			for len(tail) > 0 && there < len(log) && log[there] == 0 {
				there++ // the zeros happen to be what was to be written
			}
			whole, want := before(states, there)
			if got := dump(s); got != want {
				t.Fatalf("cut at %d:\n%s, want\n%s", cut, got, want)
			}
			if there > whole && rec.CutBytes == 0 {
				t.Errorf("cut at %d: nothing reported", cut)
			}
			txn(t, s, Create("/after", nil))
			want = dump(s)
			_ = s.Close()
			if again := openStore(t, dir); dump(again) != want {
				t.Fatalf("cut at %d: opened again\n%s, want\n%s", cut, dump(again), want)
			}
		}
	}
}

// before returns the last length at which a transaction had ended, and the tree then.
func before(states map[int]string, length int) (whole int, state string) {
	state = "/ \"\" v0 c0\n"
	for n, s := range states {
		if n <= length && n > whole {
			whole, state = n, s
		}
	}
	return whole, state
}

// A flipped byte anywhere but in the last transaction is refused, never read as
// a shorter history.
func TestStoreRefusesDamage(t *testing.T) {
	log, states := history(t)
	lastStart := 0
	for n := range states {
		if n < len(log) {
			lastStart = max(lastStart, n)
		}
	}
	for i := range log {
		damaged := bytes.Clone(log)
		damaged[i] ^= 0x40
		s, rec, err := OpenEmbedded(storeOf(t, damaged))
		if err == nil {
			_ = s.Close()
		}
		var corruption *CorruptionError
		switch {
		case i < lastStart && !errors.As(err, &corruption):
			t.Errorf("byte %d of %d flipped: %v", i, len(log), err)
		case i >= lastStart && (err != nil || rec.CutBytes == 0):
			t.Errorf("byte %d of the last transaction flipped: %+v, %v", i, rec, err)
		}
	}
}

func TestSnapshotReplacesTheLog(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	txn(t, s, Create("/a", nil), CreateEphemeral("/e", nil))
	for range 40 {
		txn(t, s, Set("/a", make([]byte, 100_000), AnyVersion))
	}
	if s.logBytes > 2*compactBytesMin {
		t.Errorf("the log has %d bytes", s.logBytes)
	}
	files, err := listStoreFiles(dir)
	if err != nil || len(files.snapshots) != 1 || len(files.logs) != 1 || files.snapshots[0] != files.logs[0] {
		t.Fatalf("%+v, %v", files, err)
	}
	want := dump(s)
	_ = s.Close()
	snapshot, err := os.ReadFile(snapshotName(dir, files.snapshots[0]))
	if err != nil {
		t.Fatal(err)
	}

	// A kill between the snapshot and its log, and before old files went.
	between := t.TempDir()
	write := func(path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(snapshotName(between, files.snapshots[0]), snapshot)
	write(logName(between, 0), []byte("an old log that does not matter any more"))
	write(filepath.Join(between, "00000000000000000099.snapshot.tmp"), snapshot[:10])
	s2 := openStore(t, between)
	if n := s2.tree.nodes["/a"]; n == nil || len(n.data) != 100_000 {
		t.Error("the snapshot was not read")
	}
	if _, err := os.Stat(logName(between, 0)); !os.IsNotExist(err) {
		t.Error("the old log is still there")
	}

	if s = openStore(t, dir); dump(s) != want {
		t.Errorf("opened again\n%s, want\n%s", dump(s)[:100], want[:100])
	}
	_ = s.Close()
	snapshot[len(snapshot)/2] ^= 1
	write(snapshotName(dir, files.snapshots[0]), snapshot)
	var corruption *CorruptionError
	if _, _, err := OpenEmbedded(dir); !errors.As(err, &corruption) {
		t.Errorf("%v", err)
	}
}

// badLog is a log whose next writes or syncs fail.
type badLog struct {
	logFile
	writeErr, syncErr error
	partial           int
}

func (l *badLog) Write(p []byte) (int, error) {
	if l.writeErr == nil {
		return l.logFile.Write(p)
	}
	n, _ := l.logFile.Write(p[:l.partial])
	return n, l.writeErr
}

func (l *badLog) Sync() error {
	if l.syncErr != nil {
		return l.syncErr
	}
	return l.logFile.Sync()
}

func openBad(t *testing.T, dir string) (*Embedded, *badLog) {
	t.Helper()
	bad := &badLog{}
	s, _, err := openEmbedded(dir, func(path string) (logFile, error) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		bad.logFile = f
		return bad, err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, bad
}

func TestStoreGoesOnAfterAFullDisk(t *testing.T) {
	dir := t.TempDir()
	s, bad := openBad(t, dir)
	txn(t, s, Create("/a", nil))
	before := dump(s)
	bad.writeErr, bad.partial = syscall.ENOSPC, 11
	if err := s.Txn(t.Context(), Create("/b", nil)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if dump(s) != before {
		t.Error("the refused transaction is seen")
	}
	bad.writeErr = nil
	txn(t, s, Create("/c", nil))
	want := dump(s)
	_ = s.Close()
	if s := openStore(t, dir); dump(s) != want {
		t.Errorf("%s, want %s", dump(s), want)
	}
}

func TestStoreIsBrokenByAFailedSync(t *testing.T) {
	s, bad := openBad(t, t.TempDir())
	bad.syncErr = syscall.EIO
	if err := s.Txn(t.Context(), Create("/a", nil)); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
	bad.syncErr = nil
	if err := s.Txn(context.Background(), Create("/b", nil)); err == nil {
		t.Error("written after a failed sync")
	}
}

// FuzzDecode reads what the store keeps on disk: transactions and snapshots.
func FuzzDecode(f *testing.F) {
	f.Add(false, encodeTxn(7, 1, []Op{Create("/a", []byte("x")), Check("/", 3)})[frameHeaderBytes:])
	f.Add(true, encodeSnapshot(newTree()))
	f.Fuzz(func(_ *testing.T, snapshot bool, payload []byte) {
		if snapshot {
			_, _ = decodeSnapshot(payload)
		} else {
			_, _, _, _ = decodeTxn(payload)
		}
	})
}
