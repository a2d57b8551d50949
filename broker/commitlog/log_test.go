package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sluice-io/sluice/internal/record"
)

var testTime = time.UnixMilli(1_800_000_000_000)

// buildBatch is a batch of records whose values are given.
func buildBatch(t testing.TB, opts record.BuildOptions, timestamp int64, values ...string) []byte {
	t.Helper()
	var b record.Builder
	for _, v := range values {
		b.Append(timestamp, nil, []byte(v), nil)
	}
	batch, err := b.Build(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// readValues reads every record from an offset to the log's end.
func readValues(t testing.TB, l *Log, offset int64) (values []string) {
	t.Helper()
	for offset < l.EndOffset() {
		r, err := l.Read(offset, 1<<20, l.EndOffset(), true)
		if err != nil {
			t.Fatal(err)
		}
		if r.Len == 0 {
			t.Fatalf("empty region at offset %d of %d", offset, l.EndOffset())
		}
		data := make([]byte, r.Len)
		if _, err := r.File.ReadAt(data, r.Pos); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		r.Release()
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.CheckCRC(); err != nil {
				t.Fatal(err)
			}
			if err := b.Each(nil, func(r *record.Record) error {
				if r.Offset >= offset {
					values = append(values, fmt.Sprintf("%d:%s", r.Offset, r.Value))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			offset, data = b.LastOffset()+1, rest
		}
	}
	return values
}

func openTest(t testing.TB, dir string, cfg Config, opt OpenOptions) (*Log, Recovery) {
	t.Helper()
	opt.Now = testTime
	l, rec, err := Open(OSFS{}, dir, cfg, opt)
	if err != nil {
		t.Fatal(err)
	}
	return l, rec
}

func TestAppendReadReopen(t *testing.T) {
	dir := t.TempDir() + "/t-0"
	cfg := Config{SegmentBytes: 2000, IndexIntervalBytes: 200}
	l, _ := openTest(t, dir, cfg, OpenOptions{})
	var want []string
	for i := 0; i < 100; i++ {
		batch := buildBatch(t, record.BuildOptions{}, testTime.UnixMilli()+int64(i), fmt.Sprint("a", i), fmt.Sprint("b", i))
		got, err := l.Append(batch, 0, testTime)
		if err != nil {
			t.Fatal(err)
		}
		if got.First != int64(2*i) || got.Last != int64(2*i+1) {
			t.Fatalf("append %d went to %d-%d", i, got.First, got.Last)
		}
		want = append(want, fmt.Sprintf("%d:a%d", 2*i, i), fmt.Sprintf("%d:b%d", 2*i+1, i))
	}
	check := func(l *Log) {
		t.Helper()
		for _, from := range []int64{0, 1, 57, 100, 199} {
			if got := readValues(t, l, from); fmt.Sprint(got) != fmt.Sprint(want[from:]) {
				t.Fatalf("from %d: got %v\nwant %v", from, got, want[from:])
			}
		}
	}
	check(l)
	if n := len(l.Segments()); n < 5 {
		t.Fatalf("%d segments", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, rec := openTest(t, dir, cfg, OpenOptions{Clean: true, RecoveryPoint: 200})
	if !rec.Clean || l.EndOffset() != 200 || l.SyncedOffset() != 200 {
		t.Fatalf("%+v end %d synced %d", rec, l.EndOffset(), l.SyncedOffset())
	}
	check(l)
	l.Abort()
	for _, point := range []int64{0, 1, 77, 180, 200} {
		l, rec = openTest(t, dir, cfg, OpenOptions{RecoveryPoint: point})
		if rec.Clean || rec.CutBytes != 0 || l.EndOffset() != 200 || l.SyncedOffset() != 200 {
			t.Fatalf("%+v end %d", rec, l.EndOffset())
		}
		check(l)
		l.Abort()
	}
}

func TestReadBounds(t *testing.T) {
	l, _ := openTest(t, t.TempDir()+"/t-0", Config{IndexIntervalBytes: 1}, OpenOptions{})
	var size int
	for i := 0; i < 10; i++ {
		batch := buildBatch(t, record.BuildOptions{}, 1, "0123456789", "x")
		size = len(batch)
		if _, err := l.Append(batch, 3, testTime); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		offset     int64
		maxBytes   int
		upTo       int64
		atLeastOne bool
		pos        int64
		batches    int
	}{
		{0, 1 << 20, 20, true, 0, 10},
		{0, 1 << 20, 99, true, 0, 10},
		{0, 1 << 20, 10, true, 0, 5},
		{0, 1 << 20, 11, true, 0, 5}, // half a batch is none
		{0, 1 << 20, 1, true, 0, 0},
		{5, 1 << 20, 20, true, 2, 8},
		{4, 3 * size, 20, true, 2, 3},
		{4, 3*size + 1, 20, true, 2, 3},
		{4, 3*size - 1, 20, true, 2, 2},
		{4, 1, 20, true, 2, 1},
		{4, 1, 20, false, 2, 0},
		{4, 0, 20, false, 2, 0},
		{19, 1, 20, true, 9, 1},
		{20, 100, 20, true, 0, 0},
		{20, 100, 30, true, 0, 0},
		{15, 100, 10, true, 0, 0},
	} {
		r, err := l.Read(tc.offset, tc.maxBytes, tc.upTo, tc.atLeastOne)
		if err != nil {
			t.Fatalf("%+v: %v", tc, err)
		}
		if r.Len != tc.batches*size || r.Len > 0 && r.Pos != tc.pos*int64(size) {
			t.Errorf("%+v: got pos %d len %d with batches of %d", tc, r.Pos, r.Len, size)
		}
		r.Release()
	}
	for _, offset := range []int64{-1, 21} {
		if _, err := l.Read(offset, 1, 100, true); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
}

func TestTimestampsOutOfOrder(t *testing.T) {
	l, _ := openTest(t, t.TempDir()+"/t-0", Config{SegmentBytes: 700, IndexIntervalBytes: 100}, OpenOptions{})
	stamps := []int64{50, 40, 60, 10, 70, 70, 20, 90, 30, 80, 5, 100, 95}
	for i, ts := range stamps {
		batch := buildBatch(t, record.BuildOptions{}, ts, fmt.Sprint(i))
		if _, err := l.Append(batch, 0, testTime); err != nil {
			t.Fatal(err)
		}
	}
	for ms := int64(0); ms < 110; ms++ {
		want := int64(-1)
		for i, ts := range stamps {
			if ts >= ms {
				want = int64(i)
				break
			}
		}
		offset, ts, _, ok, err := l.OffsetForTimestamp(ms, l.EndOffset())
		if err != nil || ok != (want >= 0) || offset != want || ok && ts != stamps[want] {
			t.Errorf("%d: got %d at %d, %v %v, want %d", ms, offset, ts, ok, err, want)
		}
	}
	for upTo := int64(1); upTo <= int64(len(stamps)); upTo++ {
		want := 0
		for i, ts := range stamps[:upTo] {
			if ts > stamps[want] {
				want = i
			}
		}
		offset, ts, _, ok, err := l.MaxTimestamp(upTo)
		if err != nil || !ok || offset != int64(want) || ts != stamps[want] {
			t.Errorf("up to %d: got %d at %d, %v %v, want %d", upTo, offset, ts, ok, err, want)
		}
	}
}

func TestFlushAndRetain(t *testing.T) {
	dir := t.TempDir() + "/t-0"
	cfg := Config{SegmentBytes: 300, RetentionBytes: 600, DeleteDelay: time.Second}
	l, _ := openTest(t, dir, cfg, OpenOptions{})
	for i := 0; i < 30; i++ {
		if _, err := l.Append(buildBatch(t, record.BuildOptions{}, 1, fmt.Sprint(i)), 0, testTime); err != nil {
			t.Fatal(err)
		}
	}
	if synced, err := l.Flush(); err != nil || synced != 30 {
		t.Fatal(synced, err)
	}
	region, err := l.Read(0, 1<<20, 30, true)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := l.Retain(testTime, 30)
	if err != nil || len(gone) == 0 {
		t.Fatal(gone, err)
	}
	if l.Size() < 600 || l.StartOffset() != gone[len(gone)-1].EndOffset {
		t.Fatalf("size %d start %d, gone %v", l.Size(), l.StartOffset(), gone)
	}
	if n, err := l.RemoveDeleted(testTime); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	later := testTime.Add(time.Hour)
	if n, err := l.RemoveDeleted(later); n != len(gone)-1 || err != nil {
		t.Fatal(n, len(gone), err) // one is held by the region
	}
	data := make([]byte, region.Len)
	if _, err := region.File.ReadAt(data, region.Pos); err != nil {
		t.Fatal(err)
	}
	region.Release()
	if n, err := l.RemoveDeleted(later); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if b, _, err := record.Next(data); err != nil || b.CheckCRC() != nil || !bytes.Contains(b, []byte("0")) {
		t.Fatal(err)
	}
	if _, err := l.Read(0, 1, 30, true); !errors.Is(err, ErrOffsetOutOfRange) {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// The jitter closes each log's segments at a time of their own, never later than
// segment.ms, and the same one after a restart.
func TestSegmentJitter(t *testing.T) {
	const logs, age, jitter = 20, 100 * time.Second, 50 * time.Second
	closedAt := func() map[string]time.Duration {
		at := map[string]time.Duration{}
		for i := range logs {
			dir := fmt.Sprintf("/logs/t-%d", i)
			fs := newMemFS(vfs.NewMem())
			l, _, err := Open(fs, dir, Config{SegmentAge: age, SegmentJitter: jitter}, OpenOptions{Now: testTime})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Append(buildBatch(t, record.BuildOptions{}, testTime.UnixMilli(), "a"), 0, testTime); err != nil {
				t.Fatal(err)
			}
			for d := time.Duration(0); at[dir] == 0; d += time.Second {
				if rolled, err := l.RollIfDue(testTime.Add(d)); err != nil {
					t.Fatal(err)
				} else if rolled {
					at[dir] = d
				}
			}
			l.Abort()
		}
		return at
	}
	at := closedAt()
	different := map[time.Duration]bool{}
	for dir, d := range at {
		different[d] = true
		if d < age-jitter || d > age+time.Second {
			t.Errorf("%s is closed after %s", dir, d)
		}
	}
	if len(different) < logs/2 {
		t.Errorf("%d logs are closed at %d times", logs, len(different))
	}
	if again := closedAt(); !maps.Equal(at, again) {
		t.Errorf("closed at %v, the next time at %v", at, again)
	}
}
