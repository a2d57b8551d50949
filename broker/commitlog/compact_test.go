package commitlog

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/sluice-io/sluice/internal/record"
)

// keyedRecord is a record of a compacted log; an empty value is a tombstone.
type keyedRecord struct {
	offset     int64
	key, value string
	pid        int64
	sequence   int32 // of its batch's last record
	appended   time.Time
	timestamp  int64
}

// compactModel is everything that was appended to a compacted log.
type compactModel struct {
	fs      *memFS
	log     *Log
	cfg     Config
	now     time.Time
	all     []keyedRecord // the one with offset i at i
	start   int64
	synced  int64
	point   int64
	stored  int64 // the stored start
	cleaned int64 // the stored end of compaction
	// dirty is the offset from which on nothing can have been compacted.
	dirty  int64
	serial int
	skew   int64 // of timestamps against the clock, in ms
}

func (m *compactModel) end() int64 { return int64(len(m.all)) }

func (m *compactModel) open(t testing.TB, clean bool) Recovery {
	t.Helper()
	l, rec, err := Open(m.fs, scriptDir, m.cfg, OpenOptions{RecoveryPoint: m.point, LogStart: m.stored, CleanedTo: m.cleaned, Clean: clean, Now: m.now})
	if err != nil {
		t.Fatal(err)
	}
	m.log = l
	return rec
}

// appendBatch appends records of the given keys; a key in capitals gets no value.
func (m *compactModel) appendBatch(t testing.TB, pid int64, codec record.Codec, keys ...string) error {
	t.Helper()
	opts := record.BuildOptions{ProducerID: pid, Codec: codec, Idempotent: pid >= 0}
	if pid >= 0 {
		if last, ok := m.lastSequence(pid); ok {
			opts.BaseSequence = last + 1
		}
	}
	var words []string
	var records []keyedRecord
	for i, k := range keys {
		r := keyedRecord{offset: m.end() + int64(i), key: strings.ToLower(k), pid: pid, appended: m.now, timestamp: m.now.UnixMilli() + m.skew}
		r.sequence = opts.BaseSequence + int32(len(keys)) - 1
		if k == r.key {
			r.value = fmt.Sprint(m.serial)
			m.serial++
		}
		words = append(words, r.key+"="+r.value)
		records = append(records, r)
	}
	out, err := m.log.Append(buildKeyed(t, opts, m.now.UnixMilli()+m.skew, words...), 0, m.now)
	if err != nil {
		return err
	}
	if out.First != m.end() || out.Duplicate {
		t.Fatalf("append at %d: %+v", m.end(), out)
	}
	m.all = append(m.all, records...)
	return nil
}

func (m *compactModel) lastSequence(pid int64) (int32, bool) {
	for i := len(m.all) - 1; i >= 0; i-- {
		if m.all[i].pid == pid {
			return m.all[i].sequence, true
		}
	}
	return 0, false
}

// lost forgets the records from an offset on.
func (m *compactModel) lost(end int64) {
	m.all = m.all[:end]
	m.synced, m.start, m.stored = min(m.synced, end), min(m.start, end), min(m.stored, end)
	m.cleaned = min(m.cleaned, end)
}

// check reads the log and compares: nothing is there that was not appended,
// nothing twice, the newest record of each key is there, and all that was not
// compacted. A tombstone may be gone when its time has come, and then so is
// everything before it.
func (m *compactModel) check(t testing.TB) {
	t.Helper()
	if m.log.StartOffset() != m.start || m.log.EndOffset() != m.end() {
		t.Fatalf("log has %d-%d, want %d-%d", m.log.StartOffset(), m.log.EndOffset(), m.start, m.end())
	}
	got := m.read(t)
	m.checkTimes(t, got)
	gone := map[string]bool{} // keys whose newest record is not there
	for i := m.end() - 1; i >= m.start; i-- {
		r := m.all[i]
		value, there := got[i]
		newer := gone[r.key] || m.newer(r)
		switch {
		case there && value != r.value:
			t.Fatalf("offset %d has %q, want %q", i, value, r.value)
		case there && gone[r.key]:
			t.Fatalf("offset %d of key %s is there, its tombstone is gone", i, r.key)
		case there || newer && i < m.dirty:
		case i >= m.dirty:
			t.Fatalf("offset %d is gone although it was not compacted", i)
		case r.value != "":
			t.Fatalf("offset %d, the newest of key %s, is gone", i, r.key)
		case m.now.Sub(r.appended) < m.cfg.TombstoneRetention:
			t.Fatalf("tombstone %d is gone too early", i)
		default:
			gone[r.key] = true
		}
		delete(got, i)
	}
	if len(got) > 0 {
		t.Fatalf("more than was appended: %v", got)
	}
	m.checkProducers(t)
}

