package commitlog

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sluice-io/sluice/internal/record"
)

// tornLog is a log with a recovery point, as files, and what it holds.
type tornLog struct {
	files  map[string][]byte
	cfg    Config
	point  int64    // recovery point
	values []string // of every offset
	ends   []tornEnd
}

// tornEnd is where a batch ends: in which file, at which byte and offset.
type tornEnd struct {
	file   string
	pos    int
	offset int64 // the one after its last record
}

// makeTornLog appends, flushes and checkpoints, and appends more over several
// segments and leader epochs.
func makeTornLog(t testing.TB) *tornLog {
	t.Helper()
	dir := t.TempDir() + "/t-0"
	torn := &tornLog{files: make(map[string][]byte), cfg: Config{SegmentBytes: 420, IndexIntervalBytes: 100}}
	l, _ := openTest(t, dir, torn.cfg, OpenOptions{})
	for i := 0; i < 16; i++ {
		opts := record.BuildOptions{Idempotent: true, ProducerID: 5, BaseSequence: int32(2 * i)}
		if i == 7 {
			opts.Codec = record.Zstd
		}
		values := []string{fmt.Sprint("v", 2*i), fmt.Sprint("v", 2*i+1)}
		out, err := l.Append(buildBatch(t, opts, int64(1000+i), values...), int32(i/6), testTime)
		if err != nil {
			t.Fatal(err)
		}
		torn.values = append(torn.values, values...)
		segments := l.Segments()
		last := segments[len(segments)-1]
		torn.ends = append(torn.ends, tornEnd{fileName(last.BaseOffset, logSuffix), int(last.Bytes), out.Last + 1})
		if i == 6 {
			if _, err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			if torn.point, err = l.Checkpoint(); err != nil || torn.point != 14 {
				t.Fatal(torn.point, err)
			}
		}
	}
	l.Abort()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if torn.files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return torn
}

// endAt is the end offset of a log that is good up to a byte of a file.
func (torn *tornLog) endAt(file string, pos int) (end int64) {
	for _, e := range torn.ends {
		if e.file < file || e.file == file && e.pos <= pos {
			end = e.offset
		}
	}
	return end
}

// damaged writes the files, one of them changed, and opens the log.
func (torn *tornLog) damaged(t *testing.T, name string, data []byte) (*Log, Recovery, *memFS) {
	t.Helper()
	fs := newMemFS(vfs.NewMem())
	dir := "/data/t-0"
	if err := fs.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	for file, content := range torn.files {
		if file == name {
			content = data
		}
		if err := writeUnsynced(fs, filepath.Join(dir, file), content); err != nil {
			t.Fatal(err)
		}
	}
	l, rec, err := Open(fs, dir, torn.cfg, OpenOptions{RecoveryPoint: torn.point, Now: testTime})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return l, rec, fs
}

// check says whether the log serves everything up to end, reports the cut and
// goes on.
func (torn *tornLog) check(t *testing.T, l *Log, rec Recovery, end int64) {
	t.Helper()
	if l.EndOffset() != end || l.SyncedOffset() != end {
		t.Fatalf("ends at %d, synced to %d, want %d: %+v", l.EndOffset(), l.SyncedOffset(), end, rec)
	}
	if all := int64(len(torn.values)); end < all && (rec.CutBytes <= 0 || rec.CutOffset != end || rec.CutReason == "") {
		t.Fatalf("the cut at %d of %d is not reported: %+v", end, all, rec)
	}
	var want []string
	for i, v := range torn.values[:end] {
		want = append(want, fmt.Sprintf("%d:%s", i, v))
	}
	if got := readValues(t, l, 0); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v", got)
	}
	next := buildBatch(t, record.BuildOptions{Idempotent: true, ProducerID: 5, BaseSequence: int32(end)}, 5000, "next")
	if out, err := l.Append(next, 9, testTime); err != nil || out.First != end {
		t.Fatalf("append after recovery: %+v, %v", out, err)
	}
}

// pastRecoveryPoint calls fn for each byte of the data files from the recovery
// point on.
func (torn *tornLog) pastRecoveryPoint(fn func(file string, pos int)) {
	var from tornEnd
	for _, e := range torn.ends {
		if e.offset == torn.point {
			from = e
		}
	}
	for file, data := range torn.files {
		if filepath.Ext(file) != logSuffix || file < from.file {
			continue
		}
		pos := 0
		if file == from.file {
			pos = from.pos
		}
		for ; pos < len(data); pos++ {
			fn(file, pos)
		}
	}
}

// TestTruncatedAtEveryByte cuts each data file at each byte past the recovery
// point: everything before is served, and the cut is reported.
func TestTruncatedAtEveryByte(t *testing.T) {
	torn := makeTornLog(t)
	n := 0
	torn.pastRecoveryPoint(func(file string, pos int) {
		l, rec, _ := torn.damaged(t, file, torn.files[file][:pos])
		// A cut at a batch's end leaves nothing torn when nothing follows.
		end := torn.endAt(file, pos)
		if rec.CutBytes == 0 && pos == torn.posOf(file, end) && file == torn.ends[len(torn.ends)-1].file {
			rec.CutBytes, rec.CutOffset, rec.CutReason = 1, end, "nothing to see"
		}
		torn.check(t, l, rec, end)
		l.Abort()
		n++
	})
	t.Logf("%d cuts", n)
}

func (torn *tornLog) posOf(file string, offset int64) int {
	for _, e := range torn.ends {
		if e.file == file && e.offset == offset {
			return e.pos
		}
	}
	return 0
}

// TestFlippedEveryByte flips all bits, and one bit, of each byte past the
// recovery point: everything before its batch is served, and the cut is reported.
func TestFlippedEveryByte(t *testing.T) {
	torn := makeTornLog(t)
	n := 0
	torn.pastRecoveryPoint(func(file string, pos int) {
		for _, mask := range []byte{0xff, 1 << (pos % 8)} {
			data := append([]byte(nil), torn.files[file]...)
			data[pos] ^= mask
			l, rec, _ := torn.damaged(t, file, data)
			torn.check(t, l, rec, torn.endAt(file, pos))
			l.Abort()
			n++
		}
	})
	t.Logf("%d flips", n)
}

// TestDamagedIndexes cuts and flips every byte of every index, snapshot and
// epoch file: nothing of the log is lost, and nothing wrong is served.
func TestDamagedIndexes(t *testing.T) {
	torn := makeTornLog(t)
	for file, good := range torn.files {
		if filepath.Ext(file) == logSuffix {
			continue
		}
		for pos := range good {
			flipped := append([]byte(nil), good...)
			flipped[pos] ^= 0xff
			for _, data := range [][]byte{good[:pos], flipped} {
				if file == LeaderEpochFile && len(data) == len(good) {
					continue // digits that say another epoch: not told from damage to the batches
				}
				l, rec, _ := torn.damaged(t, file, data)
				torn.check(t, l, rec, int64(len(torn.values)))
				for offset := range torn.values {
					if got := readValues(t, l, int64(offset)); len(got) != len(torn.values)+1-offset {
						t.Fatalf("%s at %d: %d values from offset %d", file, pos, len(got), offset)
					}
				}
				l.Abort()
			}
		}
	}
}
