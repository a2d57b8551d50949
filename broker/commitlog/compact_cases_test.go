package commitlog

import (
	"errors"
	"fmt"
	"runtime"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-io/sluice/internal/record"
)

// batchesOf are the batches of a log, with their records.
func batchesOf(t *testing.T, l *Log) (out []string) {
	t.Helper()
	for offset := l.StartOffset(); offset < l.EndOffset(); {
		r, err := l.Read(offset, 0, l.EndOffset(), true)
		if err != nil || r.Len == 0 {
			t.Fatal(r.Len, err)
		}
		b := make(record.Batch, r.Len)
		if _, err := r.File.ReadAt(b, r.Pos); err != nil {
			t.Fatal(err)
		}
		r.Release()
		line := fmt.Sprintf("%d-%d", b.BaseOffset(), b.LastOffset())
		if err := b.Each(nil, func(r *record.Record) error {
			line += fmt.Sprintf(" %s=%s", r.Key, r.Value)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		out, offset = append(out, line), b.LastOffset()+1
	}
	return out
}

// TestCompactionOfTransactions leaves control batches as they are. Records of
// transactions, which may have been aborted, make no older ones go, and their
// tombstones stay; newer records outside make them go.
func TestCompactionOfTransactions(t *testing.T) {
	l, _ := openTest(t, t.TempDir()+"/t-0", Config{SegmentBytes: 2000, Compact: true, SegmentAge: time.Second}, OpenOptions{})
	add := func(opts record.BuildOptions, words ...string) {
		t.Helper()
		opts.Idempotent = opts.Transactional
		if opts.Transactional {
			opts.ProducerID, opts.BaseSequence = 9, int32(l.EndOffset())
			if known := l.ActiveProducers(); len(known) > 0 {
				opts.BaseSequence = known[0].LastSequence + 1
			}
		}
		if _, err := l.Append(buildKeyed(t, opts, testTime.UnixMilli(), words...), 0, testTime); err != nil {
			t.Fatal(err)
		}
	}
	tx, marker := record.BuildOptions{Transactional: true}, record.BuildOptions{Transactional: true, Control: true}
	add(record.BuildOptions{}, "a=1", "b=1", "c=1", "d=1")
	add(tx, "a=2", "b=", "c=2")
	add(marker, "abort=1")
	add(record.BuildOptions{}, "c=3", "d=")
	add(marker, "abort=1")
	add(tx, "e=1")
	if rolled, err := l.RollIfDue(testTime.Add(2 * time.Second)); !rolled || err != nil {
		t.Fatal(rolled, err)
	}
	if _, err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		now := testTime.Add(time.Hour)
		l.mu.Lock()
		l.cleanedTo = 0 // once more from the start
		l.mu.Unlock()
		if _, err := NewCleaner(CleanerConfig{}).Clean(l, l.EndOffset(), now); err != nil {
			t.Fatal(err)
		}
	}
	want := "[0-3 a=1 b=1 4-6 a=2 b= 7-7 abort=1 8-9 c=3 10-10 abort=1 11-11 e=1]"
	if got := fmt.Sprint(batchesOf(t, l)); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

// TestCompactionOfDamage finds a batch that cannot be right: it says so and
// changes nothing.
func TestCompactionOfDamage(t *testing.T) {
	m := makeCompactable(t)
	segment := m.log.Segments()[3]
	path := scriptPath(fmt.Sprint(segment.BaseOffset, ".log"))
	data, err := readFile(m.fs, path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := writeSynced(m.fs, path, data); err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptionError
	if _, err := NewCleaner(CleanerConfig{}).Clean(m.log, m.end(), m.now); !errors.As(err, &corrupt) || corrupt.Path != path {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := writeSynced(m.fs, path, data); err != nil {
		t.Fatal(err)
	}
	m.check(t)
	m.checkNoLeftOvers(t)
}

// TestCompactionStops closes, deletes or truncates a log, or lets retention take
// its segments, while it is compacted.
func TestCompactionStops(t *testing.T) {
	for name, change := range map[string]func(*compactModel) error{
		"close":    func(m *compactModel) error { return m.log.Close() },
		"delete":   func(m *compactModel) error { return m.log.Delete() },
		"truncate": func(m *compactModel) error { return m.log.TruncateTo(45, m.now) },
		"retain": func(m *compactModel) error {
			if err := m.log.SetStartOffset(m.end()); err != nil {
				return err
			}
			_, err := m.log.Retain(m.now, m.end())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := makeCompactable(t)
			changed := make(chan error, 1)
			begun := false
			_, err := NewCleaner(CleanerConfig{Pace: func(int) error {
				if begun {
					return nil
				}
				begun = true
				go func() { changed <- change(m) }()
				if name == "truncate" || name == "retain" {
					err := <-changed
					changed <- err
					return err
				}
				for !m.log.stopCleaning.Load() {
					runtime.Gosched()
				}
				return nil
			}}).Clean(m.log, m.end(), m.now)
			if changeErr := <-changed; changeErr != nil || !errors.Is(err, ErrCleaningStopped) {
				t.Fatalf("%v, %v", changeErr, err)
			}
			if name != "delete" {
				m.checkNoLeftOvers(t)
			}
			if name == "truncate" {
				m.lost(m.log.EndOffset())
				m.check(t)
			}
		})
	}
}

// TestParallelCompaction appends, reads, flushes and looks up times while the
// log is compacted and removed segments go; it is for the race detector too.
func TestParallelCompaction(t *testing.T) {
	const records = 3000
	cfg := Config{SegmentBytes: 4000, IndexIntervalBytes: 200, Compact: true, DeleteDelay: -1}
	l, _ := openTest(t, t.TempDir()+"/t-0", cfg, OpenOptions{Files: NewFileCache(4)})
	done := make(chan struct{})
	var wg sync.WaitGroup
	until := func(fn func() error) {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := fn(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		defer close(done)
		for i := range records {
			if _, err := l.Append(buildKeyed(t, record.BuildOptions{}, int64(i), fmt.Sprintf("k%d=%d", i%37, i)), 0, testTime); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 2 {
		offset := int64(0)
		until(func() (err error) {
			if offset, err = followOnce(l, offset); offset == l.EndOffset() {
				offset = 0
			}
			return err
		})
	}
	until(func() error { _, err := l.Flush(); return err })
	until(func() error { _, err := l.Checkpoint(); return err })
	until(func() error { _, err := l.RemoveDeleted(testTime); return err })
	until(func() error {
		_, _, _, _, err := l.OffsetForTimestamp(l.EndOffset()/2, l.EndOffset())
		return err
	})
	cleaner, rounds := NewCleaner(CleanerConfig{}), 0
	until(func() error {
		out, err := cleaner.Clean(l, l.EndOffset(), testTime)
		if out.To > out.From {
			rounds++
		}
		return err
	})
	wg.Wait()
	newest := map[string]string{}
	for _, b := range batchesOf(t, l) {
		for _, word := range strings.Fields(b)[1:] {
			key, value, _ := strings.Cut(word, "=")
			newest[key] = value
		}
	}
	for i := records - 37; i < records; i++ {
		if key := fmt.Sprint("k", i%37); newest[key] != fmt.Sprint(i) {
			t.Errorf("%s is %s, want %d", key, newest[key], i)
		}
	}
	t.Logf("%d rounds, %d segments, %d bytes", rounds, len(l.Segments()), l.Size())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDedupe fills the map of keys to its limit.
func TestDedupe(t *testing.T) {
	var m offsetMap
	m.reset(1000, 100*dedupeSlotBytes)
	want := map[string]int64{}
	for offset := int64(0); ; offset++ {
		key := fmt.Sprint("key ", offset%83)
		if !m.put([]byte(key), offset) {
			break
		}
		want[key] = offset
	}
	if len(want) != 75 {
		t.Fatalf("%d keys in 100 slots", len(want))
	}
	keys := make([]string, 0, len(want))
	for key := range want {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		if got := m.newest([]byte(key)); got != want[key] {
			t.Fatalf("%s: %d, want %d", key, got, want[key])
		}
	}
	if got := m.newest([]byte("none")); got != noOffset {
		t.Fatal(got)
	}
}