// checkTimes looks for timestamps among the records that are there.
func (m *compactModel) checkTimes(t testing.TB, got map[int64]string) {
	t.Helper()
	newest, newestAt := int64(-1), noOffset
	first := map[int64]int64{} // by timestamp asked for
	asked := []int64{0, testTime.UnixMilli() + 500, m.now.UnixMilli() - 700, m.now.UnixMilli() - 100, m.now.UnixMilli() + 1000}
	for i := m.start; i < m.end(); i++ {
		if _, there := got[i]; !there {
			continue
		}
		ts := m.all[i].timestamp
		if ts > newest {
			newest, newestAt = ts, i
		}
		for _, ms := range asked {
			if _, found := first[ms]; !found && ts >= ms {
				first[ms] = i
			}
		}
	}
	for _, ms := range asked {
		want, some := first[ms]
		offset, _, _, ok, err := m.log.OffsetForTimestamp(ms, m.end())
		if err != nil || ok != some || ok && offset != want {
			t.Fatalf("timestamp %d: offset %d %v %v, want %d %v", ms, offset, ok, err, want, some)
		}
	}
	offset, ts, _, ok, err := m.log.MaxTimestamp(m.end())
	if err != nil || ok != (newestAt >= 0) || ok && (ts != newest || m.all[offset].timestamp != newest || got[offset] != m.all[offset].value) {
		t.Fatalf("largest timestamp %d at %d %v %v, want %d at %d", ts, offset, ok, err, newest, newestAt)
	}
}

func (m *compactModel) newer(r keyedRecord) bool {
	for _, other := range m.all[r.offset+1:] {
		if other.key == r.key {
			return true
		}
	}
	return false
}

// read is what a consumer sees from the start to the end.
func (m *compactModel) read(t testing.TB) map[int64]string {
	t.Helper()
	got := map[int64]string{}
	for offset := m.start; offset < m.end(); {
		region, err := m.log.Read(offset, 200, m.end(), true)
		if err != nil {
			t.Fatal(err)
		}
		if region.Len == 0 {
			t.Fatalf("a consumer is stuck at offset %d of %d", offset, m.end())
		}
		data := make([]byte, region.Len)
		if _, err := region.File.ReadAt(data, region.Pos); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		region.Release()
		for len(data) > 0 {
			b, rest, err := record.Next(data)
			if err != nil || b.CheckCRC() != nil || b.LastOffset() < offset {
				t.Fatalf("batch %d-%d at offset %d: %v", b.BaseOffset(), b.LastOffset(), offset, err)
			}
			err = b.Each(nil, func(r *record.Record) error {
				if _, twice := got[r.Offset]; twice {
					return fmt.Errorf("offset %d twice", r.Offset)
				}
				if r.Offset >= m.start {
					got[r.Offset] = string(r.Value)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			offset, data = b.LastOffset()+1, rest
		}
	}
	return got
}

// checkProducers compares the last sequence of each producer.
func (m *compactModel) checkProducers(t testing.TB) {
	t.Helper()
	known := map[int64]int32{}
	for _, p := range m.log.ActiveProducers() {
		known[p.ProducerID] = p.LastSequence
	}
	for _, r := range m.all {
		if want, ok := m.lastSequence(r.pid); r.pid >= 0 && ok && known[r.pid] != want {
			t.Fatalf("producer %d: last sequence %d, want %d", r.pid, known[r.pid], want)
		}
	}
}

func newCompactModel(t testing.TB, cfg Config) *compactModel {
	t.Helper()
	m := &compactModel{fs: newMemFS(vfs.NewCrashableMem()), cfg: cfg, now: testTime}
	if err := errors.Join(m.fs.MkdirAll("/data"), SyncDir(m.fs, "/")); err != nil {
		t.Fatal(err)
	}
	m.open(t, true)
	return m
}

// makeCompactable is a log of several groups of segments, compacted once, with
// tombstones whose time has come, and more that is to be compacted.
func makeCompactable(t testing.TB) *compactModel {
	t.Helper()
	m := newCompactModel(t, Config{SegmentBytes: 400, IndexIntervalBytes: 60, Compact: true, TombstoneRetention: time.Second, DeleteDelay: -1})
	fill := func(rounds int) {
		for i := range rounds {
			for _, err := range []error{
				m.appendBatch(t, -1, record.None, fmt.Sprint("k", i%5), "x"),
				m.appendBatch(t, int64(i%3), record.LZ4, "x", fmt.Sprint("k", i%7)),
				m.appendBatch(t, -1, record.None, fmt.Sprint("K", i%4), "y"),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := m.log.Flush(); err != nil {
			t.Fatal(err)
		}
		m.synced = m.end()
	}
	fill(8)
	out, err := NewCleaner(CleanerConfig{}).Clean(m.log, m.end(), m.now)
	if err != nil {
		t.Fatal(err)
	}
	m.dirty, m.cleaned = out.To, out.To
	if _, err := m.log.RemoveDeleted(m.now); err != nil {
		t.Fatal(err)
	}
	m.now = m.now.Add(2 * time.Second)
	fill(6)
	m.check(t)
	c, err := m.log.Cleanable(m.end(), m.now)
	if err != nil {
		t.Fatal(err)
	}
	m.dirty = c.To
	return m
}

// after is the model of what a crash left on a file system.
func (m *compactModel) after(fs *memFS) *compactModel {
	c := *m
	c.fs, c.all = fs, append([]keyedRecord(nil), m.all...)
	return &c
}

// TestCompactionCrashedAtEveryStep cuts the power before each operation of a
// compaction and keeps nothing, half or all of what was not synced: no newest
// record is lost, none is there twice, and the next compaction goes well.
func TestCompactionCrashedAtEveryStep(t *testing.T) {
	m := makeCompactable(t)
	var crashed []*memFS
	m.fs.faults.before = func() error {
		for i, percent := range []int{0, 50, 100} {
			crashed = append(crashed, m.fs.crash(percent, uint64(len(crashed)+i)))
		}
		return nil
	}
	out, err := NewCleaner(CleanerConfig{}).Clean(m.log, m.end(), m.now)
	m.fs.faults.clear()
	if err != nil || out.SegmentsBefore < 6 || out.SegmentsAfter >= out.SegmentsBefore {
		t.Fatalf("%+v, %v", out, err)
	}
	m.check(t)
	for i, fs := range crashed {
		// All is checked, or what was synced trusted.
		c := m.after(fs)
		c.point = []int64{0, m.synced}[i%2]
		c.reopen(t, fmt.Sprintf("crash %d of %d", i, len(crashed)))
	}
	t.Logf("%d crashes, %+v", len(crashed), out)
}

func (m *compactModel) reopen(t *testing.T, what string) {
	t.Helper()
	if rec := m.open(t, false); rec.CutBytes > 0 {
		t.Fatalf("%s: %+v", what, rec)
	}
	m.check(t)
	if _, err := NewCleaner(CleanerConfig{}).Clean(m.log, m.end(), m.now); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	m.check(t)
	if m.log.Abort(); m.open(t, false).CutBytes > 0 {
		t.Fatalf("%s: cut after the next compaction", what)
	}
	m.check(t)
	m.log.Abort()
}

// TestCompactionFailsAtEveryStep makes each operation of a compaction fail: the
// log goes on as it was, or is offline and comes back by opening it again.
func TestCompactionFailsAtEveryStep(t *testing.T) {
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
		for step := 0; ; step++ {
			m := makeCompactable(t)
			n := 0
			m.fs.faults.before = func() error {
				if n++; n == step+1 {
					return cause
				}
				return nil
			}
			_, err := NewCleaner(CleanerConfig{}).Clean(m.log, m.end(), m.now)
			m.fs.faults.clear()
			if err == nil && n <= step {
				t.Logf("%v: %d steps", cause, step)
				break
			}
			// That the snapshot cannot be read is made good.
			if err != nil && !errors.Is(err, cause) {
				t.Fatalf("step %d: %v", step, err)
			}
			if m.log.Err() == nil {
				m.check(t)
				if err := m.appendBatch(t, -1, record.None, "more"); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				m.check(t)
				m.checkNoLeftOvers(t)
			}
			m.log.Abort()
			m.reopen(t, fmt.Sprint("step ", step))
		}
	}
}

// checkNoLeftOvers wants no file of an unfinished compaction.
func (m *compactModel) checkNoLeftOvers(t *testing.T) {
	t.Helper()
	entries, err := m.fs.List(scriptDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name, cleanedSuffix) || strings.HasSuffix(e.Name, swapSuffix) {
			t.Fatalf("%s is left", e.Name)
		}
	}
}

// TestCompactionModel runs random steps on a compacted log: appends, compactions
// with little memory, retention, full disks, kills and power cuts, also amid a
// compaction.
func TestCompactionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb := fatalTB{t: t}
		m := newCompactModel(tb, Config{
			SegmentBytes:       rapid.Int64Range(300, 900).Draw(t, "segment bytes"),
			IndexIntervalBytes: rapid.Int64Range(1, 300).Draw(t, "index interval"),
			Compact:            true, TombstoneRetention: time.Duration(rapid.IntRange(0, 3).Draw(t, "tombstones")) * time.Second,
			CompactionLagMin: time.Duration(rapid.IntRange(0, 1).Draw(t, "lag")) * time.Second,
			DeleteDelay:      time.Duration(rapid.IntRange(-1, 1).Draw(t, "delay")) * time.Second,
		})
		key := rapid.SampledFrom(strings.Split("a b c d e f A B C aa bb AA", " "))
		appendSome := func(t *rapid.T) {
			keys := rapid.SliceOfN(key, 1, 5).Draw(t, "keys")
			m.skew = rapid.Int64Range(-1000, 1000).Draw(t, "skew")
			codec := record.Codec(rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "codec"))
			if err := m.appendBatch(tb, rapid.Int64Range(-1, 2).Draw(t, "producer"), codec, keys...); err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"append":  appendSome,
			"append2": appendSome,
			"append3": appendSome,
			"flush": func(t *rapid.T) {
				if _, err := m.log.Flush(); err != nil {
					t.Fatal(err)
				}
				m.synced = m.end()
			},
			"clean":  m.clean,
			"clean2": m.clean,
			"checkpoint": func(t *rapid.T) {
				point, err := m.log.Checkpoint()
				if err != nil {
					t.Fatal(err)
				}
				m.point, m.stored, m.cleaned = point, m.start, m.log.CleanedTo()
			},
			"later": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"start": func(t *rapid.T) {
				m.start = rapid.Int64Range(m.start, max(m.start, m.synced)).Draw(t, "start")
				if err := m.log.SetStartOffset(m.start); err != nil {
					t.Fatal(err)
				}
			},
			"retain":      m.retain,
			"close":       m.closeReopen,
			"kill":        func(t *rapid.T) { m.crash(t, nil) },
			"crash":       func(t *rapid.T) { m.crash(t, m.powerCut(t)) },
			"crash clean": m.crashClean,
			"full clean":  m.fullClean,
			"":            func(*rapid.T) { m.check(tb) },
		})
		m.log.Abort()
	})
}

func (m *compactModel) cleaner(t *rapid.T) *Cleaner {
	keys := rapid.Int64Range(1, 12).Draw(t, "keys in memory")
	return NewCleaner(CleanerConfig{DedupeBytes: (keys*dedupeLoadDen/dedupeLoadNum + 1) * dedupeSlotBytes})
}

// toClean notes what a compaction may change.
func (m *compactModel) toClean(t *rapid.T) (upTo int64) {
	upTo = rapid.Int64Range(m.start, m.end()).Draw(t, "up to")
	c, err := m.log.Cleanable(upTo, m.now)
	if err != nil {
		t.Fatal(err)
	}
	m.dirty = max(m.dirty, c.To)
	return upTo
}

func (m *compactModel) clean(t *rapid.T) {
	upTo := m.toClean(t)
	out, err := m.cleaner(t).Clean(m.log, upTo, m.now)
	if err != nil || out.To != out.From && out.To != m.log.CleanedTo() {
		t.Fatalf("%+v, %v", out, err)
	}
}

func (m *compactModel) retain(t *rapid.T) {
	gone, err := m.log.Retain(m.now, m.synced)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.log.RemoveDeleted(m.now); err != nil {
		t.Fatal(err)
	}
	if len(gone) > 0 {
		m.start = max(m.start, m.log.StartOffset())
	}
}

func (m *compactModel) closeReopen(t *rapid.T) {
	if err := m.log.Close(); err != nil {
		t.Fatal(err)
	}
	m.point, m.stored, m.synced, m.cleaned = m.end(), m.start, m.end(), m.log.CleanedTo()
	if rapid.Bool().Draw(t, "power cut after the stop") {
		m.fs = m.fs.crash(0, 1)
	}
	if rec := m.open(fatalTB{t: t}, true); !rec.Clean {
		t.Fatalf("not clean: %+v", rec)
	}
}

func (m *compactModel) powerCut(t *rapid.T) *memFS {
	return m.fs.crash(rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "percent kept"), rapid.Uint64().Draw(t, "seed"))
}

// crash opens what a kill, or on fs a power cut, has left.
func (m *compactModel) crash(t *rapid.T, fs *memFS) {
	m.log.Abort()
	if fs != nil {
		m.fs = fs
	}
	start := m.start
	rec := m.open(fatalTB{t: t}, false)
	end := m.log.EndOffset()
	if end < m.synced || end > m.end() || fs == nil && rec.CutBytes > 0 {
		t.Fatalf("synced to %d, ended at %d, came back with %d: %+v", m.synced, m.end(), end, rec)
	}
	m.lost(end)
	m.synced = end
	// A start that was not stored may be an earlier one.
	if m.start = m.log.StartOffset(); m.start > start {
		t.Fatalf("started at %d, now at %d", start, m.start)
	}
}

func (m *compactModel) crashClean(t *rapid.T) {
	upTo := m.toClean(t)
	at := rapid.IntRange(0, 60).Draw(t, "crash at step")
	percent, seed := rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "percent kept"), rapid.Uint64().Draw(t, "seed")
	var crashed *memFS
	m.fs.faults.before = func() error {
		if at--; at < 0 && crashed == nil {
			crashed = m.fs.crash(percent, seed)
		}
		return nil
	}
	if _, err := m.cleaner(t).Clean(m.log, upTo, m.now); err != nil {
		t.Fatal(err)
	}
	m.fs.faults.clear()
	if crashed == nil {
		crashed = m.fs.crash(percent, seed)
	}
	m.crash(t, crashed)
}

func (m *compactModel) fullClean(t *rapid.T) {
	upTo := m.toClean(t)
	f := m.fs.faults
	f.limited, f.spaceBytes = true, rapid.IntRange(0, 1500).Draw(t, "space")
	_, err := m.cleaner(t).Clean(m.log, upTo, m.now)
	f.clear()
	if err != nil && !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
}
